"""The World of a task of submitit's local executor. submitit's Slurm executor uses an srun step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment
from hpc_kit.runtime.launchers import slurm_step
from hpc_kit.runtime.rendezvous import store
from hpc_kit.runtime.variables import required_int
from hpc_kit.runtime.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANK, _SIZE, _LOCAL = "SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS", "SUBMITIT_LOCAL_LOCALID"


def from_submitit(environ: Mapping[str, str]) -> World | None:
    """Return the World of a task that submitit's local executor started, or None.

    Raises:
        IncompleteEnvironment: A variable is missing or is not a number.
        ContradictoryEnvironment: A later srun step has inherited the variables.
    """
    if environ.get("SUBMITIT_EXECUTOR") != "local" or not environ.get(_RANK):
        return None
    rank, size = required_int(environ, _RANK, beside="SUBMITIT_EXECUTOR"), required_int(environ, _SIZE, beside=_RANK)
    inside = environ.get("SLURM_STEP_NUM_TASKS") == "1" or slurm_step.is_interactive_shell(environ)
    if slurm_step.reason_not_in_step(environ) is None and not inside:
        raise ContradictoryEnvironment(
            "two launchers claim this process",
            found=f"{slurm_step.describe_claim(environ)}\nsubmitit says rank {rank} of {size} ({_RANK}, {_SIZE})",
            remedy=f"unset SUBMITIT_EXECUTOR {_RANK} before srun",
        )
    key = f"submitit {environ.get('SUBMITIT_LOCAL_JOB_ID', '')}, size {size}"
    one = "the local executor's machine"
    return World(
        rank=rank,
        world_size=size,
        local_rank=required_int(environ, _LOCAL, beside=_RANK),
        local_world_size=size,
        node_rank=0,
        nnodes=1,
        master_addr="127.0.0.1",
        master_port=store.candidate_ports(key)[0],
        launcher="submitit",
        name=f"submitit's local job {environ.get('SUBMITIT_LOCAL_JOB_ID', '')}".rstrip(),
        key=key,
        sources={"rank": _RANK, "world_size": _SIZE, "local_rank": _LOCAL, "local_world_size": _SIZE}
        | dict.fromkeys(("node_rank", "nnodes", "master_addr"), one)
        | {"master_port": f"from {key}"},
    ).checked()
