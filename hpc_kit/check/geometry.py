"""Size of the step that a launch line starts."""

from __future__ import annotations

import re

from hpc_kit.check.stages import Stage
from hpc_kit.slurm.sizes import UNKNOWN, JobSize, parse_count, size_of_step


def step_geometry(job: JobSize, step: Stage | None) -> JobSize:
    """The counts of the step that an srun or mpirun starts; without one: a single process."""
    if step is None:
        return JobSize(1, 1, 1, job.cpus_per_task, job.gpus_per_node, job.has_gpus)
    if step.kind == "mpirun":
        return _mpirun(job, step)
    if step.opaque or step.fault:
        return UNKNOWN
    return size_of_step(job, {name: text.text for name, text in step.options.items()})


def het_groups(srun: Stage | None) -> set[int] | None:
    """The components that an srun names with --het-group; the first where it names none; None: not known."""
    text = srun.option("het-group") if srun is not None else None
    if text is None:
        return {0}
    groups: set[int] = set()
    for part in text.text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None:
            return None
        groups |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return groups


def _mpirun(job: JobSize, step: Stage) -> JobSize:
    """That of an MPI's starter: it takes the job's tasks, as many on each node, unless it is told where to put them."""
    named = step.option("n", "np", "c")
    ntasks = parse_count(named.text) if named else job.ntasks
    placed = step.option("npernode", "N", "ppn", "tasks_per_node")
    ppr = re.match(r"ppr:(\d+):node", step.options["map-by"].text) if "map-by" in step.options else None
    per_node = parse_count(ppr[1]) if ppr else parse_count(placed.text) if placed else None
    told = step.options.keys() & {"map-by", "H", "host", "hosts", "hostfile", "machinefile", "f", "rf", "rankfile"}
    if per_node is None and not placed and not told and ntasks is not None and ntasks == job.ntasks:
        return job
    return JobSize(None, ntasks, per_node, None, None, job.has_gpus, is_stated=named is not None)
