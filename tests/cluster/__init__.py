"""A real Slurm with several network hosts on one Debian machine, started and stopped by one command.

Each host is a network, UTS and mount namespace that a sleeping process keeps open. Outside of the namespaces only the
processes and one directory are visible. To stop the cluster is to end the processes and remove the directory.
Needs root and Debian's packages. `find_obstacle()` returns the reason why a cluster is impossible.
"""

from __future__ import annotations

from .cluster import Cluster, ClusterError, find_obstacle
from .settings import Names, Settings

__all__ = ["Cluster", "ClusterError", "Names", "Settings", "find_obstacle"]
