"""Reads a launch line: which launcher starts which, with what options, down to the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from hpc_kit.check import launchers
from hpc_kit.check.shell.values import Text, join
from hpc_kit.check.stages import (
    AGENTS,
    CONTAINERS,
    MPIRUN,
    PYTHON,
    REMOTE,
    SHELLS,
    WRAPPERS,
    Code,
    LaunchLine,
    Stage,
    starts_something,
)

_SHELL_FILE = re.compile(r"/\.shell/\w+/(?:task|worker|ray_node)\.sh\Z")
"""Files of templates/shell, as rendered scripts call them, that run the program behind their own words."""


def read_launch(words: Sequence[Text]) -> LaunchLine:
    """The stages of a command's words."""
    stages: list[Stage] = []
    gives: list[tuple[str, Text]] = []
    rest = list(words)
    while rest:
        name = PurePath(rest[0].text).name
        if name == "srun":
            stage, rest = launchers.srun(rest)
            gives += launchers.exported(stage)
        elif name in MPIRUN:
            stage, rest, given = launchers.mpirun(rest)
            gives += given
        elif name == "env":
            stage, rest, given = _env(rest)
            gives += given
        elif name in WRAPPERS or name in CONTAINERS or (name in SHELLS and _SHELL_FILE.search(_second(rest))):
            stage, rest = _wrapper(rest)
        elif name in AGENTS or name == "torchrun":
            stage, rest = launchers.agent(name, rest)
        elif PYTHON.match(name):
            stage, rest = launchers.python(rest)
        elif name in SHELLS or name in REMOTE:
            stage, code = _shell(rest) if name in SHELLS else _remote(rest, *REMOTE[name])
            return LaunchLine((*stages, stage), tuple(gives), code)
        else:
            stage, rest = Stage("program", tuple(rest), {}), []
        stages.append(stage)
    return LaunchLine(tuple(stages), tuple(gives))


def _env(words: list[Text]) -> tuple[Stage, list[Text], list[tuple[str, Text]]]:
    gives, index = list[tuple[str, Text]](), 1
    while index < len(words):
        text = words[index].text
        if text in {"-u", "-C", "-S"}:
            index += 1
        elif match := re.match(r"([A-Za-z_]\w*)=", text):
            gives.append((match[1], words[index].part(match.end(), len(text))))
        elif not text.startswith("-"):
            break
        index += 1
    return Stage("wrapper", tuple(words), {}), words[index:], gives


def _second(words: Sequence[Text]) -> str:
    return words[1].text if len(words) > 1 else ""


def _wrapper(words: list[Text]) -> tuple[Stage, list[Text]]:
    """A program that runs the program behind its own words."""
    name = PurePath(words[0].text).name
    if name in SHELLS:
        # One of our shell files; some have options.
        return _after_options(words, index=2)
    if name in WRAPPERS:
        valued, positional = WRAPPERS[name]
        return _after_options(words, valued, positional)
    stage, rest = _to_known(words)
    # `uv run FILE.py` is Python's.
    if name == "uv" and rest and rest[0].text.endswith(".py"):
        rest = [rest[0]._replace(text="python"), *rest]
    return stage, rest


def _after_options(
    words: list[Text], valued: str = "", positional: int = 0, index: int = 1
) -> tuple[Stage, list[Text]]:
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        index += 2 if len(text) == 2 and text[1] in valued else 1
    return Stage("wrapper", tuple(words), {}), words[index + positional :]


def _to_known(words: list[Text]) -> tuple[Stage, list[Text]]:
    """A container or environment tool: its program is the first that is known as one."""
    for index in range(1, len(words)):
        if starts_something(words[index], alone=True):
            return Stage("wrapper", tuple(words), {}), words[index:]
    return Stage("program", tuple(words), {}), []


def _remote(words: list[Text], valued: str, positional: int) -> tuple[Stage, Code | None]:
    """An ssh, and what the shell of the other host reads: all words behind the host, as one text."""
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        index += 2 if not text.startswith("--") and text[-1:] in valued and len(text) == 2 else 1
    command = words[index + positional :]
    return Stage("ssh", tuple(words), {}), Code(join(command, separator=" "), remote=True) if command else None


def _shell(words: list[Text]) -> tuple[Stage, Code | None]:
    index = 1
    while index < len(words):
        text = words[index].text
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", text) and index + 1 < len(words):
            code = Code(words[index + 1], tuple(words[index + 3 :]))
            return Stage("shell", tuple(words), {"code": words[index + 1]}), code
        if not text.startswith(("-", "+")):
            return Stage("shell", tuple(words), {"file": words[index]}), None
        index += 2 if text in {"-o", "+o", "-O", "--rcfile", "--init-file"} else 1
    return Stage("shell", tuple(words), {}), None
