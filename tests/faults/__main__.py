"""Injects random faults into jobs with [restart], and prints a table.

    python -m tests.faults --faults 200 --seed 1 --minutes 10 [--real] [--only WORDS]

The seed decides the order of the faults. Each call goes on where the last call with this seed ended, until as many
faults as requested are survived. A fault that was not survived is tried again. `--table` prints the sums over all
seeds.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.faults.queues import EmbeddedQueue, Queue, RealQueue
from tests.faults.ring import EMBEDDED, REAL, FaultNotSurvived, KilledBeforeFirstLine, Kind, Outcome, Trial

COUNTS = Path(__file__).parents[2] / "build" / "faults"
"""Folder of the counted faults: one file for each Slurm and seed, with a line of JSON for each trial."""

FIRST_TRIAL = {False: 60.0, True: 150.0}
"""Seconds that a trial may take on the embedded and on the real Slurm, as long as none of its kind was measured."""


REPETITIONS = 5
"""Jobs of a trial whose signals come before the first line of the batch script."""


class Result(NamedTuple):
    """One counted trial."""

    number: int
    kind: str
    survived: bool
    took: float
    """Seconds of the whole trial."""

    seconds: float | None = None
    repeated: int = 0
    late: bool = False


class Tally:
    """The trials of one seed, over several calls.

    Args:
        path: The file of the trials.
        chosen: The kinds of the faults, in their order.
    """

    def __init__(self, path: Path, chosen: Sequence[Kind]) -> None:
        self.path, self.chosen = path, chosen
        self.results = [each for each in read_results(path) if self._is_chosen(each)]
        if not self.missing():
            path.unlink(missing_ok=True)  # all faults are survived: begin again
            self.results = []
        self._lock = threading.Lock()

    def _is_chosen(self, result: Result) -> bool:
        return result.number < len(self.chosen) and self.chosen[result.number].name == result.kind

    def missing(self) -> list[int]:
        """Return the numbers of the faults that are not survived yet."""
        survived = {result.number for result in self.results if result.survived}
        return [number for number in range(len(self.chosen)) if number not in survived]

    def expected_seconds(self, number: int, *, default: float) -> float:
        """Return the seconds that a fault may take: more than each survived trial of its kind, or the default."""
        kind = self.chosen[number].name
        return max((1.5 * each.took for each in self.results if each.survived and each.kind == kind), default=default)

    def add(self, result: Result) -> None:
        """Count a trial."""
        with self._lock:
            self.results.append(result)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(result._asdict()) + "\n")


def read_results(path: Path) -> list[Result]:
    """Return the trials of a file."""
    if not path.exists():
        return []
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


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


def _survive(trial: Trial) -> Outcome:
    """Run a trial, and again after a signal that no script can survive.

    Raises:
        FaultNotSurvived: Also if such a signal comes in each repetition: then the script sets its trap too late.
    """
    for _ in range(REPETITIONS):
        with suppress(KilledBeforeFirstLine):
            return trial.survive()
        print(f"{trial.number:4} again: a signal came before the first line of the script", file=sys.stderr)
    raise FaultNotSurvived(f"in {REPETITIONS} jobs, a signal came before the first line of the script")


def run_trial(queue: Queue, kind: Kind, seed: int, number: int) -> Result:
    """Run one trial, and print its end."""
    began, chance = time.monotonic(), random.Random(f"{seed}.{number}")
    try:
        outcome = _survive(Trial(queue, kind, chance, number))
        result = Result(number, kind.name, True, 0, outcome.seconds, outcome.repeated, outcome.late)
        text = f"survived{', came too late' * outcome.late}: {kind.name}"
    except FaultNotSurvived as error:
        result = Result(number, kind.name, False, 0)
        text = f"NOT SURVIVED: {kind.name}\n{error}"
    finally:
        if isinstance(queue, RealQueue):
            queue.cluster.repair()
    print(f"{time.strftime('%H:%M:%S')} {number:4} {text}", file=sys.stderr, flush=True)
    return result._replace(took=round(time.monotonic() - began, 1))


def run_missing(tally: Tally, *, seed: int, real: bool, at_once: int, deadline: float) -> list[Result]:
    """Try the faults that are missing, and begin none that is expected to end after the deadline."""
    results: list[Result] = []

    def attempt(number: int) -> None:
        if time.monotonic() + tally.expected_seconds(number, default=FIRST_TRIAL[real]) < deadline:
            result = run_trial(queue, tally.chosen[number], seed, number)
            tally.add(result)
            results.append(result)

    with open_queue(real=real) as queue, ThreadPoolExecutor(1 if real else at_once) as pool:
        list(pool.map(attempt, tally.missing()))
    return results


def table(results: Sequence[Result]) -> str:
    """Return the results by kind as a Markdown table."""
    lines = [
        "| fault | tried | survived | of these, came too late | seconds to the next step | steps computed again |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted({result.kind for result in results}):
        tried = [result for result in results if result.kind == name]
        survived = [result for result in tried if result.survived]
        seconds = [result.seconds for result in survived if result.seconds is not None]
        median = f"{statistics.median(seconds):.1f}" if seconds else ""
        most = f" (at most {max(seconds):.1f})" if len(seconds) > 1 else ""
        repeated = max((result.repeated for result in survived), default=0)
        late = sum(result.late for result in survived)
        lines.append(f"| {name} | {len(tried)} | {len(survived)} | {late} | {median}{most} | {repeated} |")
    return "\n".join(lines)


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="on the real Slurm of four hosts (root)")
    parser.add_argument("--only", default="", help="kinds whose name contains one of these texts, comma separated")
    parser.add_argument("--at-once", type=int, default=2, help="jobs at the same time on the embedded Slurm")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no fault that would end later")
    parser.add_argument(
        "--counts", type=Path, default=COUNTS, help="folder of the counted faults; default: %(default)s"
    )
    parser.add_argument("--table", action="store_true", help="print the counted faults of all seeds, and inject none")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the faults; the exit status is 1 if one was not survived in this call."""
    options = _parse(words)
    slurm = "real" if options.real else "embedded"
    if options.table:
        print(table([result for path in sorted(options.counts.glob(f"{slurm}-*")) for result in read_results(path)]))
        return 0
    only = options.only.split(",")
    kinds = [kind for kind in (REAL if options.real else EMBEDDED) if any(text in kind.name for text in only)]
    chosen = choose_kinds(kinds, options.faults, random.Random(options.seed))
    name = "-".join([slurm, str(options.seed), *re.findall(r"\w+", options.only)])
    tally = Tally(options.counts / f"{name}.jsonl", chosen)
    deadline = time.monotonic() + options.minutes * 60
    results = run_missing(tally, seed=options.seed, real=options.real, at_once=options.at_once, deadline=deadline)
    print(table(tally.results))
    missing, lost = len(tally.missing()), [result.number for result in results if not result.survived]
    print(
        f"\nseed {options.seed}: {len(chosen) - missing} of {len(chosen)} faults survived, {missing} to go; "
        f"this call: {len(results)} tried, {len(lost)} not survived {lost or ''}".rstrip()
    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
