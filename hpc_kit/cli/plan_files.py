"""The files of `hpc-kit plan`: job files (`--write`), predicted cases (`--cases`) and calibrations (`calibrate`)."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_kit.cli.output import print_line
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError
from hpc_kit.planner import calibration, explain, hardware, job_files
from hpc_kit.planner.job_files import SupportedPlan
from hpc_kit.planner.search import Plan, SearchResult, describe_layout
from hpc_kit.planner.target import measured_file
from hpc_kit.spec import load
from hpc_kit.spec.default_cluster import default_cluster_name
from hpc_kit.spec.job import Job
from hpc_kit.spec.resolve import resolve
from hpc_kit.spec.resources import Resources
from hpc_kit.spec.toml_documents import save_job
from hpc_kit.submission.program_job import job_for_program

WRITE_OPTION = "--write"
_SHORT_TRAINING_DAYS = 0.25
"""Shorter trainings, in days, fit most time limits and get no note."""
_MAX_SLOWDOWN = 0.03
"""A layout with a memory margin is preferred if it is at most this much slower."""


def write_job_file(
    answer: SearchResult, named: Job | None, program: tuple[str, ...], path: Path, tokens: float
) -> None:
    """Write the first plan that the program supports: the user's program, or one of jobs/train.

    If the first plan may not fit and one with a margin is only slightly slower, that one is written, with a note.

    Args:
        answer: The plans.
        named: The planned job. Its program has priority.
        program: The program after `--`, instead of all others.
        path: The new job file.
        tokens: Tokens to train on.

    Raises:
        SpecError: The programs support none of the plans.
    """
    root, only = Path.cwd(), bool(program)
    own = named or (job_for_program(program) if program else None)
    # Only a shipped program can refuse a plan, and its command is `python FILE ...`.
    refusing = own.command[1] if only and own is not None and job_files.runs_shipped_program(own) else ""
    chosen = job_files.first_supported(answer.plans, root, own, only=only)
    if chosen is None:
        raise _no_program_error(answer, refusing, path)
    if chosen.rank > 1:
        _note_rank_of_layout(answer, chosen, refusing)
    # The search by memory margin starts again: the fastest safe layout may need another program.
    safe = job_files.first_supported(
        (plan for plan in answer.plans if plan.fits_with_margin(answer.limit)), root, own, only=only
    )
    if sentence := answer.describe_margin(chosen.plan, safe.plan if safe else None):
        if safe and safe.plan.time.total < (1 + _MAX_SLOWDOWN) * chosen.plan.time.total:
            chosen = safe
            echo(f"{sentence};\nthe layout with a margin is written", err=True)
        else:
            echo(f"warning: {sentence};\nthe layout without a margin is written", err=True)
    is_shipped = job_files.runs_shipped_program(chosen.base)
    steps = job_files.training_steps(chosen.base, root) if is_shipped else None
    job = job_files.job_from_plan(chosen.plan, chosen.base, path.stem, root, steps=steps)
    save_job(job, path, WRITE_OPTION)
    if is_shipped:
        _note_shipped_program(answer, chosen, job, path, steps=steps, only=only)
    else:
        _note_time_limit(chosen.plan, chosen.base, path, tokens)
    echo(f"written: {path}   submit with: hpc-kit submit {path}", err=True)


def _note_time_limit(plan: Plan, base: Job, path: Path, tokens: float) -> None:
    """Print a note if the training takes longer than a job may run."""
    limit = (
        f"{base.resources.time}, the limit in its file" if base.resources.time is not None else "the cluster's limit"
    )
    days = explain.training_values(plan, tokens, 1.0)["days"]
    if days < _SHORT_TRAINING_DAYS:
        return
    echo(
        f"{tokens:.3g} tokens take {days:.3g} days, longer than one job may run ({limit}). Submit a chain of jobs:\n"
        f"hpc-kit submit {path} {path} --chain=afterany",
        err=True,
    )


def _note_shipped_program(
    answer: SearchResult, chosen: SupportedPlan, job: Job, path: Path, *, steps: int | None, only: bool
) -> None:
    """Print how the written job differs from the planned one: its command, its model, its time limit."""
    model = answer.plans[0].layout.model
    lines = [] if only else [f"it runs the program of job {chosen.base.name}: write your own after --, or edit {path}"]
    if job.model.parameters != model.parameters:
        lines.append(
            f"the program trains a byte-level GPT of {job.model.parameters:.3g} parameters, without grouped keys or "
            f"SwiGLU, and not {model.name}"
        )
    if steps is not None:
        lines.append(f"its time limit of {job.resources.time} covers {steps} steps of {chosen.plan.time.total:.4g} s")
    echo(";\n".join(lines), err=True)


def _no_program_error(answer: SearchResult, program: str, path: Path) -> SpecError:
    first = answer.plans[0].layout
    return SpecError(
        f"{program} supports none of these layouts"
        if program
        else "no program of jobs/train supports any of these layouts",
        found=f"{describe_layout(first)}, {first.precision}, and {len(answer.plans) - 1} others",
        remedy=f"write your own program after --: hpc-kit plan ... --write {path} -- python train.py",
    )


def _note_rank_of_layout(answer: SearchResult, chosen: SupportedPlan, program: str) -> None:
    """Print which layout is the first that a program supports, and how much slower it is."""
    best, plan = answer.plans[0], chosen.plan
    none = f"{program} does not support" if program else "no program of jobs/train supports"
    more = plan.time.total / best.time.total - 1
    echo(
        f"{none} the first layout, {describe_layout(best.layout)};\n"
        f"the first supported one is number {chosen.rank} of {len(answer.plans)}, "
        f"{describe_layout(plan.layout)}: {plan.time.total:.4g} s a step, {more:.1%} more",
        err=True,
    )


_SHOWN_CASES = 3
"""Case ids in one line."""


def predict_cases(cases: Path, output: Path) -> int:
    """Predict the runs of a CSV file and write another one. Print the assumptions to stderr.

    Raises:
        SpecError: The file is not readable, or both paths are the same file.
    """
    from hpc_kit.planner import cases as batch

    if output.exists() and cases.exists() and output.samefile(cases):
        raise SpecError(f"--output {output} is the file of --cases", remedy="--output predictions.csv")
    predictions = [batch.predict_case(batch.parse_case(row)) for row in batch.read_cases(cases)]
    batch.write_predictions(output, predictions)
    total, missing = len(predictions), [each for each in predictions if each.step_time is None]
    ids_by_note: dict[str, list[str]] = {}
    for each in predictions:
        for note in each.notes if each.step_time is not None else ():
            ids_by_note.setdefault(note, []).append(each.case_id)
    for each in missing:
        echo(f"{each.case_id}: not predicted: {', '.join(each.notes)}", err=True)
    # The assumption behind the most predictions comes first.
    for note, ids in sorted(ids_by_note.items(), key=lambda pair: -len(pair[1])):
        echo(f"assumed in {len(ids)} of {total} runs: {note}{_list_ids(ids, total)}", err=True)
    echo(f"{total - len(missing)} of {total} runs predicted: {output}")
    return 0


def _list_ids(ids: list[str], runs: int) -> str:
    """Return the first case ids in parentheses, or nothing if a note applies to all cases."""
    if len(ids) == runs > 1:
        return ""
    return f" ({', '.join(ids[:_SHOWN_CASES])}{', ...' if len(ids) > _SHOWN_CASES else ''})"


def calibrate_cluster(cluster: str | None, measurement: Path | None, comm: Path | None) -> int:
    """Submit the job that measures a GPU. With `comm`, add links that `bench comm` has measured.

    Raises:
        SpecError: The cluster does not exist, or the results are not readable.
    """
    root = Path.cwd()
    name = cluster or default_cluster_name(root, os.environ)
    _require_cluster_file(name, root)
    path = measurement or measured_file(name, root)
    if comm is not None:
        found = calibration.read_comm_result(comm)
        if found == calibration.Measurement():
            raise SpecError(
                f"{comm} contains no measured links",
                found="no all-reduce of two sizes",
                remedy="hpc-kit bench comm --json",
            )
        calibration.add_measurement(path, found)
        echo(f"links of {name}: {path}")
        return 0
    return _submit_calibration(name, path, root)


def _require_cluster_file(name: str, root: Path) -> None:
    """Check that there is a cluster file.

    Raises:
        SpecError: No such file. For a machine of the catalogue, the message shows the file to write.
    """
    try:
        load.load_cluster(name, root=root)
    except SpecError as error:
        if name not in hardware.machine_names():
            raise
        machine = hardware.find_machine(name)
        raise SpecError(
            f"{name} is a machine by its data sheet; a job that measures it needs a cluster file",
            found=error.found,
            remedy=f"hpc-kit init copies env/example-gpu.toml; as env/{name}.toml, with\n[node]\n"
            f'gpu = "{machine.gpu.name}"\ngpus = {machine.gpus_per_node}\n'
            # From bytes/s of a GPU to Gb/s of a node.
            f'network = {machine.network * 8 / 1e9 * machine.gpus_per_node:g}\nfabric = "{machine.fabric}"',
        ) from error


def _submit_calibration(cluster: str, path: Path, root: Path) -> int:
    from hpc_kit.cli.outcomes import follow_run
    from hpc_kit.cli.output import print_next_steps
    from hpc_kit.script.render import render_resolved
    from hpc_kit.submission import submit

    job = Job(
        name="plan_calibrate",
        description="the rate of a matrix product and of the memory of one GPU",
        command=("python", "-m", "hpc_kit.planner.calibration", str(path)),
        resources=Resources(nodes=1, ntasks_per_node=1, gpus_per_task="1", time="00:10:00"),
    )
    resolved = resolve(load.load(job, cluster, root=root), root=root)
    submitted = submit.submit_resolved(resolved, render_resolved(resolved, root=root), root=root)
    echo(f"job     {submitted.job_id} measures one GPU; its numbers go to {path}")
    if resolved.cluster.slurm != "embedded":
        print_next_steps(submitted.job_id, going=True)
        return 0
    # The embedded Slurm runs the job at once, so its result can be printed here.
    status = follow_run(submitted.run, submitted.client)
    if status == 0:
        found = calibration.read_measurement(path)
        memory = f", {found.memory / 1e9:.3g} GB of memory" if found.memory else ""
        flops, bandwidth = found.flops or 0.0, found.bandwidth or 0.0
        print_line("result", f"{found.gpu}: {flops / 1e12:.3g} TFLOP/s in 16 bits, {bandwidth / 1e9:.3g} GB/s{memory}")
    return status
