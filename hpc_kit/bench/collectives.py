"""Collectives of several backends, timed side by side; a ring against a star; what each link does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from hpc_kit.bench import local_ranks as ranks
from hpc_kit.bench.results import Column, Plot, Value
from hpc_kit.errors import SpecError

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet

BACKENDS = ("gloo", "mpi", "nccl", "horovod")
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda _ranks: 1.0,
    "send_recv": lambda _ranks: 1.0,
}
"""What each rank's link carries, in sizes: the collectives that can be measured."""

ALGORITHMS = ("ring", "star")
"""All-reduces by hand, of plain messages; see `algorithms`."""

TITLE = "Collectives, side by side"
COLUMNS = {
    "seconds": Column(unit="s", title="time"),
    "algbw": Column(unit="GB/s", better="higher", kind="reckoned"),
    "busbw": Column(unit="GB/s", better="higher", kind="reckoned"),
    "sent": Column(unit="B", better="none", kind="counted"),
    "received": Column(unit="B", better="none", kind="counted"),
    "traffic": Column(unit="B", better="none", title="sent and received", kind="reckoned"),
    "alpha": Column(unit="s"),
    "alpha_error": Column(unit="s", better="none", title="+-", kind="reckoned"),
    "beta": Column(unit="ns/B"),
    "beta_error": Column(unit="ns/B", better="none", title="+-", kind="reckoned"),
    "bandwidth": Column(unit="GB/s", better="higher", title="1 / beta", kind="reckoned"),
}
"""seconds: of one collective of the slowest rank, or of one message; algbw: bytes / seconds; busbw: algbw times what
each rank's link carries, comparable among collectives and numbers of ranks."""

_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_STEP = 4
"""Between the sizes of a range."""


class Question(NamedTuple):
    """What is to be measured."""

    backends: tuple[str, ...]
    collectives: tuple[str, ...]
    ranks: int
    sizes: tuple[int, ...]
    """Bytes: of the tensor; of the whole for all_gather, reduce_scatter and all_to_all."""
    algorithms: tuple[str, ...] = ()
    links: bool = False

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Question:
        """What `_asdict` gave, and JSON carried."""
        lists = {name: tuple(value) for name, value in words.items() if isinstance(value, list | tuple)}
        return cls(**{**words, **lists})

    def rows(self, pairs: int) -> int:
        """How many rows come of it, with so many links."""
        times = len(self.collectives) + len(self.algorithms)
        return len(self.backends) * (times * len(self.sizes) + pairs * (len(self.sizes) + 1)) + (
            len(self.algorithms) * self.ranks
        )


def question(
    backends: str, collectives: str, world_size: int, sizes: str, algorithms: str = "", *, links: bool = False
) -> Question:
    """What the words of a command line ask for.

    Raises:
        SpecError: A name or a size is none, or there is one rank only.
    """
    if world_size < 2:
        raise SpecError(
            "there is nothing to measure among fewer than 2 ranks",
            found=f"ranks = {world_size}",
            remedy="--ranks 2",
        )
    wanted = _names(collectives, tuple(BUS_FACTORS), "collective", every="all")
    by_hand = _names(algorithms, ALGORITHMS, "algorithm") if algorithms else ()
    if by_hand and "all_reduce" not in wanted:
        raise SpecError(
            "ring and star are ways to do an all_reduce", found=collectives, remedy="--collectives all_reduce"
        )
    return Question(_names(backends, BACKENDS, "backend"), wanted, world_size, sizes_of(sizes), by_hand, links)


def sizes_of(text: str) -> tuple[int, ...]:
    """Bytes of `4KiB,64MiB`, in order; `1KiB-256MiB` is that range by powers of 4, its end included.

    Raises:
        SpecError: One of them is no size, or a range goes down.
    """
    found: set[int] = set()
    for word in text.split(","):
        low, dash, high = word.partition("-")
        first, last = size(low), size(high if dash else low)
        if last < first:
            raise SpecError(f"{word!r} goes down", found=f"{last} < {first}", remedy=f"{high}-{low}")
        step = first
        while step < last:
            found.add(step)
            step *= _STEP
        found.add(last)
    return tuple(sorted(found))


def size(text: str) -> int:
    """Bytes of 4096, 4KiB, 4K or 4 MB; the powers are those of 1024.

    Raises:
        SpecError: It is none of these, or too small for a number.
    """
    match = _SIZE.fullmatch(text.strip())
    number = int(match[1]) << _POWERS[(match[2] or "").upper()] if match else 0
    if number < 4:
        raise SpecError(
            f"{text!r} is no size", found=f"--sizes {text}", remedy="bytes from 4 up: 4096, 4KiB, 64MiB, 1KiB-256MiB"
        )
    return number


def _names(text: str, known: Sequence[str], what: str, every: str | None = None) -> tuple[str, ...]:
    names = tuple(known) if text == every else tuple(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        if name not in known:
            raise SpecError(f"unknown {what} {name!r}", found=text, remedy=f"one or more of {','.join(known)}")
    if not names:
        raise SpecError(f"no {what} is named", remedy=f"one or more of {','.join(known)}")
    return names


def measure(asked: Question, sheet: Sheet, *, launcher: str | None = None, timeout: float = ranks.TIMEOUT) -> None:
    """Let ranks measure.

    Args:
        asked: What is to be measured.
        sheet: Is filled in.
        launcher: The words that start the ranks: `srun --mpi=pmix -N4 -n4`. Default: mpirun where mpi is asked for,
            else processes of this one; nothing in a step of several ranks.
        timeout: Seconds for the whole.

    Raises:
        SpecError: There is no mpirun.
        JobFailed: A rank failed, or they took too long.
    """
    ranks.measure(
        "hpc_kit.bench.collectives_rank",
        asked._asdict(),
        sheet,
        ranks=asked.ranks,
        launcher=launcher,
        mpi="mpi" in asked.backends,
        timeout=timeout,
    )


def plots(asked: Question) -> list[Plot]:
    """Time and bandwidth over the size, for each collective; bytes of each rank; what each link does."""
    found = []
    for collective in asked.collectives:
        where: dict[str, Value] = {"collective": collective}
        series = ("backend", "algorithm") if asked.algorithms and collective == "all_reduce" else ("backend",)
        for column, words in (("seconds", "time"), ("busbw", "bus bandwidth")):
            title = f"{collective}, {asked.ranks} ranks: {words}"
            name = f"{collective}-{words.replace(' ', '-')}"
            picture = Plot(name=name, title=title, x="bytes", y=(column,), series=series, where=where)
            found.append(structs.replace(picture, log_x=True, log_y=True))
    if asked.algorithms:
        title = f"One all-reduce, {asked.ranks} ranks: bytes that each sends and receives"
        found.append(Plot(name="traffic", title=title, x="rank", y=("traffic",), series=("algorithm",), kind="bars"))
    if asked.links:
        for column, words in (("bandwidth", "bandwidth"), ("alpha", "latency")):
            title = f"Each link: {words} by the line through its times"
            found.append(
                Plot(name=f"link-{words}", title=title, x="link", y=(column,), series=("backend",), kind="bars")
            )
    return found
