"""Every legal layout of a model on a cluster, ranked by time; and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from msgspec import Struct, structs

from hpc_kit.errors import SpecError
from hpc_kit.planner.compute_time import Work, layer
from hpc_kit.planner.constants import Rates
from hpc_kit.planner.frameworks import MICRO_BATCHES, chunks, lacks, zero_stages
from hpc_kit.planner.layout import Recompute, Run
from hpc_kit.planner.machine import GIB, Machine
from hpc_kit.planner.memory import Memory, peak_memory
from hpc_kit.planner.model import Model
from hpc_kit.planner.step_time import StepTime, step_time

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
    again, zero = _recompute(run, rates), zero_stages(run)
    for micro_batch in MICRO_BATCHES:
        # Several whole sequences on a rank: data parallelism would split them as well, and send nothing.
        if share % micro_batch or (run.cp > 1 and micro_batch > 1):
            continue
        one = structs.replace(run, micro_batch=micro_batch)
        for recompute, stage, v in product(again, zero, chunks(one)):
            yield structs.replace(one, recompute=recompute, zero_stage=stage, virtual_stages=v)


def distinct(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """The best plan of each set of degrees, in order."""
    found: dict[tuple[int, ...], Plan] = {}
    for plan in plans:
        run = plan.run
        found.setdefault((run.dp, run.tp, run.pp, run.cp), plan)
    return tuple(found.values())


def with_room(plans: tuple[Plan, ...], limit: float, error: float) -> Plan | None:
    """The fastest plan that keeps below `limit` bytes also if its memory is larger by a relative error, if any does."""
    return next((plan for plan in plans if plan.memory.total * (1 + error) <= limit), None)


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
