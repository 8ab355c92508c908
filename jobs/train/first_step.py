"""One step, and what the time until then went into: the queue, srun, imports, rendezvous, model and data.

    hpc-kit submit first_step
    srun -N4 --ntasks-per-node=2 python jobs/train/first_step.py
    torchrun --nproc-per-node=2 jobs/train/first_step.py --plain

A phase ends when the last rank is through it, so the clocks of the nodes should agree; how far they do is told. When
the batch script and srun began is read from their processes, which rank 0 sees on its own node.
"""

import time

BEGUN = time.time()
# ruff: noqa: E402  the imports are what is timed
import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hpc_kit
from data import batch_numbers, cut, rank_slice, read_text, window_count
from hpc_kit.run_files import RECORD, RUN_VARIABLE
from model import GPT, Config, initialise, next_byte_loss

PHASES = ("queue", "srun", "imports", "rendezvous", "model", "data", "step")
BATCH, SEED = 64, 1


def main(argv: Sequence[str] | None = None) -> None:
    marks = {"srun": process_start(os.getpid()) or BEGUN, "imports": time.time()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="meet by torch's own env://")
    parser.add_argument("--submitted", type=float, help="when: Unix time; in a run of hpc-kit its record tells")
    parser.add_argument("--to", type=Path, help="file for the seconds of each phase, and of the clocks, as JSON")
    args = parser.parse_args(argv)
    meet: Callable[[], AbstractContextManager[Any]] = plain if args.plain else hpc_kit.distributed
    with meet() as world:
        marks["rendezvous"] = time.time()
        first_step(marks, world.device if world else plain_device())
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, marks)
        apart = clocks_apart()
        if dist.get_rank() == 0:
            latest = {name: max(each[name] for each in ranks) for name in marks}
            tell(phases({**before(args.submitted), **latest}), len(ranks), apart, args.to)


@contextmanager
def plain() -> Iterator[None]:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", init_method="env://")
    yield
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's threads may still be freeing tensors, for which they need Python


def plain_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def first_step(marks: dict[str, float], device: torch.device) -> None:
    rank, ranks, cuda = dist.get_rank(), dist.get_world_size(), device.type == "cuda"
    model = GPT(Config()).to(device)
    initialise(model, SEED)
    replica = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(replica.parameters())
    marks["model"] = time.time()
    text, windows_each = read_text().training, Config().sequence
    numbers = batch_numbers(window_count(text, windows_each), max(BATCH, ranks), seed=SEED, step=0)
    batch = cut(text, windows_each, rank_slice(numbers[: len(numbers) // ranks * ranks], rank, ranks)).to(device)
    marks["data"] = time.time()
    next_byte_loss(replica(batch[:, :-1]), batch[:, 1:]).backward()
    optimizer.step()
    if cuda:
        torch.cuda.synchronize(device)
    marks["step"] = time.time()


def before(submitted: float | None) -> dict[str, float]:
    """When the job was submitted and when its script began, as far as that is known."""
    record = Path(os.environ.get(RUN_VARIABLE, ""), RECORD)
    if submitted is None and RUN_VARIABLE in os.environ and record.is_file():
        import datetime as dt

        submitted = dt.datetime.fromisoformat(json.loads(record.read_text())["submitted"]).timestamp()
    script = script_start()
    if script is not None and submitted is not None and script < submitted:
        script = None  # the job was there before: a step of it was asked for
    return {
        **({} if submitted is None else {"submit": submitted}),
        **({} if script is None else {"queue": script}),
    }


def script_start() -> float | None:
    """When the oldest process of this job on this node began: the batch script's shell."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    wanted = {f"SLURM_JOB_ID={job}", f"SLURM_SUBMIT_DIR={os.environ.get('SLURM_SUBMIT_DIR', '')}"}
    starts = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            theirs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # somebody else's, or gone
        if wanted <= set(theirs) and (start := process_start(int(entry.name))) is not None:
            starts.append(start)
    return min(starts, default=None)


def process_start(pid: int) -> float | None:
    """Unix time; the kernel counts in hundredths of a second since it has booted."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


def phases(marks: dict[str, float]) -> dict[str, float]:
    """Seconds of each phase: from the end of the one before it to its own; those before the first mark are unknown."""
    known = [name for name in ("submit", *PHASES) if name in marks]
    return {name: max(0.0, marks[name] - marks[earlier]) for earlier, name in pairwise(known)}


def clocks_apart() -> float:
    """Seconds by which the ranks' clocks differ at most: they read them as soon as each has heard from all."""
    spreads = []
    for _ in range(5):
        stamps = [0.0] * dist.get_world_size()
        dist.all_gather_object(stamps, time.time())
        spreads.append(max(stamps) - min(stamps))
    return min(spreads)


def tell(found: dict[str, float], ranks: int, apart: float, to: Path | None) -> None:
    for name, seconds in found.items():
        print(f"{name:<12}{seconds:8.2f} s")
    print(f"{'in all':<12}{sum(found.values()):8.2f} s   to the first step of {ranks} ranks")
    print(f"{'clocks':<12}{apart:8.2f} s   apart at most", flush=True)
    if to is not None:
        draft = to.with_name(f"{to.name}.part")
        draft.write_text(json.dumps({**found, "clocks": apart}))
        draft.rename(to)


if __name__ == "__main__":
    main()
