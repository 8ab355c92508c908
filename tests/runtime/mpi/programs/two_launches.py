"""One of two launches: one rank comes late, and each rank prints its launch."""

from __future__ import annotations

import os
import sys
import time

from torch import distributed as dist

import hpc_kit

name, late = sys.argv[1:]
if os.environ["PMI_RANK"] == late:
    time.sleep(3)
with hpc_kit.distributed(backend="gloo", timeout=30) as world:
    everybody: list[str] = [""] * world.world_size
    dist.all_gather_object(everybody, name)
    os.write(1, f"{name}: {everybody}\n".encode())
