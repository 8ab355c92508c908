"""Makes text of csh readable as that of sh: line by line, each word where it stood."""

from __future__ import annotations

import re

CSH = frozenset({"csh", "tcsh"})

_CONTROL = re.compile(
    r"\s*((else\s+)?if\s*\(.*\)\s*then|else|endif|foreach\s+\w+\s*\(.*\)|while\s*\(.*\)|end|switch\s*\(.*\)|endsw|breaksw"
    r"|case\s.*:|default:|@\s.*|onintr\b.*|limit\b.*|unlimit\b.*|rehash|unhash)\s*(#.*)?\Z"
)
_ONE_LINE_IF = re.compile(r"(\s*if\s*)(\(.*\))(\s*)(?=[\w./$`])")
_SETENV = re.compile(r"(^|[;&|]\s*|^\s+)setenv(\s+\w+)[ \t]")
_SET = re.compile(r"(^|;)(\s*)set\s+(\w+)(\s*=\s*)(?=\S)")


def as_sh(lines: list[str]) -> str:
    """The script's lines for a reader of sh; branches and loops are taken as if they ran, once."""
    return "\n".join(_line(line) for line in lines)


def _line(line: str) -> str:
    if line.lstrip().startswith("#"):
        return line
    if _CONTROL.match(line):
        return ""
    if single := _ONE_LINE_IF.match(line):
        line = " " * single.end() + line[single.end() :]
    line = _SETENV.sub(r"\1export\2=", line)
    return _SET.sub(lambda found: found[1] + found[2] + _padded(found), line)


def _padded(found: re.Match[str]) -> str:
    """`set NAME = ` as an assignment that ends where it did."""
    assignment = f"{found[3]}="
    return assignment.rjust(len(found[0]) - len(found[1]) - len(found[2]))
