"""Tests of hpc_kit.runtime.rendezvous."""
