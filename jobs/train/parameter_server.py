"""Asynchronous and synchronous updates through a parameter server: steps and seconds to the same loss.

    srun -N4 --ntasks-per-node=1 python jobs/train/parameter_server.py --steps 60
    torchrun --nproc-per-node=4 jobs/train/parameter_server.py --slow 0.2

Rank 0, the server, has the parameters and the optimizer; the workers send gradients and receive parameters.
Synchronous: the server waits for all workers. The losses are those of one process; the slowest worker sets the pace.
Asynchronous: the server applies each gradient when it arrives. No worker waits, but a gradient is late: other updates
have changed the parameters. All messages pass through the link of rank 0. A ring all-reduce would use all links alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from data import choose_windows, count_windows, cut_windows, take_share
from model import GPT, next_byte_loss
from options import Options, among, count, option
from training import (
    Curve,
    SpecError,
    adamw,
    autocast,
    build_model,
    check_batch,
    compare_curves,
    gather,
    join_ranks,
    learning_rate,
    new_group_of_all,
    summarize_training,
)

STOP = -1


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    unsupported = ("resume", "checkpoint", "checkpoint_every", "eval_every", "accumulate")
    servers: int = option(1, among(1), "ranks that have the parameters and no share of the batch")
    slow: float = option(0.0, float, "seconds that the last worker takes longer for each gradient")
    smooth: int = option(5, count, "steps over whose mean the two losses are compared")


def serve(model: GPT, options: Options, workers: int, group: dist.ProcessGroup, *, synchronous: bool) -> Curve:
    """Run rank 0: take gradients, and answer each with the parameters and the next share of a batch to compute."""
    optimizer, curve, begun = adamw(model, options), Curve(), time.perf_counter()
    per_update = workers if synchronous else 1  # gradients of an update; a step is `workers` gradients
    total, shares = options.steps * workers, iter(range(workers, options.steps * workers))
    # All gradients or parameters, and one more number: the loss, or the next share.
    sizes = [parameter.numel() for parameter in model.parameters()]
    message, late = torch.zeros(sum(sizes) + 1), 0
    known = dict.fromkeys(range(1, workers + 1), 0)
    for update in range(total // per_update):
        mean, sources = torch.zeros_like(message), list[int]()
        for _ in range(per_update):
            sources.append(dist.recv(message, group=group))
            mean += message / per_update
        late += sum(update - known[source] for source in sources)
        for parameter, part in zip(model.parameters(), mean.split([*sizes, 1]), strict=False):
            parameter.grad = part.view_as(parameter).to(parameter.device)
        clip_grad_norm_(model.parameters(), options.clip)
        for entry in optimizer.param_groups:
            entry["lr"] = learning_rate(options, update * per_update // workers) * per_update / workers
        optimizer.step()
        curve.losses.append(mean[-1].item())
        curve.seconds.append(time.perf_counter() - begun)
        if (update + 1) % (options.log_every * workers // per_update) == 0:
            step = (update + 1) * per_update // workers
            print(f"step {step}/{options.steps}   loss {curve.losses[-1]:.2f}   {curve.seconds[-1]:.1f} s", flush=True)
        parameters = parameters_to_vector(model.parameters()).detach().cpu()
        for source in sorted(sources):
            known[source] = update + 1
            dist.send(torch.cat([parameters, torch.tensor([float(next(shares, STOP))])]), source, group=group)
    curve.staleness = late / total
    return curve.per_step(workers // per_update)


def main(argv: Sequence[str] | None = None) -> dict[str, Curve]:
    options = ServerOptions.parse(__doc__, argv)
    with join_ranks(options) as (world, text):
        workers = world.world_size - 1
        if not workers:
            raise SpecError("a server needs a worker", found="1 rank", remedy="2 ranks or more: ntasks_per_node = 2")
        check_batch(options, text, workers)
        windows, group = count_windows(text.training, options.sequence), new_group_of_all(options, world, "gloo")

        def work(model: GPT) -> float:
            """Run a worker: compute the gradients of each share that the server names. Returns its share of waits."""
            share, waited, begun = world.rank - 1, 0.0, time.perf_counter()
            while share != STOP:
                step, part = divmod(share, workers)
                numbers = choose_windows(windows, options.global_batch, seed=options.seed, step=step)
                numbers = take_share(numbers, part, workers)
                mine = cut_windows(text.training, options.sequence, numbers).to(world.device)
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

        curves, waits = dict[str, Curve](), dict[str, float]()
        for name in ("synchronous", "asynchronous"):
            model = build_model(options, world.device)
            if world.is_main:
                print(f"{name} updates, {workers} workers", flush=True)
                curves[name] = serve(model, options, workers, group, synchronous=name == "synchronous")
            else:
                waits[name] = work(model)
            world.barrier()
        shares, (curves, *_) = gather(waits.get("synchronous", 0.0)), gather(curves)
        lines, facts = compare_curves(curves, options.smooth)
        if world.is_main:
            print("\n".join(lines), flush=True)
        ends, losses = curves["synchronous"].seconds, curves["synchronous"].losses
        seconds = [end - begin for begin, end in pairwise([0.0, *ends])]
        facts |= {"loss_last": losses[-1], "communication_share": sum(shares) / workers}
        summarize_training(world, seconds, options.global_batch * options.sequence, **facts)
        return curves


if __name__ == "__main__":
    main()
