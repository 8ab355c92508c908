"""From the command to the first training step: ours beside scripts written by hand, over numbers of ranks.

Every start is a job of its own, submitted when the one before it has left the queue. By hand means the shortest sbatch
script that trains by env:// or by torchrun; the program is the same, jobs/train/first_step.py.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_kit.bench import by_hand, slurm_job, start_jobs
from hpc_kit.bench.quantity import quantity
from hpc_kit.bench.results import Column, Plot
from hpc_kit.errors import JobFailed, SpecError

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet
    from hpc_kit.bench.start_jobs import Slurm

TITLE = "From the command to the first step"
PHASES = ("queue", "srun", "imports", "rendezvous", "model", "data", "step")
"""As first_step.py calls them; the queue's begins with the command line."""
COLUMNS = {**{phase: Column(unit="s") for phase in PHASES}, "total": Column(unit="s")}
COLUMNS["srun"] = Column(unit="s", title="srun (and torchrun)")
WAYS = ("hpc-kit", "hpc-kit torchrun", "plain srun", "plain torchrun")

PROGRAM = Path("train", "first_step.py")
"""Below the folder of the jobs."""


class Question(NamedTuple):
    """What is to be measured."""

    ranks: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    ways: tuple[str, ...] = WAYS
    nodes: int = 4
    """At most; fewer ranks than nodes have a node each."""
    repeats: int = 3
    timeout: float = 600.0
    """Seconds for one start."""


class Start(NamedTuple):
    """What one start took."""

    phases: dict[str, float]
    """Seconds."""
    apart: float | None = None
    """Seconds by which the clocks of the ranks differ at most; None: they did not tell."""
    ahead: float = 0.0
    """Seconds by which the nodes' clocks are ahead of this host's at least, where that is positive."""


def refuse(asked: Question) -> None:
    """Say what cannot be measured before anything is.

    Raises:
        SpecError: A way is none, or ranks do not divide over the nodes.
    """
    if unknown := [way for way in asked.ways if way not in WAYS]:
        raise SpecError(f"unknown way {unknown[0]!r}", found=",".join(asked.ways), remedy=",".join(WAYS))
    for number in asked.ranks:
        nodes = min(asked.nodes, number)
        if number % nodes:
            raise SpecError(
                "the ranks do not divide over the nodes",
                found=f"--ranks {number}, --nodes {asked.nodes}",
                remedy=f"--ranks {nodes * (number // nodes + 1)}",
            )


def measure(asked: Question, sheet: Sheet, slurm: Slurm) -> None:
    """A row for each number of ranks and way; what cannot start is noted.

    Raises:
        SpecError: A way is none, or ranks do not divide over the nodes.
    """
    refuse(asked)
    sheet.expect(len(asked.ranks) * len(asked.ways) * asked.repeats)
    for plot in plots(asked):
        sheet.plot(plot)
    every: list[Start] = []
    for number in asked.ranks:
        each = number // min(asked.nodes, number)
        if slurm.gpus and start_jobs.lacks_gpus(each, slurm):
            sheet.note(f"{number} ranks: {each} on a node of {slurm.gpus} GPUs, so they compute on CPUs.")
        for way, starts in _in_turns(asked, number, sheet, slurm).items():
            _tell_queues(sheet, f"{number} ranks, {way}", starts)
            every += starts
    _tell_clocks(sheet, every)


def plots(asked: Question) -> list[Plot]:
    """The phases of the most ranks; the whole over their number."""
    most = max(asked.ranks)
    whole = Plot(name="ranks", title=TITLE, x="ranks", y=("total",), series=("way",), log_x=True, x_title="ranks")
    title = f"{TITLE}: {most} ranks"
    return [Plot(name="phases", title=title, kind="stacked", x="way", y=PHASES, where={"ranks": most}), whole]


def _in_turns(asked: Question, number: int, sheet: Sheet, slurm: Slurm) -> dict[str, list[Start]]:
    """The starts of each way with so many ranks; a row after each."""
    nodes = min(asked.nodes, number)
    found: dict[str, list[Start]] = {way: [] for way in asked.ways}
    without: set[str] = set()
    for turn in range(asked.repeats):
        # What has failed once is not tried again: each may take as long as --timeout.
        for way in (each for each in asked.ways if each not in without):
            name = f"{number} ranks, {way}, start {turn + 1} of {asked.repeats}"
            sheet.doing(name)
            try:
                start = once(way, nodes, number // nodes, slurm, asked.timeout, Telling(sheet, name))
            except JobFailed as error:
                sheet.miss(name, str(error))
                without.add(way)
            else:
                found[way].append(start)
                _add(sheet, number, nodes, way, found[way])
    return found


def _add(sheet: Sheet, number: int, nodes: int, way: str, starts: list[Start]) -> None:
    """The row; where the queue's end is not known of every start, it is left to srun's phase in all of them."""
    without = any("queue" not in start.phases for start in starts)
    each = [_joined(start.phases) if without else start.phases for start in starts]
    values: dict[str, Any] = {
        phase: [phases[phase] for phases in each] for phase in PHASES if all(phase in phases for phases in each)
    }
    values["total"] = [sum(phases.values()) for phases in each]
    sheet.add({"ranks": number, "nodes": nodes, "way": way}, **values)


def _joined(phases: Mapping[str, float]) -> dict[str, float]:
    rest = {phase: seconds for phase, seconds in phases.items() if phase != "queue"}
    return {**rest, "srun": rest.get("srun", 0.0) + phases.get("queue", 0.0)}


def _tell_queues(sheet: Sheet, name: str, starts: list[Start]) -> None:
    if without := sum("queue" not in start.phases for start in starts):
        sheet.note(
            f"{name}: when the job's script began is not known of {without} of {len(starts)} starts (is the node's"
            " clock behind this host's?); srun's phase is from the command on."
        )


def _tell_clocks(sheet: Sheet, starts: list[Start]) -> None:
    """How far clocks were seen to differ: a phase from one host to another is no surer."""
    if told := [start.apart for start in starts if start.apart is not None]:
        sheet.note(f"The clocks of the ranks agree to within {quantity(max(told), 's', 2)}, and so do the phases.")
    if (ahead := max((start.ahead for start in starts), default=0.0)) > 0:
        sheet.note(f"The nodes' clocks are at least {quantity(ahead, 's', 2)} ahead: so much shorter is the queue.")


class Telling(NamedTuple):
    """How it is told what a start waits for, and what it leaves."""

    sheet: Sheet
    name: str

    def doing(self, what: str) -> None:
        """As a sheet's."""
        self.sheet.doing(f"{self.name}: {what}")

    def note(self, text: str) -> None:
        """As a sheet's."""
        self.sheet.note(f"{self.name}: {text}")


def once(way: str, nodes: int, each: int, slurm: Slurm, timeout: float, telling: Telling) -> Start:
    """One start. The job is gone when this returns, also by Ctrl-C.

    Raises:
        JobFailed: It was refused, never begins, ended without a step, or took too long.
    """
    with tempfile.TemporaryDirectory(dir=slurm.folder, prefix="start-") as name:
        folder = Path(name)
        site = None if way in start_jobs.JOB else start_jobs.site(way, nodes, each, slurm)
        begun = time.time()
        words = ["--submitted", repr(begun), "--to", str(folder / "found.json")]
        if site is None:
            argv = start_jobs.ours(way, nodes, each, slurm, words)
        else:
            file = folder / "by-hand.sbatch"
            file.write_text(by_hand.script(way, nodes, each, site, folder, [str(slurm.program), *words]))
            argv = ["sbatch", "--parsable", str(file)]
        with slurm_job.submitted(argv, slurm.environ, telling.note) as job:
            found = slurm_job.result(job, folder, slurm.environ, begun + timeout, telling.doing)
            apart = found.pop("clocks", None)
            return Start(found, apart, begun + sum(found.values()) - time.time())
