"""The --help of the commands: what they take, in a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.slurm.getopt import SBATCH
from hpc_kit.slurm.option_table import Option, ValueUse
from pocketslurm.option_support import SBATCH_SUPPORT, Row, Support

if TYPE_CHECKING:
    from collections.abc import Mapping


def usage(command: str, support: Mapping[str, Row] = SBATCH_SUPPORT, table: Mapping[str, Option] = SBATCH) -> str:
    """The text of `sbatch --help`, and of salloc's."""
    lines = [
        f"Usage: {command} [OPTIONS(0)...] [{'script' if command == 'sbatch' else 'command'} [args(0)...]]",
        "",
        "An embedded Slurm for one machine. Options:",
    ]
    for name, row in support.items():
        if row.support is not Support.REFUSED:
            option = table[name]
            letter = f"-{option.short}, " if option.short else "    "
            value = {ValueUse.NONE: "", ValueUse.REQUIRED: "=VALUE", ValueUse.OPTIONAL: "[=VALUE]"}[option.value]
            lines.append(f"  {letter}--{name}{value}" + ("  (no effect here)" if row.support is Support.KEPT else ""))
    return "\n".join(lines)
