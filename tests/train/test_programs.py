"""The programs are short, depend on hpc_kit in one module only, and run with torch alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import preloaded
from tests.train.conftest import TRAIN

SHARED = {"model", "data", "options", "training", "pipeline_stages"}
PROGRAMS = sorted(path.stem for path in TRAIN.glob("*.py") if path.stem not in SHARED)
SMALL = "--steps 2 --layers 2 --width 32 --heads 2 --sequence 16 --global-batch 16"
UNDER_TORCHRUN = [
    "ddp", "zero1", "fsdp", "tensor", "context", "modelparallel", "pipeline", "hybrid --pp 2", "parameter_server",
]  # fmt: skip


def list_imports(name: str) -> set[str]:
    nodes = list(ast.walk(ast.parse((TRAIN / f"{name}.py").read_text())))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_at_most_150_lines(name: str) -> None:
    assert len((TRAIN / f"{name}.py").read_text().splitlines()) <= 150


def test_only_one_module_imports_hpc_kit() -> None:
    assert [name for name in sorted({*PROGRAMS, *SHARED}) if "hpc_kit" in list_imports(name)] == ["training"]


def test_the_fallback_without_hpc_kit_has_at_most_40_lines() -> None:
    lines = (TRAIN / "training.py").read_text().splitlines()
    begin, end = (
        next(number for number, line in enumerate(lines) if line.startswith(words))
        for words in ("else:", "    require_equal =")
    )
    assert len([line for line in lines[begin + 1 : end + 1] if line]) <= 40


WITHOUT_HPC_KIT = "import sys; sys.modules['hpc_kit'] = None\n"


@pytest.fixture
def torch_alone(tmp_path: Path) -> dict[str, str]:
    """The environment of an interpreter that has torch but no hpc_kit."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['hpc_kit'] = None\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "HPC_KIT_"))}
    return {**clean, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}


def run(folder: Path, environ: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("join", ["training.distributed", "first_step.join_plainly"])
def test_with_torch_only_each_rank_of_a_node_uses_its_own_gpu(join: str, tmp_path: Path) -> None:
    """NCCL sends objects by the current device, which is GPU 0 in every process until a program sets another one.

    Bound to the group, the device also serves barriers, without a warning of torch that it guesses one.
    """
    code = f"""import torch, {join.partition(".")[0]}
from torch import distributed
init, current = distributed.init_process_group, []
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 2
torch.cuda.set_device = lambda device: current.append(device.index)
alone = {{"store": distributed.HashStore(), "rank": 0, "world_size": 1}}
def bind(*_, device_id, **__):
    current.append(device_id.index)
    init("gloo", **alone)
distributed.init_process_group = bind
with {join}() as world:
    print(world.device, current)"""
    done = preloaded.run(["-c", WITHOUT_HPC_KIT + code], tmp_path, LOCAL_RANK="1", PYTHONPATH=str(TRAIN))
    assert (done.stdout, done.stderr) == ("cuda:1 [1, 1]\n", "")


@pytest.mark.slow
def test_with_torch_only_a_program_trains_and_saves_one_file(
    tmp_path: Path, torch_alone: dict[str, str], source: Path
) -> None:
    words = [str(TRAIN / "ddp.py"), *SMALL.split(), "--data", str(source), "--checkpoint", "saved"]
    assert "done    validation loss 5.5" in run(tmp_path, torch_alone, *words)
    saved = torch.load(tmp_path / "saved.pt")
    assert saved["layers.1.attention.query.weight"].shape == (32, 32)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("line", UNDER_TORCHRUN)
def test_with_torch_only_every_program_runs_under_torchrun(
    line: str, tmp_path: Path, torch_alone: dict[str, str], source: Path
) -> None:
    program, *options = line.split()
    starter = ["-m", "torch.distributed.run", "--nproc-per-node=2", str(TRAIN / f"{program}.py"), *options]
    output = run(tmp_path, torch_alone, *starter, *SMALL.split(), "--data", str(source))
    assert "done    validation loss 5.5" in output or "asynchronous   loss 5.5" in output


def test_horovod_of_another_mpi_than_the_ranks_is_refused(tmp_path: Path) -> None:
    """Each rank would train alone, with a Horovod that knows one rank."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "torch.py").write_text("def init(): pass\ndef size(): return 2\n")
    code = f"{WITHOUT_HPC_KIT}import horovod_ddp\nhorovod_ddp.main({SMALL.split()!r})"
    done = preloaded.run(["-c", code], tmp_path, PYTHONPATH=f"{tmp_path}:{TRAIN}")
    assert done.returncode == 1
    assert "found  2 ranks for Horovod, 1 ranks of mpirun\n  do     start with the mpirun that env/build" in done.stderr
