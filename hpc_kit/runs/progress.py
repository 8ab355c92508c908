"""Reads the progress that a running job notes in its run folder, and estimates its end."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.run_files import progress_file, read_stall
from hpc_kit.slurm.start_forecast import format_duration

if TYPE_CHECKING:
    from hpc_kit.runs.run_folders import Run

_OLD_SECONDS = 30.0
"""Notes are written every 10 seconds. An older one is shown with its age."""

_BARS = "▁▂▃▄▅▆▇█"


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

    def seconds_left(self) -> float | None:
        """Return the estimated time to the last step, or None if the program gave no total."""
        if self.total is None or self.seconds is None:
            return None
        return max(0, self.total - self.step) * self.seconds

    def describe(self, time_left: float | None) -> str:
        """Return the progress in words.

        Args:
            time_left: Seconds until the time limit; None if there is none, or it is not known.
        """
        if self.stall is not None:
            return self.stall
        of = f"/{self.total}" if self.total is not None else ""
        parts = [f"step {self.step}{of}"]
        parts += [f"{name} {value:.4g}" for name, value in self.numbers.items()]
        if self.phase:
            parts.append(self.phase)
        if self.age > max(_OLD_SECONDS, 2 * (self.seconds or 0.0)):
            parts.append(f"{format_duration(round(self.age))} ago")
        left = self.seconds_left()
        if left is not None:
            parts.append(f"about {format_duration(round(left))} to go")
            if time_left is not None and left > time_left:
                parts.append(f"the time limit comes first, in {format_duration(round(time_left))}")
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
        return RunProgress(
            step=int(document["step"]),
            total=document.get("total"),
            phase=document.get("phase"),
            seconds=document.get("seconds"),
            age=max(0.0, time.time() - float(document["time"])),
            numbers={name: float(value) for name, value in document["numbers"].items()},
            losses=[float(value) for value in document["losses"]],
            stall=stall.sentence if stall and stall.time > float(document["time"]) else None,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
