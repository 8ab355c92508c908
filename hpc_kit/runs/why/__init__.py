"""Explains why a job failed: reads its logs and Slurm's messages, finds the culprit, and names a fix.

`explain(paths)` is the interface; `array_elements.explain_elements` keeps the different answers about an array apart.
The rules are data, in `rules/*.toml`; docs/why.md lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hpc_kit.runs.why.slurm_tables import JobRow
    from hpc_kit.runs.why.verdicts import Verdict


def explain(paths: Iterable[Path], rows: Iterable[JobRow] = ()) -> Verdict:
    """Return the cause of the failure that files show. Of an array, it is the most common one.

    Args:
        paths: Logs of any kind, outputs of Slurm's commands, the script, or folders with such files.
        rows: States of the job that the scheduler has given.
    """
    from hpc_kit.runs.why.array_elements import explain_elements, merge_groups

    return merge_groups(explain_elements(paths, rows))
