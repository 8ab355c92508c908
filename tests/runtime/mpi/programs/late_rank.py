"""The last rank does not come: it sleeps, or it has ended well, before MPI starts."""

from __future__ import annotations

import os
import sys
import time

import hpc_kit

world = hpc_kit.resolve(os.environ)
if world.rank == world.world_size - 1:
    if sys.argv[1] == "ends":
        sys.exit()
    time.sleep(600)
with hpc_kit.distributed(backend="gloo", timeout=6):
    print("met")
