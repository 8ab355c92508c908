"""A command that begins with a launcher, such as `torchrun train.py`: the launcher, its options and its program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.getopt import parse_options
from hpc_kit.spec.shell_code import PREFIXES

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

LEGACY_LAUNCHER = "torch.distributed.launch"
"""The module before torchrun: it passes `--local-rank=N` to the program."""

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

_OF_LAUNCHER = lazy_pattern(r"--(accelerate[-_]config|launcher|main[-_]process[-_]port|num[-_](machines|processes))")
"""Options of these tools that are for the launcher. Each has a value."""

_OTHER_LAUNCHERS = frozenset({"colossalai", "composer", "fabric"})
"""Further launchers of several processes, whose options are not parsed."""

_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "horovodrun", "srun", *MPIRUN, *_OTHER_LAUNCHERS, *_TRAINERS}
)
_SUBCOMMANDS = {"accelerate": "launch", "colossalai": "run", "fabric": "run"}
"""The subcommand with which a tool is a launcher."""

_SHORT_FORMS = {"accelerate-launch": ("accelerate", "launch"), "deepspeed.pt": ("deepspeed",)}
_INTERPRETER = lazy_pattern(r"(?:python|pypy)[0-9.]*")
_MODULE_OPTION = lazy_pattern(r"-[bBdEiIOPqRsSuvx]*m(.*)")
"""The option -m of Python, also behind other letters and before its value: `-um torch.distributed.run`."""

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
    def is_trainer(self) -> bool:
        """Whether it is a tool that starts a launcher itself, such as `axolotl train`."""
        return self.kind.split()[0] in _TRAINERS

    @property
    def size_options(self) -> tuple[str, ...]:
        """The names of the options for the numbers of nodes, of ranks on each node, and of all ranks."""
        nodes = (_NODES[self.kind],) if self.kind in _NODES else ()
        return (*nodes, *_RANKS_PER_NODE.get(self.kind, ()), *_RANKS.get(self.kind, ()))

    @property
    def has_several_nodes(self) -> bool:
        """Whether the options give a number of nodes other than 1, also one that is not known, such as `$NNODES`."""
        return self.options.get(_NODES.get(self.kind, ""), "1") not in {"1", "1:1"}

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
    passes_local_rank = name == LEGACY_LAUNCHER and "use-env" not in options
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
    kind = module if module == LEGACY_LAUNCHER else AGENT_MODULES.get(module)
    subcommand = (_SUBCOMMANDS[kind],) if kind in _SUBCOMMANDS else ()
    return (kind, *subcommand, *rest) if kind else None
