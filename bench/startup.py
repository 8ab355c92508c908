"""Start-up times as ratios, side by side in one run: `make bench`.

Each round runs every command once, so that a drift of the machine's speed affects all alike. The table shows the median
of the rounds and its ratio to the base, `python -c "import argparse, jinja2"`.

    python bench/startup.py [--rounds 21] [--torchx] [--json]

--torchx installs torchx into a folder of its own and measures its dry run of the same job beside.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASE = 'python -c "import argparse, jinja2"'
BIN = Path(sys.executable).parent

_FAKES = {"sbatch": "echo Submitted batch job $$", "srun": ":", "squeue": ":", "scontrol": ":", "sinfo": ":"}
"""Shell code of the substitutes for Slurm's commands. Without sinfo, that of the machine would be measured."""


def commands(folder: Path, torchx: Path | None) -> dict[str, list[str]]:
    """Return the measured commands by label."""
    python, kit = sys.executable, str(BIN / "hpc-kit")
    table = {
        "python -c pass": [python, "-c", "pass"],
        BASE: [python, "-c", "import argparse, jinja2"],
        "hpc-kit --help": [kit, "--help"],
        "hpc-kit render ddp_4node": [kit, "render", "ddp_4node"],
        "hpc-kit submit --no-wait (fake sbatch)": [kit, "submit", "ddp_4node", "--cluster", "slurm", "--no-wait"],
        "sbatch (fake)": [str(folder / "sbatch"), "x"],
    }
    if torchx is not None:
        dry = ["run", "--dryrun", "-s", "slurm", "dist.ddp", "-j", "4x2", "--script", "jobs/train/plain_ddp.py"]
        table["torchx run --dryrun -s slurm dist.ddp -j 4x2"] = [str(torchx), *dry]
    return table


def fake_sbatch(folder: Path) -> None:
    """Write Slurm commands that take no time, so that only our own time is measured."""
    for name, text in _FAKES.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def install_torchx(folder: Path) -> Path:
    """Install torchx into a virtual environment and return its command."""
    subprocess.run([sys.executable, "-m", "venv", folder / "torchx"], check=True)
    subprocess.run([folder / "torchx/bin/pip", "install", "--quiet", "torchx==0.7.0", "setuptools<81"], check=True)
    return folder / "torchx/bin/torchx"


def seconds(argv: list[str], environ: dict[str, str], folder: Path) -> float:
    """Return the wall time of one run, which must succeed."""
    start = time.perf_counter()
    subprocess.run(argv, env=environ, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--torchx", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    compileall.compile_dir(ROOT / "hpc_kit", quiet=1)  # as an installation with pip does
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake_sbatch(folder)
        (folder / "jobs").symlink_to(ROOT / "jobs")
        table = commands(folder, install_torchx(folder) if args.torchx else None)
        environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "XDG_CACHE_HOME": name}
        runs: dict[str, list[float]] = {label: [] for label in table}
        for turn in range(args.rounds + 1):
            for label, argv in table.items():
                spent = seconds(argv, environ, folder)
                if turn:  # the first round warms the caches
                    runs[label].append(spent)
    medians = {label: statistics.median(values) for label, values in runs.items()}
    if args.json:
        print(
            json.dumps({label: {"seconds": value, "ratio": value / medians[BASE]} for label, value in medians.items()})
        )
        return
    for label, value in medians.items():
        print(f"{label:<46}{value * 1000:8.1f} ms   {value / medians[BASE]:5.2f} x")


if __name__ == "__main__":
    main()
