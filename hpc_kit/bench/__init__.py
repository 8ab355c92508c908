"""Benchmarks: measured performance of a machine and its network, compared with models of them."""
