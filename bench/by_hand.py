"""What DistributedDataParallel costs in our program against the same loop written by hand, on this machine's CPUs.

    python bench/by_hand.py [--rounds 5] [--steps 20] [--json]

Ratios, each taken in one run, in turn, over 2 ranks: tokens a second, ours / by hand; what DDP's overlap is worth; the
share of a step spent waiting for data. The machine should be idle; the load is printed beside the figures.
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

ROOT = Path(__file__).parents[1]
TRAIN = ROOT / "jobs" / "train"
Summary = dict[str, float]


def run(program: Path, ranks: int, *arguments: str) -> Summary:
    """One training under torchrun, one thread a rank; its summary."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "HPC_KIT_RUN": folder, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        argv += [str(program), *arguments]
        done = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)}\n{done.stdout}{done.stderr}")
        summary = Path(folder, "summary.json")
        text = summary.read_text() if summary.is_file() else done.stdout.splitlines()[-1]
        found: Summary = json.loads(text)
        return found


def in_turn(rounds: int, runs: dict[str, list[str]]) -> dict[str, list[Summary]]:
    """Each of them once a round, so that a machine whose speed drifts drifts for all."""
    found: dict[str, list[Summary]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (program, ranks, *arguments) in runs.items():
            folder = TRAIN if (TRAIN / program).is_file() else ROOT / "bench"
            found[name].append(run(folder / program, int(ranks), *arguments))
    return found


def median(summaries: list[Summary], key: str = "step_time_median") -> float:
    return statistics.median(summary[key] for summary in summaries)


def ratio(over: list[Summary], under: list[Summary]) -> float:
    """Of two ways taken in the same rounds: the median of the rounds' ratios of step times."""
    pairs = zip(over, under, strict=True)
    return statistics.median(one["step_time_median"] / other["step_time_median"] for one, other in pairs)


def ddp(rounds: int, steps: list[str]) -> Summary:
    found = in_turn(
        rounds,
        {
            "ours": ["ddp.py", "2", *steps],
            "by hand": ["hand_written.py", "2", *steps],
            "late": ["hand_written.py", "2", *steps, "--late"],
        },
    )
    return {
        "throughput, ours / by hand": ratio(found["by hand"], found["ours"]),
        "step time, averaged after backward / in it": ratio(found["late"], found["by hand"]),
        "data_share": median(found["ours"], "data_share"),
        "communication_share": median(found["ours"], "communication_share"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    facts = {"load before": before, **ddp(args.rounds, ["--steps", str(args.steps)])}
    if args.json:
        print(json.dumps(facts, indent=2))
        return
    print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} CPUs")
    for key, value in facts.items():
        print(f"  {key:<50} {value:8.3f}")


if __name__ == "__main__":
    main()
