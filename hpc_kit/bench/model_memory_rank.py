"""One rank of `hpc-kit bench memory`: counts the bytes of a model's states while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from hpc_kit.bench import option_checks, rank_timing
from hpc_kit.bench.model_memory import MemoryOptions, formula_text, state_bytes
from hpc_kit.bench.recorder import Recorder, recorder_of_rank
from hpc_kit.bench.results import Plot
from hpc_kit.runtime.process_group import distributed

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

    from hpc_kit.runtime import Group


CPU_NOTE = (
    "The ranks compute on CPUs: what is offloaded lies in the same memory as what is not, so offloading moves nothing"
    " here and `on device` is the whole."
)
METHOD_NOTE = (
    "Mixed precision: bfloat16 parameters and gradients (2 P each), an fp32 copy and two moments in the optimizer"
    " (12 P). Measured: bytes of the tensors' storages, each once, at the end of forward, of backward or of the update,"
    " whenever that is most; of the rank that holds most. Activations, and the layers that ZeRO-3 gathers for a moment,"
    " are not model states."
)


def main(arguments: Mapping[str, Any], recorder: Recorder) -> None:
    """Measure each strategy; rank 0 fills in the recorder."""
    options = MemoryOptions(**arguments)
    with distributed() as world:
        needed = options.needed_bytes(world.world_size)
        option_checks.check_gpu_memory(needed, "the model", "a smaller --layers or --width", world)
        barrier = rank_timing.barrier_function(world)
        recorder, _ = recorder_of_rank(recorder, world)
        recorder.expect_rows(len(options.ways) * len(options.offload))
        recorder.add_plot(_states_plot(options, world.world_size))
        recorder.add_note(METHOD_NOTE)
        if world.device.type == "cpu" and True in options.offload:
            recorder.add_note(CPU_NOTE)
        for offload in options.offload:
            for strategy in options.ways:
                recorder.report_progress(f"{strategy}, offloaded" if offload else strategy)
                _measure_strategy(options, recorder, world, barrier, strategy, offload=offload)


def _states_plot(options: MemoryOptions, ranks: int) -> Plot:
    """Return the plot of the states of a rank by strategy, with the formulas as marks."""
    return Plot(
        name="states",
        title=f"Model states of a rank: P = {options.parameters / 1e6:.3g} million, d = {ranks}",
        kind="stacked",
        x="way",
        y=("parameters", "gradients", "optimizer"),
        where={"offload": options.offload[0]},
        marks={
            f"{strategy}: {formula_text(strategy)}": state_bytes(strategy, options.parameters, ranks)
            for strategy in options.ways
        },
    )


def _measure_strategy(
    options: MemoryOptions,
    recorder: Recorder,
    world: Group,
    barrier: Callable[[], None],
    strategy: str,
    *,
    offload: bool,
) -> None:
    trained = prepare_model(strategy, options, world, offload=offload)
    phases, gathered, seconds = _train_steps(trained, options, world, barrier)
    ranks: list[Any] = [None] * world.world_size
    dist.all_gather_object(ranks, (max(phases, key=lambda held: held.total), gathered))
    peak = max((held for held, _ in ranks), key=lambda held: held.total)
    expected = state_bytes(strategy, options.parameters, world.world_size)
    recorder.add_row(
        {"way": strategy, "offload": offload, "formula": formula_text(strategy)},
        warmup=rank_timing.WARMUP_ROUNDS,
        parameters=peak.parameters,
        gradients=peak.gradients,
        optimizer=peak.optimizer,
        total=peak.total,
        expected=expected,
        deviation=100 * (peak.total / expected - 1),
        on_device=peak.on_device,
        gathered=max(extra for _, extra in ranks),
        seconds=seconds,
    )


def prepare_model(strategy: str, options: MemoryOptions, world: Group, *, offload: bool) -> TrainedModel:
    """Build the model with one sharding strategy.

    Offloading moves the optimizer's state; ZeRO-2 and -3 offload parameters and gradients, too.
    """
    linears = (nn.Linear(options.width, options.width, bias=False, dtype=torch.bfloat16) for _ in range(options.layers))
    model = nn.Sequential(*(nn.Sequential(linear, nn.GELU()) for linear in linears)).to(world.device)
    make_adamw: Any = partial(MixedPrecisionAdamW, device=torch.device("cpu") if offload else None)
    if strategy in {"zero2", "zero3"}:
        shard = partial(
            fully_shard,
            reshard_after_forward=strategy == "zero3",
            offload_policy=CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if offload else OffloadPolicy(),
            mesh=world.mesh(dp_shard=world.world_size)["dp_shard"],
        )
        for layer in model:
            shard(layer)
        shard(model)
        return TrainedModel(model, model, make_adamw(model.parameters()))
    # Without the view, DDP would hold each gradient twice, and the formulas count it once.
    replica = DistributedDataParallel(model, device_ids=world.device_ids, gradient_as_bucket_view=True)
    if strategy == "zero1":
        # Imported late, because torch prints a deprecation warning.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return TrainedModel(model, replica, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=make_adamw))
    return TrainedModel(model, replica, make_adamw(model.parameters()))


def _train_steps(
    trained: TrainedModel, options: MemoryOptions, world: Group, barrier: Callable[[], None]
) -> tuple[list[HeldBytes], int, list[float]]:
    """Train some steps; return the bytes after each phase, the extra bytes gathered in between, and the times."""
    # With gradients of the inputs, the backward hook of the first layer runs, too.
    inputs = torch.randn(options.rows, options.width, dtype=torch.bfloat16, device=world.device, requires_grad=True)
    phases: list[HeldBytes] = []
    gathered: list[int] = []
    count = partial(count_bytes, trained, world.device)

    def step() -> None:
        loss = trained.forward(inputs).float().square().mean()
        phases.append(count())
        loss.backward()
        phases.append(count())
        trained.optimizer.step()
        phases.append(count())
        trained.optimizer.zero_grad()

    seconds = rank_timing.time_interleaved({"": step}, barrier, options.steps)[""]

    def count_parameters(*_: object) -> None:
        gathered.append(count().parameters)

    # One more step with hooks, which would disturb the times.
    linears = [module for module in trained.model.modules() if isinstance(module, nn.Linear)]
    hooks = [
        register(count_parameters)
        for linear in linears
        for register in (linear.register_forward_hook, linear.register_full_backward_pre_hook)
    ]
    step()
    for hook in hooks:
        hook.remove()
    # Skip the three phases of the first step: it has no optimizer state yet.
    return phases[3:], max(0, max(gathered) - max(each.parameters for each in phases)), seconds


class HeldBytes(NamedTuple):
    """Bytes of one rank at one time."""

    parameters: int
    gradients: int
    optimizer: int
    on_device: int

    @property
    def total(self) -> int:
        """Bytes of parameters, gradients and optimizer."""
        return self.parameters + self.gradients + self.optimizer


class TrainedModel(NamedTuple):
    """A model, its optimizer, and the function for its forward pass."""

    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    optimizer: Optimizer


def count_bytes(trained: TrainedModel, device: torch.device) -> HeldBytes:
    """Count the bytes of this rank now."""
    # With fully_shard, the model has the gathered parameters of a layer for a while, the optimizer always the shards.
    optimized = [each for group in trained.optimizer.param_groups for each in group["params"]]
    parameters = list(map(_local_tensor, [*trained.model.parameters(), *optimized]))
    gradients = [_local_tensor(each.grad) for each in trained.model.parameters() if each.grad is not None]
    # Without the step counters, which have no dimension.
    states = [
        value
        for state in inner_optimizer(trained.optimizer).state.values()
        for value in state.values()
        if value.dim() > 0
    ]
    here = [tensor for tensor in (*parameters, *gradients, *states) if tensor.device.type == device.type]
    return HeldBytes(*map(storage_bytes, (parameters, gradients, states, here)))


def inner_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer with this rank's state."""
    # ZeroRedundancyOptimizer wraps an optimizer; importing the class for isinstance takes a second.
    inner: Optimizer = getattr(optimizer, "optim", optimizer)
    return inner


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages; shared storages count once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


class MixedPrecisionAdamW(Optimizer):
    """AdamW in mixed precision with 12 bytes of state for each parameter; torch has none of its own.

    Parameters and gradients have 16 bits; the state is an fp32 copy and two fp32 moments.

    Args:
        params: As for any optimizer; each rank of a sharded model has the state of its shard.
        lr: Learning rate.
        device: Device of the state and the update; None: that of the parameters.
    """

    def __init__(self, params: ParamsT, lr: float = 1e-4, device: torch.device | None = None) -> None:
        super().__init__(params, {"lr": lr})
        self.device = device

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no caller passes a closure
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"])

    def _update(self, parameter: Tensor, lr: float) -> None:
        shard, gradient = _local_tensor(parameter), _local_tensor(parameter.grad)
        state = self.state[parameter]
        if not state:
            master = shard.to(self.device or shard.device, torch.float32, copy=True)
            state.update(master=master, first=torch.zeros_like(master), second=torch.zeros_like(master))
            # torch's adamw reads the step on the host; on the GPU, each update would wait for a copy.
            state["step"] = torch.zeros((), device="cpu")
        master = state["master"]
        adamw(
            [master],
            [gradient.to(master.device, torch.float32)],
            [state["first"]],
            [state["second"]],
            max_exp_avg_sqs=[],
            state_steps=[state["step"]],
            foreach=False,
            amsgrad=False,
            maximize=False,
            beta1=0.9,
            beta2=0.95,
            lr=lr,
            weight_decay=0.1,
            eps=1e-8,
        )
        shard.copy_(master)


def _local_tensor(tensor: Any) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
