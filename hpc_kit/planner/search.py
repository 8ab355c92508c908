"""Every legal layout of a model on a cluster, ranked by time; and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from hpc_kit.errors import AnswerNo, SpecError
from hpc_kit.planner.constants import Rates
from hpc_kit.planner.frameworks import CHUNKS, MICRO_BATCHES, interleaves, lacks, stages
from hpc_kit.planner.layer import Work, layer
from hpc_kit.planner.machine import GIB, Machine
from hpc_kit.planner.memory import Memory, peak_memory
from hpc_kit.planner.model import Model
from hpc_kit.planner.run import Recompute, Run
from hpc_kit.planner.steps import StepTime, step_time

SHARD = 2048
"""Context parallelism is tried as long as a rank keeps this many tokens of a sequence."""


class Task(Struct, frozen=True, kw_only=True):
    """What is to be planned."""

    model: Model
    machine: Machine
    gpus: int
    global_batch: int
    seq_len: int
    framework: str = "torch"
    precision: str = "bf16"
    flash: bool = True


class Plan(Struct, frozen=True):
    """One layout that fits, with its memory and time."""

    run: Run
    memory: Memory
    time: StepTime

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second a GPU."""
        return self.run.global_batch * self.run.seq_len / self.time.total / self.run.gpus

    @property
    def flops(self) -> float:
        """The model's own operations a second a GPU, attention in full, without what is recomputed."""
        run = self.run
        return run.model.flops(run.global_batch * run.seq_len, run.seq_len) / self.time.total / run.gpus

    @property
    def utilisation(self) -> float:
        """Model FLOPs utilisation: `flops` over the data sheet's 16-bit figure."""
        return self.flops / self.run.machine.gpu.flops


class Rejected(Struct, frozen=True):
    """A layout that cannot be, and why; `gib` is what it lacks, 0 where it is not memory."""

    run: Run
    reason: str
    gib: float = 0.0


class Answer(Struct, frozen=True):
    """Plans, the fastest first; rejected layouts, the nearest to fitting first; how many were looked at."""

    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    seen: int


def divisors(number: int) -> list[int]:
    """All divisors, in order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def search(task: Task, rates: Rates) -> Answer:
    """Look at every legal layout.

    Raises:
        SpecError: No number of GPUs or batch that could be.
    """
    if task.precision == "fp8" and not task.machine.gpu.flops8:
        raise SpecError(
            f"{task.machine.gpu.name} has no 8-bit products",
            found="precision fp8",
            remedy="bf16, or a GPU that has them",
        )
    if task.gpus < 1 or task.global_batch < 1:
        raise SpecError(
            "nothing to plan", found=f"{task.gpus} GPUs, global batch {task.global_batch}", remedy="both from 1"
        )
    plans: list[Plan] = []
    rejected: list[Rejected] = []
    limit = task.machine.gpu.memory * rates.usable
    seen = 0
    known: dict[tuple[object, ...], Work] = {}
    for run in _degrees(task):
        if reason := _illegal(run):
            rejected.append(Rejected(run, reason))
            continue
        least: Rejected | None = None
        fitted = False
        for one in _variants(run, rates):
            seen += 1
            memory = peak_memory(one, rates)
            if memory.total > limit:
                lack = (memory.total - limit) / GIB
                if least is None or lack < least.gib:
                    least = Rejected(one, f"does not fit by {lack:.1f} GiB", lack)
                continue
            fitted = True
            key = (one.tp, one.cp, one.micro_batch, one.recompute, one.micro_batches > 1)
            if key not in known:
                known[key] = layer(one, rates)
            plans.append(Plan(one, memory, step_time(one, rates, memory.total / task.machine.gpu.memory, known[key])))
        if least is not None and not fitted:
            rejected.append(least)
    plans.sort(key=lambda plan: (plan.time.total, plan.memory.total))
    rejected.sort(key=lambda one: (one.gib == 0, one.gib))
    return Answer(tuple(plans), tuple(rejected), seen)


def _degrees(task: Task) -> Iterator[Run]:
    """Degrees of parallelism whose product is the number of GPUs."""
    for tp in divisors(task.gpus):
        if tp > 2 * task.machine.gpus_per_node:
            continue
        for pp in divisors(task.gpus // tp):
            if pp > task.model.layers:
                continue
            for cp in divisors(task.gpus // tp // pp):
                if cp > 1 and (cp & (cp - 1) or task.seq_len // cp < SHARD):
                    continue
                yield Run(
                    model=task.model,
                    machine=task.machine,
                    seq_len=task.seq_len,
                    global_batch=task.global_batch,
                    dp=task.gpus // tp // pp // cp,
                    tp=tp,
                    pp=pp,
                    cp=cp,
                    sequence_parallel=tp > 1,
                    flash=task.flash,
                    precision=task.precision,
                    framework=task.framework,
                )


def _illegal(run: Run) -> str:
    """Why degrees cannot be, or an empty text."""
    model, node = run.model, run.machine.gpus_per_node
    if reason := lacks(run):
        return reason
    if run.tp > 1 and (run.tp > node or node % run.tp):
        return f"tp {run.tp} crosses nodes of {node} GPUs"
    if model.heads % run.tp or (model.kv_heads % run.tp and run.tp % model.kv_heads):
        return f"tp {run.tp} does not divide {model.heads} heads ({model.kv_heads} for keys)"
    if run.global_batch % run.dp:
        return f"dp {run.dp} does not divide a batch of {run.global_batch}"
    return ""


def _recompute(run: Run, rates: Rates) -> tuple[Recompute, ...]:
    """Ways of recomputing that differ: `selective` saves the scores, of which flash attention keeps none."""
    return ("none", "full") if run.flash and rates.selective_core else ("none", "selective", "full")


def _variants(run: Run, rates: Rates) -> Iterator[Run]:
    """Micro-batch, recomputation, ZeRO stage and interleaving of given degrees."""
    share = run.global_batch // run.dp
    again, zero = _recompute(run, rates), stages(run)
    for micro_batch in MICRO_BATCHES:
        # Several whole sequences on a rank: data parallelism would split them as well, and send nothing.
        if share % micro_batch or (run.cp > 1 and micro_batch > 1):
            continue
        m = share // micro_batch
        chunks = [1]
        if run.pp > 1 and m % run.pp == 0:
            chunks = [v for v in CHUNKS if interleaves(run.model.layers, run.pp, v)]
        for recompute in again:
            for stage in zero:
                for v in chunks:
                    yield structs.replace(
                        run, micro_batch=micro_batch, recompute=recompute, zero_stage=stage, virtual_stages=v
                    )


def distinct(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """The best plan of each set of degrees, in order."""
    found: dict[tuple[int, ...], Plan] = {}
    for plan in plans:
        run = plan.run
        found.setdefault((run.dp, run.tp, run.pp, run.cp), plan)
    return tuple(found.values())


def with_room(plans: tuple[Plan, ...], error: float) -> Plan | None:
    """The fastest plan that fits also if its memory is larger by a relative error; None: no plan does."""
    memory = plans[0].run.machine.gpu.memory
    return next((plan for plan in plans if plan.memory.total * (1 + error) <= memory), None)


def refuse(task: Task, answer: Answer, rates: Rates) -> AnswerNo:
    """The error for a cluster on which nothing fits: what comes nearest, and the least that would do."""
    near = next((one for one in answer.rejected if one.gib), None)
    if near is None:
        batch = -(-task.global_batch // task.gpus) * task.gpus
        return AnswerNo(
            f"no layout of {task.model.name} on {task.gpus} GPUs is legal",
            found="\n".join(sorted({one.reason for one in answer.rejected})[:6]),
            remedy=f"a global batch that the data-parallel degree divides, such as {batch}",
        )
    return AnswerNo(
        f"{task.model.name} does not fit on {task.gpus} x {task.machine.gpu.name} under any layout",
        found=f"nearest: {shown(near.run)}: {near.reason}",
        remedy=_least(task, rates) or "GPUs with more memory, or a smaller model",
    )


MOST_NODES = 1024


def _least(task: Task, rates: Rates) -> str:
    """The fewest nodes on which something fits, as options; with the user's batch if that is divided there.

    With a batch that all GPUs divide, what fits on some nodes fits on more: the fewest by doubling, and halving the
    last step. The batch as it is may need some more.
    """

    def fits(nodes: int, *, rounded: bool) -> bool:
        gpus = nodes * task.machine.gpus_per_node
        batch = -(-task.global_batch // gpus) * gpus if rounded else task.global_batch
        return bool(search(structs.replace(task, gpus=gpus, global_batch=batch), rates).plans)

    low = max(1, task.gpus // task.machine.gpus_per_node)
    high = 2 * low
    while not fits(high, rounded=True):
        low, high = high, 2 * high
        if high > MOST_NODES:
            return ""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle, rounded=True) else (middle, high)
    for nodes in range(high, 2 * high):
        if fits(nodes, rounded=False):
            return f"the least that would do: --nodes {nodes}"
    gpus = high * task.machine.gpus_per_node
    return f"the least that would do: --nodes {high} --global-batch {-(-task.global_batch // gpus) * gpus}"


def shown(run: Run) -> str:
    """A layout in a few words."""
    words = [f"dp {run.dp}", *(f"{name} {n}" for name, n in (("tp", run.tp), ("pp", run.pp), ("cp", run.cp)) if n > 1)]
    if run.virtual_stages > 1:
        words.append(f"{run.virtual_stages} virtual stages")
    if run.zero_stage:
        words.append(f"ZeRO-{run.zero_stage}")
    words.append(f"micro-batch {run.micro_batch}")
    if run.recompute != "none":
        words.append(f"{run.recompute} recompute")
    return ", ".join(words)
