"""Injects random faults and prints a table: `python -m tests.faults --faults 25 --seed 1 [--real] [--only WORDS]`."""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.faults.queues import EmbeddedQueue, Queue, RealQueue
from tests.faults.ring import EMBEDDED, REAL, FaultNotSurvived, Kind, Outcome, Trial


@contextmanager
def open_queue(*, real: bool) -> Iterator[Queue]:
    """The Slurm of this run, in a folder of its own."""
    if not real:
        root = Path(tempfile.mkdtemp(prefix="faults-"))
        embedded = EmbeddedQueue(root)
        try:
            yield embedded
        finally:
            embedded.close()
            shutil.rmtree(root, ignore_errors=True)
        return
    from tests.cluster import Settings
    from tests.cluster.fixture import raised
    from tests.cluster.settings import visible_paths

    quick = {"SlurmdTimeout": "6", "MessageTimeout": "5"}
    with raised(Settings(name="faults", accounting=False, carry=visible_paths(), slurm=quick)) as cluster:
        folder = cluster.settings.work / "faults"
        folder.mkdir()
        queue = RealQueue(cluster, folder)
        yield queue
        queue.close()


def choose_kinds(kinds: Sequence[Kind], faults: int, chance: random.Random) -> list[Kind]:
    """Return kinds in random order: all of them before one of them again."""
    chosen: list[Kind] = []
    while len(chosen) < faults:
        chosen += chance.sample(kinds, len(kinds))
    return chosen[:faults]


def run_trial(queue: Queue, kind: Kind, seed: int, number: int) -> tuple[Kind, Outcome | None, str]:
    """Run one trial; returns its outcome, or the failure."""
    try:
        outcome: Outcome | None = Trial(queue, kind, random.Random(f"{seed}.{number}"), number).survive()
        failure = ""
    except FaultNotSurvived as error:
        outcome, failure = None, str(error)
    finally:
        if isinstance(queue, RealQueue):
            queue.cluster.repair()
    mark = "survived" if outcome else "NOT SURVIVED"
    print(f"{time.strftime('%H:%M:%S')} {number:4} {mark}: {kind.name}", file=sys.stderr, flush=True)
    if failure:
        print(failure, file=sys.stderr, flush=True)
    return kind, outcome, failure


def table(results: Sequence[tuple[Kind, Outcome | None, str]]) -> str:
    """Return the results by kind as a Markdown table."""
    lines = ["| fault | tried | survived | seconds to the next step | steps computed again |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(kind.name for kind, _, _ in results):
        tried = [outcome for kind, outcome, _ in results if kind.name == name]
        survived = [outcome for outcome in tried if outcome]
        seconds = [outcome.seconds for outcome in survived if outcome.seconds is not None]
        median = f"{statistics.median(seconds):.1f}" if seconds else ""
        most = f" (at most {max(seconds):.1f})" if len(seconds) > 1 else ""
        repeated = max((outcome.repeated for outcome in survived), default=0)
        lines.append(f"| {name} | {len(tried)} | {len(survived)} | {median}{most} | {repeated} |")
    return "\n".join(lines)


def main() -> int:
    """Run the faults; the exit status is 1 if one was not survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="on the real Slurm of four hosts (root)")
    parser.add_argument("--only", default="", help="kinds whose name contains one of these texts, comma separated")
    parser.add_argument("--at-once", type=int, default=2, help="jobs at the same time on the embedded Slurm")
    parser.add_argument("--minutes", type=float, default=60, help="start no fault after this time")
    arguments = parser.parse_args()
    kinds = [
        kind
        for kind in (REAL if arguments.real else EMBEDDED)
        if any(words in kind.name for words in arguments.only.split(","))
    ]
    chosen = choose_kinds(kinds, arguments.faults, random.Random(arguments.seed))
    deadline = time.monotonic() + arguments.minutes * 60
    with (
        open_queue(real=arguments.real) as queue,
        ThreadPoolExecutor(1 if arguments.real else arguments.at_once) as pool,
    ):

        def start(item: tuple[int, Kind]) -> tuple[Kind, Outcome | None, str] | None:
            number, kind = item
            return None if time.monotonic() > deadline else run_trial(queue, kind, arguments.seed, number)

        results = [result for result in pool.map(start, enumerate(chosen)) if result]
    print(table(results))
    failed = sum(outcome is None for _, outcome, _ in results)
    print(f"\n{len(results)} faults of seed {arguments.seed}: {len(results) - failed} survived, {failed} not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
