"""How fast `hpc-kit why` reads logs, against `grep -c`: one gigabyte of 1024 ranks.

    .venv/bin/python bench/why.py [--megabytes 1024] [--ranks 1024]

Prints CPU seconds and peak memory of both. The limits are a fifth of grep's speed and 200 MB.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEP = (
    "2026-03-02 14:{minute:02d}:{second:02d} rank {rank} step {step} loss {loss:.4f} lr 3.00e-04 "
    "tokens/s {speed} grad_norm {norm:.3f} mem 31.2GiB\n"
)
NOISE = (
    "2026-03-02 14:{minute:02d}:{second:02d} rank {rank} [INFO] saved checkpoint {step} to /scratch/run7/ckpt\n",
    "n{host}:{step}:99 [0] NCCL INFO Channel 0{second:02d}/16 : 0[0] -> 1[1] via NET/IB/0\n",
    "/opt/venv/lib/python3.11/site-packages/torch/x.py:{second}: UserWarning: no error, only a warning\n",
)
FAILED = """Traceback (most recent call last):
  File "/home/user/project/train.py", line 88, in <module>
    main()
  File "/home/user/project/train.py", line 61, in main
    batch = next(batches)
{error}
"""
CULPRIT = 517


def write_logs(folder: Path, ranks: int, megabytes: int) -> int:
    """Write the logs of a job in which one rank fails and the remaining ranks lose their connection to it."""
    size = megabytes * (1 << 20) // ranks
    for rank in range(ranks):
        lines, written, step = [], 0, 0
        while written < size:
            clock = {"minute": step // 60 % 60, "second": step % 60, "rank": rank, "step": step}
            text = STEP.format(**clock, loss=2 + step % 97 / 99, speed=100_000 + step, norm=step % 7)
            if step % 50 == 0:
                text += NOISE[step // 50 % len(NOISE)].format(**clock, host=rank // 8)
            lines.append(text)
            written += len(text)
            step += 1
        lost = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:5512"
        error = "ValueError: shard 12 is empty" if rank == CULPRIT % ranks else lost
        (folder / f"rank-{rank}.log").write_text("".join(lines) + FAILED.format(error=error))
    return sum(path.stat().st_size for path in folder.iterdir())


def measure(command: list[str]) -> tuple[float, float, str]:
    """Return CPU seconds, wall seconds and output of a command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - start, output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=1024)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="why-bench-"))
    try:
        size = write_logs(folder, options.ranks, options.megabytes)
        grep = ["grep", "-c", "-r", "rror", str(folder)]
        why = [sys.executable, "-m", "hpc_kit", "why", "--json", "--log", str(folder)]
        measure(grep)
        fastest = min((measure(grep) for _ in range(3)), key=lambda run: run[0])
        # The children so far need a few megabytes each: the peak is that of the next one.
        seconds, wall, output = measure(why)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        verdict = json.loads(output)
        ratio = fastest[0] / seconds
        print(f"{size / 1e9:.2f} GB in {options.ranks} files")
        print(f"grep -c        {fastest[0]:6.2f} s CPU  {fastest[1]:6.2f} s  {size / 1e6 / fastest[0]:6.0f} MB/s")
        print(f"hpc-kit why    {seconds:6.2f} s CPU  {wall:6.2f} s  {size / 1e6 / seconds:6.0f} MB/s")
        print(f"speed          1/{1 / ratio:.1f} of grep's (limit 1/5); memory {memory:.0f} MB (limit 200)")
        print(f"answer         rank {verdict['rank']}: {verdict['cause']}")
        sys.exit(0 if ratio >= 0.2 and memory <= 200 and verdict["rank"] == CULPRIT % options.ranks else 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
