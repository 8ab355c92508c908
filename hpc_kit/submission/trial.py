"""When a job would start: `sbatch --test-only` asks the scheduler itself, and submits nothing."""

from __future__ import annotations

import datetime as dt
import re
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.runs.access import access_of
from hpc_kit.script.render import render_resolved
from hpc_kit.slurm.command_environment import clean_environ
from hpc_kit.slurm.input_variables import without_overrides

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpc_kit.spec.resolve import Resolved

TRIAL_SECONDS = 120.0
"""The scheduler may think for long on a large site."""

_START = re.compile(
    r"^sbatch: Job \d+ to start at (?P<start>\S+) (?:a )?using (?P<cpus>\d+) processors on (?:nodes )?(?P<nodes>\S+)"
    r"(?: in partition (?P<partition>\S+))?",
    re.MULTILINE,
)
_PREEMPTS = re.compile(r"^sbatch:\s+Preempts: (?P<ids>\S+)", re.MULTILINE)


class Start(NamedTuple):
    """When and where a job would start, were it submitted now."""

    start: dt.datetime
    """On the controller's clock, without a zone, as Slurm gives times."""

    nodes: str
    """A host list."""

    cpus: int
    partition: str | None
    preempts: tuple[str, ...]
    """Jobs that would have to make room for it."""


def would_start(
    resolved: Resolved, *, root: Path, standalone: bool = False, environ: Mapping[str, str] | None = None
) -> Start:
    """Ask when a job would start; nothing is submitted, and no file of a run is made.

    Args:
        resolved: The job, fitted to its cluster.
        root: The user's project.
        standalone: Need no hpc_kit on the nodes.
        environ: The environment to ask from (default: this process's).

    Raises:
        SubmitRefused: Sbatch would not take it.
        SlurmUnavailable: There is no Slurm, or it does not answer.
    """
    from hpc_kit.submission.refusals import own_words, refusal

    text = render_resolved(resolved, standalone=standalone, root=root)
    access = access_of(resolved.cluster, environ)
    access.require(resolved.cluster.name)
    environ, _ = without_overrides(clean_environ(access.environ), text)
    # The time is read as Slurm prints it where nobody wishes for another form.
    access = access._replace(environ={name: each for name, each in environ.items() if name != "SLURM_TIME_FORMAT"})
    with tempfile.NamedTemporaryFile("w", prefix="hpc_kit.", suffix=".sbatch", encoding="utf-8") as script:
        script.write(text)
        script.flush()
        answer = access.ask(["sbatch", "--test-only", script.name], timeout=TRIAL_SECONDS)
    if answer.returncode:
        raise refusal(resolved, access, answer)
    found = parse(answer.stderr)
    if found is None:
        raise SlurmUnavailable(
            "sbatch --test-only does not say when the job would start",
            found=own_words(answer),
            remedy="submit it, and ask then: hpc-kit status",
        )
    return found


def parse(stderr: str) -> Start | None:
    """What `sbatch --test-only` says; None where that is something else.

    Source: printed by sbatch 22.05 and, without `a`, by later ones; seen on both engines.
    """
    said = _START.search(stderr)
    if said is None:
        return None
    try:
        start = dt.datetime.fromisoformat(said["start"])
    except ValueError:
        return None
    preempts = _PREEMPTS.search(stderr)
    ids = tuple(preempts["ids"].split(",")) if preempts else ()
    return Start(start, said["nodes"], int(said["cpus"]), said["partition"], ids)
