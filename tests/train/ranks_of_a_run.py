"""Run `ddp.py` with several ranks, one run after the other; torch is imported once, each rank is forked from here.

    PYTHONPATH=.:jobs/train python -m tests.train.ranks_of_a_run FOLDER < runs.json

runs.json is a list of `Run`s. Rank R of run NAME leaves FOLDER/NAME-R.json, its losses or its error, and its output in
FOLDER/NAME-R.out and .err.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypedDict
from unittest import mock

import torch

import data
import ddp
import meter
import plain_ddp
from hpc_kit.errors import HpcKitError, SpecError


class Run(TypedDict, total=False):
    name: str
    ranks: int
    arguments: list[str]
    rank_1: str
    """How rank 1 differs: a name in SPOILERS, or more arguments."""
    plain: bool


def main(folder: Path, runs: list[Run]) -> None:
    torch.set_num_threads(1)
    torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())  # now, and not in every rank, imports what that imports
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
    result = ddp.main(arguments)
    return {
        "losses": result.steps.losses,
        "norms": [norm.item() for norm in norms],
        "before": result.before,
        "after": result.after,
        "communication": result.steps.communication,
        "waiting": result.steps.imbalance,
    }


def record_norms() -> list[torch.Tensor]:
    """AdamW and clipping hide a gradient that is too large by a factor; its norm does not."""
    norms: list[torch.Tensor] = []
    clip = torch.nn.utils.clip_grad_norm_

    def recorded(parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
        norms.append(clip(parameters, most))
        return norms[-1]

    mock.patch("torch.nn.utils.clip_grad_norm_", recorded).start()
    return norms


def late() -> None:
    """It comes to its gradients later than the others."""
    begin = meter.Meter.begin

    def begin_late(self: meter.Meter) -> None:
        begin(self)
        time.sleep(0.25)

    mock.patch("meter.Meter.begin", begin_late).start()


def another_text() -> None:
    mock.patch("ddp.read_text", lambda folder: replace(data.read_text(folder), checksum=0xBAD)).start()


def blind() -> None:
    """It does not see the checkpoint."""
    error = SpecError("there is no checkpoint", found="--resume half.pt")
    mock.patch("checkpoint.load", side_effect=error).start()


SPOILERS: dict[str, Callable[[], None]] = {"late": late, "another text": another_text, "blind": blind}

if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
