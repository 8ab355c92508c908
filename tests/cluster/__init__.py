"""A real Slurm of several network hosts on one Debian machine, brought up and taken down by one command.

Each host is a network, UTS and mount namespace held by a sleeping process: nothing is visible outside them but
processes and one directory, so taking the cluster down is ending the processes and removing the directory.
Needs root and Debian's packages; `find_obstacle()` returns the reason where a cluster is impossible.
"""

from __future__ import annotations

from .cluster import Cluster, ClusterError, find_obstacle
from .settings import Names, Settings

__all__ = ["Cluster", "ClusterError", "Names", "Settings", "find_obstacle"]
