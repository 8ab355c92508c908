"""The --help of srun: what it takes, in a line each."""

from __future__ import annotations

from hpc_kit.slurm.getopt import SRUN
from hpc_kit.slurm.option_table import ValueUse
from pocketslurm.option_support import Support
from pocketslurm.srun_option_support import SRUN_SUPPORT


def usage() -> str:
    """The text of `srun --help`."""
    lines = ["Usage: srun [OPTIONS...] executable [args...]", "", "An embedded Slurm for one machine. Options:"]
    for name, option in SRUN.items():
        row = SRUN_SUPPORT.get(name)
        if row is None or row.support is Support.REFUSED:
            continue
        letter = f"-{option.short}, " if option.short else "    "
        value = {ValueUse.NONE: "", ValueUse.REQUIRED: "=VALUE", ValueUse.OPTIONAL: "[=VALUE]"}[option.value]
        lines.append(f"  {letter}--{name}{value}" + ("  (no effect here)" if row.support is Support.KEPT else ""))
    return "\n".join(lines)
