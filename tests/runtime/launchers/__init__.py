"""Tests of hpc_kit.runtime.launchers."""
