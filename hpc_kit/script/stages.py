"""The parts of a launch line, and the names by which its programs are known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.errors import DirectiveError
from hpc_kit.script.shell.values import Text

MULTIPLIERS = ("srun", "mpirun")
"""Launchers that start what follows several times, on several nodes."""

AGENTS = ("torchrun", "accelerate", "deepspeed")
"""Launchers that start several processes on their own node."""


class Stage(NamedTuple):
    """One program of a launch line.

    `kind` is `srun`, `mpirun`, `torchrun`, `accelerate`, `deepspeed`, `python`, `shell`, `wrapper` or `program`;
    `options` go by their long name with `-` for `_`; `opaque`: some may hide in a variable that is not known;
    `fault`: Slurm would not take them.
    """

    kind: str
    words: tuple[Text, ...]
    options: Mapping[str, Text]
    opaque: bool = False
    fault: DirectiveError | None = None

    @property
    def name(self) -> str:
        """The program, without its folder."""
        return PurePath(self.words[0].text).name

    def option(self, *names: str) -> Text | None:
        """The value of the first of these options that is given."""
        return next((self.options[name] for name in names if name in self.options), None)


class Code(NamedTuple):
    """Shell code that a stage runs (`bash -c CODE name arguments`)."""

    text: Text
    arguments: tuple[Text, ...]


class Parsed(NamedTuple):
    """The stages of a command line, variables that it gives its program, and code if it ends in some."""

    stages: tuple[Stage, ...]
    gives: tuple[tuple[str, Text], ...] = ()
    code: Code | None = None


HELPERS = frozenset({
    "apptainer", "cat", "chmod", "chown", "conda", "cp", "curl", "date", "dcgmi", "dd", "df", "docker", "du",
    "echo", "enroot", "env", "false", "find", "free", "git", "grep", "hostname", "ibstat", "id", "ifconfig", "ip",
    "ldd", "ln", "ls", "lscpu", "lspci", "mkdir", "module", "mount", "mv", "nproc", "numactl", "nvidia-smi",
    "ping", "pip", "pip3", "pkill", "printenv", "printf", "ps", "pwd", "ray", "rclone", "rm", "rocm-smi", "rsync",
    "sacct", "sbcast", "scancel", "scontrol", "scp", "sed", "sha256sum", "sinfo", "singularity", "sleep",
    "squeue", "sstat", "stat", "sync", "tar", "test", "top", "touch", "true", "ulimit", "umount", "uname",
    "unzip", "wc", "wget", "which", "whoami",
})  # fmt: skip
"""Programs that prepare, look or clean up; a job is not run for their sake."""

WRAPPERS: dict[str, tuple[str, int]] = {
    "command": ("", 0),
    "exec": ("a", 0),
    "ionice": ("cnp", 0),
    "nice": ("n", 0),
    "nohup": ("", 0),
    "numactl": ("NmCpi", 0),
    "setsid": ("", 0),
    "stdbuf": ("ioe", 0),
    "time": ("fo", 0),
    "timeout": ("sk", 1),
    "unbuffer": ("", 0),
}
"""Programs that start another: short options with a value, and words before the program."""

CONTAINERS = {
    "apptainer",
    "singularity",
    "conda",
    "mamba",
    "micromamba",
    "uv",
    "poetry",
    "pixi",
    "nsys",
    "ncu",
    "taskset",
}
CONTAINERS |= {
    "shifter",
    "podman-hpc",
    "charliecloud",
    "ch-run",
    "udocker",
    "strace",
    "perf",
    "gdb",
    "catchsegv",
    "rocprof",
}
PYTHON = re.compile(r"(?:python|pypy)[0-9.]*\Z")
SHELLS = {"bash", "sh", "dash", "zsh", "ksh"}
MPIRUN = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "mpirun.mpich", "mpiexec.openmpi"}


def starts_something(text: Text) -> bool:
    """Whether a word is a program that this module knows."""
    name = PurePath(text.text).name
    known = {"srun", "env", *MPIRUN, *WRAPPERS, *CONTAINERS, *AGENTS, *SHELLS}
    return name in known or bool(PYTHON.match(name)) or name.endswith((".py", ".sh"))
