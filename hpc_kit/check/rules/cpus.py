"""Rules for the CPUs of tasks, and the threads and data loaders that share them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules.counts import count_processes
from hpc_kit.check.rules.finding import Problem, rule
from hpc_kit.check.text_edits import Edit
from hpc_kit.slurm.directives import DirectiveOption
from hpc_kit.slurm.sizes import parse_count
from hpc_kit.slurm.versions import CPUS_NOT_HANDED_ON


@rule("KIT205", "warning", needs=("srun",))
def step_without_cpus(script: BatchScript) -> Iterator[Problem]:
    """A launch line without --cpus-per-task in a job that requests several CPUs per task.

    In Slurm 22.05 and 23.02, srun no longer inherits --cpus-per-task from the job. Every task gets one CPU, which its
    data loaders and threads share. Slurm prints no message. The release is `slurm_version` of the cluster file, or else
    the answer of `sinfo --version`, or the one that a comment names: `# Slurm 23.02`. Without any of them, and on other
    releases, this rule finds nothing.

    Fix: repeat the option on the srun line: `srun --cpus-per-task=$SLURM_CPUS_PER_TASK ...`.
    Documented: Slurm release notes 22.05; srun(1), --cpus-per-task.
    """
    if not CPUS_NOT_HANDED_ON.holds(script.slurm_version) or "SRUN_CPUS_PER_TASK" in script.assigned:
        return
    for launch in script.launch_lines:
        srun = launch.stage("srun")
        if srun is None or srun.may_hide_options or srun.error or not launch.is_training:
            continue
        options = [script.components[index].get("cpus-per-task") for index in script.components_of(launch)]
        option = next((each for each in options if each and (parse_count(each.value) or 1) > 1), None)
        if option is not None and not srun.options.keys() & {"cpus-per-task", "cpus-per-gpu"}:
            name, releases = f"--cpus-per-task={option.value}", CPUS_NOT_HANDED_ON.releases
            what = f"{name} does not reach this step on Slurm {releases}: each task gets one CPU"
            edits = (Edit(srun.line, srun.column, "srun", f"srun {name}"),)
            yield Problem(srun, what, f"write srun {name} ...", (option.line,), edits=edits)


_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _threads_of_one_cpu(script: BatchScript) -> Iterator[Problem]:
    """Find many threads in a job whose tasks have one CPU each, because --cpus-per-task is missing."""
    option = script.directive("ntasks-per-node") or script.directive("ntasks")
    # A mask names CPUs of a whole node.
    masked = any(re.search(r"--cpu[-_]bind\S*[= ]\S*(map|mask)_", each.command.text) for each in script.training)
    # Without srun, a program has the CPUs of all tasks on its node.
    launches = [launch for launch in script.training if launch.multiplier is not None]
    # mpirun spreads fewer processes over the CPUs of all tasks.
    in_tasks = any(launch.stage("srun") or script.size_of(launch) == script.size for launch in launches)
    if (
        option is None
        or masked
        or script.may_have_more_cpus
        or not in_tasks
        or script.is_heterogeneous
        or (script.size.ntasks or 1) < 2
    ):
        return
    for each in script.assignments_of("OMP_NUM_THREADS"):
        threads = each.value.number
        if threads is not None and threads >= 4:
            what = f"{threads} threads, but the job does not give --cpus-per-task: each task has one CPU"
            yield Problem(each.value, what, f"add #SBATCH --cpus-per-task={threads}", (option.line,))


def _threads_of_all_cpus(script: BatchScript) -> Iterator[Problem]:
    """Find a number of threads that is the number of CPUs of the node, for each of several tasks there."""
    tasks = {script.size_of(launch).tasks_per_node or 1 for launch in script.training if launch.multiplier is not None}
    for each in script.assignments_of(*_THREADS) if tasks and min(tasks) > 1 else ():
        all_cpus = re.fullmatch(r"\$\{?SLURM_CPUS_ON_NODE\}?|\$\(nproc(\.\.\.)?\)", each.value.text)
        if all_cpus is not None and not each.in_task:
            what = f"each of {min(tasks)} tasks gets as many threads as the job has CPUs on the node"
            yield Problem(each.value, what, f"write export {each.name}=$SLURM_CPUS_PER_TASK")
    for launch in script.training if tasks and min(tasks) > 1 else ():
        workers = launch.argument(*_WORKERS)
        if workers is not None and workers.variable == "SLURM_CPUS_ON_NODE" and not launch.inner_command.in_task:
            what = f"each of {min(tasks)} tasks gets as many data loaders as the job has CPUs on the node"
            yield Problem(workers, what, "write $SLURM_CPUS_PER_TASK", (launch.line,))


_WORKERS = ("num-workers", "workers", "dataloader-num-workers")
_THREAD_OPTIONS = ("threads", "num-threads", "nthreads", "n-threads", "runThreadN", "n-jobs", "num-proc")
"""Options of programs for their threads or processes; runThreadN is STAR's, num-proc that of Hugging Face datasets."""


def _threads_of_programs(script: BatchScript, option: DirectiveOption, cpus: int) -> Iterator[Problem]:
    """Find a program with an option for more threads than it has CPUs."""
    for launch in script.launch_lines:
        # Without srun, a program has the CPUs of all tasks on its node.
        there = cpus if launch.multiplier is not None else cpus * (script.size.tasks_per_node or 1)
        threads = launch.argument(*_THREAD_OPTIONS)
        if re.search(r"serve|gunicorn|uvicorn|download|upload|sync", " ".join(launch.program.texts[:2])):
            continue  # such threads wait for the network
        resized = launch.multiplier is not None and launch.multiplier.option("cpus-per-task") is not None
        if threads is not None and (threads.number or 0) > there and not resized and launch.stage("ssh") is None:
            what = f"{threads.number} threads or processes, but --cpus-per-task={cpus}"
            yield Problem(threads, what, f"use at most {there}, or request more CPUs", (option.line, launch.line))


def _more_threads_than_cpus(script: BatchScript, option: DirectiveOption, cpus: int) -> Iterator[Problem]:
    """Find a fixed number of threads that exceeds the CPUs of a task, or the share of each process of an agent."""
    agent = script.only_training.agent if script.only_training is not None else None
    processes = (count_processes(agent) or 1) if agent is not None else 1
    for each in script.assignments_of(*_THREADS):
        threads = each.value.number or 0
        if threads > cpus:
            what = f"{threads} threads, but --cpus-per-task={cpus}"
            yield Problem(each, what, f"write export {each.name}=$SLURM_CPUS_PER_TASK", (option.line,))
        elif agent is not None and threads * processes > cpus and threads > 1:
            what = f"{processes} processes with {threads} threads each, but --cpus-per-task={cpus}"
            remedy = f"write export {each.name}=$((SLURM_CPUS_PER_TASK / {processes}))"
            yield Problem(each, what, remedy, (option.line, agent.line))


def _bound_to_one_core(script: BatchScript) -> Iterator[Problem]:
    """Find an mpirun that binds each process with several threads to one core."""
    threads = [each.value.number or 0 for each in script.assignments_of("OMP_NUM_THREADS")]
    cpus = max([parse_count(script.options.get("cpus-per-task")) or 1, *threads])
    for launch in script.training if cpus > 1 else ():
        mpirun = launch.stage("mpirun")
        bound = mpirun.option("bind-to") if mpirun is not None else None
        if (
            mpirun is not None
            and bound is not None
            and bound.text == "core"
            and not re.search("(?i)PE=|-cpus-per-(rank|proc)", mpirun.text)
        ):
            what = f"each process has one core for its {cpus} threads and data loaders"
            lines = (script.line_of("cpus-per-task"), launch.line)
            yield Problem(bound, what, f"write --bind-to none, or --map-by slot:PE={cpus}", lines)


@rule("KIT217", "warning")
def threads_and_cpus(script: BatchScript) -> Iterator[Problem]:
    """The number of threads or data loaders does not fit the CPUs of a task.

    With OMP_NUM_THREADS larger than --cpus-per-task, the threads of a task share its CPUs, and wait for each other at
    every barrier. More data loader workers than CPUs slow each other down; PyTorch warns of them. torchrun sets
    OMP_NUM_THREADS=1 if it is not set: a training on CPUs then uses one of the many CPUs of a process.
    `mpirun --bind-to core` puts all threads of a process on one core.

    Fix: `export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK`, divided by the processes that torchrun starts in the task.
    Documented: sbatch(1), --cpus-per-task; pytorch.org/docs/stable/elastic/run.html.
    """
    yield from _threads_of_all_cpus(script)
    yield from _bound_to_one_core(script)
    option = script.directive("cpus-per-task")
    if option is None:
        yield from _threads_of_one_cpu(script)
        return
    # One task alone may use a whole node that it has for itself.
    alone = script.is_alone_on_nodes and (script.size.tasks_per_node or 1) == 1
    cpus = parse_count(option.value)
    if cpus is None or script.is_heterogeneous or alone:
        return
    yield from _more_threads_than_cpus(script, option, cpus)
    yield from _threads_of_programs(script, option, cpus)
    for launch in script.training:
        workers, agent = launch.argument(*_WORKERS), launch.agent
        of_ray = any(each.program.name == "ray" for each in script.launch_lines)
        if workers is not None and (workers.number or 0) > cpus and not of_ray:
            what = f"{workers.number} data loader workers, but --cpus-per-task={cpus}"
            yield Problem(workers, what, f"use at most {cpus}, or request more CPUs", (option.line, launch.line))
        count = count_processes(agent) if agent is not None and agent.kind == "torchrun" else None
        unset = script.assigned.isdisjoint(_THREADS)
        if agent is None or not count or not unset or script.size.has_gpus or script.sources_files:
            continue
        on_cpus = any(re.search(r"\b(gloo|cpu)\b", text) for text in launch.program.texts)
        if on_cpus and cpus // count >= 4:
            what = f"torchrun sets OMP_NUM_THREADS=1: each of {count} processes uses one of {cpus // count} CPUs"
            yield Problem(agent, what, f"write export OMP_NUM_THREADS={cpus // count}", (option.line, launch.line))
