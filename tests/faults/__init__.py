"""Faults at random times, on jobs with [restart]: `python -m tests.faults --faults N --seed N [--real]`."""
