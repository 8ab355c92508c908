"""Model states under the ways of sharing them: bytes that each rank holds, against the formulas of the ZeRO paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.bench import local_ranks as ranks
from hpc_kit.bench import room
from hpc_kit.bench.quantity import plain
from hpc_kit.bench.results import Column
from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet

TITLE = "Model states of a rank: parameters, gradients and optimizer"
COLUMNS = {
    "parameters": Column(unit="B", kind="counted"),
    "gradients": Column(unit="B", kind="counted"),
    "optimizer": Column(unit="B", kind="counted"),
    "total": Column(unit="B", kind="counted"),
    "expected": Column(unit="B", better="none", kind="reckoned"),
    "deviation": Column(unit="%", better="none", kind="reckoned"),
    "on_device": Column(unit="B", kind="counted"),
    "gathered": Column(unit="B", title="gathered for a layer", kind="counted"),
    "seconds": Column(unit="s", title="step"),
}


class Question(NamedTuple):
    """What is to be measured."""

    ways: tuple[str, ...] = ("ddp", "zero1", "zero2", "zero3")
    offload: tuple[bool, ...] = (False, True)
    layers: int = 16
    width: int = 512
    """Of each layer, a square matrix."""
    rows: int = 8
    """Of a rank's batch."""
    steps: int = 5
    ranks: int = 4

    @property
    def parameters(self) -> int:
        """P."""
        return self.layers * self.width**2


FORMULAS = {"ddp": (16.0, 0.0), "zero1": (4.0, 12.0), "zero2": (2.0, 14.0), "zero3": (0.0, 16.0)}
"""Bytes: (a, b) for a P + b P / d with d ranks, in mixed precision (Rajbhandari et al., 2019, arXiv:1910.02054)."""


def formula(way: str, parameters: int, ranks: int) -> float:
    """Bytes of model states that a rank holds.

    >>> [formula(way, 100, 4) for way in FORMULAS]
    [1600.0, 700.0, 550.0, 400.0]
    """
    whole, shared = FORMULAS[way]
    return parameters * (whole + shared / ranks)


def words(way: str) -> str:
    """The formula as it is written.

    >>> [words(way) for way in FORMULAS]
    ['16 P', '4 P + 12 P / d', '2 P + 14 P / d', '16 P / d']
    """
    whole, shared = FORMULAS[way]
    return " + ".join([f"{whole:g} P"] * (whole > 0) + [f"{shared:g} P / d"] * (shared > 0))


def measure(asked: Question, sheet: Sheet) -> None:
    """A row for each way, with and without offload.

    Raises:
        SpecError: A way is none, or the states do not fit into memory.
        JobFailed: A rank failed.
    """
    refuse(asked)
    ranks.measure("hpc_kit.bench.model_memory_rank", asked._asdict(), sheet, ranks=asked.ranks)


def refuse(asked: Question) -> None:
    """Say what cannot be measured before anything is.

    Raises:
        SpecError: A way is none, there is one rank only, or the states do not fit into memory.
    """
    if unknown := [way for way in asked.ways if way not in FORMULAS]:
        raise SpecError(f"unknown way {unknown[0]!r}", found=",".join(asked.ways), remedy=",".join(FORMULAS))
    if asked.ranks < 2:
        raise SpecError("one rank has nobody to share with", found=f"--ranks {asked.ranks}", remedy="--ranks 4")
    if asked.ranks > asked.layers:
        raise SpecError(
            "there are more ranks than layers, so that ZeRO-1 cannot share them evenly",
            found=f"--ranks {asked.ranks}, --layers {asked.layers}",
            remedy=f"--layers {asked.ranks} or a multiple",
        )
    here = ranks.on_this_host(asked.ranks)
    needed = max(formula(way, asked.parameters, asked.ranks) for way in asked.ways)
    room.refuse_beyond(
        here * 1.25 * needed,
        f"a model of {plain(asked.parameters / 1e6)} million parameters on {here} ranks of this host",
        "a smaller --layers or --width, or fewer ranks",
    )
