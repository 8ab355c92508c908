"""Finds the run that a word of a command line means, and the cluster to ask about it.

Without --cluster, the records of the runs choose the cluster. Each queue counts its jobs from 1, so the default
cluster may have a job of another project with the same id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import click

from hpc_kit.cli.options import Session, open_session
from hpc_kit.cli.output import short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import HpcKitError, SpecError, UnknownJob
from hpc_kit.runs.cluster_match import client_for, cluster_option, may_belong_to
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.runs.run_folders import Run, RunIndex
from hpc_kit.slurm.client import SlurmClient
from hpc_kit.slurm.cluster_identity import find_command
from hpc_kit.spec import search_path
from hpc_kit.spec.load import load_cluster


class JobGroup(NamedTuple):
    """The words of a command line that mean jobs of one cluster."""

    name: str
    """The value of --cluster; empty for the default cluster."""

    session: Session
    words: list[str]
    others: list[str]
    """Other clusters that have runs with some of the ids."""


def open_session_of(words: Iterable[str], cluster: str | None, *, require_answer: bool = False) -> Session:
    """Open the cluster that `open_sessions_of` finds for all words.

    Raises:
        SpecError: The jobs belong to several clusters; or, with `require_answer`, the default queue has an unfinished
            job with one of the ids, and a run of another cluster has it, too.
    """
    default = open_session(cluster, require_answer=require_answer)
    groups = _group_by_cluster(default, list(words), cluster)
    if len(groups) > 1:
        command = f"hpc-kit {click.get_current_context().info_name}"
        parts = [f"{' '.join(group.words)}{' --cluster ' * bool(group.name)}{group.name}" for group in groups]
        raise SpecError(
            "the jobs belong to several clusters",
            found="; ".join(f"{' '.join(group.words)} to {group.session.cluster.name}" for group in groups),
            remedy="; ".join(f"{command} {part}" for part in parts),
        )
    [group] = groups
    if require_answer and group.name:
        _check_default_queue(default, group)
    _name_others(group)
    if group.name:
        _set_cluster_option(group.name)
    return group.session


def open_sessions_of(words: Iterable[str], cluster: str | None) -> list[JobGroup]:
    """Open the clusters whose runs have the ids among `words`.

    The cluster of an id is the first of these:

    - the cluster of `--cluster`
    - the default cluster, if it has a run with this id
    - a cluster that can be asked from this machine, and has runs with all ids or with this id
    - the default cluster

    Names belong to the cluster of the ids if all ids have the same one, otherwise to the default cluster.
    """
    groups = _group_by_cluster(open_session(cluster), list(words), cluster)
    for group in groups:
        _name_others(group)
    return groups


def _group_by_cluster(default: Session, words: list[str], cluster: str | None) -> list[JobGroup]:
    selection = JobSelection.from_words(words)
    ids = selection.ids
    if cluster is not None or not ids:
        return [JobGroup("", default, words, [])]
    sessions, owned = {"": default}, {"": _find_own_ids(default, ids)}
    # Reading all cluster files is only worth it for an id that the default folder of runs does not contain.
    for name in _other_clusters(default, ids, with_files=len(owned[""]) < len(ids)):
        if (other := _open_reachable(name)) is not None:
            sessions[name], owned[name] = other, _find_own_ids(other, ids)
    names = list(sessions)
    if not owned[""]:
        names.sort(key=lambda name: len(owned[name]) < len(ids))
    parts: dict[str, list[str]] = {}
    for job_id in ids:
        parts.setdefault(next((name for name in names if job_id in owned[name]), ""), []).append(job_id)
    if len(parts) == 1:
        parts = dict.fromkeys(parts, words)
    else:
        parts.setdefault("", []).extend(selection.names)
        parts = {name: part for name, part in parts.items() if part}
    groups = []
    for name, part in parts.items():
        others = [each for each in sessions if each not in {"", name} and not owned[each].isdisjoint(part)]
        groups.append(JobGroup(name, sessions[name], part, others))
    return groups


def _check_default_queue(default: Session, group: JobGroup) -> None:
    """Refuse ids of another cluster's runs if the default queue has such a job, which has no record here."""
    ids = JobSelection.from_words(group.words).ids
    if any(not status.state.finished for status in default.client.query(ids).values()):
        raise SpecError(
            f"two clusters have {_name_jobs(group)}",
            found=f"one in cluster {default.cluster.name}, and a run of cluster {group.session.cluster.name}",
            remedy=f"add --cluster {group.name}; for the other one, use Slurm's own commands",
        )
    if not group.others:
        echo(f"hpc-kit: taking {_name_jobs(group)} of cluster {group.session.cluster.name}", err=True)


def _name_others(group: JobGroup) -> None:
    """Print the options that mean jobs of other clusters with the same ids."""
    if group.others:
        options = " or ".join(f"--cluster {name}" for name in group.others)
        cluster = group.session.cluster.name
        echo(f"hpc-kit: taking {_name_jobs(group)} of cluster {cluster}; for that of the other: {options}", err=True)


def _name_jobs(group: JobGroup) -> str:
    ids = JobSelection.from_words(group.words).ids
    return f"job {ids[0]}" if len(ids) == 1 else f"jobs {', '.join(ids)}"


def find_run(word: str | None, cluster: str | None) -> tuple[Run, Session]:
    """Return the run with an id, or the latest run with a name, and the cluster that ran it.

    Without `word`, return the latest run. If its cluster cannot be asked from this machine, the second value is the
    default cluster.
    """
    session = open_session_of([word] if word else [], cluster)
    run = _find_in(session, word)
    # A name means the latest run, whichever cluster ran it.
    if cluster is None and run.record is not None and not belongs_to(run, session):
        name = cluster_option(run.record)
        other = _open_reachable(name)
        if other is not None and belongs_to(run, other):
            session = other
            _set_cluster_option(name)
    return run, session


def client_of_run(run: Run, session: Session) -> SlurmClient | None:
    """Return the client of the Slurm that ran the job; None if the job belongs to another cluster."""
    return client_for(run, session.client) if belongs_to(run, session) else None


def _find_in(session: Session, word: str | None) -> Run:
    index = RunIndex(session.runs)
    if word is not None:
        if JobSelection.from_words([word]).names:
            runs = index.find_by_name(word) or index.find_unrecorded(word)
            if runs:
                return runs[0]
        return index.require(word, lambda run: belongs_to(run, session))
    recent = index.recent(1)
    if recent:
        return recent[0]
    folder = short_path(session.runs)
    if index.unreadable:
        raise UnknownJob(
            f"cannot read {folder}",
            found=index.unreadable,
            remedy="ask its owner for the right to read it, or name another folder: --runs FOLDER",
        )
    raise UnknownJob(f"no runs in {folder}", remedy="hpc-kit submit ddp_4node")


def belongs_to(run: Run, session: Session) -> bool:
    """Return whether a run may be one of the cluster of a session."""
    return may_belong_to(run, session.cluster.name, session.client)


def _find_own_ids(session: Session, ids: Iterable[str]) -> set[str]:
    """Return the ids of which this cluster has a run."""
    index = RunIndex(session.runs)
    return {job_id for job_id in ids if any(belongs_to(run, session) for run in index.find_all(job_id))}


def _other_clusters(session: Session, ids: Sequence[str], *, with_files: bool) -> list[str]:
    """Return the clusters that the records of these ids name, the latest run first.

    `with_files` adds the cluster files of the project with another folder of runs that contains one of these ids.
    """
    index = RunIndex(session.runs)
    runs = [run for job_id in ids for run in index.find_all(job_id) if not belongs_to(run, session)]
    names = [cluster_option(run.record) for run in runs if run.record is not None]
    root = search_path.current_folder()
    for path in sorted((root / "env").glob("*.toml")) if with_files else []:
        with suppress(HpcKitError):
            folder = root / load_cluster(path.stem, root=root).runs
            if folder != session.runs and any(map(RunIndex(folder).find_all, ids)):
                names.append(path.stem)
    return [name for name in dict.fromkeys(names) if name != session.cluster.name]


def _open_reachable(name: str) -> Session | None:
    """Open a cluster; None if its file has an error, or its Slurm is not on this machine."""
    try:
        session = open_session(name)
    except HpcKitError:
        return None
    # A record may come from another machine: a laptop with a copy of the runs has no sbatch.
    is_here = session.client.embedded or find_command("sbatch", session.client.environ) is not None
    return session if is_here else None


def _set_cluster_option(name: str) -> None:
    # The commands that are printed next need this option.
    click.get_current_context().params["cluster"] = name
