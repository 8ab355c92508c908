"""`hpc-kit import`: from a script to a job file that renders."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.check.test_job_import import SCRIPTS
from tests.cli.conftest import Kit


def test_a_script_becomes_a_job_file_that_renders(kit: Kit, project: Path) -> None:
    (project / "old.sbatch").write_text(SCRIPTS["torchrun"])
    done = kit("import", "old.sbatch", "-o", "jobs/gpt.toml")
    assert done.returncode == 0, done.stderr
    assert "written jobs/gpt.toml" in done.stdout
    assert "old.sbatch:27: a job file starts one program" in done.stderr
    text = (project / "jobs" / "gpt.toml").read_text()
    assert text.startswith(
        "# Imported from old.sbatch by hpc-kit import.\n# Line 17: WANDB_API_KEY looks like a secret"
    )
    script = kit("render", "gpt", "--cluster", "slurm").stdout
    assert "#SBATCH --gres=gpu:a100:4\n" in script
    assert "--nproc-per-node=4" in script
    again = kit("import", "old.sbatch", "-o", "jobs/gpt.toml")
    assert again.returncode == 2
    assert "jobs/gpt.toml exists" in again.stderr


def test_without_output_the_job_file_is_printed(kit: Kit, project: Path) -> None:
    (project / "old.sbatch").write_text(SCRIPTS["srun"])
    assert "ntasks_per_node = 8" in kit("import", "old.sbatch").stdout
    document = json.loads(kit("import", "old.sbatch", "--json").stdout)
    assert document["job"]["resources"]["nodes"] == 2
    assert {
        "line": 15,
        "text": "srun --cpu-bind=cores has no key: the job starts srun with its own options",
    } in document["notes"]


@pytest.mark.parametrize("name", ["train", "my train"])
def test_a_program_is_no_batch_script(kit: Kit, project: Path, name: str) -> None:
    (project / f"{name}.py").write_text("print(1)\n")
    done = kit("import", f"{name}.py")
    words = shlex.join(["--save", f"jobs/{name}.toml", "--", "python", f"{name}.py"])
    assert (done.returncode, done.stderr) == (
        2,
        (
            f"hpc-kit: '{name}.py' is a program, and no batch script\n"
            f"  do     write its job file: hpc-kit render -j 4x2 {words}\n"
        ),
    )


def test_a_job_file_is_no_batch_script(kit: Kit, project: Path) -> None:
    (project / "t.toml").write_text('command = ["true"]\n')
    done = kit("import", "t.toml")
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        (
            "hpc-kit: 't.toml' is a job file, and no batch script\n"
            "  do     print the script of the job: hpc-kit render t.toml\n"
        ),
    )


def test_the_description_names_the_script(kit: Kit, project: Path) -> None:
    (project / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1\nsrun python train.py\n")
    assert kit("import", "old.sbatch", "-o", "jobs/new.toml").returncode == 0
    lines = (project / "jobs/new.toml").read_text().splitlines()
    assert lines[1:3] == ['name = "new"', 'description = "imported from old.sbatch"']


def test_a_job_that_needs_a_change_is_named(kit: Kit, project: Path) -> None:
    (project / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --ntasks=8\nsrun ./a.out\n")
    done = kit("import", "old.sbatch")
    assert done.returncode == 1
    assert "before it can be rendered: the number of nodes for 8 tasks is missing" in " ".join(done.stderr.split())
    assert kit("import", "missing.sbatch").returncode == 2


def test_equal_notes_are_one_note(kit: Kit, project: Path) -> None:
    (project / "old.sbatch").write_text("#!/bin/bash\n" + "#SBATCH --nodes=2\n" * 20 + "srun python t.py\n")
    done = kit("import", "old.sbatch", COLUMNS="200")
    assert done.returncode == 0
    assert done.stdout.count("replaces") == done.stderr.count("replaces") == 1
    assert "old.sbatch:2: an option that a later line replaces" in done.stderr
    assert "(also 18 later lines)" in done.stderr


def test_a_byte_order_mark_hides_no_directive(kit: Kit, project: Path) -> None:
    (project / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=3\nsrun ./a.out\n", encoding="utf-8-sig")
    assert "nodes = 3" in kit("import", "old.sbatch").stdout


@pytest.mark.parametrize("content", [b"\x7fELF\0\0", "#!/bin/bash\n".encode("utf-16")])
def test_a_file_with_nul_bytes_is_no_script(content: bytes, kit: Kit, project: Path) -> None:
    (project / "old.sbatch").write_bytes(content)
    done = kit("import", "old.sbatch")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "hpc-kit: 'old.sbatch' is no text")
