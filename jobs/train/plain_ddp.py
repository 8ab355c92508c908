"""The same model and data in plain torch, as most scripts are written; it imports nothing of hpc_kit.

    torchrun --nproc-per-node=2 jobs/train/plain_ddp.py --steps 60
    hpc-kit submit -j 4x2 -- python jobs/train/plain_ddp.py --steps 60
    python jobs/train/plain_ddp.py --steps 60

torchrun, or hpc-kit, sets the variables of the rank. Without RANK, the program trains alone; its first line shows this.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from data import choose_windows, count_windows, cut_windows, read_text, take_share
from model import GPT, Config, initialize, next_byte_loss


def save_checkpoint(path: Path, replica: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Rank 0 saves one file. All ranks wait, so that no rank ends or reads before the file is complete."""
    if dist.get_rank() == 0:
        draft = path.with_name(f".{path.name}.part")  # a kill in the middle leaves the previous file
        torch.save({"model": replica.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
        draft.replace(path)
    dist.barrier()


def load_checkpoint(
    path: Path, replica: DistributedDataParallel, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Load the file on every rank; returns the steps that are done."""
    # Rank 0 saved its own device. Without map_location, all ranks of a node would load to that one GPU.
    saved = torch.load(path, map_location=device, weights_only=True)
    replica.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder of Python files [the standard library]")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE.pt", help="continue from this file, and save to it")
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS", help="[only at the end]")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    backend = "nccl" if cuda else "gloo"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group(backend, device_id=device if cuda else None)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {ranks} on {device}", flush=True)

    config = Config()
    text = read_text(args.data).training
    windows = count_windows(text, config.sequence)
    model = GPT(config).to(device)
    initialize(model, args.seed)
    replica = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=args.lr)

    first = 0
    if args.checkpoint and args.checkpoint.exists():
        first = load_checkpoint(args.checkpoint, replica, optimizer, device)
    for step in range(first, args.steps):
        numbers = choose_windows(windows, args.global_batch, seed=args.seed, step=step)
        batch = cut_windows(text, config.sequence, take_share(numbers, rank, ranks)).to(device)
        loss = next_byte_loss(replica(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0 or step + 1 == args.steps:
            mean = loss.detach() / ranks
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1}/{args.steps}   loss {mean.item():.2f}", flush=True)
        is_due = args.checkpoint_every and (step + 1) % args.checkpoint_every == 0
        if args.checkpoint and (is_due or step + 1 == args.steps):
            save_checkpoint(args.checkpoint, replica, optimizer, step + 1)

    dist.destroy_process_group()
    # gloo's threads may still free tensors. If the interpreter ends before them, the process aborts.
    time.sleep(0.1)


if __name__ == "__main__":
    main()
