"""`python -m hpc_kit.runtime.torchrun --nproc-per-node=N PROGRAM.py ARGS`: torchrun for a Slurm step.

One task per node runs it. It takes all options of torchrun and adds five things. The step supplies the number of nodes,
the index of this node and the meeting point. The agent that owns the store leaves last. Each worker runs under
`hpc_kit.runtime`. SIGUSR1 and SIGUSR2 are forwarded to the workers. A failure is reported in one line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import ContradictoryEnvironment, HpcKitError, RendezvousError
from hpc_kit.run_files import RUN_VARIABLE, claim_first_failure, rank_log, read_first_failure
from hpc_kit.runtime import first_failure, shutdown, torch_environment
from hpc_kit.runtime.joined_ranks import print_warnings, timeout_seconds
from hpc_kit.runtime.launchers import resolve
from hpc_kit.runtime.rendezvous import network
from hpc_kit.runtime.rendezvous.meeting import meet
from hpc_kit.runtime.torch_import import import_torch_quietly, require_torch
from hpc_kit.runtime.variables import SSH_VARIABLES, cpus_per_task

if TYPE_CHECKING:
    from argparse import Namespace

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from hpc_kit.runtime.rendezvous.meeting import Meeting
    from hpc_kit.runtime.world import World

_ONE_NODE = {"1", "1:1"}
_KILLED = 128

SIGNALS_VARIABLE = "HPC_KIT_SIGNALS"
"""Variable of the job script: whether this Slurm signals only the `tasks` of a step or `all` processes."""


def main(words: list[str]) -> int:
    """Run the agent of this node. Its exit code is that of the worker that failed first on this node."""
    try:
        require_torch()
        return _run_agent(words)
    except HpcKitError as error:
        sys.stderr.write(f"hpc-kit: {error}\n")
        return error.exit_status


def _run_agent(words: list[str]) -> int:
    import_torch_quietly()
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    host = network.this_node_name(os.environ)
    try:
        options = torchrun.parse_args(words)
        world = agent_world(resolve(os.environ), options.nnodes)
        print_warnings(world)
        program = Path(options.training_script)
        _forward_user_signals()
        meeting = _meet(world, program, options.nproc_per_node)
        os.environ[network.AGENT_HOST] = host
        for name in SSH_VARIABLES:
            os.environ.pop(name, None)
        fill_options(meeting, options)
        torchrun.run(options)
    except ChildFailedError as error:
        return _describe_failure(error, host)
    except SignalException as stop:
        return _KILLED + stop.sigval
    meeting.leave()
    return 0


def _meet(world: World, program: Path, nproc_per_node: str) -> Meeting:
    """Meet the other agents. Record an agent that does not come as the first failure, by its first rank."""
    try:
        return meet(world, timeout=timeout_seconds(None, os.environ), program=program)
    except RendezvousError as error:
        run = os.environ.get(RUN_VARIABLE)
        if run and error.missing:
            ranks = int(nproc_per_node) if nproc_per_node.isdigit() else 1
            first_failure.record_late_rank(Path(run), error.exit_status, error, ranks)
        raise


def agent_world(world: World, nnodes: str) -> World:
    """Return the World of the agents, one per node, for the World of the tasks.

    Raises:
        ContradictoryEnvironment: A node has several tasks, or --nnodes contradicts the step.
    """
    if world.local_world_size != 1:
        raise ContradictoryEnvironment(
            f"torchrun would be started {world.local_world_size} times on this node",
            found=f"{world.name} has {world.world_size} tasks on {world.nnodes} nodes; torchrun starts ranks itself",
            remedy="srun --ntasks-per-node=1, with torchrun --nproc-per-node=N",
        )
    if nnodes not in {*_ONE_NODE, str(world.world_size), f"{world.world_size}:{world.world_size}"}:
        raise ContradictoryEnvironment(
            f"--nnodes={nnodes} does not fit {world.name}",
            found=f"{world.world_size} tasks, one agent each ({world.sources.get('world_size')})",
            remedy=f"--nnodes={world.world_size}; or srun --nodes={nnodes} --ntasks-per-node=1",
        )
    return world


def fill_options(meeting: Meeting, options: Namespace) -> None:
    """Fill in torchrun's options and the environment of the workers."""
    world = meeting.world
    # The agents have met already, and their store is open: torchrun's own rendezvous has nothing left to find.
    options.rdzv_backend, options.rdzv_endpoint, options.standalone = "static", "", False
    options.nnodes, options.node_rank = str(world.world_size), world.rank
    options.master_addr, options.master_port = meeting.host, meeting.port
    if options.rdzv_id == "none":
        options.rdzv_id = os.environ.get("SLURM_JOB_ID", "alone")
    if not options.run_path:
        own_words = ["-m"] if options.module else []
        options.training_script_args = [*own_words, options.training_script, *options.training_script_args]
        runtime = ["-u", "-P", "-m", "hpc_kit.runtime"]  # torchrun itself would start it without -P
        options.training_script_args = [*runtime, *options.training_script_args]
        options.training_script, options.module, options.no_python = sys.executable, False, True
    os.environ.update(torch_environment.gloo_variables(meeting, os.environ))
    # torchrun would set this itself and print a banner.
    os.environ.setdefault("OMP_NUM_THREADS", str(_threads(options.nproc_per_node)))
    if "LOGLEVEL" not in os.environ:
        # Each of torch's modules has set a level of its own, which the level of the package does not change.
        for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _forward_user_signals() -> None:
    """Forward user signals, which would end torchrun, to the workers; not where Slurm signals all processes itself."""

    def pass_on(number: int, _frame: object) -> None:
        if os.environ.get(SIGNALS_VARIABLE) == "all":
            return
        for pid in _children():
            # torchrun makes each worker a group leader. The worker's own processes belong to its group.
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == pid:
                    os.kill(pid, number)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)


def _children() -> list[int]:
    pids: list[int] = []
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            pids += map(int, children.read_text().split())
    return pids


def _threads(nproc_per_node: str) -> int:
    ranks = int(nproc_per_node) if nproc_per_node.isdigit() else 0
    return max(1, (cpus_per_task(os.environ) or 1) // ranks) if ranks else 1


def _describe_failure(error: ChildFailedError, host: str) -> int:
    """Report the worker of this node that failed first and record it, because a killed worker cannot do so itself."""
    rank, worker = error.get_first_failure()
    code = worker.exitcode if worker.exitcode >= 0 else _KILLED - worker.exitcode
    run = os.environ.get(RUN_VARIABLE)
    if run is None or first_failure.is_stop(code):
        sys.stderr.write(f"hpc-kit: rank {rank} ended {_describe_exit(code)}\n")
        return code
    claim_first_failure(Path(run), rank, host, code)
    first = read_first_failure(Path(run))
    if first is None or first.host != host:
        after = f" after rank {first.rank} on {first.host}" if first else ""
        sys.stderr.write(f"hpc-kit: rank {rank} ended {_describe_exit(code)}{after}\n")
        return code
    # torch reports the worker whose end it saw first. The marker names the worker that failed first.
    end = f"is missing: {first.reason}" if first.reason else f"ended {_describe_exit(first.exit_code)}"
    sys.stderr.write(f"hpc-kit: rank {first.rank} {end}: see {rank_log(first.rank)}\n")
    return first.exit_code


def _describe_exit(code: int) -> str:
    with contextlib.suppress(
        ValueError
    ):  # also above 128: sys.exit(-1) is 255, and most real-time signals have no name
        return f"by {signal.Signals(code - _KILLED).name}"
    return f"with exit code {code}"


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code:
        shutdown.exit_rank(code)
