"""Time of `hpc-kit check` for many scripts in one call, against shellcheck, side by side in one run.

Each round runs every command once on the scripts of tests/check/corpus. The table shows the median times of the rounds
for one script, and their ratios to a shellcheck of that script alone. `in one call`: all scripts in one call. hpc-kit
checks them in several processes, so that the elapsed time depends on the number of processors.

    python bench/check_speed.py [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
KIT = Path(sys.executable).parent / "hpc-kit"
LIMIT = 1 / 3
"""A script of many takes at most this part of the time of shellcheck for one."""


def seconds(argv: list[str]) -> tuple[float, float]:
    """Return the elapsed time of one run, and the CPU time, with that of its children."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    elapsed, after = time.perf_counter() - start, os.times()
    return elapsed, after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    """Print the table. The exit status is 1 if the ratio of the elapsed times is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("shellcheck") is None:
        print("shellcheck is not installed")
        return 1
    scripts = sorted(str(path) for path in (ROOT / "tests/check/corpus").glob("*/*.sbatch"))
    some = scripts[:: max(1, len(scripts) // 40)]
    commands = {
        "shellcheck": [["shellcheck", script] for script in some],
        "shellcheck, in one call": [["shellcheck", *scripts]],
        "hpc-kit check, in one call": [[str(KIT), "check", *scripts]],
    }
    times: dict[str, list[tuple[float, float]]] = {label: [] for label in commands}
    for _ in range(arguments.rounds):
        for label, calls in commands.items():
            checked = sum(len(argv) - 1 - (argv[0] != "shellcheck") for argv in calls)
            elapsed, cpu = map(sum, zip(*map(seconds, calls), strict=True))
            times[label].append((1000 * elapsed / checked, 1000 * cpu / checked))
    medians = {
        label: [statistics.median(values) for values in zip(*rounds, strict=True)] for label, rounds in times.items()
    }
    ratios = {
        label: [value / one for value, one in zip(values, medians["shellcheck"], strict=True)]
        for label, values in medians.items()
    }
    ratio, cpu_ratio = ratios["hpc-kit check, in one call"]
    cpus = len(os.sched_getaffinity(0))
    if arguments.json:
        document = {"scripts": len(scripts), "cpus": cpus, "ms": {key: each[0] for key, each in medians.items()}}
        document |= {"cpu_ms": {key: each[1] for key, each in medians.items()}}
        print(json.dumps({**document, "ratio": ratio, "cpu_ratio": cpu_ratio, "limit": LIMIT}, indent=2))
    else:
        print(f"{len(scripts)} scripts on {cpus} CPUs, time of one script{'elapsed':>14}{'CPU':>21}")
        for label, pair in medians.items():
            columns = (f"{value:>8.2f} ms{part:>8.2f}" for value, part in zip(pair, ratios[label], strict=True))
            print(f"{label:<28}{'  '.join(columns)}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
