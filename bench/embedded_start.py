"""Measures the embedded Slurm from sbatch to the script's first instruction, without a running controller.

python bench/embedded_start.py [TIMES]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = "#!/bin/sh\n: > started\n"


def once(folder: Path, environ: dict[str, str]) -> tuple[float, float]:
    """Return the seconds until sbatch returns, and until the script begins."""
    started = folder / "started"
    started.unlink(missing_ok=True)
    before = time.perf_counter()
    subprocess.run(["sbatch", "-Q", "-o", "/dev/null", "job.sh"], cwd=folder, env=environ, check=True)
    prompt = time.perf_counter() - before
    while not started.exists():
        time.sleep(0.001)
    begun = time.perf_counter() - before
    time.sleep(0.3)  # the controller ends with the last job
    return prompt, begun


def main() -> None:
    """Print the median and the worst of some runs."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.sh").write_text(SCRIPT)
        path = [sys.executable, "-m", "pocketslurm", "path", "--state", str(folder / "state")]
        commands = subprocess.run(path, capture_output=True, text=True, check=True).stdout.strip()
        environ = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
        runs = [once(folder, environ) for _ in range(times)]
    for what, values in zip(("sbatch returns", "script begins"), zip(*runs, strict=True), strict=True):
        print(f"{what}  median {statistics.median(values) * 1000:.0f} ms, worst {max(values) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
