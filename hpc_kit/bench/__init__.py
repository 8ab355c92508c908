"""Measured curves: what this machine and this network do, beside what a model of them says."""
