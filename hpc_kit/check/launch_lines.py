"""Splits launch lines into launchers and program: which program starts which, with which options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from hpc_kit.check.command_trace import CommandTrace, TracedCommand
from hpc_kit.check.expansion import ExpandedText, ShellVariables, TaskVariableUse, join_texts
from hpc_kit.check.programs import (
    AGENTS,
    AUXILIARY_NAME,
    CONTAINER_VALUED,
    HELPER_PROGRAMS,
    MULTIPLIERS,
    PYTHON,
    REMOTE,
    SHELL_BUILTINS,
    WRAPPERS,
    runs_forever,
)
from hpc_kit.errors import DirectiveError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.slurm.directives import PLUGIN_OPTION
from hpc_kit.slurm.getopt import parse_options
from hpc_kit.slurm.sizes import UNKNOWN, JobSize, parse_count, size_of_step
from hpc_kit.spec.launcher_command import AGENT_FLAGS, AGENT_MODULES, MPIRUN, MPIRUN_VALUES
from hpc_kit.spec.shell_code import CONTAINERS, SHELLS


class NestedCode(NamedTuple):
    """Shell code that a stage runs (`bash -c CODE name arguments`). `remote`: it sees no variable of this shell."""

    text: ExpandedText
    arguments: tuple[ExpandedText, ...] = ()
    remote: bool = False


@dataclass(frozen=True, eq=False)
class LaunchStage:
    """One program of a launch line.

    Args:
        kind: `srun`, `mpirun`, `ssh`, `torchrun`, `accelerate`, `deepspeed`, `python`, `shell`, `wrapper` or `program`.
        words: The words of the program and of all programs that it starts.
        options: The options by long name, with `-` for `_`. Of `python` and `shell`, also `file`, `module` and `code`.
        may_hide_options: An unknown variable may contain more options.
        error: Slurm would refuse the options.
        overridden: Values that a later use of the same option replaces.
        variables: Variables that the stage sets for its program.
        code: The shell code that it runs.
    """

    kind: str
    words: tuple[ExpandedText, ...]
    options: Mapping[str, ExpandedText] = field(default_factory=dict)
    may_hide_options: bool = False
    error: DirectiveError | None = None
    overridden: tuple[ExpandedText, ...] = ()
    variables: tuple[tuple[str, ExpandedText], ...] = ()
    code: NestedCode | None = None

    @cached_property
    def name(self) -> str:
        """The program, without its folder."""
        return _name(self.words)

    @cached_property
    def texts(self) -> list[str]:
        """The words as text."""
        return [word.text for word in self.words]

    @cached_property
    def text(self) -> str:
        """The words as one text."""
        return " ".join(self.texts)

    @property
    def line(self) -> int:
        """Line of the first word."""
        return self.words[0].line

    @property
    def column(self) -> int:
        """Column of the first word."""
        return self.words[0].column

    def option(self, *names: str) -> ExpandedText | None:
        """Return the value of the first of these options that the stage has."""
        return next((self.options[name] for name in names if name in self.options), None)

    def number(self, *names: str) -> int | None:
        """Return the number that the first of these options gives; None for any other value."""
        text = self.option(*names)
        return text.number if text is not None else None

    @property
    def option_texts(self) -> dict[str, str]:
        """The values of the options."""
        return {name: text.text for name, text in self.options.items()}

    def word_of(self, name: str) -> ExpandedText | None:
        """Return the word that gives an option."""
        texts = ((word, word.text.partition("=")[0].lstrip("-").replace("_", "-")) for word in self.words)
        return next((word for word, text in texts if text == name and word.text.startswith("-")), None)

    @property
    def node_count(self) -> ExpandedText | None:
        """The number of nodes that the options of an agent give."""
        return self.option(AGENTS[self.kind].nodes) if self.kind in AGENTS else None

    @property
    def node_rank(self) -> ExpandedText | None:
        """The rank of the node that the options of an agent give."""
        return self.option(AGENTS[self.kind].node_rank) if self.kind in AGENTS else None


Words = list[ExpandedText]
Split = tuple[LaunchStage, Words]
"""A stage, and the words of the program that it starts."""


def is_known_program(text: ExpandedText, *, alone: bool = False) -> bool:
    """Tell whether a word is a known program. `alone`: exclude names that are also subcommands of tools."""
    name = _name([text])
    known = name in MPIRUN or name in AGENTS or name in SHELLS
    if not alone:
        known = known or name == "srun" or name in REMOTE or name in WRAPPERS or name in CONTAINERS
    return known or bool(PYTHON.match(name)) or name.endswith((".py", ".sh"))


def parse_launch(words: Sequence[ExpandedText]) -> tuple[LaunchStage, ...]:
    """Return the stages of the words of a command."""
    stages: list[LaunchStage] = []
    rest = list(words)
    while rest:
        name = _name(rest)
        # `$MPIRUN` or `"${srun[@]}"`, a launcher with unknown options.
        variable = re.fullmatch(r"\$\{?(\w+)(\[[@*]\])?\}?", name) if name.startswith("$") else None
        if variable and variable[1].lower() in {"srun", *MPIRUN}:
            name = variable[1].lower()
        parse = _python if PYTHON.match(name) or _starts_agent(rest) else _PARSERS.get(name, _program)
        stage, rest = parse(rest)
        stages.append(replace(stage, may_hide_options=True) if variable is not None else stage)
    return tuple(stages)


def _name(words: Sequence[ExpandedText]) -> str:
    return words[0].text.rstrip("/").rpartition("/")[2]


def _starts_agent(words: Sequence[ExpandedText]) -> bool:
    """Tell whether the first word is a Python of any name: `conda-python -m torch.distributed.run`."""
    return len(words) > 2 and words[1].text == "-m" and words[2].text in AGENT_MODULES


def _program(words: Words) -> Split:
    return LaunchStage("program", tuple(words)), []


def _index_after_options(words: Words, valued: str, index: int = 1) -> int:
    """Return the index of the first word that is no option. `valued`: letters of short options with a value."""
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        # `-n 5` has its value in the next word, `-n5` and `--name=5` in the same.
        index += 2 if len(text) == 2 and text[1] in valued else 1
    return index


def _split_assignment(text: ExpandedText) -> tuple[str, ExpandedText] | None:
    """Return name and value of a word `NAME=value`."""
    match = re.match(r"([A-Za-z_]\w*)=", text.text)
    return (match[1], text.slice_of(match.end(), len(text.text))) if match else None


def _wrapper(words: Words) -> Split:
    # `command -v mpirun` only looks for the program.
    if _name(words) == "command" and words[1:] and words[1].text in {"-v", "-V"}:
        return _program(words)
    options = WRAPPERS[_name(words)]
    index = _index_after_options(words, options.valued) + options.positional
    variables = []
    while _name(words) == "env" and index < len(words) and (variable := _split_assignment(words[index])):
        variables.append(variable)
        index = _index_after_options(words, options.valued, index + 1)
    return LaunchStage("wrapper", tuple(words), variables=tuple(variables)), words[index:]


def _container(words: Words) -> Split:
    """Split a container or environment tool from its program, the first word that is a known program."""
    starts = (n for n in range(1, len(words)) if is_known_program(words[n], alone=True) or _starts_agent(words[n:]))
    index = _index_after_image(words) or next(starts, None)
    if index is None:
        return _program(words)
    rest = words[index:]
    # `uv run FILE.py` runs Python.
    if _name(words) == "uv" and rest[0].text.endswith(".py"):
        rest = [rest[0]._replace(text="python"), *rest]
    return LaunchStage("wrapper", tuple(words)), rest


def _index_after_image(words: Words) -> int | None:
    """Return the index of the program of `apptainer exec IMAGE program`; None if the program is unknown."""
    texts = [word.text for word in words]
    verb = next((index for index, text in enumerate(texts[:6]) if text == "exec"), None)
    if _name(words) not in {"apptainer", "singularity"} or verb is None:
        return None
    index = verb + 1
    while index < len(texts) and texts[index].startswith("-"):
        index += 2 if texts[index] in CONTAINER_VALUED else 1
    # An unknown variable in front of the image may contain options.
    while index + 1 < len(texts) and words[index].is_unknown and _IMAGE.search(texts[index + 1]):
        index += 1
    known = index + 1 < len(texts) and not words[index + 1].is_unknown
    return index + 1 if known else None


_IMAGE = lazy_pattern(r"\.(sif|simg|img)\Z|\A(docker|oras|library|shub)://|(?i:(sif|image|img|container)\}?\Z)")


def _remote(words: Words) -> Split:
    """Split ssh from the code for the remote shell: all words after the host, as one text."""
    options = REMOTE[_name(words)]
    command = words[_index_after_options(words, options.valued) + options.positional :]
    code = NestedCode(join_texts(command, separator=" "), remote=True) if command else None
    return LaunchStage("ssh", tuple(words), code=code), []


_SHELL_FILE = lazy_pattern(r"/\.shell(?:-\d+)?/\w+/(?:task|worker|ray_node)\.sh\Z")
"""Files of templates/shell, as rendered scripts call them, that run the program behind their own words."""


def _shell(words: Words) -> Split:
    if len(words) > 1 and _SHELL_FILE.search(words[1].text):
        return LaunchStage("wrapper", tuple(words)), words[_index_after_options(words, "", 2) :]
    index = 1
    while index < len(words):
        text = words[index].text
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", text) and index + 1 < len(words):
            # The word behind the code is `$0`; the arguments begin after it.
            code = NestedCode(words[index + 1], tuple(words[index + 3 :]))
            return LaunchStage("shell", tuple(words), {"code": words[index + 1]}, code=code), []
        if not text.startswith(("-", "+")):
            return LaunchStage("shell", tuple(words), {"file": words[index]}), []
        index += 2 if text in {"-o", "+o", "-O", "--rcfile", "--init-file"} else 1
    return LaunchStage("shell", tuple(words)), []


def _python(words: Words) -> Split:
    """Read a Python command. Its option `module`, `file` or `code` is the program that it runs."""
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        if text in {"-m", "-c"} and index + 1 < len(words):
            target, rest = words[index + 1], words[index + 2 :]
            agent = AGENT_MODULES.get(target.text) if text == "-m" else None
            if text == "-m" and target.text == "accelerate" and rest and rest[0].text == "launch":
                agent, rest = "accelerate", rest[1:]
            if agent:
                return _argparse(agent, words, rest)
            return LaunchStage("python", tuple(words), {"code" if text == "-c" else "module": target}), []
        index += 2 if text in {"-W", "-X"} else 1
    # `python $OPTIONS train.py`
    while index + 1 < len(words) and words[index].is_unknown and words[index + 1].text.endswith(".py"):
        index += 1
    return LaunchStage("python", tuple(words), {"file": words[index]} if index < len(words) else {}), []


def _srun(words: Words) -> Split:
    """Split srun with its options from the words of its program."""
    plain, has_plugins = _without_plugins(words[1:])
    error = None
    options: dict[str, ExpandedText] = {}
    try:
        parsed, program = parse_options([word.text for word in plain], "srun")
        start = len(plain) - len(program)
        for each in parsed.given:
            if each.word < len(plain):
                options[each.option.name] = _option_value(plain[each.word], each.value)
    except DirectiveError as problem:
        error = problem
        # srun would refuse the line, but the program behind the bad option is still of interest.
        start = next((index for index, word in enumerate(plain) if is_known_program(word)), len(plain))
    may_hide_options, rest = has_plugins, plain[start:]
    # A variable in front of a program that we know contains more options.
    if rest and rest[0].is_unknown and any(map(is_known_program, rest[1:])):
        more, rest = _srun([words[0], *rest[1:]])
        may_hide_options, error = True, error or more.error
        options |= more.options
    variables = _exported_variables(options.get("export"))
    return LaunchStage("srun", tuple(words), options, may_hide_options, error, variables=variables), rest


def _without_plugins(words: Words) -> tuple[Words, bool]:
    """Remove options of plugins that many sites add (`--container-image`, `--environment`, ...).

    Returns the other words, and whether a removed option may stand for further ones. Those of pyxis do not.
    """
    kept: Words = []
    before_program, index, may_hide_options = True, 0, False
    while index < len(words):
        text = words[index].text
        # An option behind the program belongs to the program, unless it is certainly one of pyxis.
        before_program = before_program and not is_known_program(words[index])
        if text.startswith(("--container-", "--no-container-")) or (before_program and PLUGIN_OPTION.match(text)):
            may_hide_options = may_hide_options or "container-" not in text
            takes_next = "=" not in text and not re.search(r"writable|readonly|entrypoint|home|root|ccm", text)
            index += 2 if takes_next else 1
        else:
            kept.append(words[index])
            index += 1
    return kept, may_hide_options


def _option_value(word: ExpandedText, value: str | None) -> ExpandedText:
    """Return the value of an option with its position."""
    if not value:
        return word._replace(text="")
    return word.slice_of(len(word.text) - len(value), len(word.text)) if word.text.endswith(value) else word


def _exported_variables(export: ExpandedText | None) -> tuple[tuple[str, ExpandedText], ...]:
    """Return the variables of `srun --export=ALL,NAME=value`."""
    if export is None:
        return ()
    matches = re.finditer(r"(?:^|,)([A-Za-z_]\w*)=([^,]*)", export.text)
    return tuple((match[1], export.slice_of(match.start(2), match.end(2))) for match in matches)


def _mpirun(words: Words) -> Split:
    """Split mpirun with its options from its program and from variables for the program (`-x NAME=value`)."""
    index, options = 1, dict[str, ExpandedText]()
    variables = []
    while index < len(words) and words[index].text.startswith("-"):
        name, equals, _ = words[index].text.lstrip("-").partition("=")
        arity = 0 if equals else MPIRUN_VALUES.get(name, 0)
        if arity and index + 1 < len(words):
            options[name] = words[index + 1]
            if name == "x" and (variable := _split_assignment(words[index + 1])):
                variables.append(variable)
        index += 1 + arity
    # Options that the table lacks may have a value.
    index = next((place for place in range(index, len(words)) if is_known_program(words[place])), index)
    return LaunchStage("mpirun", tuple(words), options, variables=tuple(variables)), words[index:]


def _agent(words: Words) -> Split:
    """Split torchrun, `accelerate launch` or deepspeed from its Python program."""
    name, rest = _name(words), words[1:]
    # `accelerate config` and `accelerate env` start nothing.
    if name == "accelerate":
        if not rest or rest[0].text != "launch":
            return _program(words)
        rest = rest[1:]
    if name == "tune":
        # torchtune's `tune run` has the options of torchrun.
        if not rest or rest[0].text != "run":
            return _program(words)
        name, rest = "torchrun", rest[1:]
    return _argparse(name, words, rest)


def _argparse(kind: str, words: Words, rest: Words) -> Split:
    """Read options like argparse, up to the program. Without a special option, the program is a Python file."""
    options: dict[str, ExpandedText] = {}
    overridden: list[ExpandedText] = []
    index, may_hide_options = 0, False
    while index < len(rest):
        word = rest[index]
        following = rest[index + 1] if index + 1 < len(rest) else None
        if may_be_several(word) and following is not None:
            may_hide_options = True
        elif not word.text.startswith("-"):
            break
        else:
            name, equals, value = word.text.lstrip("-").partition("=")
            name = name.replace("_", "-")
            overridden += [options[name]] if name in options else []
            if equals:
                options[name] = word.slice_of(len(word.text) - len(value), len(word.text))
            elif name in AGENT_FLAGS or following is None or following.text.startswith("-") or _is_file(following):
                options[name] = word._replace(text="")
            else:
                options[name] = following
                index += 1
        index += 1
    program = rest[index:]
    may_hide_options = may_hide_options or (bool(program) and may_be_several(program[0]))
    stage = LaunchStage(kind, tuple(words), options, may_hide_options, overridden=tuple(overridden))
    # The program is a file for the Python of the agent: show it as a Python command, as the agent starts it.
    if not program or "no-python" in options:
        return stage, program
    module = [program[0]._replace(text="-m")] if options.keys() & {"m", "module"} else []
    return stage, [program[0]._replace(text="python"), *module, *program]


def may_be_several(word: ExpandedText) -> bool:
    """Tell whether a word is an unknown variable that may contain options."""
    return word.is_unknown or bool(re.fullmatch(r"\$[@*]|\$\{(\w+\[)?[@*]\]?\}", word.text))


def _is_file(word: ExpandedText) -> bool:
    return word.text.endswith(".py")


_PARSERS: dict[str, Callable[[Words], Split]] = {
    **dict.fromkeys(MPIRUN, _mpirun),
    **dict.fromkeys((*AGENTS, "tune"), _agent),
    **dict.fromkeys(SHELLS, _shell),
    **dict.fromkeys(REMOTE, _remote),
    **dict.fromkeys(CONTAINERS, _container),
    **dict.fromkeys(WRAPPERS, _wrapper),
    "srun": _srun,
}
"""The parser of each program except Python."""

COUNTS = frozenset({
    "nodes", "ntasks", "ntasks-per-node", "n", "np", "npernode", "nnodes", "nproc-per-node", "num-machines",
    "num-processes", "num-gpus",
})  # fmt: skip
"""Options that say how many nodes, tasks or processes there are."""

_TRAINING_NAME = lazy_pattern(r"(train|finetune)(?!.*\.(py|\w?sh)\Z)")
"""Names of programs that train: nnUNetv2_train, fairseq-train."""

_STEP_SIZES = frozenset({
    "gpus", "gpus-per-node", "gpus-per-task", "gres", "het-group", "nodelist", "nodes", "ntasks", "ntasks-per-node",
})  # fmt: skip
"""Options of srun that give the size of a step."""

_SETUP_SUBCOMMANDS = frozenset({"add", "cache", "export", "install", "lock", "pip", "python", "sync", "venv"})
"""Subcommands of uv and similar tools that run no program."""

_SETTING_KEY = lazy_pattern(r"[a-z]\w*([._][a-z]\w*)+")
"""A key of settings that some programs take as a word of its own: `out_dir VALUE`."""

_CPU_FLAGS = frozenset({"cpu", "cpu-only", "no-cuda", "no-gpu", "use-cpu"})
"""Options without a value of programs that run on CPUs."""

LOOPS = frozenset({"for", "while", "until", "select"})


_OF_TRAINER = lazy_pattern(r"--(per[-_]device[-_]train|save[-_](strategy|total[-_]limit)\b)")
"""Options of Hugging Face's TrainingArguments. Programs for TensorFlow and JAX have --do_train, too."""


@dataclass(frozen=True, eq=False)
class LaunchLine:
    """One command line of the script, as a list of programs that start one another.

    `command` is the command of the batch script. `inner_command` is the command of the last program, which may stand in
    a variable or in the code of a `bash -c`. `document_variables` are expansions of the batch shell in here-documents.
    """

    stages: tuple[LaunchStage, ...]
    command: TracedCommand
    inner_command: TracedCommand
    document_variables: tuple[TaskVariableUse, ...] = ()

    @cached_property
    def task_variables(self) -> tuple[TaskVariableUse, ...]:
        """Variables of tasks that the batch shell expands in the line, or in a file for it."""
        return (
            *self.document_variables,
            *(read for word in (*self.command.words, *self.inner_command.words) for read in word.task_variables),
        )

    @property
    def line(self) -> int:
        """Line of the command in the batch script."""
        return self.command.line

    def stage(self, *kinds: str) -> LaunchStage | None:
        """Return the first stage of one of these kinds."""
        return next((stage for stage in self.stages if stage.kind in kinds), None)

    @cached_property
    def program(self) -> LaunchStage:
        """The last program."""
        return self.stages[-1]

    @cached_property
    def trains_with_hugging_face(self) -> bool:
        """True if the program has options of Hugging Face's Trainer, which saves its checkpoints in --output_dir."""
        return any(_OF_TRAINER.match(word.text) for word in self.program.words)

    @cached_property
    def multiplier(self) -> LaunchStage | None:
        """The srun or mpirun that starts the program on the nodes."""
        return self.stage(*MULTIPLIERS)

    @cached_property
    def agent(self) -> LaunchStage | None:
        """The torchrun, accelerate or deepspeed of the line."""
        return self.stage(*AGENTS)

    def argument(self, *names: str) -> ExpandedText | None:
        """Return the value of an option of the program.

        It is written as `--NAME VALUE`, `--table.NAME=VALUE`, `table.NAME=VALUE`, or `table.NAME VALUE`.
        """
        if self._places_of_arguments.keys().isdisjoint(names):
            return None
        words = self.program.words
        index = min(place for name in names if (place := self._places_of_arguments.get(name)) is not None)
        word, following = words[index], words[index + 1] if index + 1 < len(words) else None
        _, equals, value = word.text.partition("=")
        if equals:
            return word.slice_of(len(word.text) - len(value), len(word.text))
        return word._replace(text="") if following is None or following.text.startswith("--") else following

    @cached_property
    def _places_of_arguments(self) -> dict[str, int]:
        """The index of the word that gives each option of the program for the first time."""
        places: dict[str, int] = {}
        for index, word in enumerate(self.program.words[1:], start=1):
            name, equals, _ = word.text.partition("=")
            if equals or name.startswith("-") or _SETTING_KEY.fullmatch(name):
                places.setdefault(name.lstrip("-+").rpartition(".")[2].replace("_", "-"), index)
        return places

    @cached_property
    def file(self) -> ExpandedText | None:
        """The file or module that the program runs."""
        return self.program.option("file", "module")

    def number(self, *names: str) -> int | None:
        """Return the number that an option of the program gives; None for any other value."""
        text = self.argument(*names)
        return text.number if text is not None else None

    def option_values(self, start: int = 0) -> Iterator[tuple[str, ExpandedText]]:
        """Yield each option of the program with its value, `--NAME VALUE` or `--NAME=VALUE`, from a word on.

        The position is that of the word.
        """
        before = ""
        for word in self.program.words[start:]:
            name, equals, value = word.text.partition("=")
            if equals and (name.startswith("-") or name.replace(".", "").isidentifier()):
                yield name, word._replace(text=value)
            elif not equals and before.startswith("-"):
                yield before, word
            before = word.text

    @cached_property
    def on_cpus(self) -> bool:
        """True if an option says that the program uses no GPU."""
        device = self.argument("device", "accelerator", "backend", "device-type")
        flags = {text.lstrip("-").replace("_", "-") for text in self.program.texts[1:] if text.startswith("-")}
        flags |= self.agent.options.keys() if self.agent is not None else set()
        return (device is not None and device.text == "cpu") or not flags.isdisjoint(_CPU_FLAGS)

    @cached_property
    def has_default_count(self) -> bool:
        """True if a count may come from outside, so that only its default is known."""
        return any(stage.options[name].has_default for stage in self.stages for name in COUNTS & stage.options.keys())

    @cached_property
    def is_named_training(self) -> bool:
        """True if the name of the program says that it trains."""
        name = self.file.text if self.file is not None else " ".join(self.program.texts[:1])
        return re.search(r"train|tun(e|ing)", name) is not None

    @cached_property
    def is_auxiliary(self) -> bool:
        """True if the name of the program says that it prepares data, or works with the results of a training."""
        name = re.split(r"[/.]", self.file.text.removesuffix(".py"))[-1] if self.file is not None else ""
        return AUXILIARY_NAME.match(name) is not None

    @cached_property
    def in_loop(self) -> bool:
        """True if the line is in a loop."""
        return self.command.around(*LOOPS) is not None

    @cached_property
    def is_training(self) -> bool:
        """True if the line does the work of the job: a Python program, or a program of srun that is no helper."""
        program = self.program
        if program.kind == "wrapper" or program.name in HELPER_PROGRAMS:
            return False
        if self.agent is not None:
            return True
        if (
            program.name in {"uv", "pixi", "poetry"}
            and program.words[1:2]
            and program.words[1].text in _SETUP_SUBCOMMANDS
        ):
            return False
        if program.kind == "python" and program.options.get("module", program.words[0]).text in {"pip", "venv"}:
            return False
        if self.multiplier is not None:
            return program.kind != "srun" and program.words[-1].text not in {"--version", "-V", "--help"}
        if program.kind == "program":
            own_devices = any(each.name == "CUDA_VISIBLE_DEVICES" for each in self.command.syntax.assignments)
            return _TRAINING_NAME.search(program.name) is not None or (own_devices and not runs_forever(program.texts))
        return program.kind == "python" and bool(program.options.keys() & {"file", "module"})

    @cached_property
    def is_other_work(self) -> bool:
        """True if the line starts a program of the batch shell that is neither a training nor a helper."""
        program, first = self.program, self.stages[0]
        known = program.kind != "program" or program.name in HELPER_PROGRAMS or runs_forever(program.texts)
        return (
            not known and first.kind in {"wrapper", "program"} and re.fullmatch(r"[\w.+-]+", program.name) is not None
        )


def collect_launch_lines(
    trace: CommandTrace,
    command: TracedCommand,
    launches: list[LaunchLine],
    outer: tuple[LaunchStage, ...] = (),
    root: TracedCommand | None = None,
    written: tuple[TaskVariableUse, ...] = (),
) -> None:
    """Record a command as a launch line, and trace the code that it starts.

    Args:
        trace: The trace of the script.
        command: The command.
        launches: The list to append to.
        outer: The programs that start the command.
        root: The command of the batch script.
        written: Expansions of the batch shell in the here-documents around the command.
    """
    if command.name in SHELL_BUILTINS or command.name.startswith(("$(", "`")):
        return
    root = root or command
    for words in _components(command.words):
        stages = outer + tuple(_with_configuration(trace, stage) for stage in parse_launch(words))
        for name, value in (variable for stage in stages[len(outer) :] for variable in stage.variables):
            trace.assign(name, value, task=trace.variables.task)
        # The file of `srun --multi-prog` is a table of tasks and programs, and no code.
        is_table = any("multi-prog" in stage.options for stage in stages)
        code = None if is_table else stages[-1].code
        if code is None and not is_table:
            code = _code_of_document(trace, command.stdin or root.stdin, stages[-1])
        if code is None or code.text.is_unknown:
            launches.append(LaunchLine(stages, root, command, written))
            continue
        uses = written if stages[-1].code else (*written, *code.text.task_variables)
        in_task = any(stage.kind in MULTIPLIERS for stage in stages)
        variables = trace.variables.child(code.arguments, task=in_task)
        if any(stage.kind == "mpirun" or stage.options.keys() & _STEP_SIZES for stage in stages):
            # Slurm sets the sizes of the step, which may be smaller than the job.
            variables.forget([name for name in variables.values if name.startswith("SLURM_")])
        nested = partial(collect_launch_lines, launches=launches, outer=stages, root=root, written=uses)
        trace.code(code.text, ShellVariables({}, task=True) if code.remote else variables, command.position, nested)


_CONFIGURED = lazy_pattern(
    r"^(num_machines|num_processes|machine_rank|main_process_ip|main_process_port): *[\"']?([^\s\"'#]+)", re.MULTILINE
)


def _with_configuration(trace: CommandTrace, stage: LaunchStage) -> LaunchStage:
    """Return an `accelerate launch` with the options of its --config_file, if the script writes the file."""
    file = stage.option("config-file") if stage.kind == "accelerate" else None
    body = trace.files.get(str(PurePath(file.text))) if file is not None else None
    if body is None:
        return stage
    found = {match[1].replace("_", "-"): body.slice_of(*match.span(2)) for match in _CONFIGURED.finditer(body.text)}
    given = {name: text for name, text in stage.options.items() if name != "config-file"}
    return replace(stage, options={**found, **given})


def _components(words: tuple[ExpandedText, ...]) -> list[tuple[ExpandedText, ...]]:
    """Split `srun --het-group=0 a : --het-group=1 b` into one srun per component."""
    marks = [index for index, word in enumerate(words) if word.text == ":"]
    if words[0].text != "srun" or not marks:
        return [words]
    parts = [words[start + 1 : end] for start, end in pairwise([*marks, len(words)])]
    return [words[: marks[0]], *((words[0]._replace(pieces=part[0].pieces), *part) for part in parts if part)]


def _code_of_document(trace: CommandTrace, stdin: ExpandedText | None, stage: LaunchStage) -> NestedCode | None:
    """Return the code of a here-document, on standard input or in a file that the script wrote before."""
    if stage.kind not in {"shell", "program", "ssh"} or "code" in stage.options:
        return None
    file = stage.words[0] if stage.kind == "program" else stage.option("file")
    body = trace.files.get(str(PurePath(file.text))) if file is not None else None
    if body is not None:
        index = next(number for number, word in enumerate(stage.words) if word is file)
        return NestedCode(body, stage.words[index + 1 :])
    if stage.kind == "program" or file is not None or stdin is None:
        return None
    return NestedCode(stdin, remote=stage.kind == "ssh")


def size_of_launch(job: JobSize, step: LaunchStage | None) -> JobSize:
    """Return the size of the step that srun or mpirun starts; a single process without either."""
    if step is None:
        return JobSize(1, 1, 1, job.cpus_per_task, job.gpus_per_node, job.has_gpus)
    if step.kind == "mpirun":
        return _size_of_mpirun(job, step)
    if step.may_hide_options or step.error:
        return UNKNOWN
    return size_of_step(job, step.option_texts)


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


def _size_of_mpirun(job: JobSize, step: LaunchStage) -> JobSize:
    """Return the size of an mpirun: the tasks of the job, spread like them, unless options place the processes."""
    named = step.option("n", "np", "c")
    ntasks = parse_count(named.text) if named else job.ntasks
    placed = step.option("npernode", "N", "ppn", "tasks_per_node")
    ppr = re.match(r"ppr:(\d+):node", step.options["map-by"].text) if "map-by" in step.options else None
    per_node = parse_count(ppr[1]) if ppr else parse_count(placed.text) if placed else None
    placement = step.options.keys() & {"map-by", "H", "host", "hosts", "hostfile", "machinefile", "f", "rf", "rankfile"}
    if per_node is None and not placed and not placement and ntasks is not None and ntasks == job.ntasks:
        return job
    return JobSize(None, ntasks, per_node, None, None, job.has_gpus, is_stated=named is not None)
