"""One rank of `hpc-kit bench memory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from hpc_kit.bench import room, turns
from hpc_kit.bench.census import Held, Trained, held
from hpc_kit.bench.hosts import hosts_of
from hpc_kit.bench.mixed import MixedAdamW
from hpc_kit.bench.model_memory import Question, formula, words
from hpc_kit.bench.results import Plot
from hpc_kit.runtime.process_group import distributed

if TYPE_CHECKING:
    from hpc_kit.bench.recorder import Sheet
    from hpc_kit.runtime import Group

ON_CPU = (
    "The ranks compute on CPUs: what is offloaded lies in the same memory as what is not, so offloading moves nothing"
    " here and `on device` is the whole."
)
HOW = (
    "Mixed precision: bfloat16 parameters and gradients (2 P each), an fp32 copy and two moments in the optimizer"
    " (12 P). Measured: bytes of the tensors' storages, each once, at the end of forward, of backward or of the update,"
    " whenever that is most; of the rank that holds most. Activations, and the layers that ZeRO-3 gathers for a moment,"
    " are not model states."
)


def main(asked: Mapping[str, Any], sheet: Sheet) -> None:
    """Measure each way; rank 0 fills in the sheet."""
    question = Question(**asked)
    with distributed() as world:
        needed = max(formula(way, question.parameters, world.world_size) for way in question.ways)
        room.refuse_beyond_gpus(1.25 * needed, "the model", "a smaller --layers or --width", world)
        meet = turns.meeting(world)
        hosts, _ = hosts_of(world)
        if world.is_main:
            sheet.hosts(hosts)
            sheet.expect(len(question.ways) * len(question.offload))
            sheet.plot(_picture(question, world.world_size))
            sheet.note(HOW)
            if world.device.type == "cpu" and True in question.offload:
                sheet.note(ON_CPU)
        for offload in question.offload:
            for way in question.ways:
                if world.is_main:
                    sheet.doing(f"{way}{', offloaded' * offload}")
                _row(question, sheet, world, meet, way, offload=offload)


def _picture(asked: Question, ranks: int) -> Plot:
    """What a rank holds, way by way, and at what height its formula is."""
    return Plot(
        name="states",
        title=f"Model states of a rank: P = {asked.parameters / 1e6:.3g} million, d = {ranks}",
        kind="stacked",
        x="way",
        y=("parameters", "gradients", "optimizer"),
        where={"offload": asked.offload[0]},
        marks={f"{way}: {words(way)}": formula(way, asked.parameters, ranks) for way in asked.ways},
    )


def _row(asked: Question, sheet: Sheet, world: Group, meet: Callable[[], None], way: str, *, offload: bool) -> None:
    trained = prepared(way, asked, world, offload=offload)
    moments, gathered, seconds = _steps(trained, asked, world, meet)
    ranks: list[Any] = [None] * world.world_size
    dist.all_gather_object(ranks, (max(moments, key=lambda held: held.total), gathered))
    if not world.is_main:
        return
    most = max((held for held, _ in ranks), key=lambda held: held.total)
    wanted = formula(way, asked.parameters, world.world_size)
    sheet.add(
        {"way": way, "offload": offload, "formula": words(way)},
        warmup=turns.WARMUP,
        parameters=most.parameters,
        gradients=most.gradients,
        optimizer=most.optimizer,
        total=most.total,
        expected=wanted,
        deviation=100 * (most.total / wanted - 1),
        on_device=most.on_device,
        gathered=max(more for _, more in ranks),
        seconds=seconds,
    )


def prepared(way: str, asked: Question, world: Group, *, offload: bool) -> Trained:
    """The model under one way of sharing; the optimizer's state is offloaded, by ZeRO-2 and -3 everything is."""
    squares = (nn.Linear(asked.width, asked.width, bias=False, dtype=torch.bfloat16) for _ in range(asked.layers))
    model = nn.Sequential(*(nn.Sequential(square, nn.GELU()) for square in squares)).to(world.device)
    kind: Any = partial(MixedAdamW, device=torch.device("cpu") if offload else None)
    if way in {"zero2", "zero3"}:
        shard = partial(
            fully_shard,
            reshard_after_forward=way == "zero3",
            offload_policy=CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if offload else OffloadPolicy(),
            mesh=world.mesh(dp_shard=world.world_size)["dp_shard"],
        )
        for layer in model:
            shard(layer)
        shard(model)
        return Trained(model, model, kind(model.parameters()))
    replica = DistributedDataParallel(model, device_ids=world.device_ids, gradient_as_bucket_view=True)
    if way == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # importing it, torch warns of its own scripts

        return Trained(model, replica, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind))
    return Trained(model, replica, kind(model.parameters()))


def _steps(
    trained: Trained, asked: Question, world: Group, meet: Callable[[], None]
) -> tuple[list[Held], int, list[float]]:
    """What was held at the ends of the phases of a step, what was gathered besides in between, and the steps' times."""
    inputs = torch.randn(asked.rows, asked.width, dtype=torch.bfloat16, device=world.device, requires_grad=True)
    moments: list[Held] = []
    within: list[int] = []
    census = partial(held, trained, world.device)

    def step() -> None:
        loss = trained.forward(inputs).float().square().mean()
        moments.append(census())
        loss.backward()
        moments.append(census())
        trained.optimizer.step()
        moments.append(census())
        trained.optimizer.zero_grad()

    seconds = turns.taken({"": step}, meet, asked.steps)[""]

    def look(*_: object) -> None:
        within.append(census().parameters)

    squares = [module for module in trained.model.modules() if isinstance(module, nn.Linear)]
    hooks = [
        hook(look) for each in squares for hook in (each.register_forward_hook, each.register_full_backward_pre_hook)
    ]
    step()
    for hook in hooks:
        hook.remove()
    # The first step has no optimizer state yet.
    return moments[3:], max(0, max(within) - max(each.parameters for each in moments)), seconds
