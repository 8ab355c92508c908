"""A fake Slurm of shell scripts on PATH. It records each call, and a test sets the answers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

from hpc_kit.slurm.client import SlurmClient, user_name
from hpc_kit.slurm.job_status import QUEUE_FIELDS, SQUEUE_FIELDS

SBATCH = """#!/bin/bash
printf '%s\\n' "$@" >"$FAKE/sbatch.argv"
pwd >"$FAKE/sbatch.cwd"
env -0 >"$FAKE/sbatch.environ"
[ -f "$FAKE/sbatch.hook" ] && . "$FAKE/sbatch.hook"
if [ -f "$FAKE/sbatch.error" ]; then cat "$FAKE/sbatch.error" >&2; exit 1; fi
id=$(( $(cat "$FAKE/last" 2>/dev/null || echo 11) + 1 ))
echo "$id" >"$FAKE/last"
cp -- "${!#}" "$FAKE/$id.script"
echo "${!#}" >"$FAKE/$id.path"
ls -R "$(dirname -- "${!#}")/.." >"$FAKE/$id.folders"
echo "Submitted batch job $id"
"""

SQUEUE = """#!/bin/bash
printf '%s\\n' "$*" >>"$FAKE/squeue.calls"
[ -f "$FAKE/squeue.error" ] && { cat "$FAKE/squeue.error" >&2; exit 1; }
case "$*" in
  *%o*)
    state=$(cat "$FAKE/state" 2>/dev/null || echo PENDING)
    for path in "$FAKE"/*.path; do id=${path##*/}; echo "${id%.path}|$state|$(cat "$path")"; done ;;
  *%Q*) cat "$FAKE/squeue.queue" 2>/dev/null; true ;;
  *) cat "$FAKE/squeue.rows" 2>/dev/null; true ;;
esac
"""

SACCT = """#!/bin/bash
echo call >>"$FAKE/sacct.calls"
echo "Slurm accounting storage is disabled" >&2
exit 1
"""

SCONTROL = """#!/bin/bash
case "$*" in
  *config*) echo "MaxArraySize            = $(cat "$FAKE/max_array_size" 2>/dev/null || echo 1001)"
    echo "MinJobAge               = $(cat "$FAKE/min_job_age" 2>/dev/null || echo 300) sec" ;;
  *) cat "$FAKE/scontrol.out" 2>/dev/null || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; } ;;
esac
"""

SCANCEL = """#!/bin/bash
printf '%s\\n' "$*" >>"$FAKE/scancel.calls"
"""

SINFO = """#!/bin/bash
cat "$FAKE/sinfo.out" 2>/dev/null
"""

COMMANDS = {
    "sbatch": SBATCH, "squeue": SQUEUE, "sacct": SACCT, "scontrol": SCONTROL, "scancel": SCANCEL, "sinfo": SINFO,
}  # fmt: skip


class FakeSlurm:
    """The scripts, and the folder of what they note and answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for name, text in COMMANDS.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {**environ, "PATH": f"{self.bin}:{environ['PATH']}", "FAKE": str(self.folder)}

    def client(self, environ: Mapping[str, str]) -> SlurmClient:
        return SlurmClient(self.environ(environ), embedded=True)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def sbatch_environ(self) -> dict[str, str]:
        pairs = (pair.partition("=") for pair in self.read("sbatch.environ").split("\0") if pair)
        return {name: value for name, _, value in pairs}

    def queue(self, *rows: str) -> None:
        """Rows `id state [reason]` for squeue."""
        self.write("squeue.rows", "".join(queue_row(*row.split()) for row in rows))
        self.write("squeue.queue", "".join(queue_row(*row.split(), everybody=True) for row in rows))

    def job(self, job_id: str, state: str, exit_code: str = "0:0", nodes: str = "n[1-2]") -> None:
        """What scontrol shows of one job."""
        text = (
            f"JobId={job_id} JobName=job UserId={user_name()}(1000) GroupId=ada(1000) MCS_label=N/A\n"
            f"   JobState={state} Reason=None Dependency=(null)\n   Requeue=1 Restarts=0 ExitCode={exit_code}\n"
            f"   RunTime=00:00:10 TimeLimit=00:10:00\n   SubmitTime={now()}\n"
            f"   StartTime=2026-01-01T12:00:01 EndTime=2026-01-01T12:00:11\n   Partition=main\n   NodeList={nodes}\n"
        )
        self.write("scontrol.out", text)


def now() -> str:
    """When a job that is asked for was submitted: not before its record was written."""
    return dt.datetime.now().isoformat(timespec="seconds")  # noqa: DTZ005 - as Slurm tells it


def queue_row(job_id: str, state: str, reason: str = "None", *, everybody: bool = False, **fields: str) -> str:
    moment = "2026-01-01T12:00:{:02}".format
    values = {"job_id": job_id, "raw_id": job_id.partition("_")[0], "state": state, "partition": "main"}
    values |= {"submit": now(), "start": moment(1), "end": moment(11), "time_limit": "10:00", "elapsed": "0:10"}
    values |= {"nodelist": "n[1-2]", "reason": reason, "name": "job", "user": user_name(), "priority": "100"}
    values |= fields
    return "|".join(values.get(field, "") for field in (QUEUE_FIELDS if everybody else SQUEUE_FIELDS)) + "\n"
