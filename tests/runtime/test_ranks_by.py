"""`--ranks-by launcher|program` for a process that runs alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hpc_kit.runtime.torch_environment import environment_set
from hpc_kit.runtime.variables import RANK_VARIABLES
from tests.runtime.launches import Step

NOT_SET = "RANK, WORLD_SIZE and LOCAL_RANK are not set, because the program is to start its own ranks"


def run(folder: Path, program: str, *options: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run a program through the runtime outside of any job; returns its exit status, stdout and stderr."""
    (folder / "train.py").write_text(program)
    foreign = (*RANK_VARIABLES, "MASTER_ADDR", "MASTER_PORT")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") and name not in foreign}
    words = [sys.executable, "-m", "hpc_kit.runtime", *options, "train.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, cwd=folder, env=clean | (environ or {}), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


SHOW = f"""
import os, subprocess, sys
names = {RANK_VARIABLES!r}
print([os.environ.get(name) for name in names], [name for name in names if name in os.environ])
show = "import os; print([os.environ.get(name) for name in " + repr(names) + "])"
print(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout, end="")
print("MASTER_ADDR" in os.environ, "MASTER_PORT" in os.environ)
"""


def test_by_default_the_process_is_the_only_rank_and_its_children_see_the_same(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, SHOW)
    assert (code, err) == (0, "")
    values = ["1" if name.endswith("WORLD_SIZE") else "0" for name in RANK_VARIABLES]
    assert out == f"{values} {list(RANK_VARIABLES)}\n{values}\nTrue True\n"


def test_a_program_that_starts_its_ranks_has_an_address_and_no_rank(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, SHOW, "--ranks-by", "program")
    assert (code, err) == (0, "")
    # The usual program with mp.spawn computes its ranks from the index of the node.
    values = ["0" if name == "NODE_RANK" else None for name in RANK_VARIABLES]
    assert out == f"{values} ['NODE_RANK']\n{values}\nTrue True\n"


ENV_URL = "from torch import distributed as dist; dist.init_process_group('gloo'); print(dist.get_world_size())"


@pytest.mark.slow
@pytest.mark.parametrize("program", [ENV_URL, "import os; print(os.environ['WORLD_SIZE'])"], ids=["env://", "environ"])
def test_a_missing_rank_names_the_setting_that_provides_it(tmp_path: Path, program: str) -> None:
    assert run(tmp_path, program)[:2] == (0, "1\n")
    code, _, err = run(tmp_path, program, "--ranks-by=program")
    assert code == 1
    assert NOT_SET in err
    assert "do     set [launch] ranks_by = 'launcher' in the job file, or give --ranks-by launcher\n" in err


def test_another_missing_variable_is_an_ordinary_keyerror(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "import os; os.environ['DATA']", "--ranks-by=program")
    assert (code, NOT_SET in err) == (1, False)


SPAWN = """
import os, sys
import torch
from torch import distributed as dist, multiprocessing

def work(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    sys.stdout.write(f"{rank}: {total.item()}\\n")
    dist.destroy_process_group()

if __name__ == "__main__":
    multiprocessing.spawn(work, nprocs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks_by", ["launcher", "program"])
def test_mp_spawn_works_with_both_settings(tmp_path: Path, ranks_by: str) -> None:
    code, out, err = run(tmp_path, SPAWN, "--ranks-by", ranks_by)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["0: 2.0", "1: 2.0"]


FABRIC = """
import torch
from lightning_fabric import Fabric

fabric = Fabric(accelerator="cpu", devices={devices}, strategy="{strategy}")
fabric.launch()
total = fabric.all_reduce(torch.tensor(1.0), reduce_op="sum")
print(f"{{fabric.global_rank}} of {{fabric.world_size}}: {{total.item()}}\\n", end="", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_lightning_starts_its_own_processes(tmp_path: Path) -> None:
    pytest.importorskip("lightning_fabric")
    code, out, err = run(tmp_path, FABRIC.format(devices=2, strategy="ddp"), "--ranks-by", "program")
    assert code == 0, err
    assert sorted(out.split("\n"))[-2:] == ["0 of 2: 2.0", "1 of 2: 2.0"]


@pytest.mark.slow
def test_lightning_is_one_rank_of_the_launcher(tmp_path: Path) -> None:
    pytest.importorskip("lightning_fabric")
    code, out, err = run(tmp_path, FABRIC.format(devices=1, strategy="ddp"))
    assert code == 0, err
    assert out.splitlines()[-1:] == ["0 of 1: 1.0"]


def test_a_process_of_lightning_leaves_the_number_of_threads_to_lightning(tmp_path: Path) -> None:
    """Without RANK, it is not known how many ranks share the CPUs. Lightning sets OMP_NUM_THREADS if it is not set."""
    lightning = {"NODE_RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environ = lightning | {"MASTER_PORT": "23456", "OMP_NUM_THREADS": ""}
    program = "import os\nprint(os.environ['RANK'], os.environ['OMP_NUM_THREADS'] or 'not set')"
    assert run(tmp_path, program, environ=environ) == (0, "0 not set\n", "")


ACCELERATE = """
from accelerate import Accelerator

state = Accelerator(cpu=True).state
print(state.process_index, state.num_processes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks_by", ["launcher", "program"])
def test_accelerate_is_one_process_with_both_settings(tmp_path: Path, ranks_by: str) -> None:
    pytest.importorskip("accelerate")
    code, out, err = run(tmp_path, ACCELERATE, "--ranks-by", ranks_by)
    assert code == 0, err
    assert (out, "OMP_NUM_THREADS" in err) == ("0 1\n", False)


def test_variables_of_an_earlier_launch_are_unset_for_a_program_that_starts_its_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with environment_set({"MASTER_PORT": "29000", **dict.fromkeys(RANK_VARIABLES)}):
        assert not set(RANK_VARIABLES) & os.environ.keys()
        assert os.environ["MASTER_PORT"] == "29000"
    assert (os.environ["LOCAL_RANK"], "MASTER_PORT" in os.environ) == ("5", False)


def test_a_program_that_starts_its_ranks_is_refused_in_each_of_several_tasks(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "", "--ranks-by", "program", environ=Step.of(2).environ(1))
    assert code == 2
    assert "a program that starts its own ranks must be started once" in err


def test_an_unknown_value_is_refused(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "", "--ranks-by", "torchrun")
    assert code == 2
    assert "--ranks-by launcher or program" in err
