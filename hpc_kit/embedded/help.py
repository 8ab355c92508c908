"""The --help of the commands: what they take, in a line each."""

from __future__ import annotations

from hpc_kit.embedded.support import SBATCH_SUPPORT, Support
from hpc_kit.slurm.options import SBATCH, Value


def usage(command: str) -> str:
    """The text of `sbatch --help`."""
    lines = [
        f"Usage: {command} [OPTIONS(0)...] [script [args(0)...]]",
        "",
        "An embedded Slurm for one machine. Options:",
    ]
    for name, row in SBATCH_SUPPORT.items():
        if row.support is not Support.REFUSED:
            option = SBATCH[name]
            letter = f"-{option.short}, " if option.short else "    "
            value = {Value.NONE: "", Value.REQUIRED: "=VALUE", Value.OPTIONAL: "[=VALUE]"}[option.value]
            lines.append(f"  {letter}--{name}{value}" + ("  (no effect here)" if row.support is Support.KEPT else ""))
    return "\n".join(lines)
