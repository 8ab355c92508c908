"""Measure the start of a program without torch: `python -m hpc_kit.runtime noop.py` against `python -c ''`.

    python bench/runtime_start.py --repeats 15

Both alternate, and the shortest time of each counts, because other programs can only add to it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds(words: list[str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "noop.py").write_text("print('nothing')\n")
        runs = {"python -c ''": ["-c", ""], "python -m hpc_kit.runtime": ["-P", "-m", "hpc_kit.runtime", "noop.py"]}
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(repeats):
            for label, words in runs.items():
                best[label] = min(best[label], seconds(words, folder))
    for label, taken in best.items():
        print(f"{label:28} {taken * 1000:6.0f} ms")
    bare, ours = best.values()
    print(f"ratio {ours / bare:.1f}, difference {ours - bare:.3f} s")


if __name__ == "__main__":
    main()
