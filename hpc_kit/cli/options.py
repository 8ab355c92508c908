"""Options that several commands share, and the cluster that a command queries."""

from __future__ import annotations

import datetime as dt
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hpc_kit.errors import AnswerNo, HpcKitError
from hpc_kit.slurm.job_ids import array_index, is_single_job, sort_key
from hpc_kit.spec import search_path
from hpc_kit.spec.default_cluster import default_cluster_name
from hpc_kit.spec.load import load_cluster

if TYPE_CHECKING:
    from hpc_kit.slurm.client import SlurmClient
    from hpc_kit.slurm.partitions import ListedPartition
    from hpc_kit.spec.cluster import Cluster

FILE = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)


class NumberRange(click.FloatRange):
    """A number between two bounds. click's own range accepts `nan`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or raise click's error."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


def _complete_cluster(_context: object, _parameter: object, start: str) -> list[str]:
    return [name for name in search_path.file_names("env", search_path.current_folder()) if name.startswith(start)]


CLUSTER_OPTION = click.option(
    "--cluster",
    metavar="NAME",
    help="Cluster file in env/ [default: the one that fits this machine].",
    shell_complete=_complete_cluster,
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="A JSON document.")

RUNS_META = "hpc_kit.runs"
"""Key in click's `meta` for a runs folder that replaces the one of the cluster file."""

RUNS_OPTION = click.option(
    "--runs",
    metavar="FOLDER",
    expose_value=False,
    callback=lambda ctx, _, value: ctx.meta.update({RUNS_META: value} if value else {}),
    help="Folder of the runs [default: `runs` of the cluster file].",
)


_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


def parse_age(_context: object, _parameter: object, text: str) -> dt.timedelta:
    """Parse an age such as 12h, 30d or 4w."""
    match = re.fullmatch(r"(\d+)([hdw])", text)
    if not match:
        raise click.BadParameter(f"{text!r} is not an age; write 12h, 30d or 4w")
    return dt.timedelta(hours=int(match[1]) * _HOURS[match[2]])


class Session(NamedTuple):
    """A cluster, the client of its Slurm, and its runs folder."""

    cluster: Cluster
    client: SlurmClient
    runs: Path
    error: AnswerNo | None = None
    """The error of an embedded Slurm that cannot be set up."""

    def check_answers(self) -> None:
        """Raise if the Slurm will never answer, for a command that waits for an answer."""
        if self.error is not None:
            raise self.error

    @property
    def partitions(self) -> list[ListedPartition]:
        """The partitions that the cluster file describes."""
        if not self.cluster.partition:
            return []
        from hpc_kit.spec.partition_checks import partitions_of

        return partitions_of(self.cluster)


def open_session(name: str | None, *, require_answer: bool = False) -> Session:
    """Open the named cluster, or the one that fits this machine.

    With `require_answer`, raise instead of guessing if Slurm does not answer. Without it, a state directory that the
    embedded Slurm cannot use counts as a Slurm that does not answer: the files of the runs can be read.
    """
    # The client imports modules that `--help` and the completion do not need.
    from hpc_kit.spec.cluster_client import open_client, unusable_client

    root = search_path.current_folder()
    cluster = load_cluster(name or default_cluster_name(root, os.environ, require_answer=require_answer), root=root)
    runs = root / (runs_option() or cluster.runs)
    try:
        return Session(cluster, open_client(cluster), runs)
    except AnswerNo as error:
        if require_answer:
            raise
        return Session(cluster, unusable_client(os.environ, error), runs, error)


def complete_run(context: click.Context, _parameter: object, start: str) -> list[str]:
    """Return the names of jobs with runs, and the ids of the runs, that begin with a text, for the shell.

    The runs are those of `--cluster` and `--runs`, if they come before the text. An error completes nothing.
    """
    try:
        runs = context.meta.get(RUNS_META) or open_session(context.params.get("cluster")).runs
    except HpcKitError:
        return []
    folder = search_path.current_folder() / runs
    # Other folders, such as `.shell` and those of programs, contain no runs.
    found = [path for path in folder.glob("[!.]*/*/") if is_single_job(path.name)]
    names = sorted({path.parent.name for path in found})
    ids = sorted((path.name for path in found if not array_index(path.name)), key=sort_key, reverse=True)
    return [word for word in [*names, *ids] if word.startswith(start)]


def runs_option() -> str | None:
    """Return the runs folder of `--runs`; None without that option."""
    # Python programs that call `hpc_kit.submit` have no context.
    context = click.get_current_context(silent=True)
    return context.meta.get(RUNS_META) if context is not None else None
