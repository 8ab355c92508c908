"""Rules of srun's own options: does it take them, and does the step get its CPUs?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_kit.check.batch_script import Script
from hpc_kit.check.rules.base import Fault, Rule, Severity, Subject, rule
from hpc_kit.check.stages import Stage, starts_something
from hpc_kit.slurm.directives import suggest_fix
from hpc_kit.slurm.versions import CPUS_NOT_HANDED_ON


@rule("KIT205", "warning")
def lost_cpus(subject: Subject) -> Iterator[Fault]:
    """A launch line without --cpus-per-task, in a job that asks for several.

    In Slurm 22.05 and 23.02, srun no longer takes the job's --cpus-per-task along: every step falls to one CPU a
    task, and data loaders and threads share it. No message tells.

    Mend: say it on the srun line: `srun --cpus-per-task=$SLURM_CPUS_PER_TASK ...`.
    Documented: Slurm release notes 22.05; srun(1), --cpus-per-task.
    """
    script = subject.script
    if CPUS_NOT_HANDED_ON.holds(subject.version) is False:
        return
    if any(each.name == "SRUN_CPUS_PER_TASK" for each in script.assigned):
        return
    for launch in script.launches:
        srun = launch.stage("srun")
        if srun is None or srun.opaque or srun.fault or not launch.trains:
            continue
        given = [script.parts[index].get("cpus-per-task") for index in script.components_of(launch)]
        asked = next((each for each in given if each and each.value.isdigit() and int(each.value) > 1), None)
        if asked is not None and not srun.options.keys() & {"cpus-per-task", "cpus-per-gpu"}:
            first, cpus = srun.words[0], asked.value
            yield Fault(
                first.line,
                first.column,
                f"--cpus-per-task={cpus} does not reach this step on Slurm {CPUS_NOT_HANDED_ON.releases}:"
                " one CPU a task",
                f"srun --cpus-per-task={cpus} ...",
                (asked.line,),
            )


def _may_hide_options(srun: Stage) -> bool:
    """A variable in front of the program may hold options, or the value of the one before it."""
    for word in srun.words[1:]:
        if starts_something(word):
            return False
        if word.opaque or "$" in word.text.partition("=")[0]:
            return True
    return False


@rule("KIT206")
def srun_options(subject: Subject) -> Iterator[Fault]:
    """A launch line with an option that srun does not take.

    The job waits in the queue, starts, and ends at once with srun's "unrecognized option". An option that resembles
    none of srun's is a warning only: it may belong to a plugin of the site.

    Mend: as the message says. Options of the program stand behind the program.
    Documented: srun(1), OPTIONS.
    """
    for launch in subject.script.launches:
        srun = launch.stage("srun")
        if srun is None or srun.fault is None or _may_hide_options(srun):
            continue
        first, fault = srun.words[0], srun.fault
        remedy, certain = suggest_fix(fault, "srun")
        severity: Severity | None = None if certain else "warning"
        yield Fault(first.line, first.column, fault.what, remedy, (launch.step.line,), severity, fault.found)


def _unset(script: Script) -> bool:
    """The script itself says what srun is to take for --gpus."""
    unset = [word.text for step in script.steps if step.name == "unset" for word in step.words]
    return "SLURM_GPUS" in unset or any(each.name == "SLURM_GPUS" for each in script.assigned)


@rule("KIT211")
def whole_gpus(subject: Subject) -> Iterator[Fault]:
    """A step on fewer nodes takes all GPUs of the job along.

    srun inherits the job's --gpus. On one node of several there are fewer, and it ends with "Invalid generic resource
    (gres) specification", also where it only asks for a host's address.

    Mend: `srun --gpus=0 --nodes=1 ...` for what needs none; or --gpus-per-node for the job, which fits any step.
    Documented: srun(1), INPUT ENVIRONMENT VARIABLES, SLURM_GPUS; seen with Slurm 22.05.
    """
    script = subject.script
    nodes = script.geometry.nodes
    if "gpus" not in script.options or nodes is None or nodes < 2 or _unset(script):
        return
    places = []
    for launch in script.launches:
        srun = launch.stage("srun")
        taken = script.geometry_of(launch).nodes if srun is not None and not srun.opaque else None
        if srun is not None and taken is not None and taken < nodes and "gpus" not in srun.options:
            places.append((srun.words[0].line, srun.words[0].column))
    for step in script.steps:
        values = [*step.command.words, *(assignment.value for assignment in step.command.assignments)]
        for part in [part for word in values for part in word.parts if part.kind == "command" and not step.task]:
            line = re.match(r"\s*srun\s[^|;&]*", part.text)
            if (
                line
                and re.search(r"\s(-N\s*1|--nodes[= ]1)\s", line[0])
                and not re.search(r"\s(-G|--gpus[= ])", line[0])
            ):
                places.append((part.origin.line, part.origin.column))
    for place in places:
        what = f"--gpus={script.options['gpus']} of the job goes to this step, too, and one node has fewer"
        yield Fault(*place, what, "srun --gpus=..., or --gpus-per-node for the job", (script.line_of("gpus"),))


RULES: tuple[Rule, ...] = (lost_cpus, srun_options, whole_gpus)
