"""Slurm's commands, one module each."""
