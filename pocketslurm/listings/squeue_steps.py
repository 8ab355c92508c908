"""squeue -s: the steps that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm.nodelist import fold
from pocketslurm.listings import columns
from pocketslurm.listings.views import clock, moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from pocketslurm.listings.views import View
    from pocketslurm.queue.records import Step

DEFAULT = "%.15i %.8j %.9P %.8u %.9M %N"


def step_id(view: View, step: Step) -> str:
    """A step as users know it; one of a heterogeneous job's component by the component's own number."""
    return f"{view.job.label if view.job.het_job_id is None else view.job.job_id}.{step.label}"


FIELDS: dict[str, tuple[str, Callable[[View, Step], str]]] = {
    "A": ("TASKS", lambda _, step: str(sum(map(len, step.tasks)) or 1)),
    "i": ("STEPID", step_id),
    "j": ("NAME", lambda _, step: step.name),
    "l": ("TIME_LIMIT", lambda view, _: view.time_limit),
    "M": ("TIME", lambda view, step: clock((step.end_time or view.now) - step.start_time)),
    "N": ("NODELIST", lambda _, step: fold(step.nodes)),
    "P": ("PARTITION", lambda view, _: view.job.partition),
    "S": ("START_TIME", lambda _, step: moment(step.start_time)),
    "U": ("USER", lambda view, _: str(view.job.uid)),
    "u": ("USER", lambda view, _: view.job.user),
}


def print_steps(views: list[View], options: dict[str, str]) -> None:
    """Print them; `--steps` may name some of them."""
    layout = columns.parse_percent(options.get("format") or DEFAULT, DEFAULT)
    shown = [(column, *FIELDS[column.key]) for column in layout.columns if column.key in FIELDS]
    wanted = set(options["steps"].split(",")) if options.get("steps") else None
    if "noheader" not in options:
        print(layout.prefix + "".join(column.fit(heading) for column, heading, _ in shown))
    for view in views:
        for step in view.state.steps(view.job.job_id):
            names = {step_id(view, step), f"{view.job.label}.{step.label}", view.job.label}
            if step.state == "RUNNING" and (wanted is None or wanted & names):
                print(layout.prefix + "".join(column.fit(value(view, step)) for column, _, value in shown))
