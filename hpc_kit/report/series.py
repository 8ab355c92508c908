"""The curves of a training: from the steps that it has written down, else from what its rank 0 has said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpc_kit.bench.results import Column, Plot, Row, Spread
from hpc_kit.run_files import STEPS

COLUMNS = {
    "loss": Column(),
    "tokens_per_second": Column(unit="1/s", better="higher", title="tokens"),
    "seconds": Column(unit="s", title="step"),
    "busy": Column(unit="s", title="a rank's own part of a step"),
}
PLOTS = (
    Plot(name="loss", title="Loss", x="step", y=("loss",)),
    Plot(name="speed", title="Tokens a second", x="step", y=("tokens_per_second",)),
    Plot(name="steps", title="Time of a step", x="step", y=("seconds",)),
    Plot(
        name="ranks",
        title="Work of each rank in a step: median and quartiles, without what it waited",
        x="rank",
        y=("busy",),
        kind="bars",
    ),
)

MOST_POINTS = 400
"""More steps than these are drawn as means of as many neighbours each as it takes."""

_STEP = re.compile(r"\b(?:step|iter|iteration|epoch)\b\W*(\d+)", re.IGNORECASE)
_LOSS = re.compile(r"\bloss\b\W*?(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
_SPEED = re.compile(
    r"(?<![\d.,])(\d{1,3}(?:[ ,_]\d{3})+|\d+(?:\.\d+)?)\s*(?:tokens|tok)\s*(?:/s|per second)", re.IGNORECASE
)


class Series(NamedTuple):
    """Rows to be drawn, as those of a bench's document."""

    columns: Mapping[str, Column]
    results: Sequence[Row]


def of_run(folder: Path, log: Path) -> Series:
    """The curves of a run; no rows where it tells nothing of its steps.

    Args:
        folder: Its run folder.
        log: What its rank 0 has said.
    """
    try:
        steps = json.loads((folder / STEPS).read_text())
        return Series(COLUMNS, [*_written(steps), *_ranks(steps)])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:  # it may be larger than the memory
            return Series(COLUMNS, _said(lines))
    except OSError:
        return Series(COLUMNS, [])


def _written(steps: Mapping[str, Any]) -> list[Row]:
    losses, seconds, tokens = steps["loss"], steps["seconds"], steps.get("tokens")
    width = -(-len(seconds) // MOST_POINTS) or 1
    rows = []
    for start in range(0, len(seconds), width):
        times, of_losses = seconds[start : start + width], losses[start : start + width]
        values = {"seconds": sum(times) / len(times), "loss": sum(of_losses) / len(of_losses)}
        if tokens and values["seconds"] > 0:
            values["tokens_per_second"] = tokens / values["seconds"]
        rows.append(Row(labels={"step": start + len(times)}, values=values))
    return rows


def _ranks(steps: Mapping[str, Any]) -> list[Row]:
    return [
        Row(
            labels={"rank": rank},
            values={"busy": middle},
            spread={"busy": Spread(low=low, high=high, std=0.0, repeats=len(steps["seconds"]))},
        )
        for rank, (low, middle, high) in enumerate(steps.get("busy", ()))
    ]


def _said(lines: Iterable[str]) -> list[Row]:
    """Steps in the lines of any program: `step 10/60   loss 3.21   5 024 tokens/s`, `epoch 3: loss=0.2`."""
    rows = []
    for line in lines:
        step = _STEP.search(line)
        found = {"loss": _LOSS.search(line), "tokens_per_second": _SPEED.search(line)}
        values = {name: float(re.sub(r"[ ,_]", "", match[1])) for name, match in found.items() if match}
        if step and values:
            rows.append(Row(labels={"step": int(step[1])}, values=values))
    width = -(-len(rows) // MOST_POINTS) or 1
    return rows[::width]
