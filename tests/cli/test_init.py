"""`hpc-kit init`: a project of one's own, whose files come before the shipped ones."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpc_kit.cli import root as hpc_kit
from hpc_kit.errors import RecordError, SpecError
from hpc_kit.script.render import render
from tests.conftest import ROOT


def init(*arguments: str) -> str:
    return CliRunner().invoke(hpc_kit, ["init", *arguments], catch_exceptions=False).output


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_init_with_a_job_copies_its_files_and_nothing_else(tmp_path: Path) -> None:
    project = tmp_path / "mine"
    output = init(str(project), "--job", "hsdp_4node")
    found = list_files(project)
    assert {path for path in found if path.endswith(".toml") and path.startswith("jobs")} == {
        f"jobs/{name}.toml" for name in ("hsdp_4node", "fsdp_4node", "zero3_2node", "zero2_2node", "zero1_2node")
    }
    shared = {f"templates/{path}" for path in list_files(ROOT / "templates") if path.count(".") == 1}
    assert {path for path in found if path.startswith("templates")} == shared | {
        f"templates/{name}.sbatch.j2" for name in ("base", "hybrid")
    }
    assert {"Makefile", "env/local.toml", "env/cluster.schema.json", "jobs/job.schema.json"} <= found
    assert "jobs/train/fsdp.py" in found
    assert "jobs/train/hybrid.py" not in found
    assert output.splitlines()[-1].endswith(f"cd {project} && make submit JOB=hsdp_4node")
    for path in (project / "jobs" / "train").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (ROOT / "jobs" / "train" / f"{node.module}.py").is_file():
                assert f"jobs/train/{node.module}.py" in found


def test_minimal_copies_one_job_and_one_cluster_file(tmp_path: Path) -> None:
    output = init(str(tmp_path / "my project"), "--minimal")
    found = list_files(tmp_path / "my project")
    assert {path for path in found if path.endswith(".toml")} == {"jobs/ddp_1node.toml", "env/example-gpu.toml"}
    assert "jobs/train/ddp.py" in found
    assert not {path for path in found if path.startswith(("templates", "Makefile"))}
    assert output.splitlines()[-1] == f"next    cd '{tmp_path}/my project' && hpc-kit submit ddp_1node"


def test_init_without_a_job_copies_every_job(tmp_path: Path) -> None:
    init(str(tmp_path))
    for kind, pattern in (
        ("jobs", "*.toml"),
        ("jobs/train", "*.py"),
        ("templates", "*.j2"),
        ("templates/launchers", "*.j2"),
        ("templates/shell", "*.sh"),
        ("env", "*.toml"),
    ):
        names = {path.name for path in (ROOT / kind).glob(pattern)}
        assert {path.name for path in (tmp_path / kind).glob(pattern)} == names
    assert not [path for path in list_files(tmp_path) if "__pycache__" in path]


def test_existing_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "single.toml").write_text("# mine\n")
    monkeypatch.chdir(tmp_path)
    output = init("--job", "single")
    assert "kept    jobs/single.toml: yours\n" in output
    assert (tmp_path / "jobs" / "single.toml").read_text() == "# mine\n"
    assert output.splitlines()[-1] == "next    make submit JOB=single"
    assert init("--job", "single").splitlines() == ["kept    jobs/single.toml: yours", "next    make submit JOB=single"]


def test_the_projects_files_come_before_the_shipped_ones(tmp_path: Path) -> None:
    init(str(tmp_path), "--job", "pipeline_2node")
    for kind, name, old, new in (
        ("jobs", "pipeline_1node.toml", 'time = "00:10:00"', 'time = "00:11:00"'),
        ("templates", "pipeline.sbatch.j2", "# Stages send", "# Mine: stages send"),
    ):
        path = tmp_path / kind / name
        path.write_text(path.read_text().replace(old, new))
    script = render("pipeline_2node", "local", root=tmp_path)
    assert "#SBATCH --time=00:11:00\n" in script
    assert "# Mine: stages send" in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("render JOB=single ARGS=--standalone", "render single --standalone"),
        ("status ID=3", "status 3"),
        ("logs JOB=single", "logs single"),
        ("cancel JOB=single ID=3 CLUSTER=mine", "cancel 3 --cluster mine"),
    ],
)
def test_the_makefile_passes_its_arguments_on(words: str, expected: str, tmp_path: Path) -> None:
    init(str(tmp_path), "--job", "single")
    argv = ["make", "-C", str(tmp_path), "-s", *words.split(), "HPC_KIT=echo"]
    own = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKEOVERRIDES", "ARGS"}}
    assert subprocess.run(argv, capture_output=True, text=True, check=True, env=own).stdout.strip() == expected


def test_a_job_that_is_not_shipped_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no shipped job 'nope'(.|\n)*hpc-kit list"):
        init(str(tmp_path), "--job", "nope")
    assert list_files(tmp_path) == set()


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot write"):
        init(str(tmp_path / "file"))


def test_a_removed_current_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    words = f"cd gone && rmdir ../gone && {shlex.quote(sys.executable)} -m hpc_kit init"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "hpc-kit: the current folder is gone")


@pytest.mark.slow
def test_the_copied_program_starts(tmp_path: Path) -> None:
    init(str(tmp_path), "--job", "single")
    done = subprocess.run([sys.executable, "jobs/train/ddp.py", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_partly_written_file_is_not_taken_for_a_file_of_the_user(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hpc_kit", "init", str(tmp_path / "mine"), "--job", "single"]
    full = subprocess.run(
        ["bash", "-c", 'ulimit -f 0; "$@"', "full", *argv], capture_output=True, text=True, timeout=60
    )
    assert (full.returncode, "cannot write" in full.stderr) == (1, True), full.stderr
    assert list_files(tmp_path) == set()
    again = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (again.returncode, "kept" in again.stdout) == (0, False)
    assert (tmp_path / "mine/jobs/single.toml").read_bytes()


SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4\nsrun python train.py\n"


def test_flags_write_a_cluster_file_and_import_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.sbatch").write_text(SCRIPT)
    output = init("--minimal", "--discover", "--import", "old.sbatch")
    assert "written env/default.toml" in output
    assert "ntasks_per_node = 4" in (tmp_path / "jobs" / "old.toml").read_text()
    assert "kept    jobs/old.toml: yours" in init("--minimal", "--import", "old.sbatch")


def test_nothing_is_asked_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.sbatch").write_text(SCRIPT)
    init("--minimal")
    assert not (tmp_path / "env" / "default.toml").exists()
    assert not (tmp_path / "jobs" / "old.toml").exists()


def test_a_terminal_is_asked_about_each_batch_script(tmp_path: Path) -> None:
    (tmp_path / "old.sbatch").write_text(SCRIPT)
    (tmp_path / "other.sh").write_text("echo no batch script\n")
    (tmp_path / "new.slurm").write_text(SCRIPT)
    reader, terminal = os.openpty()
    argv = [sys.executable, "-m", "hpc_kit", "init", "--minimal"]
    with subprocess.Popen(argv, cwd=tmp_path, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.write(reader, b"\nn\n")
        assert process.wait(60) == 0
    shown = os.read(reader, 100_000).decode()
    assert "Convert old.sbatch to jobs/old.toml? [Y/n]" in shown
    assert "other.sh" not in shown
    assert (tmp_path / "jobs" / "old.toml").exists()
    assert not (tmp_path / "jobs" / "new.toml").exists()
    os.close(reader)
    os.close(terminal)
