"""Runs as a task, a child of a shell or a worker of torchrun, and prints the launcher's variables as one line of JSON.

Prints only the variables of launchers, and slurmd's entry of this process (`scontrol listpids`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PREFIXES = (
    "SLURM", "SRUN", "SBATCH", "SALLOC", "PMI", "OMPI_", "PRTE_", "HYDRA", "I_MPI", "MPI", "PALS_",
    "TORCHELASTIC_", "TORCH_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "NCCL_", "GLOO_", "SUBMITIT_",
    "MV2_",
)  # fmt: skip
NAMES = {
    "RANK", "WORLD_SIZE", "HOSTNAME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
}  # fmt: skip

OURS = ("MPIRUN", "MPIPROBE", "MPI4PY_", "I_MPI_INFO_")
"""Variables to omit: those of the script, and texts about the machine's processor."""


def find_task_ids(step: str) -> dict[str, int] | None:
    """Return the local and the global task id of this process from slurmd."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:  # slurmd may answer before it has registered its last task
        answer = subprocess.run(["scontrol", "listpids", step], check=False, capture_output=True, text=True)
        for line in answer.stdout.splitlines()[1:]:
            pid, _job, _step, local, total = line.split()
            if int(pid) == os.getpid() and local != "-":
                return {"local": int(local), "global": int(total)}
        time.sleep(0.1)
    return None


def communicator() -> dict[str, object]:
    """Return the values of MPI. Call it after reading the variables, because MPI_Init may set more."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    hosts = world.allgather(socket.gethostname())
    return {
        "rank": world.rank,
        "size": world.size,
        "local": node.rank,
        "local_size": node.size,
        "hosts": hosts,
        "library": MPI.Get_library_version().split("\n")[0].split(",")[0].strip(" \0"),
    }


def main() -> None:
    """Print the line. `--listed` also queries slurmd; `--into DIR` writes a file and prints its name.

    The file is for srun --label, which breaks lines of more than about a thousand characters. `--mpi DIR` queries MPI,
    too, and writes a file named by the rank in MPI_COMM_WORLD.
    """
    told = [name for name in os.environ if (name.startswith(PREFIXES) or name in NAMES) and not name.startswith(OURS)]
    environ = {name: os.environ[name] for name in told}
    record: dict[str, Any] = {"hostname": socket.gethostname(), "pid": os.getpid(), "env": environ}
    if "--listed" in sys.argv:
        record["listed"] = find_task_ids(f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}")
    if "--mpi" in sys.argv:
        record["mpi"] = communicator()
        Path(sys.argv[-1], f"{record['mpi']['rank']}.json").write_text(json.dumps(record, sort_keys=True))
        return
    line = json.dumps(record, sort_keys=True)
    if "--into" in sys.argv:
        path = Path(sys.argv[-1]) / f"{record['hostname']}-{record['pid']}.json"
        path.write_text(line)
        line = path.name
    print(line, flush=True)


if __name__ == "__main__":
    main()
