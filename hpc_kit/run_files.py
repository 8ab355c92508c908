"""Names and formats of the files in a run folder, `runs/<job_name>/<job_id>/`.

The script and the runtime write them inside the job, and commands on the login node read them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN_VARIABLE = "HPC_KIT_RUN"
"""Environment variable, set by the script: the path of the run folder inside the job."""

LOGS_VARIABLE = "HPC_KIT_LOGS"
"""Environment variable: the folder of the rank logs, if it is not the run folder."""

FIRST_FAILURE = "first-failure"
"""`rank host exit_code unix_time [reason]` of the rank that failed first. The first rank to create the file wins."""

STOPPED = "stopped"
"""`step unix_time`, written by rank 0 when the training left its loop because a stop was requested."""

SAVED = "saved"
"""`step unix_time` of the newest checkpoint, written by rank 0, or by any program."""

END = "end"
"""`exit_code unix_time`, written by the batch script at its end."""

HISTORY = "history"
"""The events of a job with [restart], one JSON object a line, written by the batch script."""

SUMMARY = "summary.json"
"""The summary of a training: a flat JSON object, written by rank 0 at the end."""

STEPS = "steps.json"
"""The steps of a training, written by rank 0 at the end: the lists `loss` and `seconds`, the `tokens` of one step, and
`busy`, the quartiles of the working time of each rank in a step."""

STACKS = "stacks"
"""Folder of the Python stacks of the ranks: `rank-<n>.json` of each rank, and `verdict.json` about a stall."""

STACKS_REQUEST = "request"
"""File in `STACKS`. Each rank writes its stacks when this file appears or is touched."""

VERDICT = "verdict.json"
"""File in `STACKS`: the latest stall and the ranks that caused it. The first rank to create the file wins."""

PREFLIGHT = "preflight"
"""Folder of the measurements before the training: `node-<name>.json` of each node, `verdict.json` and `excluded`."""

ENDED_WITHOUT_TORCH = "ended-without-torch"
"""Folder of the ranks that ended successfully before they imported torch, under `python -m hpc_kit.runtime`. A JSON
object in each file: `rank-<n>` contains the number of such ends of a rank; `program-<n>` contains rank, host and launch
of a rank that ended its nth program. Each such rank writes the second file; the last one counts.
"""

RECORD = "record.json"
SCRIPT = "script.sbatch"
PATCH = "git.patch"


def write_whole(path: Path, data: bytes, mode: int = 0o600, *, lasting: bool = True, replace: bool = True) -> None:
    """Write a file atomically. By default, only its owner can read the file.

    Args:
        path: The file.
        data: The content.
        mode: The permissions.
        lasting: Wait until the disk has stored the file. This takes milliseconds.
        replace: Replace an existing file.

    Raises:
        FileExistsError: The file exists, and `replace` is false.
    """
    # A random name: two threads, or processes with the same id on two hosts, may write the same file.
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(descriptor)
        if replace:
            draft.replace(path)
        else:
            _rename_to_new(draft, path)
    except BaseException:
        with suppress(OSError):  # a read-only file system also refuses the removal
            draft.unlink()
        raise


def _rename_to_new(draft: Path, path: Path) -> None:
    """Rename a file, or raise FileExistsError if the new name exists: rename() replaces such a file."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: the new file is empty for a moment
        path.touch(exist_ok=False)
        draft.replace(path)
    else:
        draft.unlink()


def rank_log(rank: int | str) -> str:
    """Return the name of the log of a rank; `%t` returns the pattern of Slurm."""
    return f"rank-{rank}.log"


def progress_file(node_rank: int | str) -> str:
    """Return the name of the file with the progress of the first rank of a node; `*` returns a pattern."""
    return f"progress-{node_rank}.json"


def rank_stacks(rank: int) -> str:
    """Return the name of the file with the stacks of a rank, in the folder `STACKS`."""
    return f"rank-{rank}.json"


class EndMarker(NamedTuple):
    """The file that the batch script writes last."""

    exit_code: int
    time: float


def read_end(run: Path) -> EndMarker | None:
    """Return how the batch script of a run ended; None if it has not ended or was killed."""
    try:
        code, moment = (run / END).read_text().split()
        return EndMarker(int(code), float(moment))
    except (OSError, ValueError):
        return None


UNKNOWN_HOST = "?"
"""The host of a first failure of which only the rank is known."""


def format_ranks(ranks: Sequence[int], most: int = 16) -> str:
    """Return `rank 3` or `ranks 0-4, 6`; beyond `most` such parts, only the number of the remaining ranks follows."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    named = [f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts[:most]]
    more = sum(map(len, parts[most:]))
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(named)}" + (f" and {more} more" if more else "")


class FirstFailure(NamedTuple):
    """The rank that failed first: host, exit code and time."""

    rank: int
    host: str
    exit_code: int
    time: float
    reason: str = ""
    """The reason of other ranks to record this one: they waited for it in vain. Empty: it recorded itself."""

    @classmethod
    def parse(cls, text: str) -> FirstFailure | None:
        """Parse the content of the file; None if it is empty or incomplete."""
        try:
            rank, host, exit_code, moment, *reason = text.split(maxsplit=4)
            return cls(int(rank), host, int(exit_code), float(moment), " ".join(reason).strip())
        except ValueError:
            return None


def read_first_failure(run: Path) -> FirstFailure | None:
    """Return the first failure of a run, or None if no rank has failed."""
    try:
        return FirstFailure.parse((run / FIRST_FAILURE).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def claim_first_failure(run: Path, rank: int, host: str, exit_code: int, reason: str = "") -> bool:
    """Record a rank as the first that failed. Return False if another rank was earlier or the disk is full.

    A complete draft gets the final name, so that no process reads half a line, not even over NFS.
    """
    marker = run / FIRST_FAILURE
    draft = run / f".{FIRST_FAILURE}.{rank}.{os.getpid()}"
    try:
        line = f"{rank} {host} {exit_code} {time.time():.3f} {reason}".rstrip() + "\n"
        # A reason may name a file of any bytes, and the nodes may have another locale than the login node.
        draft.write_text(line, encoding="utf-8", errors="backslashreplace")
        _rename_to_new(draft, marker)
    except OSError:
        return False
    finally:
        with suppress(OSError):  # the error of the rank matters more than this one
            draft.unlink()
    return True


class RankStack(NamedTuple):
    """The Python stacks of one rank at one moment."""

    rank: int
    host: str
    time: float
    step: int | None
    phase: str | None
    line: str
    """The innermost line of the program itself in the main thread: `train.py:52 in train`."""

    call: str
    """The innermost Python function of the main thread, such as `all_reduce`."""

    waits: bool
    """The main thread is inside a collective, or inside a backward pass, which waits for collectives."""

    threads: dict[str, str]
    """Traceback of each thread by its name, the main thread first."""

    collectives: dict[str, tuple[int, str]] = {}  # noqa: RUF012 - a field of a NamedTuple
    """The latest collective that the rank has begun in the default process group: its number and call, by backend."""

    work: str | None = None
    """Long work that the stacks show: `compilation`, `save`, `import` or `evaluation`."""

    @property
    def main(self) -> str:
        """Traceback of the main thread."""
        return next(iter(self.threads.values()), "")


def read_stacks(run: Path, *, since: float = 0.0) -> list[RankStack]:
    """Return the stacks that ranks have written since a moment, by rank. Incomplete files are skipped."""
    import json

    found = []
    for path in (run / STACKS).glob("rank-*.json"):
        with suppress(OSError, ValueError, TypeError):
            stack = RankStack(**json.loads(path.read_bytes()))
            if stack.time >= since:
                found.append(stack)
    return sorted(found, key=lambda stack: stack.rank)


class Stall(NamedTuple):
    """The watchdog's sentence about the latest stall."""

    time: float
    sentence: str


def read_stall(run: Path) -> Stall | None:
    """Return the latest stall of a run, or None if there was none."""
    import json

    try:
        verdict = json.loads((run / STACKS / VERDICT).read_bytes())
        return Stall(float(verdict["time"]), str(verdict["sentence"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
