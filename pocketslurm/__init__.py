"""A Slurm for one machine, without root or a daemon: sbatch, srun, squeue and their relatives as plain programs.

Nothing here is imported by users. `python -m pocketslurm` is the interface; README.md describes it.
"""
