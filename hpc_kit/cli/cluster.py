"""`hpc-kit cluster`."""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from hpc_kit.cli.groups import OrderedGroup
from hpc_kit.cli.options import CLUSTER_OPTION, FILE, JSON_OPTION, open_session, parse_age
from hpc_kit.cli.output import format_table, print_line, print_wrapped, short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import HpcKitError, SlurmUnavailable, SpecError
from hpc_kit.slurm import nodelist
from hpc_kit.submission.exclusions import Exclusion, changed_exclusions, cluster_key, known_nodes, read_exclusions

if TYPE_CHECKING:
    from hpc_kit.cli.options import Session
    from hpc_kit.spec.cluster_document import MergedFile
    from hpc_kit.spec.discovery import Discovery


@click.group("cluster", cls=OrderedGroup)
def command() -> None:
    """Write cluster files, and keep bad nodes out of later jobs."""


@command.command("discover", short_help="ask Slurm for partitions, limits, accounts, MPI and containers")
@click.option("--write", type=FILE, metavar="FILE", help="The cluster file; -: print it.  [default: env/NAME.toml]")
@click.option("--probe", is_flag=True, help="Ask nodes, too, in small jobs: network, NVLink, alpha and beta of links.")
@click.option(
    "--srun",
    "srun_options",
    multiple=True,
    metavar="OPTION",
    help="Option of the jobs of --probe: --srun=--account=NAME.",
)
@CLUSTER_OPTION
@JSON_OPTION
def discover_command(
    write: Path | None, probe: bool, srun_options: tuple[str, ...], cluster: str | None, as_json: bool
) -> None:
    """Write a cluster file for the Slurm of this login node: env/NAME.toml, with the name of the cluster.

    The values come from sinfo, scontrol, sacctmgr, srun and the programs on PATH. A comment names the command of each
    value. If the file exists, the command prints the changes, adds what is new, and keeps each value that you have
    changed or removed. --json prints the values, and writes only with --write.

    Exit status 1 if Slurm lists no partition, or the job of --probe does not run.
    """
    from hpc_kit.spec.cluster_document import merge_facts, write_facts
    from hpc_kit.spec.discovery import discover_cluster, file_name
    from hpc_kit.spec.load import load_cluster

    session = open_session(cluster, require_answer=True)
    session.client.check_available(session.cluster.name)
    found = discover_cluster(session.client)
    name, failure = file_name(found.cluster), None
    path = write or (None if as_json else Path("env", f"{name}.toml"))
    if path is not None and str(path) == "-":
        path = None
    if path is not None and path.suffix != ".toml" and not path.is_dir():
        raise SpecError(f"{path} is no cluster file", remedy=f"write to a file of TOML: {path.with_suffix('.toml')}")
    if path is not None and path.exists():
        load_cluster(str(path), root=Path.cwd())  # a broken file is reported before a job starts
    if probe:
        try:
            found = _probe(found, session, srun_options)
        except SlurmUnavailable as error:
            failure = error  # the values of the login node are written all the same
    if as_json:
        facts = [{"key": fact.name, "value": fact.value, "source": fact.source} for fact in found.facts]
        echo(json.dumps({"cluster": found.cluster, "facts": facts, "missing": found.gaps}, indent=1))
    merged = merge_facts(path, found.facts, f"{name}, as its Slurm describes itself")
    if path is not None:
        write_facts(path, merged, found.facts)
    if not as_json:
        _print_discovery(found, merged, path)
    if failure is not None:
        raise failure


def _probe(found: Discovery, session: Session, options: tuple[str, ...]) -> Discovery:
    """Return the discovery with the answers of the nodes.

    Raises:
        SlurmUnavailable: No job ran on a node.
    """
    from hpc_kit.bench.link_probe import probe_links
    from hpc_kit.slurm.getopt import parse_options
    from hpc_kit.spec.node_probe import probe_node

    facts = probe_node(session.client, options)
    named = None
    with contextlib.suppress(HpcKitError):  # srun itself refuses a wrong option, and may have options of plug-ins
        named = parse_options(options, "srun")[0].get("partition")
    gpus, nodes = found.node_counts(named)
    python = session.cluster.python or sys.executable
    links = probe_links(session.client, python, options, gpus=gpus, nodes=nodes)
    return found._replace(facts=(*found.facts, *facts, *links.facts), gaps=(*found.gaps, *links.gaps))


def _print_discovery(found: Discovery, merged: MergedFile, path: Path | None) -> None:
    """Print the cluster file, or what has changed in the file that was written, and the values that are missing."""
    if path is None:
        echo(merged.after, nl=False)
    elif not merged.before:
        print_line("written", f"{short_path(path)}: {len(found.facts)} values")
    elif merged.before == merged.after:
        print_line("same", f"{short_path(path)}: nothing new")
    else:
        texts, name = (merged.before.splitlines(), merged.after.splitlines()), short_path(path)
        echo("\n".join(difflib.unified_diff(*texts, f"{name} (before)", name, lineterm="", n=1)))
    for kept in merged.kept:
        own = "removed" if kept.own is None else json.dumps(kept.own)
        print_line("kept", f"{kept.fact.name}: {own}; {kept.fact.source} has {json.dumps(kept.fact.value)}")
    for gap in found.gaps:
        print_wrapped(f"note    {gap}", indent=8, err=True)
    if path is not None:
        print_line("next", f"hpc-kit render ddp_4node --cluster {path.stem if path.parent.name == 'env' else path}")


@command.command("exclude", short_help="keep later jobs away from nodes, for some days")
@click.argument("nodes")
@click.option("--reason", required=True, metavar="TEXT", help="The reason, which later submissions print.")
@click.option("--for", "age", callback=parse_age, default="7d", show_default=True, metavar="AGE", help="12h, 7d, 4w.")
@CLUSTER_OPTION
def exclude_command(nodes: str, reason: str, age: dt.timedelta, cluster: str | None) -> None:
    """Exclude NODES, such as n3 or 'n[3,7]', from all later jobs that hpc-kit submits to this cluster.

    The submission gives them to sbatch as --exclude, and prints them with their reason. The list belongs to this user.
    """
    session = open_session(cluster, require_answer=True)
    names = nodelist.expand(nodes)
    known = known_nodes(session.client)
    # Without an answer of sinfo, any name is accepted.
    if known and (unknown := [name for name in names if name not in known]):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        raise SpecError(
            f"cluster {session.cluster.name} has no node {unknown[0]}",
            found=f"sinfo lists {nodelist.fold(sorted(known))}"[:300],
            remedy=f"did you mean {near[0]}?" if near else "use names that sinfo -N prints",
        )
    now = time.time()
    new = [Exclusion(node=name, reason=reason, since=now, until=now + age.total_seconds()) for name in names]
    key = cluster_key(session.cluster, session.client)
    # A new reason and period replace the earlier ones of a node.
    with changed_exclusions(key) as exclusions:
        exclusions[:] = [*(each for each in exclusions if each.node not in names), *new]
    _print_exclusions(key)


@command.command("include", short_help="let later jobs use excluded nodes again")
@click.argument("nodes")
@CLUSTER_OPTION
def include_command(nodes: str, cluster: str | None) -> None:
    """Remove NODES from the list of excluded nodes.

    Exit status 2 if a node is not in the list.
    """
    session, names = open_session(cluster), nodelist.expand(nodes)
    key = cluster_key(session.cluster, session.client)
    with changed_exclusions(key) as exclusions:
        listed = [each.node for each in exclusions]
        if missing := [name for name in names if name not in listed]:
            found = f"excluded from cluster {key}: {', '.join(listed) or 'no node'}"
            raise SpecError(f"node {missing[0]} is not excluded", found=found, remedy="hpc-kit cluster exclusions")
        exclusions[:] = [each for each in exclusions if each.node not in names]
    _print_exclusions(key)


@command.command("exclusions", short_help="print the nodes that later jobs do not use")
@CLUSTER_OPTION
@JSON_OPTION
def exclusions_command(cluster: str | None, as_json: bool) -> None:
    """Print the excluded nodes of a cluster with reason and expiry. Exclusions that have expired are not printed."""
    session = open_session(cluster)
    name = cluster_key(session.cluster, session.client)
    if as_json:
        echo(json.dumps([structs.asdict(each) for each in read_exclusions(name)], indent=1))
    else:
        _print_exclusions(name)


def _print_exclusions(cluster: str) -> None:
    rows = [
        (each.node, *(_date(moment) for moment in (each.since, each.until)), each.reason)
        for each in read_exclusions(cluster)
    ]
    if not rows:
        echo(f"no node of cluster {cluster} is excluded")
        return
    for line in format_table([("node", "since", "until", "reason"), *rows], "left", "left", "left", "left"):
        echo(line)


def _date(moment: float) -> str:
    return f"{dt.datetime.fromtimestamp(moment):%Y-%m-%d %H:%M}"  # noqa: DTZ006 - local time, as Slurm's
