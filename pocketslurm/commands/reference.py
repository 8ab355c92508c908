"""The contract: every option, variable and column of the embedded Slurm, as docs/embedded-slurm.md prints it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.slurm.getopt import SALLOC, SBATCH, SRUN, Option, Value
from hpc_kit.slurm.input_variables import INPUT_VARIABLES
from pocketslurm.commands import (
    sacct,
    sacctmgr,
    salloc,
    sbcast,
    scancel,
    scontrol,
    scontrol_update,
    sinfo,
    squeue,
    sshare,
    sstat,
)
from pocketslurm.commands.accounts import ENTITIES
from pocketslurm.installation import ABSENT
from pocketslurm.listings import sacct_columns, sinfo_columns, squeue_columns
from pocketslurm.option_support import SBATCH_SUPPORT, Row
from pocketslurm.queue.job_environment import batch_environ
from pocketslurm.queue.records import Job
from pocketslurm.settings import VERSION, Settings
from pocketslurm.srun_option_support import INPUT, SRUN_SUPPORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pocketslurm.getopt import Table

_INTRODUCTION = f"""# The embedded Slurm

A Slurm for one machine: the commands `sbatch srun salloc squeue sacct scancel scontrol sinfo sstat sbcast` with the
words, exit statuses and variables of Slurm {VERSION}. It runs the very script that a cluster runs, on virtual nodes
that are all this machine. It needs no root and no daemon: the first job starts a controller, which ends with the last.

This page is made from the code (`make golden`). What stands here works, is accepted without
effect for the reason given, or is refused; nothing is passed over in silence.

## Differences to know

- A script that was written for another cluster runs: the default partition goes by any name, features, licences,
  reservations and options of newer releases are taken without effect, and a job that asks for more CPUs, memory or
  GPUs than a node has gets nodes to itself that count as so large. Its programs find the GPUs that the machine has,
  and no others. With `strict` (`[embedded] strict = true` in the cluster file) all this is refused as by Slurm.
- What is not made up are nodes: a job that asks for more of them than there are waits (PartitionNodeLimit), and one
  that names others is refused. `[embedded] nodes` in the cluster file makes more of them.
- Nodes are names with counts of CPUs, memory and GPUs. They are kept account of, and not enforced: nothing is bound,
  and a job that takes more memory than it asked for meets the machine's own limits only.
- Jobs start in the order of their priority (first come, first served). A job that waits for nodes keeps those that it
  could run on; jobs behind it start on the others.
- A requeued job starts again at once, not after two minutes. Time limits and signals come to the second; as in Slurm,
  limits are whole minutes.
- A job whose supervising process is killed, or that ran when the machine went down, is requeued, or ends as NODE_FAIL
  with `--no-requeue`.
- A log's folder that is missing is waited for, 3 seconds: jobs start here before a client that names it after the job
  has made it.
- Processes are tracked as by proctrack/cgroup, Slurm's default. Whatever a job started is ended with it. A signal goes
  to the tasks of a step, and not to what these start; of a job that is cancelled or out of time, to the batch shell
  alone besides. A program behind a shell (`srun bash -c "..."`) hears it where that shell says `exec`.
- The commands stay in reach of a bash script that is a login shell (`#!/bin/bash -l`) or that reads a profile which
  sets PATH anew (`source /etc/profile`), but not of one that sets PATH by itself to folders of its own, or that reads
  the profile in a function or a subshell.
- The command `hostname` names the node; the kernel's own name, which a program asks for by itself, is this machine's on
  every node.
- `srun --mpi=pmi2` is Slurm's mpi/pmi2 (PMI-1.1 and PMI-2.0 over PMI_FD): a program of MPICH or its kin is one world,
  with the virtual nodes as its nodes. `MPI_Abort` ends the step with status 137, as there. There is no PMIx, which Open
  MPI wants: start that by mpirun. `--mpi=pmix` is taken as pmi2, without a word in the log; `strict` refuses it.
- A queue goes on while the package's files change, by a checkout or an upgrade: its processes have what they need, and
  commands of another release give orders that they read. A command whose code cannot be loaded just then says so in a
  sentence, and submits nothing.
- Heterogeneous jobs start as soon as there is room, not with the next pass of backfill. A file that their script
  reads as standard input goes to all tasks of a step, and not to those of one component. When the first component's
  time is over, the others end as TIMEOUT with it.
- A suspended job (`scontrol suspend`) keeps its nodes: its processes and its time stand still until `resume`.
- There is no reservation, no preemption, and no accounting but the queue's records: `sacct` knows the last 10000 jobs,
  `squeue` and `scontrol` those that ended in the last 300 seconds.

## State and settings

The queue is one SQLite file in `$HPC_KIT_SLURM_STATE` (default `$XDG_STATE_HOME/hpc_kit/slurm`), beside the commands
(`bin/`), the controller's log (`controller.log`) and the settings: `slurm.json`, or the file that
`$HPC_KIT_SLURM_CONF` names. Take the folder away and every process of it ends. It belongs to one machine, and a folder
that the variable names is not to be used from two: of machines that share a home, the first one has the folder above
(`.host` beside it says which), each other one `hpc_kit/<host>/slurm`, with job ids that begin far above 1.
"""


def text() -> str:
    """The whole page."""
    parts = [
        _INTRODUCTION,
        _table(("setting", "default", "meaning"), _settings()),
        "## sbatch\n",
        _options(SBATCH_SUPPORT, SBATCH),
        "Variables that stand for options, stronger than a directive and weaker than the command line:\n",
        _table(("variable", "option"), ((f"`{name}`", f"`--{option}`") for name, option in INPUT_VARIABLES.items())),
        "The batch script's own variables, here of a job of two nodes in an array, requeued once:\n",
        _table(("variable", "for example"), _variables()),
        "## srun\n",
        _options(SRUN_SUPPORT, SRUN),
        "Variables that stand for options, the later stronger than the earlier:\n",
        _table(("variable", "option"), ((f"`{name}`", f"`--{option}`") for name, option in INPUT.items())),
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
        ("sstat", sstat.OPTIONS),
        ("sacctmgr", sacctmgr.OPTIONS),
        ("sshare", sshare.OPTIONS),
        ("sbcast", sbcast.OPTIONS),
    ):
        yield f"## {command}\n"
        yield _own_options(table)
        yield from _extras(command)
    yield "## Commands that have nothing to work on\n"
    yield "Each ends with status 1 and says why.\n"
    yield _table(("command", "why"), ((f"`{name}`", why) for name, why in sorted(ABSENT.items())))


def _extras(command: str) -> Iterator[str]:
    if command == "squeue":
        rows = ((_code(f"%{each.letter}" if each.letter else ""), _codes(each.names)) for each in squeue_columns.FIELDS)
        yield _table(("column of -o", "of -O"), rows)
        named = ((f"`{name}`", f"`--{option}`") for name, option in squeue.VARIABLES.items())
        yield _table(("variable", "option"), named)
    elif command == "sacct":
        filled = ", ".join(f"`{name}`" for name in sacct_columns.FIELDS)
        yield f"Columns: {filled}. All others of Slurm's are known and empty.\n"
        yield (
            "CPU times and `MaxRSS`, that of the largest process, are told of what has ended; a peak below some 30 MiB "
            "is not known, and empty.\n"
        )
    elif command == "sstat":
        yield f"Columns: {_codes(' '.join(sstat.FILLED))}. All others of Slurm's are known and empty.\n"
    elif command == "sacctmgr":
        yield f"`show` and `list` of {_codes(' '.join(ENTITIES))}: a database in which nothing has been entered.\n"
        yield "Jobs may name any account and qos all the same. Changes are refused, as to users without privilege.\n"
    elif command == "scontrol":
        listed = ", ".join(f"`{name}`" for name in sorted(scontrol.COMMANDS))
        changed = ", ".join(f"`{name}`" for name in sorted(scontrol_update.CHANGES))
        yield f"Commands: {listed}.\n"
        yield "`show` knows `job`, `step`, `node`, `partition`, `config`, `hostnames`, `hostlist`, `hostlistsorted`.\n"
        yield f"`update JobId=...` changes {changed}; `update NodeName=...` the node's `State` and `Reason`.\n"
    elif command == "sinfo":
        rows = ((_code(f"%{each.letter}" if each.letter else ""), _codes(each.names)) for each in sinfo_columns.FIELDS)
        yield _table(("column of -o", "of -O"), rows)


def _settings() -> Iterator[tuple[str, str, str]]:
    """The settings with what their own docstring says of them."""
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


def _options(support: Mapping[str, Row], options: Mapping[str, Option]) -> str:
    rows = ((_spelled(options[name]), row.support.value, row.note) for name, row in _in_order(support, options))
    return _table(("option", "here", "note"), rows)


def _in_order(support: Mapping[str, Row], options: Mapping[str, Option]) -> Iterable[tuple[str, Row]]:
    return ((name, support[name]) for name in options if name in support)


def _own_options(table: Table) -> str:
    rows = ((f"`{table.spelled(name)}`", row.support.value, row.note) for name, row in table.support.items())
    return _table(("option", "here", "note"), rows)


def _spelled(option: Option) -> str:
    value = {Value.NONE: "", Value.REQUIRED: "=VALUE", Value.OPTIONAL: "[=VALUE]"}[option.value]
    letter = f"-{option.short}, " if option.short else ""
    return f"`{letter}--{option.name}{value}`"


def _code(name: str) -> str:
    return f"`{name}`" if name else ""


def _codes(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split())


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
