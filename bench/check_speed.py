"""Time of `hpc-kit check` for many scripts in one call, against shellcheck, side by side in one run.

Each round runs every command once on the scripts of tests/check/corpus. The table shows the median CPU time of the
rounds for one script, and its ratio to a shellcheck of that script alone. `in one call`: all scripts in one call.

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
from pathlib import Path

ROOT = Path(__file__).parents[1]
KIT = Path(sys.executable).parent / "hpc-kit"
LIMIT = 1 / 3
"""A script of many takes at most this part of the time of shellcheck for one."""


def cpu_seconds(argv: list[str]) -> float:
    """Return the CPU time of one run, with that of its children."""
    before = os.times()
    subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    """Print the table. The exit status is 1 if the ratio is above the limit."""
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
    times: dict[str, list[float]] = {label: [] for label in commands}
    for _ in range(arguments.rounds):
        for label, calls in commands.items():
            checked = sum(len(argv) - 1 - (argv[0] != "shellcheck") for argv in calls)
            times[label].append(sum(map(cpu_seconds, calls)) / checked)
    each = {label: 1000 * statistics.median(values) for label, values in times.items()}
    ratio = each["hpc-kit check, in one call"] / each["shellcheck"]
    if arguments.json:
        print(json.dumps({"scripts": len(scripts), "ms": each, "ratio": ratio, "limit": LIMIT}, indent=2))
    else:
        print(f"{len(scripts)} scripts, CPU time of one script")
        for label, value in each.items():
            print(f"{label:<28}{value:>8.2f} ms{value / each['shellcheck']:>8.2f}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
