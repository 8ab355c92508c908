"""Injects one fault into a running job with [restart], waits for the end of the job, and checks all of its steps."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hpc_kit.run_files import END
from hpc_kit.runtime.restart import checkpoint_folder
from hpc_kit.runtime.restart.attempts import LOCK
from hpc_kit.script.render import render
from tests.cluster import Cluster
from tests.faults import training
from tests.faults.queues import Queue, RealQueue

STEPS = 40
RENDERING = threading.Lock()
PATIENCE = 240.0
"""Seconds without a new step after which a job counts as lost."""

LOOK = 10.0
"""Seconds between two questions to Slurm while a trial waits."""

LATE = 1.0
"""Seconds that a fault may need to reach a rank, in addition to the seconds of the command that causes it."""

Inject = Callable[["Trial"], object]


class FaultNotSurvived(AssertionError):
    """The training did not reach its last step, or has wrong losses, or something is left over."""


class KilledBeforeFirstLine(Exception):
    """A signal ended bash before it had read the first line of the batch script, which sets the trap.

    No script can prevent this. Slurm counts the job as failed.
    """


class Program(NamedTuple):
    """A training that gets faults.

    Attributes:
        name: A short name.
        file: The program. Each rank appends `attempt step loss time` to a file in `losses`.
        ranks: Number of its ranks.
        settings: Values of the job, by dotted key.
        env: Variables of the training.
        damaged: Returns the checkpoints in a folder that cannot be read.
    """

    name: str
    file: str
    ranks: int
    settings: Mapping[str, object]
    env: Mapping[str, str] = MappingProxyType({})
    damaged: Callable[[Path], list[Path]] = lambda _: []


def damaged_saves(folder: Path) -> list[Path]:
    """Return the damaged files of the series."""
    return [path for path in folder.glob("rank-*") if training.read_save(path) is None]


def damaged_checkpoints(folder: Path) -> list[Path]:
    """Return the damaged checkpoints of `hpc_kit.Checkpointer`."""
    saved, damages = checkpoint_folder.list_checkpoints(folder)
    wrong = [path for path, info in saved if checkpoint_folder.verify_checksums(path, info, 0, 1)]
    return [*damages, *wrong]


SERIES = Program(
    "series",
    training.__file__,
    4,
    {"resources.nodes": 2, "resources.ntasks_per_node": 2},
    damaged=damaged_saves,
)
DDP = Program(
    "ddp",
    str(Path(__file__).with_name("ddp.py")),
    2,
    {"resources.nodes": 2, "resources.ntasks_per_node": 1},
    damaged=damaged_checkpoints,
)
TORCHRUN = DDP._replace(
    name="torchrun", ranks=4, settings={**DDP.settings, "launch.launcher": "torchrun", "launch.nproc_per_node": 2}
)
PLAIN = TORCHRUN._replace(name="plain", env={"SAVER": "plain"}, damaged=lambda _: [])
"""A program of torchrun that saves on the signal, without `hpc_kit.Checkpointer`."""


class Kind(NamedTuple):
    """One kind of fault.

    Attributes:
        name: Its name in the table.
        inject: Does the damage; runs at a random step of the training.
        env: Variables of the training.
        settings: Values of the job, by dotted key.
        options: Options of sbatch.
        early: Inject at a random moment of the start of the program, before its first step.
        limited: The job has a time limit and a lead that allow several steps in each attempt, and not all.
        attempts: Attempts that the job needs; 0: two or more, which depends on the speed of the machine.
        program: The training.
        small_disk: Its checkpoints have a file system of their own of 1 MiB (root).
        standalone: The script calls no shell files.
    """

    name: str
    inject: Inject
    env: Mapping[str, str] = MappingProxyType({})
    settings: Mapping[str, object] = MappingProxyType({})
    options: tuple[str, ...] = ()
    early: bool = False
    limited: bool = False
    attempts: int = 2
    program: Program = SERIES
    small_disk: bool = False
    standalone: bool = False


class Outcome(NamedTuple):
    """The measured end of one fault."""

    kind: str
    seconds: float | None
    """From the fault to the first step of the next attempt."""

    repeated: int
    """Steps that were computed again, of the rank with the most."""

    attempts: int = 2
    late: bool = False
    """The fault came after the last step, so that one attempt was enough."""


class Undisturbed(NamedTuple):
    """A job without a fault."""

    losses: list[dict[int, str]]
    """Losses of each rank, by step."""

    start: float
    """Seconds from the start of the batch script to the first step."""

    end: float
    """Seconds from the last step to the end of the job."""


class Trial:
    """One job, and the fault that it gets."""

    def __init__(self, queue: Queue, kind: Kind, chance: random.Random, number: int) -> None:
        self.queue, self.kind, self.chance, self.number = queue, kind, chance, number
        self.folder = queue.folder / f"trial{number}"
        self.job_id = self.run = ""
        self.ranks = kind.program.ranks
        self.limits: Mapping[str, object] = {}
        self.began = self.delivered = 0.0
        """Begin and end of the command that causes the fault; of the last one, if it has several."""

    def survive(self) -> Outcome:
        """Run the job with its fault.

        Raises:
            FaultNotSurvived: With the logs of the job.
            KilledBeforeFirstLine: The trial shows nothing.
        """
        if self.kind.limited:
            # The machine may be slower now than at the first job.
            self.limits = time_limits(run_undisturbed(self.queue, self.kind.program, self.number), self.queue.minute)
        try:
            return self._run_once()
        finally:
            self._unmount()

    def _run_once(self) -> Outcome:
        undisturbed = reference(self.queue, self.kind.program)
        self._submit()
        at_step = self.chance.randint(1, STEPS // 2)
        if self.kind.early:
            self._await((self.run_folder / "history").exists, "no attempt began")
            time.sleep(self.chance.random() * undisturbed.start)
        else:
            self._await(lambda: len(self._rows(0)) >= at_step, f"step {at_step} was not reached")
            time.sleep(self.chance.random() * 0.2)
        self.began = self.delivered = time.time()
        self.kind.inject(self)
        self._await(self._has_ended, "the job did not end")
        outcome = self._check(undisturbed)
        if outcome.attempts == 1 and self.kind.attempts > 1 and self._came_late():
            return outcome._replace(late=True)
        if outcome.attempts < 2 or self.kind.attempts not in {0, outcome.attempts}:
            raise self._failure(f"{outcome.attempts} attempts instead of {self.kind.attempts or 'two or more'}")
        return outcome

    def _came_late(self) -> bool:
        """Return whether the training may have done its last step before the fault reached it."""
        slowness = self.delivered - self.began
        return self._last_step() < self.delivered + slowness + LATE

    def _last_step(self) -> float:
        return max(float(rows[-1][3]) for rank in range(self.ranks) if (rows := self._rows(rank)))

    def run_undisturbed(self) -> Undisturbed:
        """Run the job without a fault."""
        self._submit()
        self._await(self._has_ended, "the job did not end")
        end = time.time()
        rows = [self._rows(rank) for rank in range(self.ranks)]
        losses = [{int(row[1]): row[2] for row in each} for each in rows]
        if any(len(each) != STEPS for each in losses):
            raise self._failure("the undisturbed training left out steps")
        first = max(float(each[0][3]) for each in rows)
        return Undisturbed(losses, first - self.history()[0]["time"], end - self._last_step())

    # What faults use

    @property
    def run_folder(self) -> Path:
        """The run folder of the job."""
        return self.folder / "runs" / "job" / self.run

    def process(self, rank: int) -> tuple[int, int, str]:
        """Return process, parent process and host of a rank."""
        pid, parent, host = self._file("losses", f"process-{rank}").read_text().split(" ")
        return int(pid), int(parent), host

    def call(self, *argv: str) -> None:
        """Run a command of Slurm, with the id of the job in place of JOB."""
        self.began = time.time()
        self.queue.call(*(word.replace("JOB", self.job_id) for word in argv))
        self.delivered = time.time()

    def kill(self, pid: int, number: int) -> None:
        """Signal a process of the job."""
        self.began = self.delivered = time.time()
        self.queue.kill(pid, number)

    def newest_save(self, rank: int) -> Path:
        """Return the newest save of a rank."""
        self._await(lambda: self.saves(rank).files(), "nothing was saved")
        return self.saves(rank).files()[-1]

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints of `hpc_kit.Checkpointer`, the newest first."""
        return [saved.path for saved in checkpoint_folder.list_checkpoints(self.folder / "saved")[0]]

    def saves(self, rank: int) -> training.Saves:
        """Return the saves of a rank."""
        return training.Saves(self._file("saved"), rank)

    def wait(self, happened: Callable[[], object], what: str) -> None:
        """Wait for something that the fault needs."""
        self._await(happened, what)

    # The job

    def _unmount(self) -> None:
        if self.kind.small_disk:
            subprocess.run(["umount", "--lazy", self.folder / "saved"], capture_output=True, check=False)

    def _submit(self) -> None:
        self._unmount()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.kind.small_disk:
            (self.folder / "saved").mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", self.folder / "saved"], check=True)
        (self.folder / "runs" / "job").mkdir(parents=True)
        (self.folder / "jobs").mkdir()
        (self.folder / "jobs" / "job.toml").write_text('command = ["true"]\n')
        restart = {"resume_args": ["--resume"], "progress": "saved", "lead": 60}
        program = self.kind.program
        settings: dict[str, object] = {
            "command": [sys.executable, program.file], "restart": restart, "env.STEPS": str(STEPS),
            "resources.mem": "2G", "resources.time": "300", "resources.cpus_per_task": 1,
            "resources.chdir": str(self.folder),
        }  # fmt: skip
        settings |= {f"env.{name}": value for name, value in {**program.env, **self.kind.env}.items()}
        settings |= {**program.settings, **self.kind.settings, **self.limits}
        if "resources.array" in settings:
            settings["restart"] = {**restart, "progress": "saved0"}
        with RENDERING:
            text = render(
                "job", self.queue.kit_cluster, set=settings, root=self.folder, standalone=self.kind.standalone
            )
        (self.folder / "job.sbatch").write_text(text)
        done = self.queue.call("sbatch", "--parsable", *self.kind.options, str(self.folder / "job.sbatch"))
        if done.returncode:
            raise FaultNotSurvived(done.stderr)
        self.job_id = done.stdout.strip().partition(";")[0]
        self.run = self.job_id + "_0" * ("resources.array" in settings)

    def _file(self, folder: str, *names: str) -> Path:
        index = "0" if self.run.endswith("_0") else ""
        return Path(self.folder, f"{folder}{index}", *names)

    def _rows(self, rank: int) -> list[list[str]]:
        try:
            text = self._file("losses", f"rank-{rank}").read_text()
        except FileNotFoundError:
            return []
        return [line.split() for line in text.splitlines() if line.count(" ") == 3]

    def history(self) -> list[dict[str, Any]]:
        """Return the events of the job."""
        try:
            return [json.loads(line) for line in (self.run_folder / "history").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def _has_ended(self) -> bool:
        events = self.history()
        ends = [event for event in events if event.get("decision") in {"finished", "failed", "gave_up"}]
        if not ends or not (self.run_folder / END).exists():
            return False
        # Slurm requeues a job after the loss of a node, even if its batch script has ended.
        return not self._is_active(events[-1]["job_id"])

    def _is_active(self, job_id: str) -> bool:
        return self.queue.state(job_id) in {"PENDING", "RUNNING", "COMPLETING"}

    def _await(self, happened: Callable[[], object], what: str) -> None:
        """Wait as long as the training advances.

        Raises:
            FaultNotSurvived: It does not advance, or the job has ended.
            KilledBeforeFirstLine: See there.
        """
        done, deadline, look = -1, 0.0, time.monotonic() + LOOK
        while not happened():
            steps = len({row[1] for row in self._rows(0)})
            if steps > done:
                done, deadline = steps, time.monotonic() + PATIENCE
            if time.monotonic() > look:
                look = time.monotonic() + LOOK
                if self._was_killed_before_first_line():
                    raise KilledBeforeFirstLine
            if time.monotonic() > deadline or (self._has_ended() and not happened()):
                raise self._failure(what)
            time.sleep(0.05)

    def _was_killed_before_first_line(self) -> bool:
        job = self.queue.call("scontrol", "show", "job", self.job_id).stdout
        starts = sum(event["event"] == "start" for event in self.history())
        return f"ExitCode=0:{signal.SIGUSR1:d}\n" in job and f"Restarts={starts} " in job

    def _failure(self, what: str) -> FaultNotSurvived:
        last = self._last_step() - self.delivered if self._rows(0) else math.nan
        parts = [f"{what}; the last step was {last:.2f} s after the fault"]
        parts += [json.dumps(event) for event in self.history()]
        for path in sorted((self.folder / "runs" / "job").rglob("*.log")):
            parts += [f"== {path.name}", path.read_text()[-1500:]]
        parts.append(self.queue.call("scontrol", "show", "job", self.job_id).stdout)
        return FaultNotSurvived("\n".join(parts))

    def _check(self, undisturbed: Undisturbed) -> Outcome:
        """Check the losses, the saves, and that nothing is left over."""
        repeated = 0
        for rank, expected in enumerate(undisturbed.losses):
            rows = self._rows(rank)
            if wrong := [row for row in rows if expected.get(int(row[1])) != row[2]]:
                raise self._failure(f"rank {rank} computed a wrong loss: {wrong[0]}")
            steps = [int(row[1]) for row in rows]
            if set(steps) != expected.keys():
                raise self._failure(f"rank {rank} left out steps {sorted(expected.keys() - set(steps))}")
            repeated = max(repeated, len(steps) - len(expected))
        if damaged := self.kind.program.damaged(self._file("saved")):
            raise self._failure(f"{damaged[0]} is damaged")
        if left := self._leftovers():
            raise self._failure(f"left over: {'; '.join(left)}")
        attempts = [event["attempt"] for event in self.history() if event["event"] == "start"]
        rows_of_all = (row for rank in range(self.ranks) for row in self._rows(rank))
        later = [float(row[3]) for row in rows_of_all if int(row[0]) == attempts[-1] > 1]
        return Outcome(self.kind.name, min(later) - self.began if later else None, repeated, attempts[-1])

    def _leftovers(self) -> list[str]:
        """Return the processes and jobs of this trial that still run, and the drafts of checkpoints."""
        left = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.fsencode(self.folder / "runs") in (process / "environ").read_bytes():
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    left.append(f"process {process.name}: {words}")
        jobs = {str(event["job_id"]) for event in self.history()}
        left += [f"job {job_id}" for job_id in sorted(jobs) if self._is_active(job_id)]
        return left + [str(path) for path in self._file("saved").glob(".*") if path.name != LOCK]


def time_limits(undisturbed: Undisturbed, minute: float) -> dict[str, object]:
    """Return the settings of a job of two attempts, which have time for a slow start, for some steps and a slow stop.

    Args:
        undisturbed: A job of the same training, just before.
        minute: Seconds of a minute of this Slurm.
    """
    lead = 5 + 2 * (undisturbed.start + undisturbed.end)
    minutes = math.ceil((lead + 5 + 5 * undisturbed.start) / minute)
    until_signal = minutes * minute - lead
    return {
        "resources.time": str(minutes),
        "restart.lead": math.ceil(lead / minute * 60),
        "env.SECONDS_A_STEP": f"{1.3 * until_signal / STEPS:.2f}",
    }


def run_undisturbed(queue: Queue, program: Program, number: int) -> Undisturbed:
    """Run a job without a fault."""
    kind = Kind("none", nothing, {"SECONDS_A_STEP": "0.02"}, program=program)
    return Trial(queue, kind, random.Random(1), 10**6 + number).run_undisturbed()


REFERENCE = threading.Lock()
_references: dict[tuple[Path, str], Undisturbed] = {}


def reference(queue: Queue, program: Program) -> Undisturbed:
    """Return the job without a fault to which all others are compared. It runs once for each queue and program."""
    key = queue.folder, program.name
    with REFERENCE:
        if key not in _references:
            _references[key] = run_undisturbed(queue, program, 10**6 + len(_references))
        return _references[key]


# The kinds


def signal_batch(trial: Trial) -> None:
    trial.call("scancel", "--signal=USR1", "--batch", "JOB")


def signal_twice(trial: Trial) -> None:
    signal_batch(trial)
    time.sleep(trial.chance.random() * 0.2)
    signal_batch(trial)


def signal_often(trial: Trial) -> None:
    """Send signals also during the requeue and the start of the next attempts."""
    end = time.monotonic() + 4
    while time.monotonic() < end:
        signal_batch(trial)


def signal_in_save(trial: Trial) -> None:
    trial.wait(trial.saves(0).draft.exists, "no save began")
    signal_batch(trial)


def kill_rank(trial: Trial, number: int = signal.SIGKILL, rank: int | None = None) -> None:
    chosen = trial.chance.randrange(trial.ranks) if rank is None else rank
    trial.kill(trial.process(chosen)[0], number)


def kill_all(trial: Trial) -> None:
    for rank in range(trial.ranks):
        kill_rank(trial, rank=rank)


def kill_shell(trial: Trial) -> None:
    """Kill the shell around a rank, and the rank."""
    pid, parent, _ = trial.process(trial.chance.randrange(trial.ranks))
    trial.kill(parent, signal.SIGKILL)
    trial.kill(pid, signal.SIGKILL)


def damage_save(trial: Trial) -> None:
    trial.newest_save(1).write_text("not a save\n")
    kill_rank(trial)


def cut_save(trial: Trial) -> None:
    path = trial.newest_save(0)
    os.truncate(path, path.stat().st_size // 2)
    kill_rank(trial)


def fill_disk(trial: Trial) -> None:
    """Let the last save before the stop fail, as on a full disk."""
    drafts = [trial.saves(rank).draft for rank in range(trial.ranks)]
    for draft in drafts:
        draft.unlink(missing_ok=True)
        draft.symlink_to("/dev/full")
    time.sleep(0.5)
    signal_batch(trial)
    trial.wait(lambda: any(event["event"] == "end" for event in trial.history()), "the attempt did not end")
    for draft in drafts:
        draft.unlink(missing_ok=True)


def signal_in_evaluation(trial: Trial) -> None:
    trial.wait((trial.folder / "evaluating").exists, "no evaluation began")
    signal_batch(trial)


def cut_checkpoint(trial: Trial) -> None:
    trial.wait(lambda: len(trial.checkpoints()) > 1, "no second checkpoint was saved")
    parts = [path for path in trial.checkpoints()[0].iterdir() if path.suffix == ".distcp"]
    os.truncate(parts[0], parts[0].stat().st_size // 2)
    kill_rank(trial)


def fill_small_disk(trial: Trial) -> None:
    """Fill the disk of the checkpoints, and free it after the attempt."""
    ballast = trial.folder / "saved" / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    signal_batch(trial)
    trial.wait(lambda: any(event["event"] == "end" for event in trial.history()), "the attempt did not end")
    ballast.unlink()


def call(*argv: str) -> Inject:
    """A fault that is a command of Slurm; JOB is the id of the job."""
    return lambda trial: trial.call(*argv)


def nothing(_: Trial) -> None:
    """The fault comes from the settings of the job."""


REQUEUE = ("scontrol", "requeue", "JOB")

ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

ANYWHERE = [
    Kind("stop signal to the batch shell", signal_batch),
    Kind("stop signal to the steps", call("scancel", "--signal=USR1", "JOB")),
    Kind("SIGTERM to all", call("scancel", "--signal=TERM", "--full", "JOB")),
    Kind("two stop signals in a row", signal_twice, attempts=0),
    Kind("stop signals for four seconds", signal_often, attempts=0),
    Kind("stop signal before the first step", signal_batch, early=True),
    Kind("stop signal during a save", signal_in_save, {"SAVE_SECONDS": "0.3"}),
    Kind("stop signal, no handler in the program", signal_batch, {"HANDLED": "USR2"}),
    Kind("stop signal, the program ends with 0", signal_batch, {"CODE": "0"}),
    Kind("stop signal to an element of an array", call("scancel", "--signal=USR1", "--batch", "JOB_0"),
         settings={"resources.array": "0-0"}),
    Kind("kill -9 of a rank", kill_rank),
    Kind("kill -9 of rank 0", lambda trial: kill_rank(trial, rank=0)),
    Kind("kill -9 of all ranks", kill_all),
    Kind("kill -9 of a rank and its shell", kill_shell),
    Kind("SIGABRT of a rank", lambda trial: kill_rank(trial, signal.SIGABRT)),
    Kind("requeue by an administrator", call(*REQUEUE)),
    Kind("disk full during the save", fill_disk),
    Kind("newest checkpoint overwritten", damage_save),
    Kind("newest checkpoint cut short", cut_save),
    Kind("requeue not allowed", signal_batch, options=("--no-requeue",)),
    Kind(
        "stop signal under mpirun",
        signal_batch,
        ALLOW_ROOT,
        settings={"launch.launcher": "mpirun", "resources.nodes": 1, "resources.ntasks_per_node": 4},
    ),
    Kind("ddp: stop signal to the batch shell", signal_batch, program=DDP),
    Kind("ddp: stop signal to the steps", call("scancel", "--signal=USR1", "JOB"), program=DDP),
    Kind("ddp: stop signal during the start", signal_batch, early=True, program=DDP),
    Kind("ddp: stop signal during an evaluation", signal_in_evaluation, {"EVALUATION_SECONDS": "1"}, program=DDP),
    Kind("ddp: SIGTERM to all", call("scancel", "--signal=TERM", "--full", "JOB"), program=DDP),
    Kind("ddp: requeue by an administrator", call(*REQUEUE), program=DDP),
    Kind("ddp: kill -9 of a rank", kill_rank, program=DDP),
    Kind("ddp: kill -9 of a rank and its shell", kill_shell, program=DDP),
    Kind("ddp: newest checkpoint cut short", cut_checkpoint, program=DDP),
    Kind("torchrun: stop signal to the batch shell", signal_batch, program=TORCHRUN),
    Kind("torchrun: SIGTERM to all", call("scancel", "--signal=TERM", "--full", "JOB"), program=TORCHRUN),
    Kind("torchrun: kill -9 of a rank", kill_rank, program=TORCHRUN),
    Kind("standalone script: kill -9 of a rank", kill_rank, standalone=True),
    Kind("torchrun in a standalone script: kill -9 of a rank", kill_rank, program=TORCHRUN, standalone=True),
    Kind("torchrun: stop signal, without Checkpointer", signal_batch, program=PLAIN),
    Kind("torchrun: stop signal to the steps, without Checkpointer", call("scancel", "--signal=USR1", "JOB"),
         program=PLAIN),
    Kind("torchrun: stop signal to the steps, no handler in the program", call("scancel", "--signal=USR1", "JOB"),
         {"HANDLED": ""}, program=PLAIN),
]  # fmt: skip
"""Faults that both Slurms have."""

EMBEDDED = [
    *ANYWHERE,
    Kind("time limit", nothing, limited=True, attempts=0),
    Kind("time limit, the program ignores the signal", signal_batch, {"IGNORED": "1", "STEPS": "40"},
         settings={"restart.lead": 2}),
    Kind("kill -9 of a rank, with a spare node", kill_rank, settings={"restart.spares": 1}),
    Kind("ddp: time limit", nothing, limited=True, attempts=0, program=DDP),
    *[Kind("ddp: full disk", fill_small_disk, program=DDP, small_disk=True)] * (os.geteuid() == 0),
]  # fmt: skip


def real_cluster(trial: Trial) -> Cluster:
    """Return the real Slurm of a trial."""
    assert isinstance(trial.queue, RealQueue)
    return trial.queue.cluster


def preempt(trial: Trial) -> None:
    words = ("--partition=high", "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 3")
    trial.call("sbatch", *words)


def lose_node(trial: Trial, rank: int = -1) -> None:
    cluster, host = real_cluster(trial), trial.process(rank % trial.ranks)[2]
    cluster.lose(host)
    trial.wait(lambda: any(event["attempt"] > 1 for event in trial.history()), "the job did not start again")


def kill_slurmd(trial: Trial) -> None:
    cluster = real_cluster(trial)
    cluster.stop(trial.process(3)[2], "slurmd")
    kill_rank(trial)


def restart_controller(trial: Trial) -> None:
    """Stop the controller, so that the requeue has to wait."""
    cluster = real_cluster(trial)
    signal_batch(trial)
    cluster.send_signal("ctl", "slurmctld", signal.SIGTERM)
    time.sleep(5)
    cluster.repair_daemons()


REAL = [
    *ANYWHERE,
    Kind("time limit", nothing, limited=True, attempts=0),
    Kind("preemption", preempt),
    Kind("loss of a node", lose_node, {"SECONDS_A_STEP": "0.4"}),
    Kind("loss of the node of the batch script", lambda trial: lose_node(trial, 0), {"SECONDS_A_STEP": "0.4"}),
    Kind("loss of a node, with a spare node", lose_node, {"SECONDS_A_STEP": "0.4"}, {"restart.spares": 1}),
    Kind("kill -9 of a rank, with a spare node", kill_rank, settings={"restart.spares": 1}),
    Kind("kill -9 of slurmd and of a rank, with a spare node", kill_slurmd, settings={"restart.spares": 1}),
    Kind("kill -9 of slurmd and of a rank", kill_slurmd),
    Kind("restart of slurmctld during the requeue", restart_controller),
    Kind("ddp: loss of a node", lose_node, {"SECONDS_A_STEP": "0.4"}, program=DDP),
    *(
        Kind(f"{program.name}: time limit", nothing, limited=True, attempts=0, program=program)
        for program in (DDP, TORCHRUN, PLAIN)
    ),
]  # fmt: skip
