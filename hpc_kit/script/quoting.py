"""The filters that write a value into a script; every `{{ value }}` of a template ends in one.

The parser of Slurm reads an #SBATCH line: it knows quotes and backslashes and expands nothing. Bash reads all other
lines. A value that is quoted for one of them is wrong for bash or Slurm, respectively.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hpc_kit import run_files
from hpc_kit.errors import TemplateError

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

_PLAIN = re.compile(r"[\w@%+=:,./\[\]*&|()!<>?^~{}-]*\Z")
_COMMENT_WIDTH = 116
"""Columns of a comment line after "# ", with room for the backslash of a command."""
_COMMENT_INDENT = " " * 8
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def directive_value(value: object) -> str:
    """Return a value for an #SBATCH line.

    Raises:
        TemplateError: It contains a line break or another control character, which no quoting preserves.
    """
    text = str(value)
    if _CONTROL.search(text):
        raise TemplateError(
            "a directive cannot contain a line break or control character", found=repr(text), remedy="write one line"
        )
    if text and _PLAIN.match(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def shell_word(value: object) -> str:
    """Return a word that bash expands to exactly this text.

    Raises:
        TemplateError: It contains a NUL byte, which no argument and no variable can contain.
    """
    text = str(value)
    if "\0" in text:
        raise TemplateError("a shell word cannot contain a NUL byte", found=repr(text), remedy="remove the byte")
    if re.search(r"[$`]", text):
        # Not in single quotes: shellcheck warns that nothing is expanded there.
        return '"' + re.sub(r'([$`"\\])', r"\\\1", text) + '"'
    return shlex.quote(text)


def shell_words(values: Iterable[object]) -> str:
    """Return the words of a command line."""
    return " ".join(map(shell_word, values))


def copyable_command(words: Iterable[str]) -> str:
    """Return a command line that a person copies into bash."""
    return " ".join(copyable_words(words))


def copyable_words(words: Iterable[str]) -> list[str]:
    """Return words that a person copies into bash: each on one line, and safe from the `!` of the history."""
    return [_ansi_quoted(word) if _CONTROL.search(word) else shlex.quote(word) for word in words]


def _ansi_quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return "$'" + _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", escaped) + "'"


def comment_text(value: object, label: str = "") -> str:
    """Return text for a comment; a line longer than 120 characters continues in comment lines below.

    The lines of a command, whose words are given one by one, end in a backslash.
    """
    is_command = not isinstance(value, str) and isinstance(value, Sequence)
    words = [*value] if is_command else str(value).split(" ")  # type: ignore[misc]
    lines = [label]
    for position, word in enumerate(_CONTROL.sub(" ", str(each)) for each in words):
        space = " " if position and lines[-1] else ""
        if position and len(lines[-1]) + len(space + word) > _COMMENT_WIDTH:
            lines[-1] += " \\" if is_command else ""
            lines.append(" " * len(label or _COMMENT_INDENT))
            space = ""
        lines[-1] += space + word
    return "\n# ".join(lines)


def inside_quotes(text: object) -> str:
    """Return shell code that stands inside single quotes."""
    return str(text).replace("'", "'\\''")


def raw_shell(value: object) -> str:
    """Return shell code as it is: the `setup` lines of the user, or text that a template has made."""
    return str(value)


_PLAIN_TYPES = (str, int, float, tuple, list, dict)
"""Types whose methods a template may call."""

_CALLABLE = (run_files.rank_log,)

RUN_FILES = MappingProxyType({
    "FIRST_FAILURE": run_files.FIRST_FAILURE,
    "END": run_files.END,
    "rank_log": run_files.rank_log,
})  # fmt: skip
"""The names of a run's files, as templates see them."""

FILTERS = {
    "directive": directive_value,
    "sh": shell_word,
    "words": shell_words,
    "comment": comment_text,
    "quoted": inside_quotes,
    "verbatim": raw_shell,
}


def quoting_environment(**options: Any) -> Environment:
    """Return an environment of Jinja2 with the filters, which refuses a value without one when it compiles a template.

    A template may come with a project of another person. It reads values, and it runs no code of Python.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class QuotingEnvironment(ImmutableSandboxedEnvironment):
        """Checks a template before it compiles it."""

        def is_safe_callable(self, obj: Any) -> bool:
            # The sandbox of Jinja2 refuses names with an underscore. A module or a Path in a value needs none.
            owner = getattr(obj, "__self__", obj)
            known = obj in _CALLABLE or any(obj is each for each in self.globals.values())
            return known or isinstance(owner, _PLAIN_TYPES) or type(owner).__module__ == "jinja2.runtime"

        def compile(self, source: Any, name: str | None = None, filename: str | None = None, **named: Any) -> Any:  # type: ignore[override]  # its overloads describe results that are not used here
            if isinstance(source, str):
                check_filters(self.parse(source, name, filename), Path(filename or name or "template").name)
            return super().compile(source, name, filename, **named)

    environment = QuotingEnvironment(**options)
    environment.filters.update(FILTERS)
    environment.globals["run_files"] = RUN_FILES
    return environment


def check_filters(template: nodes.Template, file: str) -> None:
    """Raise an error for the first value of a template that ends in no filter."""
    from jinja2 import nodes

    imported = {each.target for each in template.find_all(nodes.Import)}
    for output in template.find_all(nodes.Output):
        for value in output.nodes:
            if not _is_quoted(value, imported):
                raise TemplateError(
                    f"a value in template {file}, line {value.lineno} ends in no filter",
                    found="the shell would interpret its content",
                    remedy="write {{ value | sh }}; or directive, words, comment or verbatim, as the place requires",
                )


def _is_quoted(value: nodes.Expr, imported: Collection[str]) -> bool:
    """Return whether a value is text of the template, or of a filter, or of a macro, whose values are checked there."""
    from jinja2 import nodes

    match value:
        case nodes.TemplateData() | nodes.Call(node=nodes.Name()):
            return True
        case nodes.Filter():
            return value.name in FILTERS
        case nodes.CondExpr():
            return all(_is_quoted(each, imported) for each in (value.expr1, value.expr2) if each is not None)
        case nodes.Call(node=nodes.Getattr(node=nodes.Name(name=name))):
            return name in imported
    return False
