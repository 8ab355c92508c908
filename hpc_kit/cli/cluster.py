"""`hpc-kit cluster`."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.groups import OrderedGroup
from hpc_kit.cli.options import CLUSTER_OPTION, FILE, JSON_OPTION, open_session
from hpc_kit.cli.output import print_line, print_wrapped, short_path
from hpc_kit.cli.terminal import echo

if TYPE_CHECKING:
    from hpc_kit.spec.cluster_document import MergedFile
    from hpc_kit.spec.discovery import Discovery


@click.group("cluster", cls=OrderedGroup)
def command() -> None:
    """Write cluster files."""


@command.command("discover", short_help="ask Slurm for partitions, limits, accounts, MPI and containers")
@click.option("--write", type=FILE, metavar="FILE", help="Write or update a cluster file: env/NAME.toml.")
@click.option("--probe", is_flag=True, help="Ask a node, too, in a job of a minute: network cards, interfaces, NVLink.")
@click.option(
    "--srun",
    "srun_options",
    multiple=True,
    metavar="OPTION",
    help="Option of the job of --probe: --srun=--account=NAME.",
)
@CLUSTER_OPTION
@JSON_OPTION
def discover_command(
    write: Path | None, probe: bool, srun_options: tuple[str, ...], cluster: str | None, as_json: bool
) -> None:
    """Print a cluster file for the Slurm of this login node.

    The values come from sinfo, scontrol, sacctmgr, srun and the programs on PATH. A comment names the command of each
    value. --write FILE writes the file. If it exists, the command prints the changes, adds what is new, and keeps each
    value that you have changed or removed.

    Exit status 1 if Slurm lists no partition.
    """
    from hpc_kit.spec.cluster_document import merge_facts, write_facts
    from hpc_kit.spec.discovery import discover_cluster, file_name
    from hpc_kit.spec.load import load_cluster

    session = open_session(cluster, require_answer=True)
    session.client.check_available(session.cluster.name)
    found = discover_cluster(session.client)
    if probe:
        from hpc_kit.spec.node_probe import probe_node

        found = found._replace(facts=(*found.facts, *probe_node(session.client, srun_options)))
    name = file_name(found.cluster)
    if as_json:
        facts = [{"key": fact.name, "value": fact.value, "source": fact.source} for fact in found.facts]
        echo(json.dumps({"cluster": found.cluster, "facts": facts, "missing": found.gaps}, indent=1))
    path = write or Path("env", f"{name}.toml")
    if write is not None and path.exists():
        load_cluster(str(path), root=Path.cwd())  # a broken file is reported before it is changed
    merged = merge_facts(write, found.facts, f"{name}, as its Slurm describes itself")
    if write is not None:
        write_facts(path, merged, found.facts)
    if not as_json:
        _print_discovery(found, merged, path, written=write is not None)


def _print_discovery(found: Discovery, merged: MergedFile, path: Path, *, written: bool) -> None:
    if not written:
        echo(merged.after, nl=False)
    elif not merged.before:
        print_line("written", f"{short_path(path)}: {len(found.facts)} values")
    elif merged.before == merged.after:
        print_line("same", f"{short_path(path)}: nothing new")
    else:
        _print_changes(merged, short_path(path))
    for kept in merged.kept:
        own = "removed" if kept.own is None else json.dumps(kept.own)
        print_line("kept", f"{kept.fact.name}: {own}; {kept.fact.source} has {json.dumps(kept.fact.value)}")
    for gap in found.gaps:
        print_wrapped(f"note    {gap}", indent=8, err=True)
    if written:
        print_line("next", f"hpc-kit render ddp_4node --cluster {path.stem if path.parent.name == 'env' else path}")


def _print_changes(merged: MergedFile, name: str) -> None:
    """Print the changes of a file like `diff -u`."""
    lines = difflib.unified_diff(
        merged.before.splitlines(), merged.after.splitlines(), f"{name} (before)", name, lineterm="", n=1
    )
    for line in lines:
        echo(line)
