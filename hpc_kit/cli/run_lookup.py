"""Finds the run that a word of a command line means, and the cluster to ask about it.

Without --cluster, the records of the runs choose the cluster. Each queue counts its jobs from 1, so the default
cluster may have a job of another project with the same id.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.options import Session, open_session
from hpc_kit.cli.output import short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import HpcKitError, SpecError, UnknownJob
from hpc_kit.runs.cluster_match import client_for, cluster_option, may_belong_to
from hpc_kit.runs.run_folders import RunIndex
from hpc_kit.runs.status import JobSelection
from hpc_kit.slurm.cluster_identity import find_command
from hpc_kit.spec import search_path
from hpc_kit.spec.load import load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpc_kit.runs.run_folders import Run
    from hpc_kit.slurm.client import SlurmClient


def open_session_of(words: Iterable[str], cluster: str | None, *, require_answer: bool = False) -> Session:
    """Open the cluster whose runs have the ids among `words`.

    This is the cluster of `--cluster`, else the default cluster if it has a run with one of the ids, else a cluster
    that has runs with all of them and can be asked from this machine, else the default cluster.
    """
    session = open_session(cluster, require_answer=require_answer)
    ids = JobSelection.from_words(words).ids
    if cluster is not None or not ids:
        return session
    # Reading all cluster files is only worth it for an id that the default folder of runs does not contain.
    is_known = any(_find_own_runs(session, ids))
    others: dict[str, Session] = {}
    for name in _other_clusters(session, ids, with_files=not is_known):
        other = _open_reachable(name)
        if other is not None and all(_find_own_runs(other, ids)):
            others[name] = other
    names, default = list(others), session
    which = f"job {ids[0]}" if len(ids) == 1 else f"jobs {', '.join(ids)}"
    if names and not is_known:
        session = _use_cluster(names[0], others[names.pop(0)])
    if session is not default and require_answer:
        # The queue of the default cluster may know a job that has no record here.
        if any(not status.state.finished for status in default.client.query(ids).values()):
            raise SpecError(
                f"two clusters have {which}",
                found=f"one in cluster {default.cluster.name}, and a run of cluster {session.cluster.name}",
                remedy=f"add --cluster {session.cluster.name}; for the other one, use Slurm's own commands",
            )
        echo(f"hpc-kit: taking {which} of cluster {session.cluster.name}", err=True)
    if names:
        options = " or ".join(f"--cluster {name}" for name in names)
        echo(f"hpc-kit: taking {which} of cluster {session.cluster.name}; for that of the other: {options}", err=True)
    return session


def find_run(word: str | None, cluster: str | None) -> tuple[Run, Session]:
    """Return the run with an id, or the latest run with a name, and the cluster that ran it.

    Without `word`, return the latest run. If its cluster cannot be asked from this machine, the second value is the
    default cluster.
    """
    session = open_session_of([word] if word else [], cluster)
    run = _find_in(session, word)
    # A name means the latest run, whichever cluster ran it.
    if cluster is None and run.record is not None and not _belongs_to(run, session):
        name = cluster_option(run.record)
        other = _open_reachable(name)
        if other is not None and _belongs_to(run, other):
            session = _use_cluster(name, other)
    return run, session


def client_of_run(run: Run, session: Session) -> SlurmClient | None:
    """Return the client of the Slurm that ran the job; None if the job belongs to another cluster."""
    return client_for(run, session.client) if _belongs_to(run, session) else None


def _find_in(session: Session, word: str | None) -> Run:
    index = RunIndex(session.runs)
    if word is not None:
        if JobSelection.from_words([word]).names:
            runs = index.find_by_name(word) or index.find_unrecorded(word)
            if runs:
                return runs[0]
        return index.require(word, lambda run: _belongs_to(run, session))
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


def _belongs_to(run: Run, session: Session) -> bool:
    return may_belong_to(run, session.cluster.name, session.client)


def _find_own_runs(session: Session, ids: Iterable[str]) -> list[list[Run]]:
    """Return for each id the runs of this cluster."""
    index = RunIndex(session.runs)
    return [[run for run in index.find_all(job_id) if _belongs_to(run, session)] for job_id in ids]


def _other_clusters(session: Session, ids: Sequence[str], *, with_files: bool) -> list[str]:
    """Return the clusters that the records of these ids name, the latest run first.

    `with_files` adds the cluster files of the project with another folder of runs that contains these ids.
    """
    index = RunIndex(session.runs)
    runs = [run for job_id in ids for run in index.find_all(job_id) if not _belongs_to(run, session)]
    names = [cluster_option(run.record) for run in runs if run.record is not None]
    root = search_path.current_folder()
    for path in sorted((root / "env").glob("*.toml")) if with_files else []:
        with suppress(HpcKitError):
            folder = root / load_cluster(path.stem, root=root).runs
            if folder != session.runs and all(map(RunIndex(folder).find_all, ids)):
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


def _use_cluster(name: str, session: Session) -> Session:
    # The commands that are printed next need this option.
    click.get_current_context().params["cluster"] = name
    return session
