"""What a command starts: `python FILE`, as nearly always, is told without the reader of launch lines."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Started(NamedTuple):
    """One program of a command.

    Attributes:
        kind: As `stages.Stage` has it: `python`, `shell`, `wrapper`, `torchrun`, ...
        program: Its word.
        file: The file that it runs, if it is told one.
        module: The module, likewise.
        container: Whether what it starts sees other files than those of this machine.
    """

    kind: str
    program: str
    file: str | None = None
    module: str | None = None
    container: bool = False


def started(words: Sequence[str]) -> list[Started]:
    """The programs of a command, each starting the next."""
    if PurePath(words[0]).name.rstrip("0123456789.") == "python" and len(words) > 1 and words[1][:1] != "-":
        return [Started("python", words[0], words[1])]
    from hpc_kit.check.launch import read_launch
    from hpc_kit.check.shell.values import Text
    from hpc_kit.check.shell.words import WHOLE_FILE
    from hpc_kit.check.stages import CONTAINERS

    def said(text: Text | None) -> str | None:
        return None if text is None else text.text

    stages = read_launch([Text(word, WHOLE_FILE) for word in words]).stages
    return [
        Started(
            stage.kind,
            stage.words[0].text,
            said(stage.option("file")),
            said(stage.option("module")),
            container=stage.name in CONTAINERS,
        )
        for stage in stages
    ]
