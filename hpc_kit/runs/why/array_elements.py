"""The elements of a job array, or jobs of submitit: each is a job of its own, and equal failures are one answer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hpc_kit.runs.why.attempt import rows_of_job
from hpc_kit.runs.why.decision import decide
from hpc_kit.runs.why.evidence import Evidence
from hpc_kit.runs.why.log_collector import add_file
from hpc_kit.runs.why.log_reader import find_logs, natural_order
from hpc_kit.runs.why.run_evidence import add_first_failure
from hpc_kit.runs.why.verdicts import UNKNOWN
from hpc_kit.slurm.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hpc_kit.runs.why.log_reader import LogFile
    from hpc_kit.runs.why.slurm_tables import JobRow
    from hpc_kit.runs.why.verdicts import Verdict

MAX_NAMED = 12
"""Elements that a sentence names."""


def explain_elements(paths: Iterable[Path], rows: Iterable[JobRow] = ()) -> list[tuple[list[str], Verdict]]:
    """Return the answer about a job; of an array, the different answers with the ids of their elements."""
    logs = find_logs(paths)
    common = Evidence()
    common.rows += rows
    _add([log for log in logs if not log.element], common)
    own = _group_logs(logs, common)
    listed = _listed_elements(common, {element.partition("_")[0] for element in own})
    failed = [row.element for row in sorted(listed, key=lambda row: row.state is JobState.FAILED) if row.state.failed]
    # Further logs belong to the only element with a log, or else to one that failed.
    owner = next(iter(own or reversed(failed)), "") if len(own) < 2 else ""
    found = []
    for element in dict.fromkeys([*own, *failed[-1:], *(row.element for row in listed)]):
        evidence = common.of_element(element, with_logs=element == owner)
        _add(own.get(element, []), evidence)
        verdict = decide(evidence)
        if element == owner and not own and common.events and len(failed) > 1:
            verdict.confidence = "likely"  # nothing shows whose log it is
        found.append((element, verdict))
    return group_verdicts(found) if len(found) > 1 else [([], found[0][1] if owner else decide(common))]


def _group_logs(logs: list[LogFile], common: Evidence) -> dict[str, list[LogFile]]:
    """Return the logs of elements by their ids. Listings may add the id of the array to an index."""
    arrays = {row.element.partition("_")[0] for row in common.rows} - {""}
    found: dict[str, list[LogFile]] = {}
    for log in logs:
        if log.element:
            array = min(arrays) if len(arrays) == 1 and log.element.startswith("_") else ""
            found.setdefault(array + log.element, []).append(log)
    return found


def _listed_elements(common: Evidence, arrays: set[str]) -> list[JobRow]:
    """Return the rows of elements: of the arrays that wrote logs, or else of the job that the logs belong to."""
    rows = [row for row in (common.rows if arrays else rows_of_job(common)) if row.element and not row.is_step]
    return [row for row in rows if not arrays or row.element.partition("_")[0] in arrays]


def _add(logs: Iterable[LogFile], evidence: Evidence) -> None:
    from hpc_kit.run_files import FIRST_FAILURE

    for log in logs:
        if log.path.name == FIRST_FAILURE:
            add_first_failure(log.path.parent, evidence)
        else:
            add_file(evidence, log)


def group_verdicts(verdicts: Iterable[tuple[str, Verdict]]) -> list[tuple[list[str], Verdict]]:
    """Return the different answers about jobs, known causes and large groups first, each with the ids of its jobs.

    Answers are equal if they differ only in hosts, numbers, and the last lines of logs without an error.
    """
    groups: dict[tuple[str, str], tuple[list[str], Verdict]] = {}
    for job_id, verdict in verdicts:
        cause = verdict.cause.replace(verdict.host, "") if verdict.host else verdict.cause
        cause = re.sub(r"\d+|, which ends with: .*|\(the last lines .*", "", cause)
        jobs, _ = groups.setdefault((verdict.class_, cause), ([], verdict))
        jobs.append(job_id)
    ordered = [(sorted(jobs, key=natural_order), verdict) for jobs, verdict in groups.values()]
    return sorted(ordered, key=_rank_group)


def _rank_group(group: tuple[list[str], Verdict]) -> tuple[bool, bool, int]:
    jobs, verdict = group
    return verdict.cause.startswith("did not fail"), verdict.class_ == UNKNOWN, -len(jobs)


def name_elements(ids: list[str]) -> str:
    """Return the ids of elements as a text of limited length."""
    return f"{', '.join(each.lstrip('_') for each in ids[:MAX_NAMED])}{' ...' * (len(ids) > MAX_NAMED)}"


def merge_groups(groups: list[tuple[list[str], Verdict]]) -> Verdict:
    """Return the first answer about the elements of an array, with the remaining answers in one line each."""
    (ids, verdict), *others = groups
    if not ids:
        return verdict
    total = sum(len(each) for each, _ in groups)
    kind = "elements of the array" if "_" in ids[0] else "jobs"
    cause = f"{verdict.cause}; {len(ids)} of {total} {kind} ended so: {name_elements(ids)}"
    also = [f"{name_elements(each)} ({len(each)}): {other.cause}" for each, other in others]
    return replace(verdict, cause=cause, also=[*verdict.also, *also])
