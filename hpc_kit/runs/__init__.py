"""Runs of jobs: records, states, logs and outcomes."""
