"""Tables as sstat, sacctmgr and sshare print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def print_table(columns: Sequence[tuple[str, int]], rows: Sequence[Mapping[str, str]], flags: Collection[str]) -> None:
    """Print rows.

    Args:
        columns: Heads with their widths, negative ones for the left.
        rows: Values by their heads.
        flags: `parsable`, `parsable2` and `noheader` count.
    """
    lines = [[row.get(name, "") for name, _ in columns] for row in rows]
    names = [name for name, _ in columns]
    if "parsable" in flags or "parsable2" in flags:
        end = "|" if "parsable" in flags else ""
        for line in lines if "noheader" in flags else [names, *lines]:
            print("|".join(line) + end)
        return
    dashes = ["-" * abs(width) for _, width in columns]
    for line in lines if "noheader" in flags else [names, dashes, *lines]:
        print("".join(_cell(text, width) + " " for text, (_, width) in zip(line, columns, strict=True)))


def _cell(text: str, width: int) -> str:
    text = text if len(text) <= abs(width) else f"{text[: abs(width) - 1]}+"
    return text.ljust(-width) if width < 0 else text.rjust(width)
