"""Meets all ranks of a job before the process group is created."""
