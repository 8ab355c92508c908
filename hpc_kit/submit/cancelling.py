"""Ending jobs, by id or by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm.commands import scancel_argv
from hpc_kit.slurm.job_id import base_id
from hpc_kit.submit.listing import Line, Wanted, statuses

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpc_kit.submit.access import Access


def cancel(words: Sequence[str], runs: Path, access: Access) -> list[Line]:
    """End jobs, by id or all of a name; returns what each was before. One that has ended already is left as it is.

    Raises:
        UnknownJob: Of an id or name, neither Slurm nor `runs` knows anything; then none is cancelled.
        SlurmUnavailable: Slurm does not answer, or refuses.
    """
    wanted = Wanted.of(words)
    before = statuses(words, runs, access)
    going = [line for line in before if line.status is not None and not line.status.state.finished]
    known = {
        job_id for line in going for job_id in (line.job_id, base_id(line.job_id), line.status and line.status.raw_id)
    }
    ids = [job_id for job_id in wanted.ids if job_id in known]
    ids += [base_id(line.job_id) for line in going if line.name in wanted.names]
    if ids:
        answer = access.ask(scancel_argv(list(dict.fromkeys(ids))))
        if answer.returncode and "already completing or completed" not in answer.stderr:
            raise SlurmUnavailable(
                f"scancel did not end {', '.join(ids)}",
                found=answer.stderr.strip() or f"exit status {answer.returncode}",
                remedy="see who owns it: squeue --job=" + ",".join(ids),
            )
    return before
