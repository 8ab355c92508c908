"""What sbatch says when it takes no job, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpc_kit.errors import AnswerNo, SlurmUnavailable, SubmitRefused
from hpc_kit.script.quoting import pasted
from hpc_kit.slurm.commands import remedy_of

if TYPE_CHECKING:
    from hpc_kit.runs.access import Access
    from hpc_kit.slurm.client import Completed
    from hpc_kit.spec.resolve import Resolved

Remedy = str | Callable[["Access"], str]

_MINE = "sacctmgr show associations user=$USER format=account%30,partition%20,qos%40"
_SINFO_SECONDS = 10.0

LOST = re.compile(
    r"socket timed out|zero bytes|transport endpoint|connection reset|connection timed out|broken pipe"
    r"|insane message|interrupted system call|communication connection failure",
    re.IGNORECASE,
)
"""The controller may have taken the job although sbatch did not hear of it."""

_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|connection refused|configuration source|munge|authentication"
    r"|controller .*not respond|backup controller|unable to establish",
    re.IGNORECASE,
)


def refusal(resolved: Resolved, access: Access, answer: Completed) -> AnswerNo:
    """The error for an sbatch that gave no job: its own words first, then what to do.

    Args:
        resolved: The job.
        access: The Slurm that was asked.
        answer: What sbatch did.
    """
    words = own_words(answer)
    if _UNREACHABLE.search(words):
        what = "Slurm does not answer, and the job was not submitted"
        return SlurmUnavailable(what, found=words, remedy=remedy_of(words))
    return SubmitRefused(f"sbatch refused {resolved.job.name}", found=words, remedy=_remedy(words, resolved, access))


def own_words(answer: Completed) -> str:
    """What sbatch said, without its name before each line."""
    text = answer.stderr.strip() or answer.stdout.strip() or f"exit status {answer.returncode}, without a word"
    return re.sub(r"^sbatch: (?:error: |fatal: )?", "", text, flags=re.MULTILINE)


def _remedy(words: str, resolved: Resolved, access: Access) -> str:
    if re.search(r"invalid partition|no partition specified|default partition", words, re.IGNORECASE):
        return _partition(resolved.job.resources.partition, access)
    if re.search(r"node configuration|node count|processors|cpu count|requested nodes?", words, re.IGNORECASE):
        return _nodes(resolved, access)
    for said, remedy in _REMEDIES:
        if re.search(said, words, re.IGNORECASE):
            return remedy if isinstance(remedy, str) else remedy(access)
    return f"mend what it names; the script: {pasted(resolved.again)}" if resolved.again else "mend what it names"


def _sinfo(access: Access, field: str) -> list[str]:
    """Values of one field over all partitions; none where sinfo does not answer."""
    try:
        answer = access.ask(["sinfo", "--noheader", f"--format={field}"], timeout=_SINFO_SECONDS)
    except SlurmUnavailable:
        return []
    return sorted({line.strip() for line in answer.stdout.splitlines() if line.strip()})


def _near(wanted: str, known: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(wanted, known, n=3) or known[:8]


def _partition(wanted: str | None, access: Access) -> str:
    known = _sinfo(access, "%R")
    if not known:
        return "partitions that there are: sinfo --summarize"
    if wanted is None:
        return f"name one: --partition={' or '.join(known[:8])}"
    return " or ".join(f"--partition={name}" for name in _near(wanted, known))


def _hosts(access: Access) -> str:
    known = _sinfo(access, "%N")
    return f"nodes that there are: {', '.join(known)}" if known else "nodes that there are: sinfo --format=%N"


def _features(access: Access) -> str:
    known = sorted({word for line in _sinfo(access, "%f") for word in line.split(",")} - {"(null)"})
    return f"features that there are: {', '.join(known)}" if known else "no node has features: leave --constraint out"


def _generic(access: Access) -> str:
    known = [line for line in _sinfo(access, "%P %G") if not line.endswith("(null)")]
    return f"what the partitions have: {'; '.join(known)}" if known else "no node here has GPUs or other gres"


def _time(access: Access) -> str:
    limits = ", ".join(_sinfo(access, "%R %l"))
    return f"--time within the partition's limit: {limits}" if limits else "a smaller --time: sinfo --format='%R %l'"


def _nodes(resolved: Resolved, access: Access) -> str:
    known = _sinfo(access, "%R: %D nodes of %c CPUs, %m MiB, gres %G")
    resources = resolved.job.resources
    each = "the site's CPUs for their GPUs" if resolved.cpus_by_slurm else f"{resolved.cpus} CPUs"
    asked = f"asked for: {resolved.nodes} nodes, {resolved.ntasks} tasks x {each}"
    memory = [f"{name} {value}" for name, value in resources.given().items() if name.startswith("mem")]
    asked = ", ".join([asked, *memory])
    return "\n".join([asked, *known[:8]]) if known else f"{asked}; there are: sinfo --format='%R %D %c %m %G'"


_REMEDIES: tuple[tuple[str, Remedy], ...] = (
    (r"group not permitted|not permitted to use this partition", "another --partition, or ask to be let in"),
    (r"invalid account", f"--account=... of yours: {_MINE}"),
    (r"invalid qos", f"--qos=... of yours: {_MINE}"),
    (r"time limit", _time),
    (r"node name", _hosts),
    (r"memory", "less --mem: sinfo --format='%R %m' tells what the nodes have, in MiB"),
    (r"generic resource|\bgres\b", _generic),
    (r"invalid feature", _features),
    (r"reservation", "reservations that there are: scontrol show reservation"),
    (r"job violates|accounting/qos policy|submit limit|max.*jobs", f"fewer or smaller jobs at a time; {_MINE}"),
    (r"job array", "indices below MaxArraySize: scontrol show config | grep MaxArraySize"),
    (r"dependency", "jobs that are still known: squeue --me"),
    (r"wckey", "leave --wckey out, or one of yours: sacctmgr show wckeys user=$USER"),
    (r"license", "licences that there are: scontrol show licenses"),
    (
        r"unrecognized option|invalid option|ambiguous",
        "this Slurm does not know that option: leave it out (sbatch --help)",
    ),
)
