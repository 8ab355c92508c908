"""Options of `hpc-kit bench memory`: bytes of model states by sharding strategy, and the formulas of the ZeRO paper."""

from __future__ import annotations

from typing import NamedTuple

from hpc_kit.bench import local_ranks, option_checks
from hpc_kit.bench.results import Column, format_number
from hpc_kit.errors import SpecError

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


class MemoryOptions(NamedTuple):
    """Options of `bench memory`."""

    ways: tuple[str, ...] = ("ddp", "zero1", "zero2", "zero3")
    offload: tuple[bool, ...] = (False, True)
    layers: int = 16
    width: int = 512
    """Width of each matrix."""
    rows: int = 8
    """Rows in the batch of a rank."""
    steps: int = 5
    ranks: int = 4

    @property
    def parameters(self) -> int:
        """Number of parameters P."""
        return self.layers * self.width**2

    def needed_bytes(self, ranks: int) -> float:
        """Return the bytes that one of `ranks` ranks needs."""
        # A quarter more than the model states: activations, buffers of DDP, and gathered layers.
        return 1.25 * max(state_bytes(strategy, self.parameters, ranks) for strategy in self.ways)

    def check(self) -> None:
        """Check the options before anything is measured.

        Raises:
            SpecError: A variant is unknown, there is one rank only, or memory is too small.
        """
        option_checks.check_known_names("way", self.ways, FORMULAS)
        option_checks.check_several_ranks(self.ranks, "one rank has no other rank to share with")
        if self.ranks > self.layers:
            raise SpecError(
                "there are more ranks than layers, so that ZeRO-1 cannot share them evenly",
                found=f"--ranks {self.ranks}, --layers {self.layers}",
                remedy=f"--layers {self.ranks} or a multiple",
            )
        here = local_ranks.ranks_on_this_host(self.ranks)
        option_checks.check_memory(
            here * self.needed_bytes(self.ranks),
            f"a model of {format_number(self.parameters / 1e6)} million parameters on {here} ranks of this host",
            "a smaller --layers or --width, or fewer ranks",
        )


FORMULAS = {"ddp": (16.0, 0.0), "zero1": (4.0, 12.0), "zero2": (2.0, 14.0), "zero3": (0.0, 16.0)}
"""Bytes (a, b) for a P + b P / d with d ranks in mixed precision (Rajbhandari et al., 2019, arXiv:1910.02054)."""


def state_bytes(strategy: str, parameters: int, ranks: int) -> float:
    """Return the bytes of model states on one rank.

    >>> [state_bytes(way, 100, 4) for way in FORMULAS]
    [1600.0, 700.0, 550.0, 400.0]
    """
    whole, shared = FORMULAS[strategy]
    return parameters * (whole + shared / ranks)


def formula_text(strategy: str) -> str:
    """Return the formula as text.

    >>> [formula_text(way) for way in FORMULAS]
    ['16 P', '4 P + 12 P / d', '2 P + 14 P / d', '16 P / d']
    """
    whole, shared = FORMULAS[strategy]
    terms = (f"{whole:g} P" if whole else "", f"{shared:g} P / d" if shared else "")
    return " + ".join(filter(None, terms))
