"""The activation of a job's environment. A failed activation ends the job with a message."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.script.render import render

MODULE = 'module() { echo "module $*"; [ "$2" != gone ]; }; export -f module\n'
CONDA = """#!/bin/sh
echo 'conda() { echo "conda $*"; [ "$2" != gone ]; }'
"""


@pytest.fixture
def tools(project: Path) -> Path:
    """A PATH with a conda, a uv and an srun that only print their arguments."""
    folder = project / "tools"
    folder.mkdir()
    uv = '#!/bin/sh\necho "uv $*"; [ "$4" != gone ]\n'
    for name, text in (("conda", CONDA), ("uv", uv), ("srun", "#!/bin/sh\necho started\n"), ("python", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for place in ("own", "lock/.venv"):
        (project / place / "bin").mkdir(parents=True)
        (project / place / "bin/activate").write_text(f'echo "activated {place} $UNSET"\n')
    (project / "jobs/mine.toml").write_text('command = ["python", "train.py"]\n')
    return folder


def run(
    project: Path, tools: Path, before: str = MODULE, runs: str = "runs", **environment: Any
) -> subprocess.CompletedProcess[str]:
    own = {f"cluster.environment.{key}": value for key, value in environment.items()}
    script = render("mine", "slurm", set={"cluster.runs": runs, **own})
    (project / "env.sh").write_text(before)
    environ = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "BASH_ENV": "env.sh"}
    return subprocess.run(["bash", "-c", script], env=environ, cwd=project, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("environment", "output"),
    [
        ({"modules": ["cuda/12.6", "nccl"]}, ["module load cuda/12.6", "module load nccl"]),
        ({"conda": "torch env"}, ["conda activate torch env"]),
        ({"venv": "own"}, ["activated own"]),
        ({"uv": "lock"}, ["uv sync --frozen --project lock", "activated lock/.venv"]),
        ({"modules": ["cuda"], "venv": "own"}, ["module load cuda", "activated own"]),
    ],
)
def test_an_environment_is_activated_before_the_ranks_start(
    project: Path, tools: Path, environment: dict[str, Any], output: list[str]
) -> None:
    done = run(project, tools, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rstrip() for line in done.stdout.splitlines()] == [*output, "started"]


@pytest.mark.parametrize(
    ("environment", "without", "words"),
    [
        ({"modules": ["cuda", "gone", "nccl"]}, "", "module load gone failed"),
        ({"modules": ["cuda"]}, "module", "there is no module command"),
        ({"conda": "gone"}, "", "conda activate gone failed"),
        ({"conda": "torch"}, "conda", "there is no conda command"),
        ({"venv": "nowhere"}, "", "no virtual environment nowhere"),
        ({"uv": "gone"}, "", "uv sync in gone failed"),
        ({"uv": "lock"}, "uv", "there is no uv command"),
    ],
)
def test_a_failed_activation_ends_the_job_with_a_message(
    project: Path, tools: Path, environment: dict[str, Any], without: str, words: str
) -> None:
    if without in {"conda", "uv"}:
        (tools / without).unlink()
    done = run(project, tools, before="" if without == "module" else MODULE, **environment)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"hpc-kit: the environment cannot be used on n1: {words}"
    assert "started" not in done.stdout


@pytest.mark.oracle("shellcheck")
def test_shellcheck_finds_nothing(project: Path, tools: Path) -> None:
    environments: list[dict[str, Any]] = [
        {"apptainer": "torch 2.sif", "mounts": ["/data"]},
        {"pyxis": "nvcr.io#torch:1"},
    ]
    environments += [{"conda": "it's"}, {"venv": "own"}, {"uv": "lock"}]
    for own in environments:
        text = render("mine", "slurm", set={"cluster.environment": {"modules": ["cuda/12.6"], **own}})
        done = subprocess.run(["shellcheck", "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"conda": "a", "venv": "b"}, "exclude one another"),
        ({"apptainer": "a.sif", "pyxis": "b"}, "exclude one another"),
        ({"mounts": ["/data"]}, "mounts without a container"),
        ({"venv": "~/own"}, "wrong value for environment.venv"),
        ({"modules": ["$CUDA"]}, "wrong value for environment.modules"),
    ],
)
def test_an_impossible_environment_is_refused(
    project: Path, tools: Path, environment: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        run(project, tools, **environment)


APPTAINER = '#!/bin/sh\nprintf "<%s>" "$@"; echo\n'


def test_each_rank_enters_the_container(project: Path, tools: Path) -> None:
    (tools / "apptainer").write_text(APPTAINER)
    (tools / "apptainer").chmod(0o755)
    (tools / "srun").write_text('#!/bin/bash\nwhile [ "$1" != bash ]; do shift; done; exec "$@"\n')
    (project / "torch 2.sif").touch()
    done = run(project, tools, apptainer="torch 2.sif", mounts=["/data", "/scratch:/tmp"])
    output = "<exec><--nv><--bind></data><--bind></scratch:/tmp><torch 2.sif><python><train.py>"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, output), done.stderr
    # A runs folder outside of the project is also visible in the container.
    runs = project.resolve().parent / "elsewhere"
    (tools / "apptainer").write_text('#!/bin/sh\necho "$APPTAINER_BIND"\n')
    done = run(project, tools, runs=str(runs), apptainer="torch 2.sif")
    assert done.stdout.splitlines()[-1] == f"{runs}/mine/7", done.stderr
    (project / "torch 2.sif").unlink()
    assert "no image torch 2.sif" in run(project, tools, apptainer="torch 2.sif").stderr
    (tools / "apptainer").unlink()
    assert "there is no apptainer command" in run(project, tools, apptainer="docker://torch").stderr


def test_pyxis_gets_its_options_from_srun(project: Path, tools: Path) -> None:
    (tools / "srun").write_text(
        '#!/bin/sh\ncase $1 in --help) echo --container-image=x;; *) printf "<%s>" "$@";; esac\n'
    )
    done = run(project, tools, pyxis="nvcr.io#nvidia/pytorch:26.01", mounts=["/data:/data"])
    place = project.resolve()
    words = "<--container-image=nvcr.io#nvidia/pytorch:26.01>"
    words += f"<--container-mounts={place}:{place},/data:/data><--container-workdir={place}>"
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    runs = project.resolve().parent / "elsewhere"
    done = run(project, tools, runs=str(runs), pyxis="x", mounts=["/data"])
    (shell,) = runs.glob(".shell/*")
    assert f"<--container-mounts={place}:{place},{runs}/mine/7:{runs}/mine/7,{shell}:{shell},/data>" in done.stdout
    (tools / "srun").write_text("#!/bin/sh\necho started\n")
    assert "no Pyxis here" in run(project, tools, pyxis="x").stderr


def test_torchrun_in_a_container_is_refused(project: Path, tools: Path) -> None:
    (project / "jobs/mine.toml").write_text('command = ["python", "train.py"]\n[launch]\nlauncher = "torchrun"\n')
    with pytest.raises(SpecError, match="ranks in containers are started by srun"):
        run(project, tools, apptainer="a.sif")


@pytest.mark.parametrize(
    ("settings", "hides"),
    [({}, True), ({"launch.bootstrap": True}, False), ({"launch.launcher": "torchrun"}, False)],
    ids=["distributed()", "python -m hpc_kit.runtime", "torchrun"],
)
def test_messages_of_torch_are_hidden_only_where_hpc_kit_replaces_them(
    project: Path, tools: Path, settings: dict[str, object], *, hides: bool
) -> None:
    assert ("TORCH_CPP_LOG_LEVEL" in render("mine", "slurm", set=settings)) is hides
