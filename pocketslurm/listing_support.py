"""What squeue, sacct, scancel, scontrol and sinfo make of the options that do not simply work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketslurm.errors import Problem
from pocketslurm.option_support import Row, Support

if TYPE_CHECKING:
    from pocketslurm.settings import Settings


def check_clusters(command: str, named: str, settings: Settings) -> None:
    """Stop a command that asks for another cluster, with its words.

    Raises:
        Problem: It does.
    """
    if settings.strict and (lines := settings.other_clusters(named)):
        raise Problem("\n".join(f"{command}: {line}" for line in lines))


def _kept(**notes: str) -> dict[str, Row]:
    return {name.replace("_", "-"): Row(Support.KEPT, note) for name, note in notes.items()}


def _refused(**notes: str) -> dict[str, Row]:
    return {name.replace("_", "-"): Row(Support.REFUSED, note) for name, note in notes.items()}


_COMMON = _kept(
    federation="there is one cluster",
    local="there is one cluster",
    sibling="there is one cluster",
    all="nothing is hidden",
    hide="nothing is hidden",
    verbose="there is nothing more to say",
    noconvert="numbers are shown as they are",
)

SQUEUE = {
    **_COMMON,
    **_kept(array_unique="an array's waiting tasks are one line already", priority="a job has one partition"),
}
SACCT = {
    **_COMMON,
    **_kept(
        allclusters="there is one cluster",
        duplicates="one record is kept of a requeued job",
        use_local_uid="there is one user",
        whole_hetjob="the leader's number shows all components, as with 22.05",
    ),
    **_refused(
        associations="there is no accounting",
        completion="there is no job completion log",
        constraints="nodes have no features",
        env_vars="the environment is not kept",
        file="there is no job completion log",
        flags="jobs have none",
        gid="there is one user",
        group="there is one user",
        ncpus="choose by --jobs or --state",
        nnodes="choose by --jobs or --state",
        reason="choose by --jobs or --state",
        timelimit_max="choose by --jobs or --state",
        timelimit_min="choose by --jobs or --state",
        truncate="times are shown as they are",
        wckeys="there is no accounting",
    ),
    "noconvert": Row(Support.DONE),
}
SCANCEL = {
    **_COMMON,
    **_kept(ctld="jobs are chosen in the same place anyway", hurry="there is no burst buffer"),
    **_refused(cron="there are no cron jobs"),
    "verbose": Row(Support.DONE),
}
SCONTROL = {
    **_COMMON,
    **_kept(future="there are no future nodes", quiet="errors are always told"),
    **_refused(uid="there is one user"),
}
SINFO = {
    **_COMMON,
    **_kept(
        exact="nodes are told apart by their states only",
        future="there are no future nodes",
        responding="all nodes respond",
    ),
}
SBCAST = _kept(
    compress="the file is copied on this machine",
    exclude="no libraries are sent",
    fanout="the file is copied on this machine",
    send_libs="all nodes share this machine's libraries",
    size="the file is copied on this machine",
    timeout="the file is copied on this machine",
    treewidth="the file is copied on this machine",
    verbose="there is nothing more to say",
)
SSTAT = _kept(noconvert="memory is shown in KiB", verbose="there is nothing more to say")
