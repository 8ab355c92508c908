"""squeue -s: the steps that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.embedded import columns
from hpc_kit.embedded.records import BATCH_STEP
from hpc_kit.embedded.view import clock, moment
from hpc_kit.slurm.nodelist import fold

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpc_kit.embedded.records import Step
    from hpc_kit.embedded.view import View

DEFAULT = "%.15i %.8j %.9P %.8u %.9M %N"

FIELDS: dict[str, tuple[str, Callable[[View, Step], str]]] = {
    "A": ("TASKS", lambda _, step: str(sum(map(len, step.tasks)) or 1)),
    "i": ("STEPID", lambda view, step: f"{view.job.label}.{step_name(step)}"),
    "j": ("NAME", lambda _, step: step.name),
    "l": ("TIME_LIMIT", lambda view, _: view.time_limit),
    "M": ("TIME", lambda view, step: clock((step.end_time or view.now) - step.start_time)),
    "N": ("NODELIST", lambda _, step: fold(step.nodes)),
    "P": ("PARTITION", lambda view, _: view.job.partition),
    "S": ("START_TIME", lambda _, step: moment(step.start_time)),
    "U": ("USER", lambda view, _: str(view.job.uid)),
    "u": ("USER", lambda view, _: view.job.user),
}


def step_name(step: Step) -> str:
    """`batch`, or a step's number."""
    return "batch" if step.step_id == BATCH_STEP else str(step.step_id)


def print_steps(views: list[View], options: dict[str, str]) -> None:
    """Print them; `--steps` may name some of them."""
    layout = columns.parse_percent(options.get("format") or DEFAULT, DEFAULT)
    shown = [(column, *FIELDS[column.key]) for column in layout.columns if column.key in FIELDS]
    wanted = set(options["steps"].split(",")) if options.get("steps") else None
    if "noheader" not in options:
        print(layout.prefix + "".join(column.fit(heading) for column, heading, _ in shown))
    for view in views:
        for step in view.state.steps(view.job.job_id):
            name = f"{view.job.label}.{step_name(step)}"
            if step.state == "RUNNING" and (wanted is None or wanted & {name, view.job.label}):
                print(layout.prefix + "".join(column.fit(value(view, step)) for column, _, value in shown))
