"""Run programs of jobs/train with several ranks, one run after the other.

Torch is imported once, and each rank is forked from here.

    PYTHONPATH=.:jobs/train python -m tests.train.ranks_of_a_run FOLDER

FOLDER/runs.json is a list of `Run`s. Rank R of run NAME leaves FOLDER/NAME-R.json, its losses or its error, and its
output in FOLDER/NAME-R.out and .err.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict
from unittest import mock

import torch

import plain_ddp
import training
from data import read_text_once_per_node
from hpc_kit.errors import HpcKitError
from hpc_kit.runtime.restart.checkpoint_folder import Damage
from hpc_kit.runtime.step_timer import StepTimer


class Run(TypedDict, total=False):
    name: str
    ranks: int
    arguments: list[str]
    rank_1: str
    """How rank 1 differs: a name in SPOILERS, or more arguments."""
    plain: bool
    program: str
    """Its module: ddp where none is given."""
    layout: str
    """HPC_KIT_LAYOUT, as a job's script would set it."""


def main(folder: Path, runs: list[Run]) -> None:
    torch.set_num_threads(1)
    torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())  # now, and not in every rank, imports what that imports
    for program in {run.get("program", "ddp") for run in runs}:
        import_module(program)
    for run in runs:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        for child in [fork(folder, run, rank, port) for rank in range(run["ranks"])]:
            os.waitpid(child, 0)


def fork(folder: Path, run: Run, rank: int, port: int) -> int:
    if child := os.fork():
        return child
    for descriptor, ending in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{run['name']}-{rank}.{ending}", os.O_CREAT | os.O_WRONLY), descriptor)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": run["ranks"], "LOCAL_WORLD_SIZE": run["ranks"]}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    result: object = None
    try:
        result = work(run, rank)
    except HpcKitError as error:
        result = {"error": str(error), "exit_status": error.exit_status}
    except BaseException:  # noqa: BLE001  a forked rank must end here, whatever it met
        traceback.print_exc()
    (folder / f"{run['name']}-{rank}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def work(run: Run, rank: int) -> object:
    if run.get("plain"):
        sys.argv = ["plain_ddp.py", *run["arguments"]]
        plain_ddp.main()
        return {}
    arguments, spoiler = run["arguments"], run.get("rank_1", "")
    if rank == 1 and spoiler in SPOILERS:
        SPOILERS[spoiler]()
    elif rank == 1:
        arguments = [*arguments, *spoiler.split()]
    norms = record_norms()
    os.environ["HPC_KIT_LAYOUT"] = run.get("layout", "")
    result = import_module(run.get("program", "ddp")).main(arguments)
    if isinstance(result, dict):  # of the parameter server, on its own rank
        return {"losses": result["synchronous"].losses} if result else {}
    return {
        "losses": result.losses,
        "norms": [norm.item() for norm in norms],
        "before": result.before,
        "after": result.after,
        "communication": result.timer.times.communication,
        "waiting": result.timer.times.imbalance,
        "data": result.timer.times.data_share,
        "slowest": result.timer.times.slowest_rank()[0],
        "kept": result.kept_bytes,
    }


def record_norms() -> list[torch.Tensor]:
    """AdamW and clipping hide a gradient that is too large by a factor; its norm does not."""
    norms: list[torch.Tensor] = []
    clip = training.clip_gradients

    def record_norm(*arguments: Any, **named: Any) -> torch.Tensor:
        norms.append(clip(*arguments, **named))
        return norms[-1]

    mock.patch("training.clip_gradients", record_norm).start()
    return norms


def late() -> None:
    """It comes to its gradients later than the others."""
    begin = StepTimer.begin_step

    def begin_late(self: StepTimer) -> None:
        begin(self)
        time.sleep(0.25)

    mock.patch("hpc_kit.runtime.step_timer.StepTimer.begin_step", begin_late).start()


def hangs() -> None:
    """It does not come at all to the second step."""
    begin, steps = StepTimer.begin_step, iter(range(9))

    def begin_never(self: StepTimer) -> None:
        if next(steps):
            time.sleep(6)
        begin(self)

    mock.patch("hpc_kit.runtime.step_timer.StepTimer.begin_step", begin_never).start()


def dies() -> None:
    """It is gone in the eighth step."""
    begin, steps = StepTimer.begin_step, iter(range(99))

    def begin_or_die(self: StepTimer) -> None:
        if next(steps) == 7:
            os._exit(1)
        begin(self)

    mock.patch("hpc_kit.runtime.step_timer.StepTimer.begin_step", begin_or_die).start()


def poisons() -> None:
    """Its gradients in the third step are no numbers, though its loss is one."""
    clip, steps = training.Training.clip_gradients, iter(range(99))

    def clip_spoiled(self: training.Training) -> None:
        if next(steps) == 2:
            parameter = next(self.model.parameters())
            parameter.grad = torch.full_like(parameter, torch.nan)
        clip(self)

    mock.patch("training.Training.clip_gradients", clip_spoiled).start()


def is_told_to_stop() -> None:
    """As by `scancel --signal=USR1`, in its second step."""
    begin, steps = StepTimer.begin_step, iter(range(99))

    def begin_and_signal(self: StepTimer) -> None:
        if next(steps) == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        begin(self)

    mock.patch("hpc_kit.runtime.step_timer.StepTimer.begin_step", begin_and_signal).start()


def another_text() -> None:
    read = read_text_once_per_node
    mock.patch(
        "training.read_text_once_per_node", lambda *where, **ranks: replace(read(*where, **ranks), checksum=0xBAD)
    ).start()


def blind() -> None:
    """It does not see the checkpoint."""
    damage = Damage("__0_0.distcp: No such file or directory", is_permanent=False)
    mock.patch("hpc_kit.runtime.restart.checkpoint_folder.verify_checksums", return_value=damage).start()


def elsewhere() -> None:
    """What it calls by the same name lies on its own disk."""
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")


SPOILERS: dict[str, Callable[[], None]] = {
    "poisons": poisons, "is told to stop": is_told_to_stop,
    "late": late, "hangs": hangs, "dies": dies, "another text": another_text, "blind": blind, "elsewhere": elsewhere,
}  # fmt: skip

if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[1], "runs.json").read_text()))
