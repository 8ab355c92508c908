"""What the ranks of a launch say: a log for each, and lines for the terminal with rank and host in front."""

from __future__ import annotations

import time
from contextlib import ExitStack
from math import inf
from typing import TYPE_CHECKING, BinaryIO

from hpc_kit.run_files import rank_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_LONG = 1 << 16
"""Characters of a line that is not waited for any longer."""


class Output:
    """Takes pieces of text as they come, and shows whole lines.

    Args:
        run: The run's folder, for the logs.
        hosts: Names of the hosts.
        ranks: Number of ranks.
        show: Prints lines.
    """

    def __init__(self, run: Path, hosts: Sequence[str], ranks: int, show: Callable[[str], None]) -> None:
        self._run, self._show = run, show
        self._wide = len(str(ranks - 1)), max(map(len, hosts))
        self._begun: dict[tuple[str, int | None], str] = {}
        self._shown: dict[tuple[str, int | None], float] = {}
        self._logs: dict[str, BinaryIO] = {}
        self._open = ExitStack()
        for rank in range(ranks):
            self._log(rank_log(rank))  # also of one that says nothing

    def take(self, host: str, rank: int | None, text: str) -> None:
        """A piece of what a rank says, or of what its agent does (None)."""
        self._log(f"node-{host}.log" if rank is None else rank_log(rank)).write(text.encode("utf-8", "surrogateescape"))
        *lines, begun = (self._begun.get((host, rank), "") + text).split("\n")
        self._print(host, rank, *lines)
        self._begun[host, rank] = self._kept(host, rank, begun)

    def close(self) -> None:
        """Show what was begun, and close the logs."""
        for (host, rank), line in self._begun.items():
            if line:
                self._print(host, rank, line)
        self._open.close()

    def _kept(self, host: str, rank: int | None, begun: str) -> str:
        """What may still grow of a line that has begun; a progress bar is shown meanwhile, at most once a second."""
        last = begun.rstrip("\r").rpartition("\r")[2]
        if len(last) > _LONG:
            self._print(host, rank, last)
            return ""
        if "\r" in begun and last and time.monotonic() - self._shown.get((host, rank), -inf) >= 1:
            self._shown[host, rank] = time.monotonic()
            self._print(host, rank, last)
        return f"{last}\r" if begun.endswith("\r") else last

    def _print(self, host: str, rank: int | None, *lines: str) -> None:
        front = f"{'' if rank is None else rank:>{self._wide[0]}} {host:<{self._wide[1]}} | "
        # Of a progress bar, what it showed last.
        shown = "\n".join(front + line.rstrip("\r").rpartition("\r")[2] for line in lines)
        if lines:
            self._show(shown.encode("utf-8", "surrogateescape").decode(errors="replace"))

    def _log(self, name: str) -> BinaryIO:
        if name not in self._logs:
            self._logs[name] = self._open.enter_context((self._run / name).open("ab", buffering=0))
        return self._logs[name]
