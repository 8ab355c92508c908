"""Writes the reference page docs/embedded-slurm.md: every option, variable and column."""

from __future__ import annotations

import re
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
from pocketslurm.settings import SLURM_VERSION, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpc_kit.slurm.option_table import Option

_INTRODUCTION = f"""# The embedded Slurm

The embedded Slurm runs Slurm jobs on a machine that has no Slurm. It needs no root and no daemon: the first job
starts a controller, which ends after the last job. Its virtual nodes are all this machine.

`hpc-kit submit` uses it on its own. For other programs, put its commands on PATH:

```console
hpc-kit embedded run sbatch job.sh
PATH=$(hpc-kit embedded path):$PATH
```

The commands `sbatch srun salloc squeue sacct scancel scontrol sinfo` have the messages, exit statuses
and variables of Slurm {SLURM_VERSION}. Each option on this page works, is accepted without effect for the given reason,
or is refused; no option is ignored silently. This page is generated from the code (`make golden`).

## Differences from a real Slurm

**Scripts of other clusters.** A script that was written for another cluster runs:

- Any name selects the default partition. Features, licences, reservations and options of newer releases have no
  effect.
- A job that asks for more CPUs, memory or GPUs than a node has gets nodes of its own that count as large enough.
  Its programs find only the GPUs that the machine has.
- A job that asks for more nodes than exist waits (PartitionNodeLimit), and one that names unknown nodes is refused.
  `[embedded] nodes` in the cluster file adds nodes.
- With `strict` (`[embedded] strict = true` in the cluster file), all of this is refused as by Slurm.

**Nodes.** Nodes are names with counts of CPUs, memory and GPUs. The counts are tracked but not enforced. Nothing is
bound to CPUs, and a job that uses more memory than it asked for meets only the limits of the machine. The command
`hostname` prints the name of the node; the kernel's own name is that of this machine on every node.

**Scheduling.**

- Jobs start by priority, which is first come, first served. A job that waits for nodes reserves the free nodes that
  it can use; jobs behind it start on the remaining nodes.
- Heterogeneous jobs start as soon as there is room, not with the next backfill pass. A file that their script reads
  as standard input goes to all tasks of a step, not to those of one component. When the time limit of the first
  component is reached, the remaining components end as TIMEOUT, too.
- A requeued job starts immediately, not after two minutes. Time limits and signals are exact to the second; as in
  Slurm, limits are whole minutes.
- A job whose supervising process is killed is requeued, or ends as NODE_FAIL with `--no-requeue`. The same applies
  to a job that ran when the machine went down.
- There are no reservations and no preemption. Jobs are not suspended, and nodes are not drained. The accounting
  consists of the records of the queue: `sacct` knows the last 10000 jobs, `squeue` and `scontrol` those that ended in
  the last 300 seconds.
- If the folder of a log is missing, the job waits 3 seconds for it, because a job may start here before its client
  has made the folder.

**Processes and signals.** Processes are tracked as by proctrack/cgroup, Slurm's default. All processes of a job end
with it. A signal goes to the tasks of a step, not to their child processes. If a job is cancelled or out of time,
its batch shell gets the signal, too, but not the children of that shell. A program behind a shell (`srun bash -c
"..."`) gets the signal if the shell runs it with `exec`.

**MPI.** `srun --mpi=pmi2` is Slurm's mpi/pmi2 (PMI-1.1 and PMI-2.0 over PMI_FD). A program of MPICH, MVAPICH or
Intel MPI is one world, with the virtual nodes as its nodes. `MPI_Abort` ends the step with status 137, as on Slurm.
PMIx, which Open MPI needs, is missing: start Open MPI by mpirun. `--mpi=pmix` means pmi2; `strict` refuses it.

**PATH.** The commands stay on PATH in a bash script that is a login shell (`#!/bin/bash -l`) or that reads a
profile which sets PATH (`source /etc/profile`). They do not if the script itself sets PATH to other folders, or
reads the profile in a function or a subshell.

**Upgrades.** A queue continues while the files of the package change, by a checkout or an upgrade. Its processes
have loaded what they need, and they understand the commands of another release. A command whose code cannot be
loaded at that moment reports this and submits no job.

## State and settings

The queue is one SQLite file in `$HPC_KIT_SLURM_STATE` (default `$XDG_STATE_HOME/hpc_kit/slurm`). Beside it are the
commands (`bin/`), the controller's log (`controller.log`) and the settings: `slurm.json`, or the file that
`$HPC_KIT_SLURM_CONF` names. If you remove the folder, every process of the queue ends.

A queue belongs to one machine, so two machines must not use the same `$HPC_KIT_SLURM_STATE`. Of machines that share
a home, the first one uses the default folder, and the file `.host` beside it names this machine. Each further
machine uses `hpc_kit/<host>/slurm`, with job ids that begin far above 1.
"""


def text() -> str:
    """Return the whole page."""
    parts = [
        _INTRODUCTION,
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
