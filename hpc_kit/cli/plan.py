"""`hpc-kit plan`."""

from __future__ import annotations

from typing import Any

import click

from hpc_kit.cli import plan_options
from hpc_kit.cli.plan_options import Options
from hpc_kit.errors import SpecError


class PlanCommand(click.Command):
    """Takes a program behind `--` exactly as it stands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the program aside before click looks at the rest."""
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta["program"] = tuple(program)
        return super().parse_args(ctx, own)


@click.command("plan", cls=PlanCommand)
@click.argument("job", required=False)
@plan_options.options
def command(job: str | None, **given: Any) -> int:
    """Find the layout to submit: every legal one on a cluster, with its time and memory.

    \b
    hpc-kit plan --model llama3-8b --cluster dgx-h100 --nodes 4 --global-batch 1024
    hpc-kit plan ddp_4node                     the model and nodes of a job
    hpc-kit plan --cases cases.csv --output predictions.csv
    hpc-kit plan calibrate --cluster mine      a job that measures the cluster's own numbers

    --write jobs/x.toml keeps the first, or one that surely fits, as a job file; the program behind -- is its command.
    """  # noqa: D301 - a backspace is click's mark for lines that stay as they are
    options = Options(**given)
    if options.cases is not None or options.output is not None:
        return _predict(job, options)
    if job == "calibrate":
        from hpc_kit.cli.plan_calibrate import calibrate

        plan_options.refuse_others("plan calibrate", plan_options.CALIBRATION)
        return calibrate(options.cluster, options.measured, options.comm)
    if options.comm is not None:
        raise SpecError("--comm belongs to plan calibrate", remedy="hpc-kit plan calibrate --cluster mine --comm FILE")
    from hpc_kit.cli.plan_search import plan

    return plan(job, options, click.get_current_context().meta.get("program", ()))


def _predict(job: str | None, options: Options) -> int:
    if options.cases is None or options.output is None:
        raise SpecError("--cases and --output go together", remedy="--cases cases.csv --output predictions.csv")
    if job is not None:
        raise SpecError(f"--cases predicts the runs of a file, not job {job}", remedy="one of the two")
    from hpc_kit.cli.plan_cases import predict

    plan_options.refuse_others("plan --cases", plan_options.BATCH)
    return predict(options.cases, options.output)
