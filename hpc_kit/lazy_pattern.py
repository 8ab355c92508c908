"""Regular expressions that are compiled when they are first used.

The commands of the login node know hundreds of them, and a call needs few: compiling all takes longer than the rest of
`hpc-kit check` for one script.
"""

from __future__ import annotations

import re
from typing import Any, cast


class _LazyPattern:
    """Compiles the pattern for the first attribute, and keeps each attribute, so that later calls cost nothing more."""

    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, value)
        return value


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern with the attributes of `re.compile(text, flags)`; an error in it is raised by the first use.

    The functions of `re` do not take it: call its own methods.
    """
    return cast("re.Pattern[str]", _LazyPattern(text, flags))
