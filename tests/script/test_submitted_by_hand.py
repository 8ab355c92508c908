"""A rendered script can be submitted with sbatch, and uses the shell files that `render` has written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_kit.run_files import END, read_first_failure
from hpc_kit.script.render import render
from hpc_kit.spec.load import load_job
from tests.conftest import ROOT
from tests.pocketslurm.conftest import Slurm, wait_for


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """A queue whose work folder is the project."""
    own = Slurm(tmp_path, gpus=0)
    (own.folder / "runs" / "job").mkdir(parents=True)
    try:
        yield own
    finally:
        own.clear()


def submit(slurm: Slurm, *options: str, **changes: object) -> Path:
    """Render a job in the project, and submit the script. Return the folder of its run."""
    settings = {"name": "job", "resources.nodes": 2, "resources.ntasks_per_node": 2, **changes}
    standalone = bool(settings.pop("standalone", False))
    text = render("single", "local", set=settings, root=slurm.folder, standalone=standalone)
    (slurm.folder / "job.sbatch").write_text(text)
    job_id = slurm.check_output("sbatch", "--parsable", *options, "job.sbatch").strip()
    return slurm.folder / "runs" / "job" / job_id


def exit_code(run: Path) -> int:
    """Wait for the end of the batch script, and return its exit code."""
    wait_for(lambda: (run / END).is_file() and (run / END).read_text())
    return int((run / END).read_text().split()[0])


@pytest.mark.parametrize("standalone", [False, True])
def test_a_rendered_script_runs_and_records_its_first_failure(slurm: Slurm, *, standalone: bool) -> None:
    program = 'echo "rank $SLURM_PROCID"; [ "$SLURM_PROCID" != 2 ] || exit 7; sleep 20'
    run = submit(slurm, command=["bash", "-c", program], standalone=standalone)
    assert exit_code(run) == 7, run.with_name(f"{run.name}.log").read_text()
    first = read_first_failure(run)
    assert first is not None
    assert (first.rank, first.exit_code) == (2, 7)
    assert [(run / f"rank-{rank}.log").read_text().splitlines()[0] for rank in range(4)] == [
        f"rank {rank}" for rank in range(4)
    ]


def test_a_new_release_does_not_change_a_waiting_job(slurm: Slurm) -> None:
    run = submit(slurm, "--hold", command=["true"])
    (slurm.folder / "templates" / "shell").mkdir(parents=True)
    (slurm.folder / "templates" / "shell" / "task.sh").write_text("exit 9\n")
    # One rank, because srun would kill further ranks at the first exit and report the highest code, 137.
    other = submit(slurm, command=["true"], **{"resources.nodes": 1, "resources.ntasks_per_node": 1})
    slurm.check_output("scontrol", "release", run.name)
    assert (exit_code(run), exit_code(other)) == (0, 9)


def test_a_script_without_its_shell_files_names_them(slurm: Slurm) -> None:
    run = submit(slurm, "--hold", command=["true"], **{"resources.nodes": 1, "resources.ntasks_per_node": 1})
    shutil.rmtree(slurm.folder / "runs" / ".shell")
    slurm.check_output("scontrol", "release", run.name)
    log = run.with_name(f"{run.name}.log")
    wait_for(lambda: log.is_file() and log.read_text())
    assert log.read_text().startswith(f"hpc-kit: no {slurm.folder}/runs/.shell/h")


def test_a_standalone_script_runs_from_any_folder_on_fewer_nodes(slurm: Slurm, tmp_path: Path) -> None:
    settings = {"name": "job", "resources.nodes": 4, "command": ["bash", "-c", 'echo "$RANK of $WORLD_SIZE in $PWD"']}
    text = render("ddp_4node", "local", set=settings, root=slurm.folder, standalone=True)
    script = tmp_path / "elsewhere.sbatch"
    script.write_text(text)
    job_id = slurm.check_output("sbatch", "--parsable", "--nodes=2", str(script)).strip()
    run = slurm.folder / "runs" / "job" / job_id
    assert exit_code(run) == 0
    logs = sorted(path.read_text() for path in run.glob("rank-*.log"))
    assert logs == [f"{rank} of 4 in {slurm.folder}\n" for rank in range(4)]


SMALL = ["--steps", "2", "--layers", "4", "--width", "32", "--heads", "2", "--sequence", "16", "--global-batch", "32"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", ["ddp_4node", "ddp_torchrun", "hybrid_3d_4node"])
def test_a_standalone_job_trains_under_a_python_without_hpc_kit(slurm: Slurm, tmp_path: Path, job: str) -> None:
    without = tmp_path / "without"
    without.mkdir()
    (without / "sitecustomize.py").write_text("import sys\nsys.modules['hpc_kit'] = None\n")
    (slurm.folder / "jobs").symlink_to(ROOT / "jobs")
    command = (*load_job(job, root=slurm.folder).command, *SMALL)
    settings = {"name": "job", "command": list(command), "env.PYTHONPATH": str(without)}
    script = tmp_path / "elsewhere.sbatch"
    script.write_text(render(job, "local", set=settings, root=slurm.folder, standalone=True))
    run = slurm.folder / "runs" / "job" / slurm.check_output("sbatch", "--parsable", str(script)).strip()
    wait_for(lambda: (run / END).is_file() and (run / END).read_text(), seconds=250)
    log = (run / "rank-0.log").read_text()
    assert exit_code(run) == 0, log
    assert "done    validation loss 5.5" in log
    assert "tokens/s" not in log  # only hpc_kit measures it
    assert (run / "checkpoint.pt").is_file()
