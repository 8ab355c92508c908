"""Compares our DistributedDataParallel program with the same loop written by hand, on this machine's CPUs.

    python bench/by_hand.py [--rounds 5] [--steps 20] [--json]

The ratios over 2 ranks: tokens per second, ours / by hand; the gain of DDP's overlap; the share of a step spent
waiting for data. The programs alternate. The median of all steps but the first of each run counts. The standard error
of a ratio comes from the differences between rounds: on a machine whose speed drifts, smaller differences are noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRAIN = ROOT / "jobs" / "train"


def run(program: Path, ranks: int, *arguments: str) -> dict[str, Any]:
    """Run one training under torchrun, one thread per rank; return the seconds of its steps and its summary, if any."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "HPC_KIT_RUN": folder, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        argv += [str(program), *arguments]
        done = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)}\n{done.stdout}{done.stderr}")
        if not (summary := Path(folder, "summary.json")).is_file():
            return dict(json.loads(done.stdout.splitlines()[-1]))
        return {**json.loads(summary.read_text()), **json.loads(Path(folder, "steps.json").read_text())}


def run_rounds(rounds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """Run each program once per round, every other round in reverse, so that a drift of the speed affects all alike."""
    by_hand = ROOT / "bench" / "hand_written.py"
    ways: dict[str, tuple[Path, list[str]]] = {
        "ours": (TRAIN / "ddp.py", []),
        "by hand": (by_hand, []),
        "late": (by_hand, ["--late"]),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, (program, more) in list(ways.items())[:: 1 if number % 2 else -1]:
            found[name].append(run(program, 2, "--steps", str(steps), *more))
    return found


def ratio(over: list[dict[str, Any]], under: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the ratio of the medians of all steps, and its standard error from the ratios of single rounds."""
    medians = [[statistics.median(each["seconds"][1:]) for each in way] for way in (over, under)]
    whole = [statistics.median([second for each in way for second in each["seconds"][1:]]) for way in (over, under)]
    each = [one / other for one, other in zip(*medians, strict=True)]
    error = statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else float("nan")
    return whole[0] / whole[1], error


def measured(rounds: int, steps: int) -> dict[str, float | tuple[float, float]]:
    found = run_rounds(rounds, steps)
    shares = ("data_share", "communication_share")
    return {
        "throughput, ours / by hand": ratio(found["by hand"], found["ours"]),
        "step time, averaged after backward / in it": ratio(found["late"], found["by hand"]),
        **{share: statistics.median(each[share] for each in found["ours"]) for share in shares},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    facts: dict[str, Any] = {"load before": before, **measured(args.rounds, args.steps)}
    if args.json:
        print(json.dumps(facts, indent=2))
        return
    print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} CPUs")
    for key, value in facts.items():
        shown = f"{value[0]:8.3f} +- {value[1]:.3f}" if isinstance(value, tuple) else f"{value:8.3f}"
        print(f"  {key:<50} {shown}")


if __name__ == "__main__":
    main()
