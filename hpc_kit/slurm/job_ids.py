"""Splits job ids: array tasks `12_3`, waiting tasks `12_[4-9]`, components `12+1`, steps `12.0`."""

from __future__ import annotations

from hpc_kit.lazy_pattern import lazy_pattern

JOB_ID = lazy_pattern(r"(?P<base>[0-9]+)(?:_(?P<task>[0-9]+|\[[^\]]*\])|\+[0-9]+)?(?P<step>\.\w+)?")
_ID = lazy_pattern(r"[0-9]+(?:[_+][0-9]+|_\[[0-9,:%-]+\])?")
_IDS = lazy_pattern(rf"{_ID.pattern}(?:,{_ID.pattern})*")
_ONE = lazy_pattern(r"[0-9]+(?:[_+][0-9]+)?")


def is_single_job(text: str) -> bool:
    """Return whether the text is the id of one job, array task or component."""
    return _ONE.fullmatch(text) is not None


def parse_job_ids(word: str) -> tuple[str, ...]:
    """Return the ids in a word of a command line such as `12`, `12,13_1` or `12_[4-9]`.

    The result is empty for any other word, such as a job's name.
    """
    return tuple(job_id for each in _ID.findall(word) for job_id in expand_tasks(each)) if _IDS.fullmatch(word) else ()


def expand_tasks(job_id: str) -> list[str]:
    """Expand `12_[4-6%2]` to 12_4, 12_5, 12_6. A list that Slurm has shortened with `...` stays one id."""
    from hpc_kit.errors import HpcKitError
    from hpc_kit.slurm.option_values import parse_array

    match = JOB_ID.fullmatch(job_id)
    if match is None or not (match["task"] or "").startswith("["):
        return [job_id]
    try:
        return [f"{match['base']}_{index}" for index in parse_array(match["task"]).indices]
    except HpcKitError:
        return [job_id]


def base_id(job_id: str) -> str:
    """Return the id without array index, component or step: 12 for `12_3`, `12+1`, `12_[4-9]` and `12.batch`."""
    match = JOB_ID.fullmatch(job_id)
    return match["base"] if match else job_id


def array_index(job_id: str) -> str:
    """Return the part of an array: 3 for `12_3`, [4-9] for `12_[4-9]`, else the empty string."""
    match = JOB_ID.fullmatch(job_id)
    return (match["task"] or "") if match else ""


def sort_key(job_id: str) -> tuple[int, int]:
    """Return a key to sort ids: the number of the job, then that of the task or component, or 0."""
    base, _, part = job_id.replace("+", "_").partition("_")
    return int(base) if base.isdigit() else 0, int(part) if part.isdigit() else 0
