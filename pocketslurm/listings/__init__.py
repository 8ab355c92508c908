"""Columns and texts of squeue, sacct, sinfo and scontrol."""
