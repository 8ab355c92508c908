"""The loop of jobs/train/ddp.py written by hand in plain torch, for the comparison in bench/by_hand.py.

    torchrun --nproc-per-node=2 bench/hand_written.py --steps 20 [--late]

The same model, data, optimizer, schedule and clipping; nothing is metered but the whole. Prints the seconds of
its steps, each over when the slowest rank is through.
--late averages the gradients after backward, in one message, not in it: what DDP's overlap is worth.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1] / "jobs" / "train"))

from data import choose_windows, count_windows, cut_windows, read_text, take_share
from model import GPT, Config, initialize, next_byte_loss


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 20), ("layers", 4), ("width", 128), ("sequence", 64), ("global-batch", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--late", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    config = Config(layers=args.layers, width=args.width, sequence=args.sequence)
    text = read_text().training
    windows = count_windows(text, config.sequence)
    model = GPT(config)
    initialize(model, 1)
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    groups = [
        {"params": [each for each in model.parameters() if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in model.parameters() if each.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=6e-3, betas=(0.9, 0.95), fused=True)
    times = []
    for step in range(args.steps):
        begun = time.perf_counter()
        numbers = choose_windows(windows, args.global_batch, seed=1, step=step)
        batch = cut_windows(text, config.sequence, take_share(numbers, rank, ranks))
        if args.late:
            with replica.no_sync():
                next_byte_loss(replica(batch[:, :-1]), batch[:, 1:]).backward()
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            flat = torch.cat([each.flatten() for each in gradients]).div_(ranks)
            dist.all_reduce(flat)
            for gradient, mean in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
                gradient.copy_(mean.view_as(gradient))
        else:
            next_byte_loss(replica(batch[:, :-1]), batch[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            up = (step + 1) / 10 if step < 10 else (1 + math.cos(math.pi * (step - 10) / max(1, args.steps - 10))) / 2
            group["lr"] = 6e-3 * up
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begun)
    slowest = torch.tensor(times)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"seconds": slowest.tolist()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
