"""A launcher in the command of a job: `torchrun train.py` becomes [launch], or is refused.

Each rank of a job is a process already. A launcher in the command would start further ones in each of them: separate
worlds, each of which trains its own model, and the job would still be COMPLETED.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from msgspec import structs

from hpc_kit.errors import DirectiveError, SpecError
from hpc_kit.slurm import option_values
from hpc_kit.slurm.getopt import parse_options
from hpc_kit.slurm.units import format_count
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.job import Job
from hpc_kit.spec.job_checks import Origins
from hpc_kit.spec.resources import GPU_FIELDS, Resources
from hpc_kit.spec.shell_code import PREFIXES, ShellCode, read_shell_code
from hpc_kit.spec.size_checks import count_nodes_and_tasks

AGENT_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher.api": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner": "horovodrun",
    "horovod.runner.launch": "horovodrun",
    "hpc_kit.runtime.torchrun": "torchrun",
}
"""Modules that `python -m` runs as a launcher of several processes."""

_LEGACY_LAUNCHER = "torch.distributed.launch"

AGENT_FLAGS = frozenset({
    "bind-cores-to-rank", "cpu", "debug", "downcast-bf16", "dynamo-use-dynamic", "dynamo-use-fullgraph",
    "dynamo-use-regional-compilation", "enable-cpu-affinity", "enable-each-rank-log", "force", "force-multi",
    "fp8-use-autocast-during-eval", "gloo", "help", "ipex", "m", "module", "mpi", "multi-gpu", "no-local-rank",
    "no-python", "no-ssh", "no-ssh-check", "no-tpu-cluster", "q", "quiet", "run-path", "same-network", "save-pid",
    "standalone", "tpu", "tpu-cluster", "tpu-use-sudo", "use-deepspeed", "use-env", "use-fsdp", "use-megatron-lm",
    "use-parallelism-config", "use-tp", "use-xpu", "verbose", "virtual-local-rank",
})  # fmt: skip
"""Options without a value of torchrun, accelerate, deepspeed and horovodrun."""

SITE_STARTERS = frozenset({"aprun", "ibrun", "jsrun", "lrun", "mpiexec.slurm", "mpirun_rsh", "prun"})
"""Starters of MPI programs that sites or schedulers put in the place of mpirun (ibrun at TACC, prun at others)."""

MPIRUN = SITE_STARTERS | {
    "mpiexec", "mpiexec.hydra", "mpiexec.openmpi", "mpirun", "mpirun.mpich", "mpirun.openmpi", "orterun", "prterun",
}  # fmt: skip
"""MPI's starters of processes."""

MPIRUN_VALUES = {
    "H": 1, "N": 1, "bind-to": 1, "c": 1, "env": 2, "f": 1, "genv": 2, "genvlist": 1, "gmca": 2, "host": 1,
    "hostfile": 1, "hosts": 1, "machinefile": 1, "map-by": 1, "mca": 2, "n": 1, "np": 1, "npernode": 1, "o": 1,
    "output": 1, "path": 1, "ppn": 1, "prefix": 1, "rank-by": 1, "wdir": 1, "x": 1,
}  # fmt: skip
"""Number of words behind each option of mpirun, over all MPIs."""

_TRAINERS = {
    "axolotl": (frozenset({"train"}), "axolotl.cli.{}"),
    "llamafactory-cli": (frozenset({"train"}), "llamafactory.launcher"),
    "trl": (frozenset({"dpo", "grpo", "kto", "reward", "rloo", "sft"}), "trl.scripts.{}"),
    "tune": (frozenset({"run"}), ""),
}
"""Tools that start torchrun or `accelerate launch` themselves: their subcommands, and the module that trains.

`tune run` starts torchrun only if it has options of torchrun.
"""

_OF_LAUNCHER = re.compile(r"--(accelerate[-_]config|launcher|main[-_]process[-_]port|num[-_](machines|processes))")
"""Options of these tools that are for the launcher. Each has a value."""

_OTHER_LAUNCHERS = frozenset({"colossalai", "composer", "fabric"})
"""Further launchers of several processes, whose options are not parsed."""

_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "horovodrun", "srun", *MPIRUN, *_OTHER_LAUNCHERS, *_TRAINERS}
)
_SUBCOMMANDS = {"accelerate": "launch", "colossalai": "run", "fabric": "run"}
"""The subcommand with which a tool is a launcher."""

_SHORT_FORMS = {"accelerate-launch": ("accelerate", "launch"), "deepspeed.pt": ("deepspeed",)}
_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*")
_MODULE_OPTION = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)")
"""The option -m of Python, also behind other letters and before its value: `-um torch.distributed.run`."""

_OWN_RENDEZVOUS = frozenset({
    "local-addr", "master-addr", "master-port", "nnodes", "node-rank", "nproc-per-node", "rdzv-backend", "rdzv-conf",
    "rdzv-endpoint", "rdzv-id", "standalone", "use-env",
})  # fmt: skip
"""Options of torchrun that the job completes itself."""

_NODES = {"torchrun": "nnodes", "accelerate": "num-machines", "deepspeed": "num-nodes", "srun": "nodes"}
_RANKS_PER_NODE = {
    "torchrun": ("nproc-per-node",),
    "deepspeed": ("num-gpus",),
    "mpirun": ("npernode", "N", "ppn"),
    "srun": ("ntasks-per-node",),
}
_RANKS = {
    "accelerate": ("num-processes",),
    "horovodrun": ("np", "num-proc"),
    "mpirun": ("n", "np", "c"),
    "srun": ("ntasks",),
}
"""Options with the number of nodes, of ranks on each node, and of all ranks."""


class LauncherCommand(NamedTuple):
    """A command that begins with a launcher.

    Args:
        kind: `torchrun`, `accelerate`, `deepspeed`, `horovodrun`, `mpirun` or `srun`.
        prefix: Words before the launcher, such as `env NAME=value`.
        options: Its options by long name, with `-` for `_`. A flag has an empty value.
        words: The same options as written, by name.
        program: The command that it starts, with `python` for a Python file.
        passes_local_rank: It adds `--local-rank=N` to the arguments of the program.
    """

    kind: str
    prefix: tuple[str, ...]
    options: Mapping[str, str]
    words: Mapping[str, tuple[str, ...]]
    program: tuple[str, ...]
    passes_local_rank: bool = False

    @property
    def nodes(self) -> int | None:
        """The number of nodes that the options give."""
        return self._count([_NODES.get(self.kind, "")])

    @property
    def ranks_per_node(self) -> int | None:
        """The number of ranks on each node that the options give."""
        return self._count(_RANKS_PER_NODE.get(self.kind, ()))

    @property
    def ranks(self) -> int | None:
        """The number of all ranks that the options give."""
        return self._count(_RANKS.get(self.kind, ()))

    def _count(self, names: Sequence[str]) -> int | None:
        values = [self.options[name] for name in names if name in self.options]
        # torchrun accepts a range, and `2:2` is a number.
        match = re.fullmatch(r"([1-9]\d*)(?::\1)?", values[0]) if values else None
        return int(match[1]) if match else None


def find_launcher(command: Sequence[str]) -> LauncherCommand | None:
    """Return the launcher that a command begins with, also behind a prefix such as `env` or `uv run`."""
    found = _launcher_words(command)
    if found is None:
        return None
    start, (name, *rest) = found
    if name in _TRAINERS:
        return _trainer_command(name, command[:start], rest)
    kind = "mpirun" if name in MPIRUN - SITE_STARTERS else AGENT_MODULES.get(name, name)
    if kind in _SUBCOMMANDS:
        if rest[:1] != [_SUBCOMMANDS[kind]]:
            return None
        rest = rest[1:]
    prefix = tuple(command[:start])
    if kind in _OTHER_LAUNCHERS:
        # Their options are unknown: the program is the first word that looks like one.
        file = next((index for index, word in enumerate(rest) if word.endswith(".py")), len(rest))
        return LauncherCommand(kind, prefix, {}, {}, ("python", *rest[file:]) if rest[file:] else ())
    if kind == "srun":
        parsed, program = parse_options(rest, "srun")
        options = {each.option.name: each.value or "" for each in parsed.given}
        shown = {name: (f"--{name}={value}" if value else f"--{name}",) for name, value in options.items()}
        return LauncherCommand(kind, prefix, options, shown, tuple(program))
    options, words, program = _split_options(name, rest)
    if kind in {"torchrun", "accelerate", "deepspeed"} and program and "no-python" not in options:
        program = ["python", *(["-m"] if options.keys() & {"m", "module"} else []), *program]
    passes_local_rank = name == _LEGACY_LAUNCHER and "use-env" not in options
    return LauncherCommand(kind, prefix, options, words, tuple(program), passes_local_rank)


def _trainer_command(name: str, prefix: Sequence[str], words: Sequence[str]) -> LauncherCommand | None:
    """Return a tool that starts a launcher itself, with the program that trains without one."""
    subcommands, module = _TRAINERS[name]
    if not words or words[0] not in subcommands:
        return None
    kind = f"{name} {words[0]}"
    if not module:
        options, _, program = _split_options(name, words[1:])
        return LauncherCommand(kind, tuple(prefix), {}, {}, (name, words[0], *program)) if options else None
    # axolotl passes the words behind `--` to the launcher.
    own = list(itertools.takewhile(lambda word: word != "--", words[1:]))
    if re.search("--launcher[ =]python", " ".join(own)):
        return None
    kept = [
        word
        for before, word in itertools.pairwise(["", *own])
        if not _OF_LAUNCHER.fullmatch(before) and not _OF_LAUNCHER.fullmatch(word.partition("=")[0])
    ]
    return LauncherCommand(kind, tuple(prefix), {}, {}, ("python", "-m", module.format(words[0]), *kept))


def _split_options(
    launcher: str, arguments: Sequence[str]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]], list[str]]:
    """Return the options of a launcher by name, as value and as written words, and the words of its program."""
    options, words = dict[str, str](), dict[str, tuple[str, ...]]()
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and len(arguments[index]) > 1:
        if arguments[index] == "--":
            index += 1
            break
        option, equals, value = arguments[index].lstrip("-").partition("=")
        is_mpirun = launcher in MPIRUN
        option = option if is_mpirun else option.replace("_", "-")
        count = 0 if equals else MPIRUN_VALUES.get(option, 0) if is_mpirun else option not in AGENT_FLAGS
        options[option] = value if equals else " ".join(arguments[index + 1 : index + 1 + count])
        words[option] = (*words.get(option, ()), *arguments[index : index + 1 + count])
        index += 1 + count
    return options, words, list(arguments[index:])


def _launcher_words(command: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
    """Return the index of the launcher, which is the first word or behind a prefix, and its words by its usual name."""
    for index, word in enumerate(command):
        name, rest = PurePath(word).name, tuple(command[index + 1 :])
        if name in _LAUNCHERS or name in _SHORT_FORMS:
            return index, (*_SHORT_FORMS.get(name, (name,)), *rest)
        # `uv run --python python3.12 torchrun`
        if _INTERPRETER.fullmatch(name) and not (index and command[index - 1] in {"-p", "--python"}):
            words = _launcher_of_python(rest)
            return (index, words) if words else None
        if name.endswith((".py", ".sh")) or PurePath(command[0]).name not in PREFIXES:
            return None
    return None


def _launcher_of_python(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the launcher that the words behind `python` run, as a module or as a file, with its arguments."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        match = _MODULE_OPTION.fullmatch(words[index])
        if match:
            following = [match[1], *words[index + 1 :]] if match[1] else [*words[index + 1 :]]
            return _launcher_of_module(following[0], following[1:]) if following else None
        if words[index].startswith("-c"):
            return None
        # -X and -W take the next word, other options of the interpreter none.
        index += 2 if words[index] in {"-X", "-W"} else 1
    if index == len(words):
        return None
    # `python /opt/env/bin/torchrun`, or `python site-packages/torch/distributed/run.py`
    file = PurePath(words[index])
    if file.name in _LAUNCHERS:
        return (file.name, *words[index + 1 :])
    parts = PurePath(words[index].removesuffix(".py")).parts
    return _launcher_of_module(".".join(parts[-3:]), words[index + 1 :])


def _launcher_of_module(module: str, rest: Sequence[str]) -> tuple[str, ...] | None:
    if module in {"accelerate", "accelerate.commands.accelerate_cli"}:
        return ("accelerate", *rest)
    kind = module if module == _LEGACY_LAUNCHER else AGENT_MODULES.get(module)
    subcommand = (_SUBCOMMANDS[kind],) if kind in _SUBCOMMANDS else ()
    return (kind, *subcommand, *rest) if kind else None


def adopt_launcher(job: Job, cluster: Cluster, origins: Origins, root: Path) -> tuple[Job, tuple[str, ...]]:
    """Return the job with the launcher of its command as [launch], and notes about it.

    torchrun and mpirun start as many nodes and ranks as the job has. A job that gives no numbers takes them from the
    options of its launcher. HPC_KIT_LAUNCHER=torchrun in [env] keeps a separate world for each rank.

    Raises:
        SpecError: The launcher cannot start the ranks of the job, or its options contradict the job.
    """
    if str(job.env.get("HPC_KIT_LAUNCHER", "")).strip() == "torchrun" or any(each.command for each in job.component):
        return job, ()
    command = _find_checked(job.command)
    # A shell may start the launcher: `bash run.sh`, or `bash -c "torchrun ..."`.
    code = read_shell_code(job.command, root / (job.resources.chdir or "")) if command is None else None
    if code is None and (command is None or not command.program):
        return job, ()
    job, command = _with_agents(job, cluster, command, origins)
    resources, has_own_size = _with_size(job, command)
    nodes, ntasks = count_nodes_and_tasks(structs.replace(job, resources=resources), cluster.node, origins)
    ranks = -(-ntasks // nodes) * job.launch.nproc_per_node
    if command is None:
        if code is not None and nodes * ranks > 1:
            _check_shell_code(code, nodes, ranks)
        return job, ()
    if has_own_size or command.kind == "srun":
        check_launcher_size(command, nodes, ranks)
    if command.kind in {"torchrun", "mpirun", "srun"}:
        reason = _obstacle(job, cluster, command, even=ntasks % nodes == 0)
        if reason:
            raise _refusal(command.kind, nodes, ranks, reason, (*command.prefix, *command.program), command)
        sized = structs.replace(job, command=_program_of_agents(command), resources=resources)
        if command.kind == "srun":
            return sized, ("ignoring srun of the command, because the script starts the ranks by srun",)
        return (
            _under_mpirun(sized, job.command[0], command)
            if command.kind == "mpirun"
            else _under_agents(sized, command, nodes, ranks)
        )
    # One task: a launcher of a single node starts one world there.
    if nodes * ranks > 1 or (has_own_size and (command.ranks or command.ranks_per_node or 1) > 1):
        reason = f"the job starts {nodes * ranks} processes, and each would start {command.kind}"
        raise _refusal(command.kind, nodes, ranks, reason, (*command.prefix, *command.program), command)
    return job, ()


def _check_shell_code(code: ShellCode, nodes: int, ranks: int) -> None:
    """Refuse shell code that starts a launcher in each of several tasks.

    An agent that names its own number of nodes may make one world of the tasks, and code that tests its rank may start
    one launcher for all of them.
    """
    if code.tests_rank:
        return
    for words in code.commands():
        try:
            found = find_launcher(words)
        except DirectiveError:  # options of a site's plug-in of srun
            continue
        if found is None or not found.program:
            continue
        # Each task may solve a problem of its own with MPI.
        if found.kind in {"srun", *MPIRUN} and not PurePath(found.program[0]).name.startswith("python"):
            continue
        # A trainer gets the number of nodes from many places.
        names_nodes = found.options.get(_NODES.get(found.kind, ""), "1") not in {"1", "1:1"}
        if ranks == 1 and (names_nodes or found.kind.split()[0] in _TRAINERS):
            continue
        program = (*found.prefix, *found.program)
        if code.file is None:
            raise _refusal(found.kind, nodes, ranks, f"in the shell code {shlex.join(words)}", program)
        raise SpecError(
            f"{found.kind} in the command would not make one world of {nodes * ranks} ranks",
            found=f"each of the {nodes * ranks} tasks runs {code.file}: {shlex.join(words)}",
            remedy=f"write {shlex.join(program)} in its place, because hpc-kit starts the ranks;"
            " or, if each task is to start its own: --set env.HPC_KIT_LAUNCHER=torchrun",
        )


def _find_checked(words: Sequence[str]) -> LauncherCommand | None:
    """Return the launcher. Refuse one of several programs, and one whose program was not found among its options."""
    command = find_launcher(words)
    if command is None:
        return None
    if command.kind in MPIRUN and ":" in command.program:
        raise SpecError(
            f"{command.kind} in the command starts several programs",
            found=shlex.join(words),
            remedy="write a job file with one [[component]] for each program: its command, nodes and ntasks",
        )
    if not command.program and words[-1].endswith(".py"):
        raise SpecError(
            f"the program behind {command.kind} is not clear",
            found=f"{words[-1]} looks like the value of an option in: {shlex.join(words)}",
            remedy=f"write the options of {command.kind} as --NAME=VALUE, or leave {command.kind} out:"
            f" hpc-kit submit -j NODESxRANKS -- python {shlex.quote(words[-1])}",
        )
    return command


def _with_agents(
    job: Job, cluster: Cluster, command: LauncherCommand | None, origins: Origins
) -> tuple[Job, LauncherCommand | None]:
    """Return the job and torchrun with the number of ranks that torchrun starts on each node.

    One task per node is the usual shape of a job for torchrun: the task is the agent, and its resources are those of
    the node. `--nproc-per-node=gpu` is the number of GPUs that the job has on each node.
    """
    resources = job.resources
    if command is None or command.kind != "torchrun" or job.launch.starts_agents:
        return job, command
    has_own_size = any((resources.ntasks, resources.ntasks_per_node, resources.ntasks_per_gpu))
    sized = resources if has_own_size else structs.replace(resources, nodes=resources.nodes or command.nodes)
    if has_own_size and resources.nodes is None and resources.ntasks_per_node == 1 and resources.ntasks is None:
        sized = resources = structs.replace(resources, nodes=command.nodes)
    nodes, ntasks = count_nodes_and_tasks(structs.replace(job, resources=sized), cluster.node, origins)
    one_task_per_node = has_own_size and nodes == ntasks and not resources.ntasks_per_gpu
    asked_ranks = command.options.get("nproc-per-node", "1")
    if asked_ranks in {"gpu", "auto"} and (one_task_per_node or not has_own_size):
        gpus, remainder = divmod(sized.count_gpus(nodes, ntasks) or 0, nodes)
        if gpus and not remainder:
            command = command._replace(options={**command.options, "nproc-per-node": str(gpus)})
    ranks = command.ranks_per_node
    if ranks is None and "nproc-per-node" in command.options and not has_own_size:
        line = shlex.join(["torchrun", *_without_python(command)])
        raise SpecError(
            f"the number of ranks of torchrun is not known: nproc-per-node is {asked_ranks}",
            found="a job without a number of GPUs on each node" if asked_ranks in {"gpu", "auto"} else f"{asked_ranks}",
            remedy=f"give nodes x ranks: hpc-kit submit -j {nodes}xRANKS -- {line}",
        )
    # Another number of nodes, or --standalone on several, is a contradiction that check_launcher_size reports.
    if one_task_per_node and ranks is not None and ranks > 1 and command.nodes in {None, nodes}:
        launch = structs.replace(job.launch, launcher="torchrun", nproc_per_node=ranks)
        return structs.replace(job, launch=launch, resources=resources), command
    return job, command


def _with_size(job: Job, command: LauncherCommand | None) -> tuple[Resources, bool]:
    """Return the options with the launcher's numbers where the job has none, and whether the job has its own."""
    resources = job.resources
    if job.launch.starts_agents or any((resources.ntasks, resources.ntasks_per_node, resources.ntasks_per_gpu)):
        return resources, True
    if command is None or command.kind not in {"torchrun", "mpirun", "srun"}:
        return resources, False
    nodes = resources.nodes or command.nodes
    # `mpirun -n 8 -ppn 4`
    if nodes is None and command.ranks and command.ranks_per_node:
        nodes = -(-command.ranks // command.ranks_per_node)
    if command.ranks is not None:
        return structs.replace(resources, nodes=nodes or 1, ntasks=command.ranks), False
    return structs.replace(resources, nodes=nodes, ntasks_per_node=command.ranks_per_node or 1), False


def check_launcher_size(command: LauncherCommand, nodes: int, ranks: int) -> None:
    """Refuse a launcher whose own numbers are not those of the job."""
    own_nodes, own_ranks, total = command.nodes, command.ranks_per_node, command.ranks
    if own_nodes is not None and own_ranks is not None:
        total = own_nodes * own_ranks
    is_standalone = "standalone" in command.options and nodes > 1
    agrees = own_nodes in {None, nodes} and own_ranks in {None, ranks} if total is None else total == nodes * ranks
    if agrees and not is_standalone:
        return
    names = (_NODES.get(command.kind, ""), *_RANKS_PER_NODE.get(command.kind, ()), *_RANKS.get(command.kind, ()))
    given = [" ".join(command.words[name]) for name in (*names, "standalone") if command.words.get(name)]
    found = (
        f"{' '.join([command.kind, *given])}; the job has {format_count(nodes, 'node')} x {format_count(ranks, 'rank')}"
    )
    if is_standalone:
        own_nodes = nodes
    # The remedy must be a job that can exist: one node if the total does not divide among the nodes of this job.
    own_nodes = own_nodes or (1 if total and total % nodes else nodes)
    per_node = own_ranks or (-(-total // own_nodes) if total else ranks)
    words = command.program if command.kind != "torchrun" else ("torchrun", *_without_python(command))
    raise SpecError(
        f"{command.kind} and the job give different numbers of ranks",
        found=found,
        remedy=f"let the job give the numbers: {_submit_line(own_nodes, per_node, (*command.prefix, *words))}",
    )


def _without_python(command: LauncherCommand) -> tuple[str, ...]:
    """Return the words behind torchrun, without its options for the size and the rendezvous."""
    kept = [word for name, words in command.words.items() if name not in _OWN_RENDEZVOUS for word in words]
    program = command.program if "no-python" in command.options else command.program[1:]
    return (*kept, *(program[1:] if program[:1] == ("-m",) else program))


def _submit_line(nodes: int, ranks: int, program: Sequence[str], *settings: str) -> str:
    words = ["hpc-kit", "submit", "-j", f"{nodes}x{ranks}", *(word for each in settings for word in ("--set", each))]
    return shlex.join([*words, "--", *program])


def _refusal(
    launcher: str,
    nodes: int,
    ranks: int,
    reason: str,
    program: Sequence[str],
    command: LauncherCommand | None = None,
) -> SpecError:
    """Return the error that names the line that works."""
    settings = []
    if launcher in {"mpirun", "horovodrun"}:
        settings.append("launch.launcher=mpirun")
        settings += [f"env.{word}" for word in (_exported(command) if command else ()) if "=" in word]
    if command is not None and command.options.get("mixed-precision"):
        settings.append(f"env.ACCELERATE_MIXED_PRECISION={command.options['mixed-precision']}")
    return SpecError(
        f"{launcher} in the command would not make one world of {format_count(nodes * ranks, 'rank')}",
        found=reason,
        remedy=f"remove it, because hpc-kit starts the ranks: {_submit_line(nodes, ranks, program, *settings)}",
    )


def _obstacle(job: Job, cluster: Cluster, command: LauncherCommand, *, even: bool) -> str | None:
    """Return the reason why the job cannot use this launcher."""
    launcher = job.launch.launcher
    if command.prefix:
        return f"{command.kind} comes after {command.prefix[0]}"
    if launcher not in {"srun", command.kind}:
        return f"[launch] launcher = '{launcher}'"
    if command.kind == "srun":
        kept = (_NODES["srun"], *_RANKS_PER_NODE["srun"], *_RANKS["srun"])
        refused = [
            word
            for name, words in command.words.items()
            if name not in kept or not re.fullmatch(r"[1-9]\d*", command.options[name])
            for word in words
        ]
        return f"the script starts the ranks by srun, and ignores {' '.join(refused)}" if refused else None
    if cluster.environment.is_container:
        return f"cluster {cluster.name} has a container, in which only srun starts ranks"
    if job.component:
        return "the job is heterogeneous"
    if command.kind == "torchrun":
        return None if even else "the nodes have different numbers of ranks"
    # The script starts Open MPI with --bind-to none. -x goes to [env].
    unbound = {"bind-to"} if command.options.get("bind-to") == "none" else set[str]()
    others = command.words.keys() - {
        "x",
        *unbound,
        "allow-run-as-root",
        "oversubscribe",
        *_RANKS["mpirun"],
        *_RANKS_PER_NODE["mpirun"],
    }
    shown = " ".join(word for name in command.words if name in others for word in command.words[name])
    return f"its options {shown}: Open MPI also reads OMPI_MCA_... in [env]" if others else None


def _under_mpirun(job: Job, program: str, command: LauncherCommand) -> tuple[Job, tuple[str, ...]]:
    mpich = PurePath(program).name in {"mpiexec.hydra", "mpirun.mpich"}
    launch = structs.replace(job.launch, launcher="mpirun", mpi="mpich" if mpich else job.launch.mpi)
    # Every rank gets the whole environment, so that `-x NAME` without a value needs nothing.
    exported = [word.partition("=") for word in _exported(command)]
    env = {name: value for name, equals, value in exported if equals}
    notes = ["using [launch] launcher = 'mpirun' for mpirun in the command"]
    if env:
        notes.append(f"setting {', '.join(env)} in [env] for -x of mpirun in the command")
    return structs.replace(job, launch=launch, env={**job.env, **env}), tuple(notes)


def _exported(command: LauncherCommand) -> tuple[str, ...]:
    """Return the values of mpirun's `-x NAME[=value]`."""
    return tuple(word for word in command.words.get("x", ()) if word not in {"-x", "--x"})


def _program_of_agents(command: LauncherCommand) -> tuple[str, ...]:
    """Return the program, with the argument that torch.distributed.launch adds. torchrun replaces the variable."""
    if not command.passes_local_rank:
        return command.program
    # The argument follows the words that start the program: `FILE`, `python FILE` or `python -m MODULE`.
    start = 1 if "no-python" in command.options else 3 if command.program[1] == "-m" else 2
    return (*command.program[:start], "--local-rank=${local_rank}", *command.program[start:])


def _under_agents(job: Job, command: LauncherCommand, nodes: int, ranks: int) -> tuple[Job, tuple[str, ...]]:
    """Return the job with one agent per node. What the job asks for each rank is asked for all ranks of the node."""
    kept = [name for name in command.words if name not in {*_OWN_RENDEZVOUS, "m", "module", "no-python"}]
    sizes = {"nnodes", "nproc-per-node"}
    # A range such as 1:4 is replaced by the job's number.
    replaced = _OWN_RENDEZVOUS - {name for name in sizes if command.options.get(name, "").isdigit()}
    dropped = [" ".join(words) for name, words in command.words.items() if name in replaced]
    resources = job.resources
    cpus = resources.cpus_per_task
    # Slurm gives a task one CPU, which all ranks of an agent would share. With GPUs, the site has a default for each.
    if cpus is None and resources.cpus_per_gpu is None and not any(getattr(resources, name) for name in GPU_FIELDS):
        cpus = 1
    gpus = resources.gpus_per_task
    if gpus is not None and not job.launch.starts_agents:
        gpus = option_values.multiply_gpus(str(gpus), ranks)
    if not job.launch.starts_agents:
        resources = structs.replace(
            resources,
            nodes=nodes,
            ntasks=None,
            ntasks_per_node=1,
            ntasks_per_gpu=None,
            cpus_per_task=None if cpus is None else cpus * ranks,
            gpus_per_task=gpus,
        )
    options = (*job.launch.options, *(word for name in kept for word in command.words[name]))
    launch = structs.replace(job.launch, launcher="torchrun", nproc_per_node=ranks, options=options)
    note = f"using one torchrun agent per node: --nnodes={nodes} --nproc-per-node={ranks}, with the job's rendezvous"
    notes = (note, *((f"ignoring {', '.join(dropped)} of torchrun in the command",) if dropped else ()))
    return structs.replace(job, resources=resources, launch=launch), notes
