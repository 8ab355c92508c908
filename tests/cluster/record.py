"""Records the output of squeue, sacct, scontrol and sinfo: `python -m tests.cluster.record`.

Writes one file per moment into tests/slurm/recorded/: {slurm_version, moment, jobs: {name: id}, answers: [{argv,
returncode, stdout, stderr}]}, the output as lists of lines. A job's name describes the actions on it.
"""

from __future__ import annotations

import functools
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.slurm import job_status

from . import Cluster, Settings
from .moments import Job, load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DESTINATION = Path(__file__).parents[1] / "slurm" / "recorded"

FIXED = (
    ["sinfo", "--version"],
    ["sinfo"],
    ["sinfo", "--Node", "--long"],
    ["sinfo", "--noheader", "--format=%P|%a|%l|%D|%T|%N|%c|%m|%G"],
    ["scontrol", "show", "partition"],
    ["scontrol", "show", "node"],
    ["scontrol", "show", "config"],
    ["scontrol", "ping"],
)
"""Commands that run once, while jobs wait and run and a node is drained."""


SHOWN = ("timeout", "completed", "array-exits-index", "het", "running", "running-array", "array-waiting")
"""Jobs for which scontrol runs separately."""


class Recorder:
    """Runs the jobs of one moment after the other, and records the answers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.jobs: dict[str, str] = {}
        self.version = self.call("sinfo", "--version").split()[1]

    def call(self, *argv: str) -> str:
        """Return the output of a command that must succeed."""
        return self.cluster.run(argv, check=True).stdout

    def play(self, jobs: Sequence[Job]) -> None:
        """Submit jobs, and apply the actions of each job."""
        for job in jobs:
            self.jobs[job.name] = self._submit(job)
        for job in jobs:
            if job.then:
                self._until(functools.partial(self._is, job.name, job.when), f"{job.name} {job.when}")
                for line in job.then:
                    self.call(*line.format_map(self.jobs).split())
        for job in jobs:
            self._until(functools.partial(self._is, job.name, job.reaches), f"{job.name} {job.reaches}")

    def record(self, moment: str, ids: Sequence[str]) -> None:
        """Record all listings of these jobs."""
        listed = f"--jobs={','.join(ids)}"
        single = [job_id for name, job_id in self.jobs.items() if job_id in ids and name in SHOWN]
        questions = [
            ["squeue"],
            ["squeue", "--long", "--array", "--states=all"],
            ["squeue", "--steps"],
            ["squeue", "--start"],
            job_status.squeue_argv(list(ids)),
            job_status.squeue_argv(None),
            job_status.queue_argv(),
            ["sacct"],
            ["sacct", "--duplicates", "--parsable2", listed, "--format=JobID,State,ExitCode,DerivedExitCode,Start,End"],
            job_status.sacct_argv(list(ids)),
            [word for word in job_status.sacct_argv(list(ids)) if word != "--allocations"],
            job_status.scontrol_job_argv(None),
            *(job_status.scontrol_job_argv(job_id) for job_id in single),
            *(FIXED if moment == "waiting" else ()),
        ]
        content = {
            "slurm_version": self.version,
            "moment": moment,
            "jobs": {name: job_id for name, job_id in self.jobs.items() if job_id in ids},
            "answers": [self._asked(argv) for argv in questions],
        }
        DESTINATION.mkdir(parents=True, exist_ok=True)
        path = DESTINATION / f"{moment}@{self.version.rpartition('.')[0]}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(path.name, flush=True)

    def forget(self) -> None:
        """Make slurmctld remove the jobs that have ended."""
        conf = self.cluster.settings.conf
        conf.write_text(conf.read_text() + "MinJobAge=2\n")
        self.call("scontrol", "reconfigure")
        self._until(lambda: not self.call("squeue", "--noheader", "--states=all"), "jobs forgotten", patience=180)

    def _submit(self, job: Job) -> str:
        return self.call(*job.argv(self.jobs)).strip()

    def _is(self, name: str, wanted: str) -> bool:
        """Return whether state and reason of a job, or of one element of an array, begin with the expected text."""
        asked = ["squeue", "--noheader", "--states=all", f"--jobs={self.jobs[name]}", "--format=%T %r"]
        return any(row.startswith(wanted) for row in self.call(*asked).splitlines())

    def await_accounting(self) -> None:
        """Wait until the accounting contains the jobs; it is seconds late."""
        ids = ",".join(self.jobs.values())
        listed = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={ids}", "--format=End,State")
        self._until(lambda: "Unknown|RUNNING" not in self.call(*listed), "jobs booked")

    def _until(self, answers: Callable[[], bool], what: str, patience: float = 120) -> None:
        deadline = time.monotonic() + patience
        while not answers():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{what}: not within {patience:.0f} s\n{self.call('squeue', '--states=all', '--long')}"
                )
            time.sleep(0.5)

    def _asked(self, argv: list[str]) -> dict[str, object]:
        done = self.cluster.run(argv)
        return {
            "argv": argv,
            "returncode": done.returncode,
            "stdout": self._scrub(done.stdout).split("\n"),
            "stderr": self._scrub(done.stderr).split("\n"),
        }

    def _scrub(self, text: str) -> str:
        text = text.replace(str(self.cluster.settings.work), "/shared").replace(
            str(self.cluster.settings.root), "/slurm"
        )
        return re.sub(r"OS=Linux .*|Linux \S+ #.*", "OS=Linux 6.1.0 #1 SMP", text)


def main() -> None:
    """Record three moments: waiting and running jobs, ended jobs, and ended jobs that slurmctld has removed."""
    moments = load()
    cluster = Cluster(Settings(name="record"))
    cluster.down()
    cluster.up()
    try:
        recorder = Recorder(cluster)
        recorder.play(moments["ended"])
        recorder.await_accounting()
        ended = list(recorder.jobs.values())
        recorder.record("ended", ended)
        recorder.play(moments["waiting"])
        recorder.record("waiting", [job_id for job_id in recorder.jobs.values() if job_id not in ended])
        recorder.call("scancel", "--user=root")
        recorder.forget()
        recorder.record("forgotten", ended[:3])
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
