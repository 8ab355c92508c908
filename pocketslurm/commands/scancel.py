"""The command scancel: cancels or signals jobs, array tasks and steps."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.slurm.errors import HpcKitError
from hpc_kit.slurm.nodelist import expand
from hpc_kit.slurm.option_values import SIGNALS
from hpc_kit.slurm.states import parse_state_filter
from pocketslurm import option_support
from pocketslurm.errors import INVALID_JOB_ID, JOB_OVER, PlainError
from pocketslurm.option_support import NONE, REQUIRED, Table
from pocketslurm.queue import controller_start, job_ids
from pocketslurm.queue.job_ids import split_array_task
from pocketslurm.queue.messages import Cancel, EndComponent, Signal, TellStep, wake
from pocketslurm.queue.state import StateDirectory, now
from pocketslurm.users import user_exists

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pocketslurm.queue.records import Job

OPTIONS = Table(
    ("account", "A", REQUIRED), ("batch", "b", NONE), ("clusters", "M", REQUIRED), ("ctld", "", NONE),
    ("cron", "c", NONE),
    ("full", "f", NONE), ("help", "", NONE), ("hurry", "H", NONE), ("interactive", "i", NONE),
    ("jobname", "n", REQUIRED, "name"),
    ("me", "", NONE), ("nodelist", "w", REQUIRED), ("partition", "p", REQUIRED), ("qos", "q", REQUIRED),
    ("quiet", "Q", NONE), ("reservation", "R", REQUIRED), ("sibling", "", REQUIRED), ("signal", "s", REQUIRED),
    ("state", "t", REQUIRED), ("usage", "", NONE), ("user", "u", REQUIRED), ("verbose", "v", NONE),
    ("version", "V", NONE), ("wckey", "", REQUIRED),
    notes=option_support.SCANCEL,
)  # fmt: skip

_FILTERS = ("account", "jobname", "me", "nodelist", "partition", "qos", "reservation", "state", "user", "wckey")
PART_OF_WHOLE = "Operation not permitted on individual component of heterogeneous job"
_PART_STATUS = 60
"""Exit status of scancel in this case: the last eight bits of Slurm's error number."""


class CancelTarget(NamedTuple):
    """A job or step to cancel or signal; `job` is None for an unknown id."""

    name: str
    job: Job | None
    step: str | None = None


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    parsed, words = OPTIONS.parse(argv)
    options = {name: value or "" for name, value in parsed}
    if OPTIONS.print_help("scancel", options):
        return 0
    if not words and not options.keys() & {*_FILTERS, "ctld"}:
        raise PlainError("scancel: error: No job identification provided")
    number = _signal(options)
    state = StateDirectory.open(environ)
    option_support.check_clusters("scancel", options.get("clusters", "all"), state.settings)
    # This process may belong to the job that it cancels, and must still print its messages.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    targets = _targets(state, options, words)
    problems = [problem for target in targets if (problem := _cancel_or_signal(state, target, number, options))]
    if len(problems) < len(targets):
        controller_start.ensure_running(state)
    # Cancelling a job that has already ended is no error.
    refused = any(PART_OF_WHOLE in problem for problem in problems)
    if number is not None or "verbose" in options or refused:
        sys.stderr.write("".join(problems) if "quiet" not in options else "")
    return _PART_STATUS if refused else int(bool(problems) and number is not None)


def _signal(options: dict[str, str]) -> int | None:
    """Return the number of the signal to send; None to cancel the job."""
    text = options.get("signal", "").upper().removeprefix("SIG")
    if not text:
        return None
    number = int(text) if text.isdigit() else SIGNALS.get(text, 0)
    if not 1 <= number <= signal.NSIG:
        raise PlainError(f"Unknown job signal: {options['signal']}")
    # SIGKILL for all processes of a job is its cancellation.
    plain = not options.keys() & {"batch", "full"}
    return None if number == signal.SIGKILL and plain else number


def _targets(state: StateDirectory, options: dict[str, str], words: list[str]) -> list[CancelTarget]:
    checks = _filters(options)
    if not words:
        jobs = [job for job in state.active_jobs() if not job.completing and all(check(job) for check in checks)]
        return [CancelTarget(job.display_id, job) for job in _led(jobs)]
    found = []
    for word in words:
        try:
            selectors = job_ids.parse_selectors(word)
        except ValueError as error:
            raise PlainError(f"scancel: error: Invalid job id {error}") from None
        for each in selectors:
            jobs = _led(job_ids.find_selected(state, each))
            found += [CancelTarget(each.text, job, each.step) for job in jobs if all(check(job) for check in checks)]
            found += [] if jobs else [CancelTarget(each.text, None)]
    return found


def _led(jobs: list[Job]) -> list[Job]:
    """Return the jobs without components whose leader is among them."""
    leaders = {job.job_id for job in jobs}
    return [job for job in jobs if job.leader_id == job.job_id or job.leader_id not in leaders]


def _filters(options: dict[str, str]) -> list[Callable[[Job], bool]]:
    columns = {"account": "account", "jobname": "name", "partition": "partition", "qos": "qos"}
    checks = [job_ids.column_filter(options, columns)]
    user = str(os.getuid()) if "me" in options else options.get("user")
    if user is not None:
        if not user_exists(user):
            raise PlainError(f"scancel: error: Invalid user name: {user}")
        checks.append(lambda job: user in {job.user, str(job.uid)})
    if "state" in options:
        checks.append(_state_check(options["state"]))
    if "nodelist" in options:
        hosts = set(expand(options["nodelist"]))
        checks.append(lambda job: bool(hosts & set(job.nodes)))
    if "wckey" in options:
        checks.append(lambda job: job.options.get("wckey") == options["wckey"])
    if "reservation" in options:
        checks.append(lambda _: False)
    return checks


def _state_check(text: str) -> Callable[[Job], bool]:
    """Return a check for one state; scancel accepts no list."""
    try:
        (state,) = parse_state_filter(text)
    except ValueError:
        known = "PENDING, RUNNING, and SUSPENDED"
        raise PlainError(f"Invalid job state specified: {text}\nValid job states are {known}") from None
    return lambda job: job.shown_state == state


def _cancel_or_signal(state: StateDirectory, target: CancelTarget, number: int | None, options: dict[str, str]) -> str:
    """Cancel or signal one job or step. Return the error message, or an empty text."""
    job = target.job
    if "verbose" in options:
        verb = "Signal" if number else "Terminating"
        sys.stderr.write(f"scancel: {verb} {'step' if target.step else 'job'} {target.name}\n")
    if job is None:
        return f"scancel: error: Kill job error on job id {target.name}: {INVALID_JOB_ID}\n"
    try:
        if target.step and target.step != "batch":
            _step(state, job, target.step, number)
        elif number is None:
            cancel_job(state, job)
        else:
            receivers = "batch" if "batch" in options or target.step else "steps"
            _send(state, job, number, "full" if "full" in options else receivers)
    except HpcKitError as error:
        return f"scancel: error: Kill job error on job id {target.name}: {error.what}\n"
    return ""


def cancel_job(state: StateDirectory, job: Job) -> None:
    """Cancel a job, or the pending tasks of an array.

    Cancelling the leader of a heterogeneous job cancels all components. Another component ends alone after its start.

    Raises:
        HpcKitError: The job has ended.
    """
    over = {"state": "CANCELLED", "end_time": now(), "killed_by": os.getuid()}
    with state.transaction():
        current = state.job(job.job_id)
        if current is None:
            raise HpcKitError(INVALID_JOB_ID)
        if current.array_waiting and job.array_task_id is not None:
            current = split_array_task(state, current, job.array_task_id)
        if not current.active or (current.completing and current.state != "PENDING"):
            raise HpcKitError(JOB_OVER)
        # Only a job with nodes has a supervisor, which must end its processes first.
        held = current.state == "RUNNING" or current.completing
        if current.leader_id != current.job_id:
            if not held:
                raise HpcKitError(PART_OF_WHOLE)
            state.update_job(current.job_id, completing=True, **over)
            state.add_order(current.leader_id, EndComponent(current.job_id))
        else:
            state.update_components(current.job_id, completing=held, **over)
            state.add_order(current.job_id, Cancel()) if held else None
    if held:
        wake(state.directory, current.leader_id)


def _send(state: StateDirectory, job: Job, number: int, target: str) -> None:
    with state.transaction():
        current = state.job(job.job_id)
        if current is None or current.state != "RUNNING":
            raise HpcKitError("Job is pending execution" if current and current.state == "PENDING" else INVALID_JOB_ID)
        component = None if current.leader_id == current.job_id else current.job_id
        state.add_order(current.leader_id, Signal(number, target, component))
    wake(state.directory, current.leader_id)


def _step(state: StateDirectory, job: Job, name: str, number: int | None) -> None:
    with state.transaction():
        # A step of the leader means the steps of all components with this number.
        parts = state.components(job) if job.leader_id == job.job_id else [job]
        steps = [step for part in parts for step in state.steps(part.job_id) if name in {step.label, str(step.step_id)}]
        running = [step for step in steps if step.state == "RUNNING"]
        if not running:
            raise HpcKitError(JOB_OVER if state.steps(job.job_id) else INVALID_JOB_ID)
        for step in running if number is None else ():
            state.update_step(step, killed_by=os.getuid())
        order = "kill" if number is None else f"signal {number}"
        component = None if job.leader_id == job.job_id else job.job_id
        state.add_order(job.leader_id, TellStep(name, order, component))
    wake(state.directory, job.leader_id)
