"""`python -m hpc_kit.embedded sbatch ...`."""

from __future__ import annotations

from hpc_kit.embedded.command_line import main

main()
