"""Run as a task, a shell's child or a torchrun worker: one JSON line of what this process was told by its launcher.

Only launchers' variables are ever printed, and what slurmd itself says of this process (`scontrol listpids`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

PREFIXES = (
    "SLURM", "SRUN", "SBATCH", "SALLOC", "PMI", "OMPI_", "PRTE_", "HYDRA", "I_MPI", "MPI", "PALS_",
    "TORCHELASTIC_", "TORCH_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "NCCL_", "GLOO_",
)  # fmt: skip
NAMES = {
    "RANK", "WORLD_SIZE", "HOSTNAME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
}  # fmt: skip


def listed(step: str) -> dict[str, int] | None:
    """This process as slurmd sees it: its local and global id in the step."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:  # slurmd may answer before it has noted its last task
        answer = subprocess.run(["scontrol", "listpids", step], check=False, capture_output=True, text=True)
        for line in answer.stdout.splitlines()[1:]:
            pid, _job, _step, local, total = line.split()
            if int(pid) == os.getpid() and local != "-":
                return {"local": int(local), "global": int(total)}
        time.sleep(0.1)
    return None


def main() -> None:
    """Print the line; `--listed` asks slurmd as well, `--into DIR` writes it there and prints the file's name.

    The detour is for srun --label, which breaks lines of more than about a thousand characters.
    """
    environ = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES) or name in NAMES}
    record: dict[str, object] = {"hostname": socket.gethostname(), "pid": os.getpid(), "env": environ}
    if "--listed" in sys.argv:
        record["listed"] = listed(f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}")
    line = json.dumps(record, sort_keys=True)
    if "--into" in sys.argv:
        path = Path(sys.argv[-1]) / f"{record['hostname']}-{record['pid']}.json"
        path.write_text(line)
        line = path.name
    print(line, flush=True)


if __name__ == "__main__":
    main()
