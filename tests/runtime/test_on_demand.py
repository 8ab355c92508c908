"""torch's names in a process that nobody has launched: for who takes them, not for who asks whether it was launched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from torch import distributed as dist

from hpc_kit.runtime import on_demand, resolve
from hpc_kit.runtime.torch_environment import of_world
from tests.runtime.launches import Step

NAMES = on_demand.NAMES


@pytest.fixture(autouse=True)
def _nobody_has_launched_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_who_takes_one_gets_it_and_who_asks_is_told_that_it_is_not_set() -> None:
    before, kind = dict(os.environ), type(os.environ)
    with on_demand.offered({"LOCAL_RANK": "0"}):
        assert os.environ["LOCAL_RANK"] == "0"
        assert "LOCAL_RANK" not in os.environ
        assert (os.environ.get("LOCAL_RANK"), os.getenv("LOCAL_RANK", "-1")) == (None, "-1")
        assert dict(os.environ) == before == os.environ.copy()
        told = subprocess.run(
            [sys.executable, "-c", "import os; print('LOCAL_RANK' in os.environ)"], capture_output=True
        )
        assert told.stdout == b"False\n"
        assert os.environ["PATH"] == before["PATH"]
        with pytest.raises(KeyError, match="NOBODY"):
            os.environ["NOBODY"]
    assert (dict(os.environ), type(os.environ)) == (before, kind)


def test_what_the_program_sets_counts_and_what_it_takes_away_is_gone() -> None:
    with on_demand.offered({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}):
        os.environ["LOCAL_RANK"] = "1"
        assert (os.environ["LOCAL_RANK"], os.environ.get("LOCAL_RANK"), "LOCAL_RANK" in os.environ) == ("1", "1", True)
        assert os.environ.setdefault("RANK", "7") == "7"
        assert os.environ.pop("WORLD_SIZE") == "1"
        with pytest.raises(KeyError):
            os.environ["WORLD_SIZE"]
        del os.environ["LOCAL_RANK"]
        assert "LOCAL_RANK" not in os.environ
    assert not set(NAMES) & os.environ.keys()


def test_a_group_by_the_environment_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with on_demand.offered(of_world(resolve({}), {})):
        dist.init_process_group("gloo", rank=0, world_size=1)
        dist.destroy_process_group()
        assert os.environ.get("RANK") is None
        dist.init_process_group("gloo")
        try:
            assert [os.environ.get(name) for name in NAMES] == ["0", "1", "0", "1", "0"]
            assert (dist.get_world_size(), dist.get_node_local_rank()) == (1, 0)
        finally:
            dist.destroy_process_group()
    assert not set(NAMES) & os.environ.keys()


def test_only_a_process_that_nobody_has_launched_has_them_so(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, launched = resolve({}), resolve(Step.of(1).environ(0))
    assert on_demand.of(of_world(launched, {}), launched) == {}
    assert on_demand.of(of_world(alone, {}), alone).keys() == set(NAMES)
    # What an earlier launch has left behind is set anew, or env:// would take it.
    monkeypatch.setenv("RANK", "5")
    assert on_demand.of(of_world(alone, {}), alone).keys() == set(NAMES) - {"RANK"}


FABRIC = """
import torch
from lightning_fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
total = fabric.all_reduce(torch.tensor(1.0), reduce_op="sum")
print(f"{fabric.global_rank} of {fabric.world_size}: {total.item()}\\n", end="", flush=True)
"""


@pytest.mark.timeout(400)
def test_lightning_starts_its_own_processes(tmp_path: Path) -> None:
    pytest.importorskip("lightning_fabric")
    (tmp_path / "train.py").write_text(FABRIC)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    words = [sys.executable, "-m", "hpc_kit.runtime", "train.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, cwd=tmp_path, env=environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as program:
        try:
            out, err = program.communicate(timeout=300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, err
    assert sorted(out.split("\n"))[-2:] == ["0 of 2: 2.0", "1 of 2: 2.0"]


def test_where_there_are_none_nothing_of_torch_is_touched() -> None:
    """What a program sets before it imports torch itself, such as OMP_NUM_THREADS, counts."""
    code = (
        "import sys; from hpc_kit.runtime import on_demand\nwith on_demand.offered({}): print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
