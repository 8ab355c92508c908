"""Reads any sbatch script and finds faults in it."""
