"""The parts of a launch line, and the names by which its programs are known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.check.shell.values import Text
from hpc_kit.errors import DirectiveError

MULTIPLIERS = ("srun", "mpirun")
"""Launchers that start what follows several times, on several nodes."""

AGENTS = ("torchrun", "accelerate", "deepspeed")
"""Launchers that start several processes on their own node."""


class Stage(NamedTuple):
    """One program of a launch line.

    `kind` is `srun`, `mpirun`, `ssh`, `torchrun`, `accelerate`, `deepspeed`, `python`, `shell`, `wrapper` or `program`;
    `options` go by their long name with `-` for `_`; `opaque`: some may hide in a variable that is not known;
    `fault`: Slurm would not take them; `overruled`: values that a later word of the same option replaces.
    """

    kind: str
    words: tuple[Text, ...]
    options: Mapping[str, Text]
    opaque: bool = False
    fault: DirectiveError | None = None
    overruled: tuple[Text, ...] = ()

    @property
    def name(self) -> str:
        """The program, without its folder."""
        return PurePath(self.words[0].text).name

    def option(self, *names: str) -> Text | None:
        """The value of the first of these options that is given."""
        return next((self.options[name] for name in names if name in self.options), None)


class Code(NamedTuple):
    """Shell code that a stage runs (`bash -c CODE name arguments`); `remote`: with no variable of this shell."""

    text: Text
    arguments: tuple[Text, ...] = ()
    remote: bool = False


class LaunchLine(NamedTuple):
    """The stages of a command line, variables that it gives its program, and code if it ends in some."""

    stages: tuple[Stage, ...]
    gives: tuple[tuple[str, Text], ...] = ()
    code: Code | None = None


BUILTINS = frozenset({
    ".", ":", "[", "alias", "bg", "break", "builtin", "cd", "continue", "declare", "dirs", "disown", "echo",
    "enable", "eval", "exit", "export", "false", "fc", "fg", "getopts", "hash", "help", "history", "jobs", "kill",
    "let", "local", "logout", "mapfile", "module", "popd", "printf", "pushd", "pwd", "read", "readarray",
    "readonly", "return", "set", "shift", "shopt", "source", "suspend", "test", "times", "trap", "true", "type",
    "typeset", "ulimit", "umask", "unalias", "unset", "wait",
})  # fmt: skip
"""What bash does itself."""

HELPERS = frozenset({
    "aklog", "apptainer", "awk", "basename", "cat", "chmod", "chown", "cksum", "clear", "cmp", "conda", "cp",
    "curl", "cut", "date", "dcgmi", "dd", "df", "diff", "dirname", "docker", "dos2unix", "du", "echo", "enroot",
    "env", "false", "file", "find", "free", "git", "grep", "gunzip", "gzip", "head", "hf", "hostname",
    "huggingface-cli", "ibstat", "id", "ifconfig", "install", "ip", "kinit", "ldd", "less", "ln", "ls", "lscpu",
    "lspci", "md5sum", "mkdir", "mktemp", "module", "more", "mount", "mv", "nl", "nproc", "numactl", "nvcc",
    "nvidia-cuda-mps-control", "nvidia-smi", "paste", "ping", "pip", "pip3", "pkill", "printenv", "printf", "ps",
    "pwd", "ray", "rclone", "readlink", "realpath", "rev", "rm", "rocm-smi", "rsync", "sacct", "sacctmgr",
    "sbcast", "scancel", "scontrol", "scp", "sed", "seq", "sha256sum", "sinfo", "singularity", "sleep", "sort",
    "split", "squeue", "sstat", "stat", "stdbuf", "sync", "tail", "tar", "tee", "test", "time", "top", "touch",
    "tr", "true", "ulimit", "umount", "uname", "uniq", "unzip", "virtualenv", "wandb", "wc", "wget", "which",
    "whoami", "xargs", "zcat",
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
MPIRUN = {
    "aprun", "ibrun", "jsrun", "lrun", "mpiexec", "mpiexec.hydra", "mpiexec.openmpi", "mpiexec.slurm", "mpirun",
    "mpirun.mpich", "mpirun.openmpi", "mpirun_rsh", "orterun", "prterun", "prun",
}  # fmt: skip
"""MPI's starters, and those that sites put in their place (ibrun at TACC, prun at others)."""

REMOTE: dict[str, tuple[str, int]] = {
    "ssh": ("BbcDEeFIiJLlmOoPpQRSWw", 1),
    "pdsh": ("wxftulRNIcgXM", 0),
    "clush": ("wxgXflutOm", 0),
}
"""Programs that start a command on other hosts: short options with a value, and words before the command."""


def starts_something(text: Text, *, alone: bool = False) -> bool:
    """Whether a word is a program that this module knows; `alone`: one that is not also a tool's subcommand."""
    name = PurePath(text.text).name
    known = {*MPIRUN, *AGENTS, *SHELLS}
    known |= set() if alone else {"srun", "env", *REMOTE, *WRAPPERS, *CONTAINERS}
    return name in known or bool(PYTHON.match(name)) or name.endswith((".py", ".sh"))
