"""The generated part of docs/embedded-slurm.md: every setting, option, variable and column of the embedded Slurm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.slurm.command_environment import SBATCH_VARIABLES, SRUN_VARIABLES
from hpc_kit.slurm.getopt import SALLOC, SBATCH, SRUN
from pocketslurm.commands import (
    UNSUPPORTED,
    sacct,
    salloc,
    scancel,
    scontrol,
    scontrol_update,
    sinfo,
    squeue,
)
from pocketslurm.listings import sacct_columns, sinfo_columns, squeue_columns
from pocketslurm.option_support import SBATCH_SUPPORT, SRUN_SUPPORT, OptionNote, spelled
from pocketslurm.queue.job_environment import batch_environ
from pocketslurm.queue.records import Job
from pocketslurm.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpc_kit.slurm.option_table import Option

PAGE = Path(__file__).parents[1] / "docs" / "embedded-slurm.md"
_MARKER = "<!-- `make golden` writes the rest of this page. -->\n"


def text() -> str:
    """Return the whole page: its text up to the marker as it is, and the tables."""
    parts = [
        PAGE.read_text().partition(_MARKER)[0] + _MARKER,
        _table(("setting", "default", "meaning"), _settings()),
        "## sbatch\n",
        _options(SBATCH_SUPPORT, SBATCH),
        "Variables that set options. They override directives, and the command line overrides them:\n",
        _table(("variable", "option"), ((f"`{name}`", f"`--{option}`") for name, option in SBATCH_VARIABLES.items())),
        "Variables of the batch script. The example is a job of two nodes in an array, requeued once:\n",
        _table(("variable", "for example"), _variables()),
        "## srun\n",
        _options(SRUN_SUPPORT, SRUN),
        "Variables that set options; a later one overrides an earlier one:\n",
        _table(("variable", "option"), ((f"`{name}`", f"`--{option}`") for name, option in SRUN_VARIABLES.items())),
        *_listings(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _listings() -> Iterator[str]:
    yield "## salloc\n"
    yield _options(salloc.SUPPORT, SALLOC)
    for command, table in (
        ("squeue", squeue.OPTIONS),
        ("sacct", sacct.OPTIONS),
        ("scancel", scancel.OPTIONS),
        ("scontrol", scontrol.OPTIONS),
        ("sinfo", sinfo.OPTIONS),
    ):
        yield f"## {command}\n"
        yield _options(table.support, table.options)
        yield from _extras(command)
    yield "## Unsupported commands\n"
    yield "Each prints the reason and ends with status 1. Only `sacctmgr show`, `sacctmgr list` and `sshare` succeed\n"
    yield "and print nothing, because there are no accounts.\n"
    yield _table(("command", "why"), ((f"`{name}`", why) for name, why in sorted(UNSUPPORTED.items())))


def _extras(command: str) -> Iterator[str]:
    if command == "squeue":
        rows = ((_code(f"%{each.letter}" if each.letter else ""), _codes(each.names)) for each in squeue_columns.FIELDS)
        yield _table(("column of -o", "of -O"), rows)
        named = ((f"`{name}`", f"`--{option}`") for name, option in squeue.VARIABLES.items())
        yield _table(("variable", "option"), named)
    elif command == "sacct":
        filled = ", ".join(f"`{name}`" for name in sacct_columns.FIELDS)
        yield f"Columns: {filled}. All further columns of Slurm are accepted and empty.\n"
        yield (
            "Ended jobs and steps have CPU times and `MaxRSS`, the peak of the largest process. "
            "A peak below about 30 MiB is unknown, and empty.\n"
        )
    elif command == "scontrol":
        listed = ", ".join(f"`{name}`" for name in sorted(scontrol.COMMANDS))
        changed = ", ".join(f"`{name}`" for name in sorted(scontrol_update.CHANGES))
        yield f"Commands: {listed}.\n"
        yield "`show` knows `job`, `step`, `node`, `partition`, `config`, `hostnames`, `hostlist`, `hostlistsorted`.\n"
        yield f"`update JobId=...` changes {changed}.\n"
    elif command == "sinfo":
        rows = ((_code(f"%{each.letter}" if each.letter else ""), _codes(each.names)) for each in sinfo_columns.FIELDS)
        yield _table(("column of -o", "of -O"), rows)


def _settings() -> Iterator[tuple[str, str, str]]:
    """Yield each setting, its default and its description from the docstring of `Settings`."""
    described = dict(re.findall(r"^\s{8}(\w+): (.+?)$", Settings.__doc__ or "", re.MULTILINE))
    for name, default in Settings._field_defaults.items():
        shown = [part.name for part in default] if name == "partitions" else default
        yield f"`{name}`", f"`{shown}`", described.get(name, "")


def _variables() -> Iterator[tuple[str, str]]:
    job = Job(
        13, "train", "ada", 1000, "users", 1000, "local", array_job_id=12, array_task_id=3, array_spec="0-7",
        cluster="embedded", account="lab", qos="normal", submit_dir="/home/ada", submit_host="laptop",
        work_dir="/home/ada", nodes=["127.0.0.1", "127.0.0.2"], cpus=[4, 4], mem=[2048, 2048], gpus=[[0], [0]],
        tasks=[2, 2], restart_count=1,
        options={"ntasks": "4", "ntasks-per-node": "2", "cpus-per-task": "2", "mem": "2G", "gpus-per-node": "1"},
    )  # fmt: skip
    found = batch_environ(job, Settings(gpus=1), {})
    yield from ((f"`{name}`", f"`{value}`") for name, value in sorted(found.items()))


def _options(support: Mapping[str, OptionNote], options: Mapping[str, Option]) -> str:
    rows = (
        (f"`{spelled(options[name])}`", row.support.value, row.note) for name in options if (row := support.get(name))
    )
    return _table(("option", "here", "note"), rows)


def _code(name: str) -> str:
    return f"`{name}`" if name else ""


def _codes(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split())


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
