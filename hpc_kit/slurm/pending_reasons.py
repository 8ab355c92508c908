"""Explains why a job waits: a sentence and a next step for each reason of Slurm.

The beginning of an unknown reason (`QOSMax...`, `AssocGrp...`) explains its family. Other reasons are only repeated.
"""

from __future__ import annotations

from typing import NamedTuple

from hpc_kit.lazy_pattern import lazy_pattern


class Reason(NamedTuple):
    """A sentence that explains a reason, and what to do, with a command to copy if there is one."""

    sentence: str
    next_step: str


_WAIT = "Wait; the estimated start: squeue --start --job={id}"
_SHOW = "Look at the request: scontrol show job {id}"
_RELEASE = "scontrol release {id}"
_LIMITS = (
    "Look at the limits: sacctmgr show assoc user=$USER format=account,partition,qos,grptres,maxtres,maxjobs,maxwall"
)
_QOS = "Look at the QOS: sacctmgr show qos format=name,priority,grptres,maxtrespu,maxjobspu,maxsubmitpu,maxwall"
_PARTITION = "Look at the partition: scontrol show partition"
_NODES = "Look at the nodes: sinfo --Node --long"
_ADMIN = "Ask your administrators; they need the id {id}"
_DEPENDS = "Look at what it waits for: squeue --job={id} --format='%i %E'"
_ASSOC = "sacctmgr show assoc user=$USER format=account,partition,qos"
_THROTTLE = "To let all run: scontrol update jobid={id} arraytaskthrottle=0"
_UNRESERVE = "scontrol update jobid={id} reservationname="
_CANCEL = "It will never start: scancel {id}"

REASONS: dict[str, tuple[str, str]] = {
    "AccountingPolicy": ("An accounting limit keeps it from starting.", _LIMITS),
    "AccountNotAllowed": ("Its account may not use this partition.", "Submit with another --account or --partition"),
    "AssocMaxJobsLimit": ("You already run as many jobs as your account allows.", _LIMITS),
    "BadConstraints": ("No node has what it asks for; it cannot start.", _SHOW),
    "BeginTime": ("Its earliest start time has not come.", "To start it now: scontrol update jobid={id} starttime=now"),
    "BurstBufferOperation": ("An operation of its burst buffer has failed.", "Read its state: scontrol show burst"),
    "BurstBufferResources": ("The burst buffer has not enough space now.", _WAIT),
    "BurstBufferStageIn": ("Its files are being staged in.", _WAIT),
    "Cleaning": ("It was requeued and its last run is still being cleaned up.", "Wait a minute"),
    "DeadLine": ("It can no longer end before its deadline.", "Submit again with a later --deadline"),
    "Dependency": ("It waits for other jobs.", _DEPENDS),
    "DependencyNeverSatisfied": ("A job that it depends on did not end as required.", _CANCEL),
    "FedJobLock": ("The clusters of the federation are deciding which of them runs it.", _WAIT),
    "FrontEndDown": ("No front end node is up.", _ADMIN),
    "InactiveLimit": ("It was idle longer than the site allows.", _ADMIN),
    "InvalidAccount": ("Its account does not exist, or you do not belong to it.", _ASSOC),
    "InvalidQOS": ("Its QOS does not exist, or you may not use it.", _ASSOC),
    "JobArrayTaskLimit": ("As many tasks of its array run as its % limit allows.", _THROTTLE),
    "JobHeldAdmin": ("An administrator holds it.", _ADMIN),
    "JobHeldUser": ("It is held by its user.", "Release it: " + _RELEASE),
    "JobHoldMaxRequeue": ("It was requeued too often and is held.", "Read its logs, then: " + _RELEASE),
    "JobLaunchFailure": ("It could not be started on its nodes.", "Read its logs, then: " + _RELEASE),
    "Licenses": ("It waits for a licence.", "scontrol show licenses"),
    "MaxBBPerAccount": ("Its account has reached the burst buffer limit of its QOS.", _QOS),
    "MaxMemPerLimit": ("It asks for more memory than the partition allows.", _PARTITION),
    "MaxRequeue": ("It was requeued too often and is held.", "Read its logs, then: " + _RELEASE),
    "MpiPortsBusy": ("The ports that its steps reserve are all in use.", _WAIT),
    "NHC": ("The health check of its nodes is still running.", _WAIT),
    "NodeDown": ("A node that it needs is down.", _NODES),
    "NonZeroExitCode": ("It ended with an exit status other than 0.", "Read its logs"),
    "None": ("Slurm has not looked at it yet.", "Wait a few seconds and ask again"),
    "OutOfMemory": ("It used more memory than it had asked for.", "Ask for more with --mem"),
    "PartitionConfig": ("It asks for more than its partition allows, or its nodes are no longer in it.", _PARTITION),
    "PartitionDown": ("Its partition accepts jobs, but does not start any now.", "sinfo --summarize"),
    "PartitionInactive": ("Its partition is switched off.", "sinfo --summarize"),
    "PartitionNodeLimit": ("It asks for more or fewer nodes than its partition allows.", _PARTITION),
    "PartitionTimeLimit": (
        "Its time limit is longer than its partition's.",
        "Ask for less: scontrol update jobid={id} timelimit=TIME",
    ),
    "Priority": ("Other jobs of higher priority go first.", _WAIT),
    "Prolog": ("The prolog is still running on its nodes.", "Wait a minute"),
    "QOSJobLimit": ("Its QOS already runs as many jobs as it allows.", _QOS),
    "QOSMaxJobsPerUserLimit": ("You already run as many jobs as its QOS allows.", _QOS),
    "QOSNotAllowed": ("Its QOS may not be used in this partition or by this account.", _QOS),
    "QOSResourceLimit": ("Its QOS already uses as many resources as it allows.", _QOS),
    "QOSTimeLimit": ("Its QOS has used up its time.", _QOS),
    "QOSUsageThreshold": ("Its fair-share usage is above the threshold of its QOS.", _QOS),
    "ReqNodeNotAvail": ("A node that it needs is down, drained or reserved.", "sinfo --list-reasons"),
    "Reservation": ("It waits for its reservation to begin.", "scontrol show reservation"),
    "ReservationDeleted": ("The reservation that it asked for was deleted.", _UNRESERVE),
    "ReservationInvalid": ("The reservation that it asks for cannot be used.", "scontrol show reservation"),
    "Reserved for maintenance": (
        "It could still run when a maintenance period begins, so it starts after that.",
        "Submit with a --time that ends before the maintenance begins: scontrol show reservation",
    ),
    "Resources": ("It is next in line and waits for nodes to become free.", _WAIT),
    "SchedDefer": ("The site starts no jobs at the moment of submission.", _WAIT),
    "SystemFailure": ("Slurm, a file system or the network failed.", _ADMIN),
    "TimeLimit": ("It reached its time limit.", "Ask for more with --time"),
}  # fmt: skip
"""Sentence and next step by the name of the reason. `{id}` is replaced by the id of the job."""

_FAMILIES = (
    ("AssocGrp", "All jobs of its account together have reached a limit ({limit}).", _LIMITS),
    ("AssocMax", "It asks for more than its account allows ({limit}).", _LIMITS),
    ("Assoc", "A limit of its account keeps it from starting ({limit}).", _LIMITS),
    ("QOSGrp", "All jobs of its QOS together have reached a limit ({limit}).", _QOS),
    ("QOSMax", "It asks for more, or your jobs use more, than its QOS allows ({limit}).", _QOS),
    ("QOSMin", "It asks for less than the minimum of its QOS ({limit}).", _QOS),
    ("QOS", "A limit of its QOS keeps it from starting ({limit}).", _QOS),
    ("Max", "A limit of its QOS keeps it from starting ({limit}).", _QOS),
    ("BurstBuffer", "It waits for its burst buffer ({limit}).", _WAIT),
    ("Partition", "Its partition does not let it start ({limit}).", _PARTITION),
    ("Resv", "It waits for its reservation ({limit}).", "scontrol show reservation"),
    ("Reservation", "It waits for its reservation ({limit}).", "scontrol show reservation"),
    ("RaisedSignal", "A signal ended it ({limit}).", "Read its logs"),
    ("Node", "A node that it needs is not ready ({limit}).", _NODES),
)

# Sentences that Slurm prints in place of a reason.
_PHRASES = (
    ("launch failed requeued held", "JobLaunchFailure"),
    ("job requeued in held state", "JobHeldUser"),
    ("nodes required for job are down", "ReqNodeNotAvail"),
    ("nodes required for job not available", "ReqNodeNotAvail"),
    ("never satisfied", "DependencyNeverSatisfied"),
    ("reserved for maintenance", "Reserved for maintenance"),
)

_NEEDS_INTERVENTION = frozenset({
    "AccountNotAllowed", "BadConstraints", "DeadLine", "DependencyNeverSatisfied", "FrontEndDown", "InvalidAccount",
    "InvalidQOS", "JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "JobLaunchFailure", "MaxMemPerLimit",
    "MaxRequeue", "NodeDown", "PartitionConfig", "PartitionDown", "PartitionInactive", "PartitionNodeLimit",
    "PartitionTimeLimit", "QOSNotAllowed", "QOSTimeLimit", "ReqNodeNotAvail", "ReservationDeleted",
    "ReservationInvalid",
})  # fmt: skip
_JOB_LIMIT = lazy_pattern(
    r"(?:Assoc|QOS)(?:M(?:ax|in)\w*(?:PerJob|PerNode|WallDuration|Minutes)|Min|GrpWall|Grp\w+(?<!Run)Minutes)"
)
"""Limits that stay reached when other jobs end: limits of a single job, and limits of used minutes."""
_USER_LIMIT = lazy_pattern(r"(?:Assoc|QOS)Max|QOSJobLimit|Max\w+PerUser|AccountingPolicy")


def needs_intervention(reason: str) -> bool:
    """Return whether a job waits until a person changes something."""
    name = reason_name(reason)
    return name in _NEEDS_INTERVENTION or _JOB_LIMIT.match(name) is not None


def is_user_limit(reason: str) -> bool:
    """Return whether a job waits because of a limit on the running jobs of its user."""
    return not needs_intervention(reason) and _USER_LIMIT.match(reason_name(reason)) is not None


def explain_reason(reason: str, job_id: str = "JOBID") -> Reason:
    """Explain a reason of squeue or scontrol, and what to do.

    The reason is as Slurm prints it, also with brackets and with details after a comma.
    """
    bare = _bare(reason)
    name, _, details = bare.partition(",")
    _, _, inside = name.partition("(")
    phrase = _phrase(bare)
    found = _find_explanation(reason_name(bare), bare)
    if found is None:
        return Reason(
            f"Slurm gives the reason {bare}." if bare else "Slurm gives no reason.", _SHOW.replace("{id}", job_id)
        )
    sentence, step = found
    extra = details.strip() or inside.rstrip(") ")
    # Details that are only a label, or that the sentence already contains, add nothing.
    if extra and not phrase and not extra.endswith(":") and bare not in sentence:
        sentence = f"{sentence[:-1]} ({extra})."
    return Reason(sentence, step.replace("{id}", job_id))


def _bare(reason: str) -> str:
    bare = reason.strip()
    return bare[1:-1] if bare.startswith("(") and bare.endswith(")") else bare


def _phrase(bare: str) -> str | None:
    return next((known for words, known in _PHRASES if words in bare.lower().replace("_", " ")), None)


def reason_name(reason: str) -> str:
    """Return the name of a reason, also if Slurm prints a sentence in its place."""
    bare = _bare(reason)
    return _phrase(bare) or bare.partition(",")[0].partition("(")[0].strip()


def _find_explanation(name: str, bare: str) -> tuple[str, str] | None:
    known = REASONS.get(name) or next((row for key, row in REASONS.items() if key.lower() == name.lower()), None)
    if known:
        return known
    for beginning, sentence, step in _FAMILIES:
        if name.startswith(beginning):
            return sentence.replace("{limit}", bare), step
    return None
