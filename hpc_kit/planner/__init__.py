"""From a model and a cluster to the layouts that can run there, with their memory and time.

Physics first (operations, bytes, links, bubbles), then a few efficiencies with a meaning, fitted to measured runs by
`bench/planner/fit.py` and kept with their uncertainty in `constants.toml`. docs/planner.md has the formulas.
"""
