"""Stopping and starting again: the stop signal, checkpoints, attempts, and errors that reach all ranks."""
