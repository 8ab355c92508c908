"""Ranks layouts of a model on a cluster by predicted time and memory.

The predictions compute operations, bytes, links and bubbles, then apply a few efficiencies fitted to measured runs.
`bench/planner/fit.py` fits them and stores them with their uncertainty in `constants.toml`. docs/planner.md contains
the formulas.
"""
