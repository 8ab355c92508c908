"""One job: submitted, waited for, gone when what it was for is over."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hpc_kit.bench.around import Held, all_that_is_held
from hpc_kit.errors import JobFailed
from hpc_kit.slurm.client import user_name
from hpc_kit.slurm.command_environment import query_environment, submit_environment
from hpc_kit.slurm.pending_reasons import explain_reason, is_user_limit, needs_intervention

_PAUSE = 0.05
QUEUE_PAUSE = 2.0
"""Seconds between two questions to Slurm."""
STUCK, STUCK_FOR_NODES = 10.0, 60.0
"""Seconds for which a reason that does not end by itself is given; nodes may come back."""
_TAKEN = re.compile("reserved for|nodes required", re.IGNORECASE)
"""Slurm says it of nodes that are down, and in the same words of those that other jobs hold, or will have next."""
_LEAVING = 60.0
"""Seconds in which a job leaves the queue."""


class NeverBegins(JobFailed):
    """The job waits for what no other job's end brings."""


class Waiting(NamedTuple):
    """A job as squeue shows it; a state of nothing is that of one that has left the queue."""

    state: str
    reason: str = ""
    partition: str = ""


def submit(argv: list[str], environ: Mapping[str, str]) -> str:
    """The id of the job that a command submits.

    Raises:
        JobFailed: It was refused.
    """
    # Ctrl-C at a terminal must not come between the submission and its id.
    begun = subprocess.Popen(
        argv,
        env=submit_environment(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complaint = begun.communicate()
    except KeyboardInterrupt:
        said, _ = begun.communicate()
        if match := _id(said):
            ask(["scancel", match], environ)
        raise
    if begun.returncode or not (job := _id(said)):
        raise JobFailed(
            "the job was not taken", found=(complaint or said).strip(), remedy="fewer --ranks or more --nodes"
        )
    return job


def _id(said: str) -> str:
    match = re.search(r"^(?:job\s+)?(\d+)", said, re.MULTILINE)
    return match[1] if match else ""


@contextmanager
def submitted(argv: list[str], environ: Mapping[str, str], note: Callable[[str], None]) -> Iterator[str]:
    """The job's id; at the end the job has left the queue, and where it has not, this is noted.

    Raises:
        JobFailed: It was refused.
    """
    job = submit(argv, environ)
    ended = False
    try:
        yield job
        ended = True
    finally:
        if not ended:
            ask(["scancel", job], environ)
        deadline = time.time() + _LEAVING
        while look(job, environ).state:
            if time.time() > deadline:
                note(f"Job {job} had not left the queue after {_LEAVING:.0f} s: scancel {job}")
                break
            time.sleep(QUEUE_PAUSE)


def result(
    job: str, folder: Path, environ: Mapping[str, str], deadline: float, doing: Callable[[str], None]
) -> dict[str, float]:
    """What rank 0 has left, as soon as it is there.

    Raises:
        NeverBegins: It waits for what does not end by itself.
        JobFailed: It ended without a step, or took too long.
    """
    found, looked = folder / "found.json", time.time()
    queue = _Queue(job, environ, doing)
    while not found.exists():
        if time.time() - looked > QUEUE_PAUSE:
            looked = time.time()
            if not queue.look() and not found.exists():
                log = folder / "log"
                said = log.read_text(errors="replace")[-1500:] if log.exists() else f"hpc-kit logs {job} --all"
                raise JobFailed(f"job {job} ended without a first step", found=said, remedy="its log")
        if time.time() > deadline:
            raise JobFailed(
                f"job {job} had no first step in time",
                found=queue.words(),
                remedy="a longer --timeout, which counts the time in the queue, too",
            )
        time.sleep(_PAUSE)
    told: dict[str, float] = json.loads(found.read_text())
    return told


class _Queue:
    """A job's way through the queue."""

    def __init__(self, job: str, environ: Mapping[str, str], doing: Callable[[str], None]) -> None:
        self._job, self._environ, self._doing = job, environ, doing
        self._now = Waiting("PENDING", "None")
        self._since = time.time()

    def look(self) -> bool:
        """Whether it is there still.

        Raises:
            NeverBegins: It waits for what does not end by itself.
        """
        now = look(self._job, self._environ)
        if now != self._now:
            self._now, self._since = now, time.time()
            if now.state == "PENDING":
                self._doing(f"waiting: {self.words()}")
        if now.state == "PENDING" and time.time() - self._since > self._patience():
            held = self._held()
            raise NeverBegins(
                f"job {self._job} does not begin",
                found=f"{self.words()}\n{held}" if held else self.words(),
                remedy=self._remedy(held),
            )
        return bool(now.state)

    def words(self) -> str:
        """What it is about."""
        if self._now.state != "PENDING":
            return self._now.state
        return f"PENDING ({self._now.reason}): {explain_reason(self._now.reason, self._job).sentence}"

    def _held(self) -> Held | None:
        """Why only the end of the job around this bench would let the job begin; None: other jobs' ends may."""
        return all_that_is_held(self._now.partition, self._environ, ask) if self._now.reason == "Resources" else None

    def _remedy(self, held: Held | None) -> str:
        if held:
            return "hpc-kit bench start, on the login node, where it holds nothing; or fewer --ranks"
        step = explain_reason(self._now.reason, self._job).next_step
        if is_user_limit(self._now.reason) and "SLURM_JOB_ID" in self._environ:
            return f"the job around this bench counts, too: hpc-kit bench start, on the login node\n{step}"
        return step

    def _patience(self) -> float:
        """Seconds for which such a reason is borne; without an end where it may end by itself."""
        reason = self._now.reason
        if _TAKEN.search(reason):
            return math.inf
        if needs_intervention(reason):
            return STUCK_FOR_NODES if re.match("ReqNode|.*Down|.*Inactive", reason) else STUCK
        mine = is_user_limit(reason) and not self._others_of_mine()
        return STUCK if mine or self._held() else math.inf

    def _others_of_mine(self) -> bool:
        """Whether a job of this user runs whose end may make room: neither this one nor the one around this bench."""
        own = {self._job, self._environ.get("SLURM_JOB_ID", "")}
        asked = ["squeue", "--noheader", f"--user={user_name()}", "--states=RUNNING,COMPLETING", "--format=%A"]
        done = ask(asked, self._environ)
        return done.returncode != 0 or bool(set(done.stdout.split()) - own)


def look(job: str, environ: Mapping[str, str]) -> Waiting:
    """As squeue says. A squeue that has no answer tells nothing of whether the job has left the queue."""
    done = ask(["squeue", "--noheader", f"--jobs={job}", "--format=%T|%r|%P"], environ)
    if done.returncode and "Invalid job id" not in done.stderr:
        return Waiting("UNKNOWN")
    state, _, rest = done.stdout.strip().partition("|")
    reason, _, partition = rest.rpartition("|")
    return Waiting(state, reason, partition)


def ask(argv: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing of the job around it and no filter of the user's."""
    return subprocess.run(
        argv, env=query_environment(submit_environment(environ)), capture_output=True, text=True, check=False
    )
