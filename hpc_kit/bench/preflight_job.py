"""Measures the nodes of an allocation without a training, for `hpc-kit doctor JOB`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from hpc_kit.bench.preflight import PreflightVerdict, read_verdict
from hpc_kit.bench.slurm_job import QUEUE_PAUSE, QueuedJob
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.script.render import render_resolved
from hpc_kit.spec.resolve import Resolved
from hpc_kit.submission.submit import Submission, submit_script

TIME_LIMIT = "00:05:00"


def measuring_job(resolved: Resolved) -> Resolved:
    """Return a job with the nodes of another job, spare nodes included, that only measures them.

    Raises:
        SpecError: The job is heterogeneous.
    """
    if resolved.components:
        raise SpecError(
            "the nodes of a heterogeneous job cannot be measured",
            found=f"job {resolved.job.name} has {len(resolved.components)} components",
            remedy="measure the nodes of one component: hpc-kit doctor -j NODESx1 -- true",
        )
    job, per_node = resolved.job, resolved.job.resources.ntasks_per_node
    nodes = resolved.nodes + (job.restart.spares if job.restart else 0)
    ntasks = resolved.ntasks if per_node is None else nodes * per_node
    # Options of the training that would delay the measurement, end it early, repeat it, or send mail.
    unrelated = ("array", "begin", "dependency", "error", "mail_type", "no_kill", "output", "signal", "time_min")
    resources = structs.replace(job.resources, nodes=nodes, ntasks=ntasks, time=TIME_LIMIT, **dict.fromkeys(unrelated))
    job = structs.replace(
        job,
        name=f"{job.name}-preflight",
        template="preflight",
        preflight=structs.replace(job.preflight, enabled=True, requeues=0),
        restart=None,
        resources=resources,
    )
    return structs.replace(resolved, job=job, nodes=nodes, ntasks=ntasks, render_command=())


def measure_nodes(
    resolved: Resolved, root: Path, on_submitted: Callable[[Submission], object], on_wait: Callable[[str], object]
) -> PreflightVerdict:
    """Submit a `measuring_job`, wait for its end, and return the verdict. Any exception, as by Ctrl-C, cancels the job.

    `on_submitted` is called with the job, and `on_wait` with a sentence when the state of the waiting job changes.

    Raises:
        JobFailed: The job ended without a verdict, or it can never start.
        SubmitRefused: sbatch refused the job.
        SlurmUnavailable: There is no Slurm, or it does not answer.
    """
    done = submit_script(
        resolved, render_resolved(resolved, root=root), root=root, command_line=sys.argv, on_submitted=on_submitted
    )
    job, previous, reported = QueuedJob(done.job_id, done.client), "", ""
    pause = min(QUEUE_PAUSE, done.client.poll_seconds)
    try:
        while not job.has_ended():
            state = job.describe()
            # The first reason may be None or Priority for a moment. Only one that two queries show is reported.
            if job.is_pending and state == previous and state != reported:
                reported = state
                on_wait(state)
            previous = state
            job.check_can_start()
            time.sleep(pause)
    except BaseException:
        done.client.run(["scancel", done.job_id])
        raise
    verdict = read_verdict(done.run_folder)
    if verdict is None:
        log = done.run_folder.with_name(f"{done.job_id}.log")
        found = log.read_text(errors="replace")[-1500:].strip() if log.exists() else f"no log {log}"
        raise JobFailed(
            f"job {done.job_id} ended without a verdict on its nodes",
            found=found or "its log is empty",
            remedy=f"read the logs in {done.run_folder}/preflight",
        )
    return verdict
