"""Reads the progress that a running job notes in its run folder, and estimates its end."""

from __future__ import annotations

import json
import math
import statistics
import time
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.run_files import format_ranks, progress_file, read_stall
from hpc_kit.slurm.start_forecast import format_duration
from hpc_kit.slurm.units import name_some

if TYPE_CHECKING:
    from pathlib import Path

    from hpc_kit.runs.run_folders import Run

_OLD_SECONDS = 30.0
"""Notes are written every 10 seconds. An older one is shown with its age."""

_SAME_TIME = 120.0
"""Seconds between notes of different nodes of the same attempt. The clocks of nodes differ less than that."""

_BARS = "▁▂▃▄▅▆▇█"

_CLEAR_GAP = 0.15
"""Difference between shares of waiting that is not chance. Equal ranks on two busy cores differed by up to 0.08."""


class SlowestRanks(NamedTuple):
    """The ranks for which the remaining ranks wait in each step."""

    ranks: list[int]
    hosts: list[str]
    waits: float
    """Largest share of the time for which one of them waits for other ranks."""

    others_wait: float
    """Median share of the other ranks."""

    def __str__(self) -> str:
        verb = "waits" if len(self.ranks) == 1 else "wait at most"
        shares = f"{verb} {100 * self.waits:.0f} %, the others {100 * self.others_wait:.0f} %"
        return f"slowest {format_ranks(self.ranks, 4)} on {name_some(self.hosts)}: {shares}"


class RunProgress(NamedTuple):
    """Progress of rank 0."""

    step: int
    total: int | None
    phase: str | None
    seconds: float | None
    """Usual time of a step."""

    age: float
    """Seconds since rank 0 noted it."""

    numbers: dict[str, float]
    """Figures of the program, such as `loss`."""

    losses: list[float]
    """The loss at regular steps since the beginning."""

    stall: str | None
    """The sentence of the watchdog, if the training has made no progress since."""

    slowest: SlowestRanks | None = None
    """The slowest ranks, if they are clearly slower."""

    memory: int | None = None
    """Largest main memory that a rank uses, in bytes."""

    gpu_memory: int | None = None
    """Largest peak of the memory of a rank's GPU, in bytes."""

    def seconds_left(self) -> float | None:
        """Return the estimated time to the last step, or None if the program gave no total."""
        if self.total is None or self.seconds is None:
            return None
        return max(0, self.total - self.step) * self.seconds

    def describe(self, time_left: float | None) -> str:
        """Return the progress as a sentence.

        `time_left` is None if there is no time limit, or it is not known.
        """
        if self.stall is not None:
            return self.stall
        of = f"/{self.total}" if self.total is not None else ""
        parts = [f"step {self.step}{of}"]
        parts += [f"{name} {value:.4g}" for name, value in self.numbers.items()]
        most = {"memory": self.memory, "GPU memory": self.gpu_memory}
        parts += [f"{name} {size / (1 << 30):.3g} GiB" for name, size in most.items() if size]
        if self.phase:
            parts.append(self.phase)
        # A step may take longer than the interval between two notes.
        if self.age > max(_OLD_SECONDS, 2 * (self.seconds or 0.0)):
            parts.append(f"{format_duration(round(self.age))} ago")
        left = self.seconds_left()
        if left is not None:
            parts.append(f"about {format_duration(round(left))} to go")
            if time_left is not None and left > time_left:
                parts.append(f"the time limit comes first, in {format_duration(round(time_left))}")
        if self.slowest is not None:
            parts.append(str(self.slowest))
        return ", ".join(parts)


def draw_line(values: list[float]) -> str:
    """Draw values as a line of bars, the least value as the lowest bar."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    least, most = min(finite), max(finite)
    height = (most - least) or 1.0
    return "".join(
        _BARS[round((value - least) / height * (len(_BARS) - 1))] if math.isfinite(value) else "?" for value in values
    )


def read_progress(run: Run) -> RunProgress | None:
    """Return the progress of a run, or None if its program has noted none."""
    try:
        document = json.loads((run.folder / progress_file(0)).read_bytes())
        stall = read_stall(run.folder)
        ranks, hosts = _read_ranks(run.folder, document)
        waits = {rank: float(note["waits"]) for rank, note in ranks.items() if "waits" in note}
        memory, gpu_memory = (
            max((int(note[name]) for note in ranks.values() if name in note), default=None)
            for name in ("memory", "gpu_memory")
        )
        return RunProgress(
            step=int(document["step"]),
            total=document.get("total"),
            phase=document.get("phase"),
            seconds=document.get("seconds"),
            age=max(0.0, time.time() - float(document["time"])),
            numbers={name: float(value) for name, value in document["numbers"].items()},
            losses=[float(value) for value in document["losses"]],
            stall=stall.sentence if stall and stall.time > float(document["time"]) else None,
            slowest=find_slowest(waits, hosts),
            memory=memory,
            gpu_memory=gpu_memory,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_ranks(folder: Path, first: dict[str, Any]) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """Return the note of each rank, and the hosts of the ranks, from the notes of all nodes."""
    ranks: dict[int, dict[str, Any]] = {}
    hosts: dict[int, str] = {}
    for path in folder.glob(progress_file("*")) if first.get("ranks") else ():
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            note = json.loads(path.read_bytes())
            # An earlier attempt may have had more nodes.
            if abs(float(note["time"]) - float(first["time"])) < _SAME_TIME:
                of_node = {int(rank): dict(each) for rank, each in note["ranks"].items()}
                ranks.update(of_node)
                hosts.update(dict.fromkeys(of_node, str(note["host"])))
    return ranks, hosts


def read_rank_hosts(folder: Path) -> dict[int, str]:
    """Return the hosts of the ranks of a run folder, from the notes of all nodes."""
    hosts: dict[int, str] = {}
    for path in folder.glob(progress_file("*")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            note = json.loads(path.read_bytes())
            hosts.update((int(rank), str(note["host"])) for rank in [note["rank"], *note.get("ranks", {})])
    return hosts


def find_slowest(waits: dict[int, float], hosts: dict[int, str]) -> SlowestRanks | None:
    """Return the ranks that wait clearly less than the remaining ranks: at most half of them, below a wide gap."""
    order = sorted(waits, key=lambda rank: waits[rank])
    # A slow rank computes while the remaining ranks wait for it: it has the smallest share of waiting.
    gaps = [(waits[above] - waits[below], n) for n, (below, above) in enumerate(pairwise(order), 1)]
    gap, count = max(gaps[: len(order) // 2], default=(0.0, 0))
    if gap < _CLEAR_GAP:
        return None
    slow = sorted(order[:count])
    others = statistics.median(waits[rank] for rank in order[count:])
    return SlowestRanks(slow, list(dict.fromkeys(hosts[rank] for rank in slow)), waits[order[count - 1]], others)
