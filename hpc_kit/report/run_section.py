"""Builds the section of a run: outcome, training curves, script, environment and record.

The curves come from the steps that the training saved, or else from the output of rank 0.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpc_kit.bench.plots import PlotData, plot_curves
from hpc_kit.bench.results import Column, Plot, ResultRow, Spread
from hpc_kit.report.page import ReportTable, ReportText, Section, draw_pictures
from hpc_kit.run_files import PATCH, RECORD, SCRIPT, STEPS
from hpc_kit.runs.history import read_history
from hpc_kit.runs.logs import read_tail
from hpc_kit.runs.outcome import Outcome, read_outcome
from hpc_kit.runs.run_folders import Run
from hpc_kit.slurm.job_status import JobStatus
from hpc_kit.slurm.start_forecast import format_duration
from hpc_kit.slurm.units import format_count

MAX_LOG_LINES, MAX_BYTES = 200, 200_000
"""Limits for the end of a log and the beginning of a patch, to keep the page small."""


def build_run_section(run: Run, status: JobStatus | None, prefix: str) -> Section:
    """Build the section of a run, with Slurm's status if it is known. Every id in it begins with the prefix."""
    outcome = read_outcome(run, status)
    failure = outcome.failure
    record = _read_record(run.array_folder / RECORD)
    curves = read_training_curves(run.folder, run.rank_log(0))
    # A single point is not a curve; the tables contain its value.
    plots = [plot for plot in PLOTS if max((len(curve.points) for curve in plot_curves(curves, plot)), default=0) > 1]
    pictures, notes = draw_pictures(curves, plots, prefix)
    return Section(
        name=f"{run.name} {run.job_id}",
        title=f"{run.name}, job {run.job_id}",
        source=str(run.folder),
        headline=f"{outcome.state}: {outcome.sentence}",
        failed=bool(outcome.exit_status),
        failure=failure and ReportText("The failure", f"{failure.headline}\n{failure.text}\n{failure.fix}"),
        facts=_run_facts(run.folder, record, outcome, status),
        pictures=pictures,
        tables=[table for table in _run_tables(record, outcome) if table.rows],
        notes=notes,
        texts=[text for text in _run_texts(run, record) if text.text.strip()],
    )


def _read_record(path: Path) -> Mapping[str, Any]:
    """Read the whole record, including unknown fields of other versions; empty if missing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _nested_value(record: Mapping[str, Any], *names: str) -> Any:
    """Return the nested value of a record; None if it is missing."""
    found: Any = record
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _describe_attempts(run: Path) -> str | None:
    """Return the number of attempts and the time that they cost; None for one attempt."""
    history = read_history(run)
    if len(history.attempts) < 2:
        return None
    return f"{len(history.attempts)}, {format_duration(round(history.lost))} lost between them"


def _run_facts(
    run: Path, record: Mapping[str, Any], outcome: Outcome, status: JobStatus | None
) -> list[tuple[str, str]]:
    """Return the facts that are known. Records of other versions may lack any of them."""
    resources = _nested_value(record, "resolved", "job", "resources") or {}
    ranks, nodes = _nested_value(record, "resolved", "world_size"), resources.get("nodes")
    commit, dirty = _nested_value(record, "git", "commit"), _nested_value(record, "git", "dirty")
    slurm = " ".join(filter(None, (_nested_value(record, "slurm"), _nested_value(record, "slurm_version"))))
    versions = (("python_version",), ("packages", "torch"), ("hpc_kit",))
    facts = {
        "Command": _typed_command(_nested_value(record, "command_line") or []),
        "Program": shlex.join(_nested_value(record, "resolved", "job", "command") or []),
        "Submitted": record.get("submitted"),
        "Exit status": str(outcome.exit_status),
        "Cluster": f"{record.get('cluster')} ({slurm})" if record else None,
        "Ranks": f"{ranks} on {format_count(nodes, 'node')}" if ranks and nodes else ranks,
        # Slurm's accounting may have forgotten the job.
        "Nodes": (status.nodelist if status else "") or _nested_value(record, "end", "nodes"),
        "Attempts": _describe_attempts(run),
        "Submitted from": record.get("host"),
        "Code": f"{commit}, with changes" if commit and dirty else commit,
        "Python, torch, hpc_kit": ", ".join(filter(None, (_nested_value(record, *names) for names in versions))),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def _typed_command(words: list[str]) -> str:
    """Return the command as the user typed it, without the path of Python or of our program."""
    # sys.argv[0] is the path of the program, or of __main__.py for `python -m hpc_kit`.
    is_ours = bool(words) and Path(words[0]).name in {"hpc-kit", "__main__.py"}
    return shlex.join(["hpc-kit", *words[1:]] if is_ours else words)


def _run_tables(record: Mapping[str, Any], outcome: Outcome) -> list[ReportTable]:
    tables = []
    for caption, name, values in (
        ("Summary of the training", "what", outcome.summary),
        ("Environment", "variable", _nested_value(record, "environment")),
    ):
        pairs = values.items() if isinstance(values, dict) else ()
        rows = [[str(key), f"{value:.6g}" if isinstance(value, float) else str(value)] for key, value in pairs]
        tables.append(ReportTable(caption, [name, "value"], rows, left=2))
    return tables


def _run_texts(run: Run, record: Mapping[str, Any]) -> list[ReportText]:
    last = "\n".join(read_tail(run.rank_log(0), MAX_BYTES).splitlines()[-MAX_LOG_LINES:])
    return [
        ReportText("The script", _read_file(run.array_folder / SCRIPT), shown=True),
        ReportText(
            "Packages",
            "\n".join(f"{name}=={version}" for name, version in (_nested_value(record, "packages") or {}).items()),
        ),
        ReportText(f"The last {MAX_LOG_LINES} lines of rank 0", last),
        ReportText("Changes since the commit", _read_file(run.array_folder / PATCH)[:MAX_BYTES]),
        ReportText("The record", json.dumps(record, indent=2, ensure_ascii=False) if record else ""),
    ]


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


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
        title="Work of each rank in a step: median and quartiles, without waiting",
        x="rank",
        y=("busy",),
        kind="bars",
    ),
)

MAX_POINTS = 400
"""Maximum number of points of a curve; more steps are averaged in groups."""

_STEP = re.compile(r"\b(?:step|iter|iteration|epoch)\b\W*(\d+)", re.IGNORECASE)
_LOSS = re.compile(r"\bloss\b\W*?(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
_SPEED = re.compile(
    r"(?<![\d.,])(\d{1,3}(?:[ ,_]\d{3})+|\d+(?:\.\d+)?)\s*(?:tokens|tok)\s*(?:/s|per second)", re.IGNORECASE
)


def read_training_curves(folder: Path, log: Path) -> PlotData:
    """Read the curves of a run, from its steps.json or else from the log of rank 0; no rows if both lack them."""
    try:
        steps = json.loads((folder / STEPS).read_text())
        return PlotData(COLUMNS, [*_step_rows(steps), *_rank_rows(steps)])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:  # it may be larger than the memory
            return PlotData(COLUMNS, _parse_step_lines(lines))
    except OSError:
        return PlotData(COLUMNS, [])


def _step_rows(steps: Mapping[str, Any]) -> list[ResultRow]:
    """Return the means of groups of steps; `tokens` are those of one step over all ranks."""
    losses, seconds, tokens = steps["loss"], steps["seconds"], steps.get("tokens")
    size = math.ceil(len(seconds) / MAX_POINTS) or 1
    rows = []
    for start in range(0, len(seconds), size):
        group = slice(start, start + size)
        values = {"seconds": statistics.mean(seconds[group]), "loss": statistics.mean(losses[group])}
        if tokens and values["seconds"] > 0:
            values["tokens_per_second"] = tokens / values["seconds"]
        rows.append(ResultRow(labels={"step": min(start + size, len(seconds))}, values=values))
    return rows


def _rank_rows(steps: Mapping[str, Any]) -> list[ResultRow]:
    return [
        ResultRow(
            labels={"rank": rank},
            values={"busy": middle},
            spread={"busy": Spread(low=low, high=high, std=0.0, repeats=len(steps["seconds"]))},
        )
        for rank, (low, middle, high) in enumerate(steps.get("busy", ()))
    ]


def _parse_step_lines(lines: Iterable[str]) -> list[ResultRow]:
    """Parse the steps in any program's output.

    Examples: `step 10/60 loss 3.21 5 024 tokens/s` and `epoch 3: loss=0.2`.
    """
    rows = []
    for line in lines:
        step = _STEP.search(line)
        found = {"loss": _LOSS.search(line), "tokens_per_second": _SPEED.search(line)}
        values = {name: float(re.sub(r"[ ,_]", "", match[1])) for name, match in found.items() if match}
        if step and values:
            rows.append(ResultRow(labels={"step": int(step[1])}, values=values))
    # Unlike the steps of steps.json, lines of a log are not averaged: each may lack some of the values.
    return rows[:: math.ceil(len(rows) / MAX_POINTS) or 1]
