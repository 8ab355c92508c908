"""Hands a script to sbatch exactly once and records the run."""
