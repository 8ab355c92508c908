"""`hpc-kit bench`: one file a bench, `bench_<name>.py`."""

from __future__ import annotations

import click

from hpc_kit.cli.lazy import LazyGroup

BENCHES = {
    "comm": "collectives of gloo, mpi and nccl; a ring against a star; what each link does",
    "pipeline": "a model on one device, on two, and in splits; schedules against their promise",
    "memory": "what a rank holds under DDP and ZeRO-1, -2, -3, against the formulas",
    "start": "from the command to the first step, taken apart, beside scripts written by hand",
    "dp": "nn.DataParallel against DistributedDataParallel; spawn against srun",
    "strategies": "every way of splitting the training side by side, and the table of what to choose",
    "compare": "two results of one bench, a ratio a row with its uncertainty",
    "plot": "the pictures of a result",
}
"""Every bench with its line in the help; the module is imported when it is used."""


@click.group("bench", cls=LazyGroup, modules={name: f"hpc_kit.cli.bench_{name}" for name in BENCHES}, lines=BENCHES)
@click.pass_context
def command(context: click.Context) -> None:
    """Measured curves of this machine and its network."""
    from hpc_kit.bench import processes

    context.with_resource(processes.interruptible())
