"""Slurm's own language: units, node lists, states, options, directives, and its commands' output.

Nothing is imported here: a job's ranks need `hpc_kit.slurm.nodelist` alone, and it must stay light.
"""
