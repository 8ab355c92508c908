"""Splits launch lines into launchers and program: which program starts which, with which options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.check.command_trace import CommandTrace, TracedCommand
from hpc_kit.check.expansion import ExpandedText, ShellVariables, TaskVariableUse, join_texts
from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.directives import PLUGIN_OPTION
from hpc_kit.slurm.getopt import parse_options
from hpc_kit.slurm.sizes import UNKNOWN, JobSize, parse_count, size_of_step

MULTIPLIERS = ("srun", "mpirun")
"""Launchers that start what follows several times, on several nodes."""

AGENTS = ("torchrun", "accelerate", "deepspeed")
"""Launchers that start several processes on their own node."""


class LaunchStage(NamedTuple):
    """One program of a launch line.

    `kind` is `srun`, `mpirun`, `ssh`, `torchrun`, `accelerate`, `deepspeed`, `python`, `shell`, `wrapper` or `program`.
    `options` are by long name, with `-` for `_`. `may_hide_options`: an unknown variable may contain more options.
    `error`: Slurm would refuse the options. `overridden`: values that a later use of the same option replaces.
    """

    kind: str
    words: tuple[ExpandedText, ...]
    options: Mapping[str, ExpandedText]
    may_hide_options: bool = False
    error: DirectiveError | None = None
    overridden: tuple[ExpandedText, ...] = ()

    @property
    def name(self) -> str:
        """The program, without its folder."""
        return PurePath(self.words[0].text).name

    def option(self, *names: str) -> ExpandedText | None:
        """Return the value of the first of these options that is given."""
        return next((self.options[name] for name in names if name in self.options), None)


class ShellCode(NamedTuple):
    """Shell code that a stage runs (`bash -c CODE name arguments`). `remote`: it sees no variable of this shell."""

    text: ExpandedText
    arguments: tuple[ExpandedText, ...] = ()
    remote: bool = False


class ParsedLaunch(NamedTuple):
    """The stages of a command line, the variables for its program, and the shell code at its end, if any."""

    stages: tuple[LaunchStage, ...]
    variables: tuple[tuple[str, ExpandedText], ...] = ()
    code: ShellCode | None = None


SHELL_BUILTINS = frozenset({
    ".", ":", "[", "alias", "bg", "break", "builtin", "cd", "continue", "declare", "dirs", "disown", "echo",
    "enable", "eval", "exit", "export", "false", "fc", "fg", "getopts", "hash", "help", "history", "jobs", "kill",
    "let", "local", "logout", "mapfile", "module", "popd", "printf", "pushd", "pwd", "read", "readarray",
    "readonly", "return", "set", "shift", "shopt", "source", "suspend", "test", "times", "trap", "true", "type",
    "typeset", "ulimit", "umask", "unalias", "unset", "wait",
})  # fmt: skip
"""Commands that bash runs itself."""

HELPER_PROGRAMS = frozenset({
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
    "apptainer", "catchsegv", "ch-run", "charliecloud", "conda", "gdb", "mamba", "micromamba", "ncu", "nsys", "perf",
    "pixi", "podman-hpc", "poetry", "rocprof", "shifter", "singularity", "strace", "taskset", "udocker", "uv",
}  # fmt: skip
"""Containers, environments and profilers: they start another program, after options that are not parsed."""

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


def is_known_program(text: ExpandedText, *, alone: bool = False) -> bool:
    """Tell whether a word is a program of this module. `alone`: exclude names that are also subcommands of tools."""
    name = PurePath(text.text).name
    known = {*MPIRUN, *AGENTS, *SHELLS}
    known |= set() if alone else {"srun", "env", *REMOTE, *WRAPPERS, *CONTAINERS}
    return name in known or bool(PYTHON.match(name)) or name.endswith((".py", ".sh"))


_MPIRUN_ARITY = {
    "H": 1, "N": 1, "bind-to": 1, "c": 1, "env": 2, "f": 1, "genv": 2, "genvlist": 1, "gmca": 2, "host": 1,
    "hostfile": 1, "hosts": 1, "machinefile": 1, "map-by": 1, "mca": 2, "n": 1, "np": 1, "npernode": 1, "o": 1,
    "output": 1, "path": 1, "ppn": 1, "prefix": 1, "rank-by": 1, "wdir": 1, "x": 1,
}  # fmt: skip
"""Number of words behind each option of mpirun, over all MPIs."""

_AGENT_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher.api": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "hpc_kit.runtime.torchrun": "torchrun",
}
_FLAGS = {
    "standalone", "module", "m", "no-python", "run-path", "use-env", "multi-gpu", "cpu", "tpu", "debug", "quiet", "q",
    "use-deepspeed", "use-fsdp", "use-megatron-lm", "same-network", "help", "force", "no-local-rank",
    "enable-each-rank-log", "save-pid", "no-ssh", "no-ssh-check", "use-xpu", "ipex", "use-tp",
}  # fmt: skip


def parse_srun(words: list[ExpandedText]) -> tuple[LaunchStage, list[ExpandedText]]:
    """Split srun with its options from the words of its program."""
    plain, opaque = _without_plugins(words[1:])
    fault = None
    try:
        given, rest = parse_options([word.text for word in plain], "srun")
        start = len(plain) - len(rest)
        options = {
            each.option.name: _value(plain[each.word], each.value) for each in given.given if each.word < len(plain)
        }
    except DirectiveError as error:
        fault, options = error, {}
        start = next((index for index, word in enumerate(plain) if is_known_program(word)), len(plain))
    # A variable in front of a program that we know holds more options.
    while start < len(plain) and plain[start].is_unknown and any(is_known_program(word) for word in plain[start + 1 :]):
        opaque = True
        more, after = parse_srun([words[0], *plain[start + 1 :]])
        options |= more.options
        fault = fault or more.error
        start = len(plain) - len(after)
        break
    return LaunchStage("srun", tuple(words), options, may_hide_options=opaque, error=fault), plain[start:]


def _without_plugins(words: list[ExpandedText]) -> tuple[list[ExpandedText], bool]:
    """Remove options of plugins that many sites add (`--container-image`, `--environment`, ...)."""
    kept: list[ExpandedText] = []
    found, before, index = False, True, 0
    while index < len(words):
        text = words[index].text
        # Behind the program only pyxis' own are sure to be no words of that.
        before = before and not is_known_program(words[index])
        if re.match(r"--(no-)?container-", text) or (before and PLUGIN_OPTION.match(text)):
            found = True
            takes_next = "=" not in text and not re.search(r"writable|readonly|entrypoint|home|root|ccm", text)
            index += 2 if takes_next else 1
            continue
        kept.append(words[index])
        index += 1
    return kept, found


def _value(word: ExpandedText, value: str | None) -> ExpandedText:
    """Return the value of an option with its position."""
    if not value:
        return word._replace(text="")
    start = len(word.text) - len(value)
    return word.slice_of(start, len(word.text)) if start >= 0 and word.text.endswith(value) else word


def exported_variables(stage: LaunchStage) -> Iterator[tuple[str, ExpandedText]]:
    """Yield the variables of `srun --export=ALL,NAME=value`."""
    text = stage.options.get("export")
    for match in re.finditer(r"(?:^|,)([A-Za-z_]\w*)=([^,]*)", text.text if text else ""):
        if text is not None:
            yield match[1], text.slice_of(match.start(2), match.end(2))


def parse_mpirun(words: list[ExpandedText]) -> tuple[LaunchStage, list[ExpandedText], list[tuple[str, ExpandedText]]]:
    """Split mpirun with its options from its program and from variables for the program (`-x NAME=value`)."""
    index, gives, options = 1, list[tuple[str, ExpandedText]](), dict[str, ExpandedText]()
    while index < len(words) and words[index].text.startswith("-"):
        name = words[index].text.lstrip("-")
        name, equals, _ = name.partition("=")
        arity = 0 if equals else _MPIRUN_ARITY.get(name, 0)
        if arity and index + 1 < len(words):
            value = words[index + 1]
            options[name] = value
            if name == "x" and "=" in value.text:
                start = value.text.index("=") + 1
                gives.append((value.text[: start - 1], value.slice_of(start, len(value.text))))
        index += 1 + arity
    if index < len(words) and not is_known_program(words[index]):
        known = [place for place in range(index, len(words)) if is_known_program(words[place])]
        index = known[0] if known else index
    return LaunchStage("mpirun", tuple(words), options), words[index:], gives


def parse_agent(name: str, words: list[ExpandedText]) -> tuple[LaunchStage, list[ExpandedText]]:
    """Split torchrun, `accelerate launch` or deepspeed from its Python program."""
    rest = words[1:]
    if name == "accelerate":
        if not rest or rest[0].text != "launch":
            return LaunchStage("program", tuple(words), {}), []
        rest = rest[1:]
    return _argparse(name, words, rest)


def _may_be_several(word: ExpandedText) -> bool:
    """Tell whether a word is an unknown variable that may contain options."""
    return word.is_unknown or bool(re.fullmatch(r"\$[@*]|\$\{(\w+\[)?[@*]\]?\}", word.text))


def _is_file(word: ExpandedText) -> bool:
    return word.text.endswith(".py")


def _argparse(kind: str, words: list[ExpandedText], rest: list[ExpandedText]) -> tuple[LaunchStage, list[ExpandedText]]:
    """Read options like argparse, up to the program. The program is a Python file unless an option says otherwise."""
    options: dict[str, ExpandedText] = {}
    overruled: list[ExpandedText] = []
    index, opaque = 0, False
    while index < len(rest):
        text = rest[index].text
        if _may_be_several(rest[index]) and index + 1 < len(rest):
            opaque = True
        elif not text.startswith("-"):
            break
        else:
            name, equals, value = text.lstrip("-").partition("=")
            name = name.replace("_", "-")
            overruled += [options[name]] if name in options else []
            following = rest[index + 1] if index + 1 < len(rest) else None
            if equals:
                options[name] = rest[index].slice_of(len(text) - len(value), len(text))
            elif name in _FLAGS or following is None or following.text.startswith("-") or _is_file(following):
                options[name] = rest[index]._replace(text="")
            else:
                options[name] = following
                index += 1
        index += 1
    program = rest[index:]
    opaque = opaque or (bool(program) and _may_be_several(program[0]))
    stage = LaunchStage(kind, tuple(words), options, may_hide_options=opaque, overridden=tuple(overruled))
    if not program or "no-python" in options:
        return stage, program
    module = [program[0]._replace(text="-m")] if options.keys() & {"m", "module"} else []
    return stage, [program[0]._replace(text="python"), *module, *program]


def parse_python(words: list[ExpandedText]) -> tuple[LaunchStage, list[ExpandedText]]:
    """Read a Python command. Its option `module`, `file` or `code` is what it runs."""
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        if text in {"-m", "-c"} and index + 1 < len(words):
            target = words[index + 1]
            if text == "-c":
                return LaunchStage("python", tuple(words), {"code": target}), []
            kind = _AGENT_MODULES.get(target.text)
            if target.text == "accelerate" and [word.text for word in words[index + 2 : index + 3]] == ["launch"]:
                kind, index = "accelerate", index + 1
            if kind:
                return _argparse(kind, words, words[index + 2 :])
            return LaunchStage("python", tuple(words), {"module": target}), []
        index += 2 if text in {"-W", "-X"} else 1
    while (
        index < len(words)
        and words[index].is_unknown
        and index + 1 < len(words)
        and words[index + 1].text.endswith(".py")
    ):
        index += 1
    return LaunchStage("python", tuple(words), {"file": words[index]} if index < len(words) else {}), []


_SHELL_FILE = re.compile(r"/\.shell/\w+/(?:task|worker|ray_node)\.sh\Z")
"""Files of templates/shell, as rendered scripts call them, that run the program behind their own words."""


def parse_launch(words: Sequence[ExpandedText]) -> ParsedLaunch:
    """Return the stages of the words of a command."""
    stages: list[LaunchStage] = []
    gives: list[tuple[str, ExpandedText]] = []
    rest = list(words)
    while rest:
        name = PurePath(rest[0].text).name
        if name == "srun":
            stage, rest = parse_srun(rest)
            gives += exported_variables(stage)
        elif name in MPIRUN:
            stage, rest, given = parse_mpirun(rest)
            gives += given
        elif name == "env":
            stage, rest, given = _env(rest)
            gives += given
        elif name in WRAPPERS or name in CONTAINERS or (name in SHELLS and _SHELL_FILE.search(_second(rest))):
            stage, rest = _wrapper(rest)
        elif name in AGENTS or name == "torchrun":
            stage, rest = parse_agent(name, rest)
        elif PYTHON.match(name):
            stage, rest = parse_python(rest)
        elif name in SHELLS or name in REMOTE:
            stage, code = _shell(rest) if name in SHELLS else _remote(rest, *REMOTE[name])
            return ParsedLaunch((*stages, stage), tuple(gives), code)
        else:
            stage, rest = LaunchStage("program", tuple(rest), {}), []
        stages.append(stage)
    return ParsedLaunch(tuple(stages), tuple(gives))


def _env(words: list[ExpandedText]) -> tuple[LaunchStage, list[ExpandedText], list[tuple[str, ExpandedText]]]:
    gives, index = list[tuple[str, ExpandedText]](), 1
    while index < len(words):
        text = words[index].text
        if text in {"-u", "-C", "-S"}:
            index += 1
        elif match := re.match(r"([A-Za-z_]\w*)=", text):
            gives.append((match[1], words[index].slice_of(match.end(), len(text))))
        elif not text.startswith("-"):
            break
        index += 1
    return LaunchStage("wrapper", tuple(words), {}), words[index:], gives


def _second(words: Sequence[ExpandedText]) -> str:
    return words[1].text if len(words) > 1 else ""


def _wrapper(words: list[ExpandedText]) -> tuple[LaunchStage, list[ExpandedText]]:
    """Split a program that runs the program behind its own words."""
    name = PurePath(words[0].text).name
    if name in SHELLS:
        # One of our shell files; some have options.
        return _after_options(words, index=2)
    if name in WRAPPERS:
        valued, positional = WRAPPERS[name]
        return _after_options(words, valued, positional)
    stage, rest = _to_known(words)
    # `uv run FILE.py` runs Python.
    if name == "uv" and rest and rest[0].text.endswith(".py"):
        rest = [rest[0]._replace(text="python"), *rest]
    return stage, rest


def _after_options(
    words: list[ExpandedText], valued: str = "", positional: int = 0, index: int = 1
) -> tuple[LaunchStage, list[ExpandedText]]:
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        index += 2 if len(text) == 2 and text[1] in valued else 1
    return LaunchStage("wrapper", tuple(words), {}), words[index + positional :]


def _to_known(words: list[ExpandedText]) -> tuple[LaunchStage, list[ExpandedText]]:
    """Split a container or environment tool from its program, the first word that is a known program."""
    for index in range(1, len(words)):
        if is_known_program(words[index], alone=True):
            return LaunchStage("wrapper", tuple(words), {}), words[index:]
    return LaunchStage("program", tuple(words), {}), []


def _remote(words: list[ExpandedText], valued: str, positional: int) -> tuple[LaunchStage, ShellCode | None]:
    """Split ssh from the code for the remote shell: all words after the host, as one text."""
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        index += 2 if not text.startswith("--") and text[-1:] in valued and len(text) == 2 else 1
    command = words[index + positional :]
    return LaunchStage("ssh", tuple(words), {}), ShellCode(
        join_texts(command, separator=" "), remote=True
    ) if command else None


def _shell(words: list[ExpandedText]) -> tuple[LaunchStage, ShellCode | None]:
    index = 1
    while index < len(words):
        text = words[index].text
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", text) and index + 1 < len(words):
            code = ShellCode(words[index + 1], tuple(words[index + 3 :]))
            return LaunchStage("shell", tuple(words), {"code": words[index + 1]}), code
        if not text.startswith(("-", "+")):
            return LaunchStage("shell", tuple(words), {"file": words[index]}), None
        index += 2 if text in {"-o", "+o", "-O", "--rcfile", "--init-file"} else 1
    return LaunchStage("shell", tuple(words), {}), None


COUNTS = frozenset({
    "nodes", "ntasks", "ntasks-per-node", "n", "np", "npernode", "nnodes", "nproc-per-node", "num-machines",
    "num-processes", "num-gpus",
})  # fmt: skip
"""Options that say how many nodes, tasks or processes there are."""

_PREPARES = frozenset({"add", "cache", "export", "install", "lock", "pip", "python", "sync", "venv"})
"""Subcommands of uv and similar tools that run no program."""

LOOPS = frozenset({"for", "while", "until", "select"})


class LaunchLine(NamedTuple):
    """One command line of the script, as a list of programs that start one another.

    `command` is the command of the batch script. `inner_command` is the command of the last program, which may stand in
    a variable or in the code of a `bash -c`. `document_variables` are expansions of the batch shell in here-documents.
    """

    stages: tuple[LaunchStage, ...]
    command: TracedCommand
    inner_command: TracedCommand
    document_variables: tuple[TaskVariableUse, ...] = ()

    @property
    def task_variables(self) -> tuple[TaskVariableUse, ...]:
        """Variables of tasks that the batch shell expands in the line, or in a file for it."""
        return (
            *self.document_variables,
            *(read for word in (*self.command.words, *self.inner_command.words) for read in word.task_variables),
        )

    def stage(self, *kinds: str) -> LaunchStage | None:
        """Return the first stage of one of these kinds."""
        return next((stage for stage in self.stages if stage.kind in kinds), None)

    @property
    def program(self) -> LaunchStage:
        """The last program."""
        return self.stages[-1]

    @property
    def multiplier(self) -> LaunchStage | None:
        """The srun or mpirun that starts the program on the nodes."""
        return self.stage(*MULTIPLIERS)

    @property
    def agent(self) -> LaunchStage | None:
        """The torchrun, accelerate or deepspeed of the line."""
        return self.stage(*AGENTS)

    @property
    def has_default_count(self) -> bool:
        """True if a count may come from outside, so that only its default is known."""
        return any(stage.options[name].has_default for stage in self.stages for name in COUNTS & stage.options.keys())

    @property
    def in_loop(self) -> bool:
        """True if the line is in a loop."""
        kinds = {place.compound.kind for place in self.command.position.outward() if place.compound is not None}
        return bool(kinds & LOOPS)

    @property
    def is_training(self) -> bool:
        """True if the line does the work of the job: a Python program, or a program of srun that is no helper."""
        program = self.program
        if program.kind == "wrapper" or program.name in HELPER_PROGRAMS:
            return False
        if self.agent is not None:
            return True
        if program.name in {"uv", "pixi", "poetry"} and program.words[1:2] and program.words[1].text in _PREPARES:
            return False
        if program.kind == "python" and program.options.get("module", program.words[0]).text in {"pip", "venv"}:
            return False
        if self.multiplier is not None:
            return program.kind != "srun" and program.words[-1].text not in {"--version", "-V", "--help"}
        return program.kind == "python" and bool(program.options.keys() & {"file", "module"})


def collect_launch_lines(
    trace: CommandTrace,
    step: TracedCommand,
    launches: list[LaunchLine],
    outer: tuple[LaunchStage, ...] = (),
    root: TracedCommand | None = None,
    written: tuple[TaskVariableUse, ...] = (),
) -> None:
    """Record a command as a launch line, and trace the code that it starts.

    Args:
        trace: The trace of the script.
        step: The command.
        launches: The list to append to.
        outer: The programs that start the command.
        root: The command of the batch script.
        written: Expansions of the batch shell in the here-documents around the command.
    """
    if step.name in SHELL_BUILTINS or step.name.startswith(("$(", "`")):
        return
    for words in _components(step.words):
        _note(trace, step, words, launches, outer, root or step, written)


def _components(words: tuple[ExpandedText, ...]) -> list[tuple[ExpandedText, ...]]:
    """Split `srun --het-group=0 a : --het-group=1 b` into one srun per component."""
    marks = [index for index, word in enumerate(words) if word.text == ":"]
    if words[0].text != "srun" or not marks:
        return [words]
    parts = [words[start + 1 : end] for start, end in pairwise([*marks, len(words)])]
    return [words[: marks[0]], *((words[0]._replace(pieces=part[0].pieces), *part) for part in parts if part)]


def _written(trace: CommandTrace, stdin: ExpandedText | None, stage: LaunchStage) -> ShellCode | None:
    """Return the code of a here-document, on standard input or in a file that the script wrote before."""
    if stage.kind not in {"shell", "program", "ssh"} or "code" in stage.options:
        return None
    file = stage.words[0] if stage.kind == "program" else stage.option("file")
    body = trace.files.get(str(PurePath(file.text))) if file is not None else None
    if body is not None:
        index = next(number for number, word in enumerate(stage.words) if word is file)
        return ShellCode(body, stage.words[index + 1 :])
    bare = stage.kind != "program" and file is None
    return ShellCode(stdin, remote=stage.kind == "ssh") if bare and stdin is not None else None


def _note(
    trace: CommandTrace,
    step: TracedCommand,
    words: tuple[ExpandedText, ...],
    launches: list[LaunchLine],
    outer: tuple[LaunchStage, ...],
    root: TracedCommand,
    written: tuple[TaskVariableUse, ...],
) -> None:
    parsed = parse_launch(words)
    stages = outer + parsed.stages
    task = any(stage.kind in MULTIPLIERS for stage in stages)
    for name, value in parsed.variables:
        trace.assign(name, value, task=trace.variables.task)
    code = parsed.code or _written(trace, step.stdin or root.stdin, stages[-1])
    if code is None or code.text.is_unknown:
        launches.append(LaunchLine(stages, root, step, written))
        return
    written = written if parsed.code else (*written, *code.text.task_variables)

    def inner(trace: CommandTrace, inside: TracedCommand) -> None:
        collect_launch_lines(trace, inside, launches, stages, root, written)

    environment = ShellVariables({}, task=True) if code.remote else trace.variables.child(code.arguments, task=task)
    trace.code(code.text, environment, step.position, inner)


def size_of_launch(job: JobSize, step: LaunchStage | None) -> JobSize:
    """Return the size of the step that srun or mpirun starts; a single process without either."""
    if step is None:
        return JobSize(1, 1, 1, job.cpus_per_task, job.gpus_per_node, job.has_gpus)
    if step.kind == "mpirun":
        return _mpirun(job, step)
    if step.may_hide_options or step.error:
        return UNKNOWN
    return size_of_step(job, {name: text.text for name, text in step.options.items()})


def het_components(srun: LaunchStage | None) -> set[int] | None:
    """Return the components that srun names with --het-group: the first by default; None if unknown."""
    text = srun.option("het-group") if srun is not None else None
    if text is None:
        return {0}
    groups: set[int] = set()
    for part in text.text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None:
            return None
        groups |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return groups


def _mpirun(job: JobSize, step: LaunchStage) -> JobSize:
    """Return the size of an mpirun: the tasks of the job, spread like them, unless options place the processes."""
    named = step.option("n", "np", "c")
    ntasks = parse_count(named.text) if named else job.ntasks
    placed = step.option("npernode", "N", "ppn", "tasks_per_node")
    ppr = re.match(r"ppr:(\d+):node", step.options["map-by"].text) if "map-by" in step.options else None
    per_node = parse_count(ppr[1]) if ppr else parse_count(placed.text) if placed else None
    told = step.options.keys() & {"map-by", "H", "host", "hosts", "hostfile", "machinefile", "f", "rf", "rankfile"}
    if per_node is None and not placed and not told and ntasks is not None and ntasks == job.ntasks:
        return job
    return JobSize(None, ntasks, per_node, None, None, job.has_gpus, is_stated=named is not None)
