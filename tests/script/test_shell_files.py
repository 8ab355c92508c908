"""`render` writes the shell files of a script into the project: once, complete, and readable for every submitter."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpc_kit.cli import root as hpc_kit
from hpc_kit.errors import RecordError
from hpc_kit.script.render import render
from tests.conftest import ROOT

SHIPPED = ROOT / "templates" / "shell"


def find_folder(script: str) -> str:
    match = re.search(r"^HPC_KIT_SHELL=\$PWD/(\S+)$", script, re.MULTILINE)
    assert match is not None
    return match[1]


def read_contents(folder: Path) -> dict[str, str]:
    # Another process may rename its draft, a hidden file, at any moment.
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith(".")}


def read_shipped() -> dict[str, str]:
    """Return the shipped files of a job without [restart] and [preflight]."""
    optional = {"history.sh", "restart.sh", "spares.sh", "preflight.sh"}
    return {name: text for name, text in read_contents(SHIPPED).items() if name not in optional}


def test_a_job_gets_the_files_of_its_tables(project: Path) -> None:
    restart: dict[str, object] = {"restart.max_attempts": 3}
    both = restart | {"preflight.enabled": True}
    text = render("single", "slurm", set=both, root=project)
    assert read_contents(project / find_folder(text)) == read_contents(SHIPPED)
    text = render("single", "slurm", set=restart, root=project)
    assert read_contents(SHIPPED).keys() - read_contents(project / find_folder(text)).keys() == {"preflight.sh"}


def test_render_writes_the_files_that_the_script_calls(project: Path) -> None:
    folder = project / find_folder(render("single", "slurm", root=project))
    assert read_contents(folder) == read_shipped()
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_the_command_render_writes_them_and_prints_the_same_script(project: Path) -> None:
    done = CliRunner().invoke(hpc_kit, ["render", "single", "--cluster", "slurm"], catch_exceptions=False)
    assert read_contents(project / find_folder(done.stdout)) == read_shipped()
    assert done.stdout == render("single", "slurm", root=project)


def test_check_and_a_standalone_script_write_nothing(project: Path) -> None:
    text = render("single", "slurm", standalone=True, root=project)
    assert "HPC_KIT_SHELL" not in text
    CliRunner().invoke(hpc_kit, ["check", "single", "--cluster", "slurm"], catch_exceptions=False)
    assert not (project / "runs").exists()


def test_shell_files_are_in_the_runs_folder_of_the_folder_of_the_job(project: Path, tmp_path: Path) -> None:
    runs = tmp_path / "it's scratch"
    text = render("single", "slurm", set={"cluster.runs": str(runs)}, root=project)
    (folder,) = (runs / ".shell").iterdir()
    line = next(line for line in text.splitlines() if line.startswith("HPC_KIT_SHELL="))
    done = subprocess.run(["bash", "-c", f"{line}; printf %s $HPC_KIT_SHELL"], capture_output=True, text=True)
    assert done.stdout.replace(" ", "") == str(folder).replace(" ", "")
    text = render("single", "slurm", set={"resources.chdir": "there"}, root=project)
    assert (project / "there" / find_folder(text) / "task.sh").is_file()


def test_changed_shell_files_get_a_new_folder_and_the_old_one_stays(project: Path) -> None:
    old = find_folder(render("single", "slurm", root=project))
    (project / "templates" / "shell").mkdir()
    (project / "templates" / "shell" / "task.sh").write_text("# Mine.\n\nexec true\n")
    script = render("single", "slurm", root=project)
    new = find_folder(script)
    assert new != old
    assert (project / old / "task.sh").read_text() == (SHIPPED / "task.sh").read_text()
    assert (project / new / "task.sh").read_text() == "# Mine.\n\nexec true\n"
    assert "\nexec true\n'" in render("single", "slurm", standalone=True, root=project)


def test_an_incomplete_folder_is_completed_and_a_complete_one_is_unchanged(project: Path) -> None:
    folder = project / find_folder(render("single", "slurm", root=project))
    (folder / "task.sh").write_text("half")
    (folder / "worker.sh").unlink()
    times = (folder / "signals.sh").stat().st_mtime_ns
    render("single", "slurm", root=project)
    assert read_contents(folder) == read_shipped()
    assert (folder / "signals.sh").stat().st_mtime_ns == times


def _render_again(project: Path) -> bool:
    text = render("single", "slurm", root=project)
    return read_contents(project / find_folder(text)).items() >= read_shipped().items()


def test_simultaneous_renders_see_complete_files(project: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        assert all(pool.map(_render_again, [project] * 12))
    assert read_contents(project / find_folder(render("single", "slurm", root=project))) == read_shipped()


def test_two_threads_may_write_the_same_files_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, pending = Path.replace, [lambda: render("single", "slurm", root=project)]

    def replace_after_the_other(draft: Path, target: Path) -> Path:
        if pending:
            pending.pop()()
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", replace_after_the_other)
    assert _render_again(project)
    assert not pending


def test_an_unwritable_project_is_refused_with_a_remedy(project: Path) -> None:
    (project / "runs").write_text("a file where the folder should be")
    with pytest.raises(RecordError, match="cannot write the shell files") as caught:
        render("single", "slurm", root=project)
    assert "cluster.runs" in (caught.value.remedy or "")
    assert "--standalone" in (caught.value.remedy or "")
    done = CliRunner().invoke(hpc_kit, ["render", "single", "--cluster", "slurm"])
    assert (done.exit_code, done.stdout) != (0, "")
    assert render("single", "slurm", standalone=True, root=project).startswith("#!/bin/bash\n")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_project_with_the_files_is_enough(project: Path) -> None:
    render("single", "slurm", root=project)
    project.chmod(0o500)
    try:
        render("single", "slurm", root=project)
    finally:
        project.chmod(0o700)


def test_a_script_in_another_folder_names_the_missing_files(project: Path) -> None:
    text = render("single", "slurm", set={"command": ["true"]}, root=project)
    (project / "bin").mkdir()
    (project / "bin" / "srun").write_text('#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n')
    (project / "bin" / "srun").chmod(0o755)
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    environ = {**os.environ, "SLURM_JOB_ID": "7", "PATH": f"{project}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", text], cwd=elsewhere, env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"hpc-kit: no {elsewhere}/{find_folder(text)}: sbatch in the project, or render again\n"
    assert list(elsewhere.iterdir()) == []
