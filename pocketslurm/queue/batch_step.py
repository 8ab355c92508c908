"""Starts a batch script as slurmd does: copies it, and sets its environment, log files, folder and umask."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pocketslurm import installation, processes, resources
from pocketslurm.log_paths import ARRAY_OUTPUT, BATCH_OUTPUT, PatternValues, batch_path
from pocketslurm.queue import job_environment
from pocketslurm.queue.job_environment import batch_environ
from pocketslurm.queue.records import BATCH_STEP, Step
from pocketslurm.queue.state import now
from pocketslurm.settings import CONF_VARIABLE, STATE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketslurm.queue.records import Job
    from pocketslurm.queue.state import StateDirectory

LAUNCH_FAILED = 53
"""Slurm books a script whose log file cannot be made as if signal 53 had ended it."""
FOLDER_SECONDS = 3.0
"""Seconds to wait for a log's missing folder. A client that names the folder after the job (submitit's `%j`) makes it
after sbatch has printed the id. A real Slurm needs longer to start a job; this one does not."""


class LogFiles(NamedTuple):
    """The three files of a batch script."""

    stdin: str
    stdout: str
    stderr: str


class Launched(NamedTuple):
    """A started script: its pid, and its standard error for what Slurm itself has to say there."""

    pid: int
    stderr: int


def log_files(job: Job) -> LogFiles:
    """Return the log files of the script. Standard error follows standard output by default."""
    names = PatternValues(
        job_id=job.job_id,
        job_name=job.name,
        user=job.user,
        node=job.nodes[0] if job.nodes else "",
        array_job_id=job.array_job_id,
        array_task_id=job.array_task_id,
    )
    out = job.options.get("output") or (BATCH_OUTPUT if job.array_job_id is None else ARRAY_OUTPUT)
    err = job.options.get("error") or out
    paths = [str(batch_path(pattern, names, job.work_dir)) for pattern in (out, err)]
    stdin = job.options.get("input")
    return LogFiles(str(batch_path(stdin, names, job.work_dir)) if stdin else os.devnull, *paths)


def script_path(state: StateDirectory, job: Job) -> Path:
    """Return the path of the copy of the script that runs."""
    return state.directory / "jobs" / f"job{job.job_id:05d}" / "slurm_script"


def record_start(state: StateDirectory, job: Job) -> None:
    """Record the script's step and its logs: a controller that finds the job lost writes to them."""
    files = log_files(job)
    state.update_job(job.job_id, std_in=files.stdin, std_out=files.stdout, std_err=files.stderr)
    step = Step(job.job_id, BATCH_STEP, job.attempt, "batch", job.nodes[:1], start_time=now())
    state.add_step(step._replace(cpus=job.cpus[:1], mem=job.mem[:1], gpus=job.gpus[:1]))


def start_script(state: StateDirectory, job: Job) -> Launched:
    """Start the script in a session of its own.

    Raises:
        OSError: A log file, or the copy of the script, cannot be made.
    """
    path = script_path(state, job)
    # All tasks of an array share the script of the array.
    script, stored = state.script(job.array_job_id or job.job_id)
    environ = _environ(state, job, stored)
    if _reads_bash_env(script, environ):
        installation.set_bash_env(state.directory, environ)
    files = log_files(job)
    stdin = os.open(files.stdin, os.O_RDONLY | os.O_CLOEXEC)
    stdout = _open_log(files.stdout, job)
    stderr = stdout if files.stderr == files.stdout else _open_log(files.stderr, job)
    for folder in (path.parent.parent, path.parent):  # and not the state directory, which may have been taken away
        folder.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(script)
    path.chmod(0o700)
    state.close()
    pid = os.fork()
    if pid == 0:
        _run_script(path, job, environ, (stdin, stdout, stderr))
    os.close(stdin)
    if stderr != stdout:
        os.close(stdout)
    return Launched(pid, stderr)


def open_error_log(job: Job) -> int:
    """Open the standard error of a script that is not started; return -1 if there is none."""
    try:
        return _open_log(log_files(job).stderr, job)
    except OSError:
        return -1


def _environ(state: StateDirectory, job: Job, stored: bytes) -> dict[str, str]:
    components = state.components(job) if job.het_job_id else ()
    environ = batch_environ(job, state.settings, job_environment.decode_environ(stored), components)
    folder = str(installation.commands_folder(state.directory))
    paths = environ.get("PATH", os.defpath).split(os.pathsep)
    if folder not in paths:
        environ["PATH"] = os.pathsep.join([folder, *paths])
    environ[STATE_VARIABLE] = str(state.directory)
    if state.conf:
        environ[CONF_VARIABLE] = state.conf
    return environ


def _reads_bash_env(script: bytes, environ: Mapping[str, str]) -> bool:
    """Return whether bash runs the script and reads BASH_ENV: not in interactive, POSIX or privileged mode."""
    words = script.partition(b"\n")[0][2:].split()
    names = [number for number, word in enumerate(words) if word.rpartition(b"/")[2] == b"bash"]
    if script[:2] != b"#!" or not names or "POSIXLY_CORRECT" in environ:
        return False
    flags = words[names[0] + 1 :]
    # `-ex`, but not `--posix`
    short = b"".join(word for word in flags if word[:1] == b"-" != word[1:2])
    return not set(b"ip") & set(short) and not {b"posix", b"--posix"} & set(flags)


def _open_log(path: str, job: Job) -> int:
    append = job.options.get("open-mode", "").lower().startswith("a")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if append else os.O_TRUNC)
    # The log gets the permissions of the submitter's other files.
    old = os.umask(job.umask)
    try:
        deadline = time.monotonic() + FOLDER_SECONDS
        while not Path(path).parent.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return os.open(path, flags, 0o666)
    finally:
        os.umask(old)


def _run_script(path: Path, job: Job, environ: dict[str, str], streams: tuple[int, int, int]) -> NoReturn:
    """Prepare the child process, and run the script."""
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        processes.reset_signals()
        os.umask(job.umask)
        environ["SLURM_TASK_PID"] = str(os.getpid())
        if not processes.enter_folder(job.work_dir):
            # slurmstepd tries it, and once more in the process that becomes the script
            processes.enter_folder(job.work_dir)
        resources.apply_limits(job.limits)
        processes.execute(str(path), [str(path), *job.arguments], environ)
    except BaseException as error:  # noqa: BLE001 - it must not get back into the supervisor
        processes.write_slurmstepd_error(str(error))
    finally:
        os._exit(1)
