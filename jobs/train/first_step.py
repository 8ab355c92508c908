"""One step, and where the time until then goes: the queue, srun, imports, rendezvous, model and data.

    hpc-kit submit first_step
    srun -N4 --ntasks-per-node=2 python jobs/train/first_step.py
    torchrun --nproc-per-node=2 jobs/train/first_step.py --plain

A phase ends when the last rank has finished it, so the clocks of the nodes should agree; the last line compares them.
Batch script and srun begin when their processes do, on the node of rank 0.
"""

import time

BEGUN = time.time()
# ruff: noqa: E402  the time of the imports is measured
import argparse
import datetime as dt
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from data import choose_windows, count_windows, cut_windows, read_text, take_share
from model import GPT, Config, initialize, next_byte_loss

PHASES, BATCH = ("queue", "srun", "imports", "rendezvous", "model", "data", "step"), 64


@contextmanager
def join_plainly() -> Iterator[SimpleNamespace]:
    is_cuda, device = torch.cuda.is_available(), torch.device("cpu")
    if is_cuda:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)  # NCCL sends the objects of a collective from the current GPU
    dist.init_process_group("nccl" if is_cuda else "gloo", device_id=device if is_cuda else None)
    yield SimpleNamespace(device=device)
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's threads may still free tensors, and abort if the interpreter ends


def run_first_step(marks: dict[str, float], device: torch.device) -> None:
    rank, ranks, is_cuda = dist.get_rank(), dist.get_world_size(), device.type == "cuda"
    model = GPT(Config()).to(device)
    initialize(model, seed=1)
    replica = DistributedDataParallel(model, device_ids=[device.index] if is_cuda else None)
    optimizer = torch.optim.AdamW(replica.parameters())
    marks["model"] = time.time()
    text, sequence = read_text().training, Config().sequence
    numbers = choose_windows(count_windows(text, sequence), max(BATCH, ranks), seed=1, step=0)
    batch = cut_windows(text, sequence, take_share(numbers[: len(numbers) // ranks * ranks], rank, ranks)).to(device)
    marks["data"] = time.time()
    next_byte_loss(replica(batch[:, :-1]), batch[:, 1:]).backward()
    optimizer.step()
    if is_cuda:
        torch.cuda.synchronize(device)
    marks["step"] = time.time()


def find_earlier_marks(submitted: float | None) -> dict[str, float]:
    """Return when the job was submitted and when its script began, as far as this is known."""
    record = Path(os.environ.get("HPC_KIT_RUN", ""), "record.json")
    if submitted is None and "HPC_KIT_RUN" in os.environ and record.is_file():
        submitted = dt.datetime.fromisoformat(json.loads(record.read_text())["submitted"]).timestamp()
    script = find_script_start()
    if script and submitted and script < submitted:
        script = None  # only a step was submitted, to a job that was running
    return {name: mark for name, mark in (("submit", submitted), ("queue", script)) if mark is not None}


def find_script_start() -> float | None:
    """Return the start of the oldest process of this job on this node: the shell of the batch script."""
    if "SLURM_JOB_ID" not in os.environ:
        return None
    wanted = {f"{name}={os.environ.get(name, '')}" for name in ("SLURM_JOB_ID", "SLURM_SUBMIT_DIR")}
    starts = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # another user's process, or one that has ended
        if wanted <= set(variables) and (start := find_process_start(int(entry.name))) is not None:
            starts.append(start)
    return min(starts, default=None)


def find_process_start(pid: int) -> float | None:
    """Return the Unix time at which a process began; the kernel counts in hundredths of a second since boot."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def compute_phases(marks: dict[str, float]) -> dict[str, float]:
    """Return the seconds of each phase: from the mark before it to its own. A phase without a mark is left out."""
    known = [name for name in ("submit", *PHASES) if name in marks]
    return {name: max(0.0, marks[name] - marks[earlier]) for earlier, name in pairwise(known)}


def compare_clocks() -> float:
    """Return the largest difference between the clocks of the ranks, read after a message from all."""
    spreads = []
    for _ in range(5):
        stamps = [0.0] * dist.get_world_size()
        dist.all_gather_object(stamps, time.time())
        spreads.append(max(stamps) - min(stamps))
    return min(spreads)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="join the ranks by torch's own env://")
    parser.add_argument("--submitted", type=float, help="Unix time of the submission [from the run's record]")
    parser.add_argument("--to", type=Path, help="JSON file for the seconds of each phase, and of the clocks")
    args = parser.parse_args(argv)
    join: Any = join_plainly if args.plain else import_module("training").distributed
    marks = {"srun": find_process_start(os.getpid()) or BEGUN, "imports": time.time()}
    with join() as world:
        marks["rendezvous"] = time.time()
        run_first_step(marks, world.device)
        ranks: list[dict[str, float]] = [{}] * dist.get_world_size()
        dist.all_gather_object(ranks, marks)
        difference = compare_clocks()
        if dist.get_rank() == 0:
            latest = {name: max(each[name] for each in ranks) for name in marks}
            phases = compute_phases({**find_earlier_marks(args.submitted), **latest})
            for name, seconds in phases.items():
                print(f"{name:<12}{seconds:8.2f} s")
            print(f"{'in all':<12}{sum(phases.values()):8.2f} s   to the first step of {len(ranks)} ranks")
            print(f"{'clocks':<12}{difference:8.2f} s   apart at most", flush=True)
            if args.to:
                draft = args.to.with_name(f"{args.to.name}.part")
                draft.write_text(json.dumps({**phases, "clocks": difference}))
                draft.rename(args.to)


if __name__ == "__main__":
    main()
