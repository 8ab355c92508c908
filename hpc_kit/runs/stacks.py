"""Requests the Python stacks of the ranks of a running job, and groups ranks with equal stacks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from hpc_kit.errors import RecordError, explain_file_errors
from hpc_kit.run_files import STACKS, STACKS_REQUEST, RankStack, read_stacks

_PAUSE = 0.2


class StackGroup(NamedTuple):
    """Ranks whose main threads are in the same place."""

    ranks: list[int]
    hosts: list[str]
    steps: list[int]
    collectives: list[str]
    """Their latest collectives, such as `57 of nccl, all_reduce of [8] Float`."""

    traceback: str


def request_stacks(run: Path, world_size: int, timeout: float) -> list[RankStack]:
    """Ask each rank for its stacks, and return the stacks of the ranks that answer in time, by rank."""
    folder = run / STACKS
    # A rank that does not answer still has the file of an earlier request.
    before = {stack.rank: stack.time for stack in read_stacks(run)}
    what, remedy = f"cannot write to {folder}", "ask as the user who submitted the job, with free space on the disk"
    with explain_file_errors(RecordError, what, remedy):
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / STACKS_REQUEST).write_text(f"{time.time()}\n")
    deadline = time.monotonic() + timeout
    while True:
        answered = [stack for stack in read_stacks(run) if stack.time != before.get(stack.rank)]
        if len(answered) >= world_size or time.monotonic() > deadline:
            return answered
        time.sleep(_PAUSE)


def group_stacks(stacks: list[RankStack]) -> list[StackGroup]:
    """Return groups of ranks whose main threads are in the same place, the largest group first."""
    by_place: dict[str, list[RankStack]] = {}
    for stack in stacks:
        by_place.setdefault(stack.main, []).append(stack)
    groups = [
        StackGroup(
            [stack.rank for stack in same],
            list(dict.fromkeys(stack.host for stack in same)),
            sorted({stack.step for stack in same if stack.step is not None}),
            sorted(
                {
                    f"{number} of {backend}, {call}"
                    for stack in same
                    for backend, (number, call) in stack.collectives.items()
                }
            ),
            text,
        )
        for text, same in by_place.items()
    ]
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))
