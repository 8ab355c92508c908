"""The shell code of a command, split into simple commands without running or expanding anything; `setup` for bash -n.

`hpc_kit.check` reads scripts with a grammar of bash. That parser is too slow for every submission.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from hpc_kit.errors import SpecError

CONTAINERS = frozenset({
    "apptainer", "catchsegv", "ch-run", "charliecloud", "conda", "docker", "enroot", "gdb", "hatch", "mamba",
    "micromamba", "ncu", "nsys", "pdm", "perf", "pipenv", "pixi", "podman", "podman-hpc", "poetry", "rocprof", "rye",
    "sarus", "shifter", "singularity", "strace", "taskset", "udocker", "uv", "xvfb-run",
})  # fmt: skip
"""Containers, environments and profilers: they start another program, after options that are not parsed."""

PREFIXES = CONTAINERS | {
    "chrt", "command", "direnv", "doas", "dotenv", "env", "exec", "ionice", "ltrace", "nice", "nohup", "numactl",
    "prlimit", "py-spy", "rocprofv3", "setsid", "stdbuf", "sudo", "time", "timeout", "unbuffer", "valgrind", "vtune",
}  # fmt: skip
"""All programs that start the program behind their own words."""

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_KEYWORDS = frozenset({"!", "{", "do", "elif", "else", "if", "then", "time", "until", "while"})
_OPERATORS = ";&|()"
_LIMIT = 1 << 18
_SECONDS = 10.0
# Not compiled: every submission imports this module, and few commands contain shell code.
_HERE_DOCUMENT = r"(<<-?[ \t]*['\"]?(\w+)['\"]?[^\n]*\n)(?:[^\n]*\n)*?[ \t]*\2[ \t]*(?=\n|\Z)"
_RANK_TEST = r"(?:\[|\btest|\bcase|\(\()\s[^\n;]*\b(?:SLURM_(?:PROCID|LOCALID|NODEID)|(?:LOCAL_)?RANK)\b"


def find_syntax_error(text: str) -> str:
    """Return bash's message about a script that it cannot read; empty for a valid one.

    A here-document without end is an error, too: it takes the rest of the script.
    """
    import os
    import subprocess  # few jobs have a `setup`

    # A line of `setup` may set extglob, which `bash -n` does not run.
    argv = ["bash", "-O", "extglob", "-n"]
    try:
        environ = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(
            argv, input=text.encode(), capture_output=True, timeout=_SECONDS, check=False, env=environ
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    message = done.stderr.decode(errors="replace").strip()
    return message if done.returncode or "here-document" in message else ""


def check_setup(of_cluster: Sequence[str], of_job: Sequence[str]) -> None:
    """Let bash read the lines of `setup` by themselves, so that an error names a line of a job or cluster file.

    Raises:
        SpecError: They are not valid bash.
    """
    setup = (*of_cluster, *of_job)
    if not setup or not find_syntax_error("\n".join(setup)):
        return
    parts = {"the cluster file": of_cluster, "the job file": of_job}
    found = {place: message for place, lines in parts.items() if (message := find_syntax_error("\n".join(lines)))}
    place, message = next(iter(found.items()), ("the job file", find_syntax_error("\n".join(setup))))
    raise SpecError(
        f"the lines of `setup` in {place} are not valid bash",
        found=re.sub(r"^bash: line (\d+):", r"line \1 of setup:", message, flags=re.MULTILINE),
        remedy="close every quote, bracket, `if` and here-document in the list `setup`",
    )


class ShellCode(NamedTuple):
    """Shell code, and the file that contains it; None for `bash -c CODE`."""

    text: str
    file: str | None

    @property
    def tests_rank(self) -> bool:
        """True if the tasks decide by their rank what they start."""
        return re.search(_RANK_TEST, self.text) is not None

    def commands(self) -> Iterator[tuple[str, ...]]:
        """Yield the words of each simple command, without keywords and assignments before it."""
        text = re.sub(_HERE_DOCUMENT, r"\1", self.text.replace("\\\n", " ") + "\n")
        for line in text.split("\n"):
            for words in _split_line(line):
                start = 0
                while start < len(words) and (words[start] in _KEYWORDS or re.match(r"\w+\+?=", words[start])):
                    start += 1
                if words[start:]:
                    yield tuple(words[start:])


def _split_line(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.startswith("#"):
                break
            if word and word[0] in _OPERATORS:
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # a quote that ends on another line
        pass
    yield words


def read_shell_code(command: Sequence[str], folder: Path) -> ShellCode | None:
    """Return the code of `bash -c CODE`, or of a shell script, also behind a prefix such as `env`."""
    for index, word in enumerate(command):
        name = PurePath(word).name
        if name in SHELLS:
            return _code_of_shell(command[index + 1 :], folder)
        if index == 0 and name not in PREFIXES:
            return _read_script(word, folder)
        if name.endswith(".sh"):
            return _read_script(word, folder)
        if name.endswith(".py"):
            return None
    return None


def _code_of_shell(words: Sequence[str], folder: Path) -> ShellCode | None:
    index, has_code = 0, False
    while index < len(words) and words[index].startswith(("-", "+")):
        has_code = has_code or re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", words[index]) is not None
        index += 2 if words[index] in {"-o", "+o", "-O", "+O", "--rcfile", "--init-file"} else 1
    if index == len(words):
        return None
    return ShellCode(words[index], None) if has_code else _read_script(words[index], folder)


def _read_script(name: str, folder: Path) -> ShellCode | None:
    """Return the content of a shell script; None if the file is none, or cannot be read here."""
    try:
        with (folder / name).open("rb") as file:
            content = file.read(_LIMIT)
    except (OSError, ValueError):
        return None
    first = content.partition(b"\n")[0].decode(errors="replace")
    if first.startswith("#!"):
        if not any(PurePath(word).name in SHELLS for word in first[2:].split()):
            return None
    elif not name.endswith(".sh"):
        return None
    return ShellCode(content.decode(errors="replace"), name)
