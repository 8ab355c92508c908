"""Finds the rank and the host of a failure: in its line, in reports of launchers, in names of files, in node lists."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from hpc_kit.runs.why.attempt import explains
from hpc_kit.runs.why.evidence import EXCEPTION, VICTIMS, WARNING, script_options
from hpc_kit.runs.why.log_reader import natural_order
from hpc_kit.runs.why.slurm_tables import expand_nodes
from hpc_kit.slurm.sizes import size_of_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpc_kit.runs.why.attempt import Attempt
    from hpc_kit.runs.why.evidence import Event, TaskEnd

_NAMES_NO_HOST = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}|localhost(?:\.localdomain)?")
"""The host name that Docker gives to a container, and the one that every host has."""

_OTHER_RANKS = re.compile(
    r"torchrun|torch\.distributed|accelerate|deepspeed|mpirun|mpiexec|\bnproc"
    r"|distribution|DISTRIBUTION|SLURM_HOSTFILE| -m \S*(?:cyclic|plane)"
)
"""A script has its ranks numbered by another launcher than srun, or in another way than in blocks."""

_SRUN = re.compile(r"^\s*[^#]*\bsrun\b")
_PART_OF_JOB = re.compile(r"\s-[mwrNn]|--(?:nodelist|relative|nodes|ntasks|multi-prog)")
"""Options of srun for a step that is smaller than the job, or that numbers its tasks in another way."""


def place_of(attempt: Attempt, event: Event) -> tuple[int | None, str | None]:
    """Return rank and host of an event."""
    rank, host = event.rank, event.host
    if rank is None and host is None and (server := _server_of(attempt, event)):
        return None, server
    # A process that stacks without labels show is an unknown rank, and not one that a launcher reported.
    if (
        event.rule.scope == "rank"
        and rank is None
        and "processes" not in event.groups
        and not event.is_of_shell_command
    ):
        rank, host = _place_by_reports(attempt, event)
    if event.rule.name == "exec-missing-python" and host is None:
        # execve fails with ENOENT: the tasks end with exit code 2.
        failed = {end.host for end in attempt.ends if end.code == 2 and end.line.file == event.line.file}
        host = failed.pop() if len(failed) == 1 else None
    if event.rule.scope == "node":
        # A node is to blame: name a rank only if it is the only one that the node took down.
        host = host or _node_by_reports(attempt, event)
        rank = _only_rank_hit(attempt, event, host) if rank is None and event.rule.kind != "end" else rank
    if host is None and rank is not None:
        host = attempt.evidence.hosts.get(rank)
    is_part_of_job = event.rule.scope != "job" and event.rule.kind != "end"
    if host is None and (rank is not None or is_part_of_job):
        host = _host_in_name(attempt, event.line.file)
    if host is None and rank is not None:
        host = _host_by_block(attempt, rank) or _host_of_agent(attempt, [rank])
    if host is None and (is_part_of_job or rank is not None):
        host = _only_host(attempt, event, rank)
    return rank, _usual_name(attempt, host)


def hosts_of(attempt: Attempt, ranks: Iterable[int], known: Mapping[int | None, str | None]) -> list[str]:
    """Return the hosts of ranks in their order, without domains; none if that of one rank is unknown."""
    ranks = list(ranks)
    agent = _host_of_agent(attempt, ranks)
    found = [
        known.get(rank) or attempt.evidence.hosts.get(rank) or _host_by_block(attempt, rank) or agent for rank in ranks
    ]
    hosts = sorted({_without_domain(host) if host else "" for host in found}, key=natural_order)
    return [] if "" in hosts else hosts


def has_several_hosts(attempt: Attempt) -> bool:
    """Return whether launchers, programs or listings name several hosts of the job."""
    return len(_known_hosts(attempt)) > 1


def count_job_nodes(attempt: Attempt) -> int | None:
    """Return the number of nodes of the job, by its node list or by its script."""
    stated = set().union(*attempt.evidence.node_lists.values())
    # The batch step and small steps have fewer nodes than the job.
    jobs = [row for row in attempt.rows if not row.is_step] or attempt.rows
    lists = {row.nodes for row in jobs if row.nodes} | stated
    if len(lists) == 1 and (hosts := expand_nodes(lists.pop())):
        return len(hosts)
    scripts = list(attempt.evidence.scripts.values())
    return size_of_job(script_options(scripts[0])).nodes if len(scripts) == 1 else None


def correct_local_ranks(attempt: Attempt) -> None:
    """Replace torchrun's numbers of processes on their nodes by ranks, or by nothing, if the job has several nodes."""
    evidence = attempt.evidence
    files = {file for file, _ in evidence.nodes.agents}
    local = [event for event in attempt.events if event.line.is_local and event.rank == event.line.rank]
    first_ranks = evidence.nodes.first_ranks
    agents = [task for end in evidence.ends if end.reporter == "srun" for task in end.ranks]
    is_several = (
        len({label for _, label in evidence.nodes.agents}) > 1
        or len({re.sub(r"\d+", "", file) for file in files}) < len(files)  # one file for each node
        or has_several_hosts(attempt)
        or max(count_job_nodes(attempt) or 1, evidence.wanted_nodes[0] if evidence.wanted_nodes else 1) > 1
        or max(set().union(*first_ranks.values(), agents), default=0) > 0
        or evidence.world >= 2 * (max(evidence.ranks, default=evidence.world) + 1)  # the labels are those of one node
    )
    for event in local if is_several else ():
        known = first_ranks.get(event.line.file, set())
        event.rank = min(known) + (event.rank or 0) if len(known) == 1 else None


def same_host(one: str, other: str) -> bool:
    """Return whether two names are of one host: one may be without the domain."""
    return _without_domain(one) == _without_domain(other)


def _without_domain(host: str) -> str:
    """Return a host's own name. An address has no domain."""
    return host if host[:1].isdigit() else host.partition(".")[0]


def _usual_name(attempt: Attempt, host: str | None) -> str | None:
    """Return a name as srun writes it, even if another program added the domain; None for a name of no host."""
    if host is None or _NAMES_NO_HOST.fullmatch(host):
        return None
    short = _without_domain(host)
    return short if any(end.host == short for end in attempt.ends) else host


# ---- a rank


def _place_by_reports(attempt: Attempt, event: Event) -> tuple[int | None, str | None]:
    """Return rank and host of an event without a rank, by equal messages and by the ends of tasks."""
    # A library prints the message, and the exception of the rank repeats it.
    ranks = {each.rank for each in attempt.named(event.rule.name)} - {None}
    if len(ranks) == 1:
        return ranks.pop(), event.host
    if event.rule.kind != "end" and (end := _fitting_end(attempt, event)):
        return end.ranks[0], end.host or event.host
    same = [each for each in attempt.named(event.rule.name) if each.rank in ranks and each.line.file == event.line.file]
    return (min(same, key=lambda each: each.order).rank if same else None), event.host


def _fitting_end(attempt: Attempt, event: Event) -> TaskEnd | None:
    """Return the end of a rank that an event without a rank fits best: not that of a victim."""
    ends = [
        end for end in attempt.failed_ends() if event.host is None or end.host is None or _ended_on(end, event.host)
    ]
    killed = [end for end in ends if end.signal in {"Killed", "Out Of Memory"} or end.exit_code == 137]
    if killed and event.rule.class_ in {"host-memory", "killed"}:
        return killed[0]
    lost = {each.rank for each in attempt.of_class(*VICTIMS)}
    # An exception ends its process: the exceptions of other ranks that follow from it are those of victims.
    explained = {each.rank for each in attempt.events if event.traceback and each.traceback and explains(event, each)}
    # A task ends once in a step. If its number ends again after the error, its first end is that of an earlier step.
    earlier = [end for end in ends if end.line.file == event.line.file and end.line.number < event.line.number]
    later = [end for end in ends if end not in earlier]
    ends = [end for end in ends if end not in earlier or not any(set(end.ranks) & set(each.ranks) for each in later)]
    ends = [end for end in ends if end.ranks[0] not in explained]
    own = [end for end in ends if end.ranks[0] not in lost]
    return next(iter(own or ends), None)


def _ended_on(end: TaskEnd, host: str) -> bool:
    return end.host is not None and same_host(end.host, host)


def _server_of(attempt: Attempt, event: Event) -> str | None:
    """Return the host of the server that ranks did not reach, if an error is in another log than theirs."""
    lost = attempt.of_class("server-unreachable")
    if any(each.line.file == event.line.file for each in lost):
        return None
    peers = [re.match(r"(?:\w+://)?([a-z][\w.-]*)", each.groups.get("peer", "")) for each in lost]
    return next((found[1] for found in peers if found and found[1] != "localhost"), None)


# ---- a node


def _node_by_reports(attempt: Attempt, event: Event) -> str | None:
    """Return the node that equal messages name, or else the only node that does not respond."""
    same = [each for each in attempt.named(event.rule.name) if each.strength > WARNING]
    stated = {each.groups.get("host") or each.host for each in same} - {None}
    return stated.pop() if len(stated) == 1 else _node_without_answer(attempt, event)


def _node_without_answer(attempt: Attempt, event: Event) -> str | None:
    """Return the only node of the job that does not respond according to a listing of Slurm, if the node failed."""
    silent = {host for word in attempt.evidence.nodes.no_answer for host in expand_nodes(word)}
    nodes = silent & {host for row in attempt.rows for host in expand_nodes(row.nodes)}
    return nodes.pop() if event.rule.class_ == "node-failure" and len(nodes) == 1 else None


def _only_rank_hit(attempt: Attempt, event: Event, host: str | None) -> int | None:
    """Return the only rank that the failure of a host ended: by its end, or by an error that the failure explains."""
    if host is None:
        return None
    places = attempt.evidence.hosts
    ended = {each for end in attempt.failed_ends() if _ended_on(end, host) for each in end.ranks}
    explained = {
        each.rank
        for each in attempt.of_kind("cause")
        if each.rank is not None
        and each.strength == EXCEPTION
        and (explains(event, each) or each.rule.class_ == event.rule.class_)
        and same_host(each.host or places.get(each.rank, ""), host)
    }
    return next((ranks.pop() for ranks in (ended, explained) if len(ranks) == 1), None)


# ---- the host of a rank


def _host_in_name(attempt: Attempt, file: str) -> str | None:
    """Return the host after which a file or its folder is named, if several files are named after hosts of the job."""
    hosts = _known_hosts(attempt)
    named = {name: _find_host(name, hosts) for name, _ in attempt.evidence.last}
    return named.get(file) if len({host for host in named.values() if host}) > 1 else None


def _find_host(file: str, hosts: frozenset[str]) -> str | None:
    name = "/".join(file.rsplit("/", 2)[-2:])
    found = [host for host in hosts if host in name and _whole_word(host).search(name)]
    return max(found, key=len, default=None)


@cache
def _whole_word(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])")


def _known_hosts(attempt: Attempt) -> frozenset[str]:
    """Return the hosts that launchers, programs and listings name, without their domains."""
    evidence = attempt.evidence
    lists = {row.nodes for row in attempt.rows}.union(*evidence.node_lists.values())
    hosts = {host for nodes in lists for host in expand_nodes(nodes)} | set(evidence.hosts.values())
    hosts |= {end.host for end in attempt.ends if end.host} | {event.host for event in attempt.events if event.host}
    return frozenset(_without_domain(host) for host in hosts if not host[0].isdigit())


def _host_of_agent(attempt: Attempt, ranks: Sequence[int]) -> str | None:
    """Return the node of the only agent of torchrun that failed, if ranks may be on it: each node has a block of them.

    srun counts the agents as tasks.
    """
    evidence = attempt.evidence
    tasks = [(task, end) for end in evidence.ends if end.reporter == "srun" for task in end.ranks]
    failed = [(task, end.host) for task, end in tasks if end.has_failed]
    if not evidence.has_torchrun or len(failed) != 1 or not ranks:
        return None
    (node, host), nodes, highest = failed[0], 1 + max(task for task, _ in tasks), max(evidence.ranks)
    sizes = range(-(-(highest + 1) // nodes), highest + 2)
    return host if any(node * size <= min(ranks) <= max(ranks) < (node + 1) * size for size in sizes) else None


def _host_by_block(attempt: Attempt, rank: int) -> str | None:
    """Return the node of a task of srun, which gives the first tasks to the first node, the next ones to the second."""
    evidence = attempt.evidence
    lists = {row.nodes for row in attempt.rows if row.nodes and not row.is_step}
    if len(evidence.scripts) != 1 or len(lists) != 1 or evidence.has_agents:
        return None
    (script,) = evidence.scripts.values()
    nodes, tasks = expand_nodes(lists.pop()), size_of_job(script_options(script)).tasks_per_node
    total = max([evidence.world, rank + 1, *(each + 1 for each in evidence.ranks)])
    # The ranks that the logs show must be exactly the tasks that the script asks for.
    if tasks is None or len(nodes) * tasks != total or not _numbers_in_blocks(script):
        return None
    return nodes[rank // tasks]


def _numbers_in_blocks(script: list[str]) -> bool:
    """Return whether the only step of a script is one srun with all tasks of the job, in Slurm's default order."""
    steps = [line for line in script if _SRUN.match(line)]
    return len(steps) == 1 and not _PART_OF_JOB.search(steps[0]) and not any(map(_OTHER_RANKS.search, script))


# ---- a job of one node


def _only_host(attempt: Attempt, event: Event, rank: int | None) -> str | None:
    """Return the host of a job of one node, or the only one that is named, if the rank is unknown."""
    if only := _only_node(attempt, event):
        return only
    named = {end.host for end in attempt.ends if end.host} | set(attempt.evidence.hosts.values())
    is_of_job = event.rule.scope == "rank" or not attempt.evidence.node_lists
    return named.pop() if rank is None and len(named) == 1 and is_of_job else None


def _only_node(attempt: Attempt, event: Event) -> str | None:
    """Return the node of a job that has one, in the attempt of an event."""
    evidence = attempt.evidence
    stated = evidence.nodes_of(event.line.file, event.attempt)
    lists = {row.nodes for row in attempt.rows if expand_nodes(row.nodes)} | stated
    # Lists that differ are those of several attempts or jobs.
    hosts = expand_nodes(lists.pop()) if len(lists) == 1 else []
    others = {end.host for end in attempt.ends if end.host} | set(evidence.hosts.values())
    # A script of several nodes may name only the first one.
    scripts = {script_options(lines).get("nodes", "1") for lines in evidence.scripts.values()}
    wanted = {str(evidence.wanted_nodes[0])} if evidence.wanted_nodes else set()
    if wanted == {"1"} and not hosts and len(others) == 1:
        hosts = list(others)
    is_only = len(hosts) == 1 and all(same_host(host, hosts[0]) for host in others)
    return hosts[0] if is_only and scripts | wanted <= {"1"} else None
