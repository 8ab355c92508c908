"""The shortest sbatch scripts that train by env:// or by torchrun, asking Slurm for what ours ask for.

What a site wants of every script (account, partition, GPUs, modules, variables) is taken from ours, as rendered for the
same cluster and ranks; what is by hand is how ranks are started and meet.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LINES = {
    "plain srun": "srun {cpus} bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec {python} {path}"
    " --plain {words}'",
    "plain torchrun": "srun {cpus} --ntasks-per-node=1 --ntasks={nodes} bash -c 'exec {python} -m torch.distributed.run"
    " --nnodes={nodes} --nproc-per-node={each} --node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR"
    " --master-port=$MASTER_PORT {path} --plain {words}'",
}
_CPUS = "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}"
"""Since Slurm 22.05 a step is not given sbatch's own number."""
_SCRIPT = """\
#!/bin/bash
{header}
#SBATCH --job-name=by-hand
#SBATCH --output={log}
{environment}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT={port} WORLD_SIZE=$SLURM_NTASKS OMP_NUM_THREADS=1
{line}
"""
_OWN = {"job-name", "output", "error", "open-mode", "signal", "requeue", "no-requeue"}
"""Options of ours that are no matter of the site."""


class Site(NamedTuple):
    """What a script of ours says for a site."""

    header: tuple[str, ...]
    """Its #SBATCH lines."""
    environment: str
    """Its variables, modules and activation."""
    python: str


def site_of(rendered: str) -> Site:
    """The site's part of a script of ours that runs first_step.py."""
    options = re.findall(r"^#SBATCH --([\w-]+)(.*)$", rendered, re.MULTILINE)
    environment = re.search(r"^set -euo pipefail\n(.*?)^# The files of this run", rendered, re.MULTILINE | re.DOTALL)
    python = re.search(r"^ +(\S*python\S*) (?:\S*first_step\.py|-m hpc_kit\.runtime\.torchrun)", rendered, re.MULTILINE)
    return Site(
        tuple(f"#SBATCH --{name}{value}" for name, value in options if name not in _OWN),
        environment[1].strip() if environment else "",
        python[1] if python else shlex.quote(sys.executable),
    )


def script(way: str, nodes: int, each: int, site: Site, folder: Path, program: Sequence[str]) -> str:
    """The text of a script.

    Args:
        way: Of `LINES`.
        nodes: How many.
        each: Ranks of a node.
        site: What the site wants.
        folder: Of the script's log.
        program: first_step.py and its words.
    """
    path, *words = map(shlex.quote, program)
    line = LINES[way].format(cpus=_CPUS, python=site.python, path=path, nodes=nodes, each=each, words=" ".join(words))
    # Two jobs in a row must not meet at one port.
    port = 20_000 + int(time.time() * 10) % 10_000
    header = "\n".join(site.header)
    return _SCRIPT.format(header=header, environment=site.environment, log=folder / "log", port=port, line=line)
