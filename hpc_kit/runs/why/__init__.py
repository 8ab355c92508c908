"""Explains why a job failed: reads its logs and Slurm's messages, finds the culprit, and names a fix.

`explain(paths)` is the whole interface. The rules are data, in `rules/*.toml`; docs/why.md lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hpc_kit.runs.why.answers import Verdict
    from hpc_kit.runs.why.slurm_tables import JobRow


def explain(paths: Iterable[Path], rows: Iterable[JobRow] = ()) -> Verdict:
    """Return the cause of the failure that files show.

    Args:
        paths: Logs of any kind, outputs of Slurm's commands, the script, or folders with such files.
        rows: States of the job that the scheduler has given.
    """
    from hpc_kit.run_files import FIRST_FAILURE
    from hpc_kit.runs.why.collecting import add_file
    from hpc_kit.runs.why.decision import decide
    from hpc_kit.runs.why.events import Evidence
    from hpc_kit.runs.why.of_run import add_first_failure
    from hpc_kit.runs.why.reading import find_logs

    evidence = Evidence()
    for log in find_logs(paths):
        if log.path.name == FIRST_FAILURE:
            add_first_failure(log.path.parent, evidence)
        else:
            add_file(evidence, log)
    evidence.rows += rows
    return decide(evidence)
