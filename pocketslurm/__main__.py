"""`python -m pocketslurm sbatch ...`."""

from __future__ import annotations

from pocketslurm.command_line import main

main()
