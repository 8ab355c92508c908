"""Asynchronous updates through a parameter server, beside synchronous ones: steps and seconds to the same loss.

    srun -N4 --ntasks-per-node=1 python jobs/train/parameter_server.py --steps 60
    torchrun --nproc-per-node=4 jobs/train/parameter_server.py --slow 0.2

Rank 0 has the parameters and the optimizer; the others bring gradients and take parameters home. Synchronous: the
server waits for all of them, so its curve is that of one process, at the pace of the slowest. Asynchronous: it takes
each as it comes, and nobody waits; but a gradient was computed for parameters that have since moved. All that is sent
passes rank 0: its link is what such a star is limited by, where a ring of all-reduce spreads the load.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from curves import Curve, by_step, compared, speeds
from data import Text, batch_numbers, cut, rank_slice, window_count
from hpc_kit.errors import SpecError
from hpc_kit.runtime import write_summary
from loop import adamw, learning_rate
from model import GPT, next_byte_loss
from options import Options, among, count, option, refuse, without
from ranks import gather
from report import peak_memory, say
from start import autocast, gpt, group_of_all, ranks_of

if TYPE_CHECKING:
    from hpc_kit.runtime import Group

STOP = -1


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    servers: int = option(1, among(1), "ranks that have the parameters, and no part of the batch")
    slow: float = option(0.0, float, "seconds that the last worker takes longer for each gradient")
    smooth: int = option(5, count, "steps over whose mean the two losses are compared")


def serve(model: GPT, options: Options, world: Group, group: dist.ProcessGroup, *, synchronous: bool) -> Curve:
    """Rank 0: take gradients, each of a share of a batch, and answer with parameters and the next share to compute."""
    workers = world.world_size - 1
    optimizer, curve, begun = adamw(model, options), Curve(), time.perf_counter()
    at_once = workers if synchronous else 1  # gradients that an update takes; a step is `workers` of them
    total, shares = options.steps * workers, iter(range(workers, options.steps * workers))
    message, late = empty_message(model), 0
    seen = dict.fromkeys(range(1, workers + 1), 0)
    for updates in range(total // at_once):
        mean, sources = torch.zeros_like(message), list[int]()
        for _ in range(at_once):
            sources.append(dist.recv(message, group=group))
            mean += message / at_once
        late += sum(updates - seen[source] for source in sources)
        take(mean[:-1], model)
        clip_grad_norm_(model.parameters(), options.clip)
        for entry in optimizer.param_groups:
            entry["lr"] = learning_rate(options, updates * at_once // workers) * at_once / workers
        optimizer.step()
        curve.losses.append(mean[-1].item())
        curve.seconds.append(time.perf_counter() - begun)
        if (updates + 1) % (options.log_every * workers // at_once) == 0:
            step = (updates + 1) * at_once // workers
            say(world, f"step {step}/{options.steps}   loss {curve.losses[-1]:.2f}   {curve.seconds[-1]:.1f} s")
        parameters = parameters_to_vector(model.parameters()).detach().cpu()
        for source in sorted(sources):
            seen[source] = updates + 1
            dist.send(torch.cat([parameters, torch.tensor([float(next(shares, STOP))])]), source, group=group)
    return by_step(curve, workers // at_once, late / total)


def work(model: GPT, options: ServerOptions, text: Text, world: Group, group: dist.ProcessGroup) -> float:
    """The other ranks: gradients of the share that the server names, until it names none. Its share of waits."""
    workers, windows = world.world_size - 1, window_count(text.training, options.sequence)
    share, waited, begun = world.rank - 1, 0.0, time.perf_counter()
    while share != STOP:
        step, part = divmod(share, workers)
        numbers = batch_numbers(windows, options.global_batch, seed=options.seed, step=step)
        mine = cut(text.training, options.sequence, rank_slice(numbers, part, workers)).to(world.device)
        with autocast(options, world.device):
            loss = next_byte_loss(model(mine[:, :-1]), mine[:, 1:])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        if world.rank == workers:
            time.sleep(options.slow)
        message = torch.cat([parameters_to_vector(gradients), loss.detach().view(1)]).cpu()
        ready = time.perf_counter()
        dist.send(message, 0, group=group)
        dist.recv(message, 0, group=group)
        waited += time.perf_counter() - ready
        vector_to_parameters(message[:-1].to(world.device), model.parameters())
        share = int(message[-1])
    return waited / (time.perf_counter() - begun)


def empty_message(model: GPT) -> Tensor:
    """All gradients or parameters, and one number more: the loss, or the next share."""
    return torch.zeros(sum(parameter.numel() for parameter in model.parameters()) + 1)


def take(gradients: Tensor, model: GPT) -> None:
    sizes = [parameter.numel() for parameter in model.parameters()]
    for parameter, part in zip(model.parameters(), gradients.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.device)


def main(argv: Sequence[str] | None = None) -> dict[str, Curve]:
    options = ServerOptions.parse(__doc__, argv)
    with ranks_of(options) as (world, text):
        workers = world.world_size - 1
        if not workers:
            raise SpecError("a server needs a worker", found="1 rank", remedy="2 ranks or more: ntasks_per_node = 2")
        without(options, "resume", "checkpoint", "checkpoint_every", "eval_every", "accumulate")
        refuse(options, text, workers)
        group = group_of_all(options, world, "gloo")
        curves, waits = dict[str, Curve](), dict[str, float]()
        for name in ("synchronous", "asynchronous"):
            model = gpt(options, world.device)
            if world.is_main:
                say(world, f"{name} updates, {workers} workers")
                curves[name] = serve(model, options, world, group, synchronous=name == "synchronous")
            else:
                waits[name] = work(model, options, text, world, group)
            world.barrier()
        ranks = gather((peak_memory(world), waits.get("synchronous", 0.0)))
        if world.is_main:
            lines, facts = compared(curves, options.smooth)
            for line in lines:
                say(world, line)
            memory, shares = zip(*ranks, strict=True)
            facts |= {"peak_memory_mib": max(memory), "communication_share": sum(shares) / workers}
            each = " ".join(f"{size:.0f}" for size in memory)
            write_summary(memory_mib_per_rank=each, **speeds(curves["synchronous"], options), **facts)
        return curves


if __name__ == "__main__":
    main()
