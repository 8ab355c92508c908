"""The section of a run: how it ended, its curves, what was run and with what."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_kit.bench.curves import curves
from hpc_kit.report import series
from hpc_kit.report.pictures import pictures
from hpc_kit.report.section import Section, Table, Text
from hpc_kit.run_files import PATCH, RECORD, SCRIPT
from hpc_kit.runs.outcome import read_outcome

if TYPE_CHECKING:
    from hpc_kit.runs.outcome import Outcome
    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.job_status import JobStatus

MOST_LINES, MOST_BYTES = 200, 200_000
"""Of a log the last lines, of a patch the beginning: the page is a report and no archive."""


def section(run: Run, status: JobStatus | None, prefix: str) -> Section:
    """What a run has done.

    Args:
        run: Its files.
        status: What Slurm says of it, where it does.
        prefix: Before every id in the page.
    """
    end = read_outcome(run, status)
    record = _record(run.array_folder / RECORD)
    steps = series.of_run(run.folder, run.rank_log(0))
    # One point is no curve: what it says stands in the tables.
    plots = [plot for plot in series.PLOTS if any(len(curve.points) > 1 for curve in curves(steps, plot))]
    drawn, notes = pictures(steps, plots, prefix)
    return Section(
        name=f"{run.name} {run.job_id}",
        title=f"{run.name}, job {run.job_id}",
        source=str(run.folder),
        headline=f"{end.state}: {end.sentence}",
        bad=bool(end.exit_status),
        failure=_failure(end),
        facts=_facts(record, end, status),
        pictures=drawn,
        tables=[table for table in _tables(record, end) if table.rows],
        notes=notes,
        texts=[text for text in _texts(run, record) if text.text.strip()],
    )


def _record(path: Path) -> Mapping[str, Any]:
    """The whole record, also of a version that knew other fields; nothing where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _at(record: Mapping[str, Any], *names: str) -> Any:
    """What stands there in a record; None where it does not go so deep."""
    found: Any = record
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _facts(record: Mapping[str, Any], end: Outcome, status: JobStatus | None) -> list[tuple[str, str]]:
    resources = _at(record, "resolved", "job", "resources") or {}
    ranks, nodes = _at(record, "resolved", "world_size"), resources.get("nodes")
    commit, dirty = _at(record, "git", "commit"), _at(record, "git", "dirty")
    slurm = " ".join(filter(None, (_at(record, "slurm"), _at(record, "slurm_version"))))
    where = (status.nodelist if status else "") or _at(record, "end", "nodes")
    facts = {
        "Command": _command(_at(record, "command_line") or []),
        "Program": shlex.join(_at(record, "resolved", "job", "command") or []),
        "Submitted": record.get("submitted"),
        "Exit status": str(end.exit_status),
        "Cluster": f"{record.get('cluster')} ({slurm})" if record else None,
        "Ranks": f"{ranks} on {nodes} node{'s' * (nodes != 1)}" if ranks and nodes else ranks,
        "Nodes": where,
        "Submitted from": record.get("host"),
        "Code": f"{commit}{', with changes' * bool(dirty)}" if commit else None,
        "Python, torch, hpc_kit": ", ".join(
            filter(None, (_at(record, "python_version"), _at(record, "packages", "torch"), _at(record, "hpc_kit")))
        ),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def _command(words: list[str]) -> str:
    """As it is typed: whichever file of ours Python was given."""
    own = bool(words) and Path(words[0]).name in {"hpc-kit", "__main__.py"}
    return shlex.join(["hpc-kit", *words[1:]] if own else words)


def _tables(record: Mapping[str, Any], end: Outcome) -> list[Table]:
    def table(caption: str, heads: list[str], values: Any) -> Table:
        pairs = values.items() if isinstance(values, dict) else ()
        return Table(caption, heads, [[str(name), _shown(value)] for name, value in pairs], left=2)

    return [
        table("What the training says of itself", ["what", "value"], end.summary),
        table("Environment", ["variable", "value"], _at(record, "environment")),
    ]


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _failure(end: Outcome) -> Text | None:
    failure = end.failure
    if failure is None:
        return None
    who = "the batch script" if failure.rank is None else f"rank {failure.rank}"
    where = f" on {failure.host}" if failure.host else ""
    return Text(f"The first failure: {who}{where}", f"{failure.headline}\n{failure.text}")


def _texts(run: Run, record: Mapping[str, Any]) -> list[Text]:
    last = "\n".join(_end_of(run.rank_log(0)).splitlines()[-MOST_LINES:])
    return [
        Text("The script", _read(run.array_folder / SCRIPT), shown=True),
        Text("Packages", "\n".join(f"{name}=={version}" for name, version in (_at(record, "packages") or {}).items())),
        Text(f"The last {MOST_LINES} lines of rank 0", last),
        Text("What differed from the commit", _read(run.array_folder / PATCH)[:MOST_BYTES]),
        Text("The record", json.dumps(record, indent=2, ensure_ascii=False) if record else ""),
    ]


def _end_of(log: Path) -> str:
    """The last part of a log, which may be larger than the memory."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_BYTES))
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
