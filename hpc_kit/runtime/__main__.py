"""`python -m hpc_kit.runtime PROGRAM.py ARGS` runs an unchanged program as one rank of a job.

The program finds torch's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) set and rank 0's store open, so
`init_process_group()` and libraries work. A rank that fails is recorded before its process group is destroyed.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.run_files import FIRST_FAILURE, LOGS_VARIABLE, RUN_VARIABLE, STOPPED, rank_log
from hpc_kit.runtime import first_failure, joined_ranks, program, shutdown
from hpc_kit.runtime.mpi import backend
from hpc_kit.runtime.placement import REPORT
from hpc_kit.runtime.torch_environment import torch_variables, update_environ
from hpc_kit.runtime.variables import BACKEND_VARIABLE, CHOICE, RANK_VARIABLES, TIMEOUT_VARIABLE

if TYPE_CHECKING:
    from types import TracebackType

    from hpc_kit.runtime.world import World

USAGE = (
    "python -m hpc_kit.runtime [--backend NAME] [--timeout SECONDS] [--report] [--ranks-by launcher|program] "
    "PROGRAM.py ARGS ... | -m MODULE ARGS ..."
)

_OPTIONS = {"--backend": BACKEND_VARIABLE, "--timeout": TIMEOUT_VARIABLE}
_RANKS_BY = ("launcher", "program")
_OUR_FILES = {__file__, program.__file__, "<frozen runpy>"}

_RANK_NOT_SET = (
    "hpc-kit: RANK, WORLD_SIZE and LOCAL_RANK are not set, because the program is to start its own ranks\n"
    "  do     set [launch] ranks_by = 'launcher' in the job file, or give --ranks-by launcher\n"
)

_PORT_OF_STORE = (
    "hpc-kit: the program opens a store at port {port} (MASTER_PORT), where the store of rank 0 listens already\n"
    "  do     start the program by bash -c {start}: hpc_kit then sets\n"
    "         torch's variables, and leaves the port to the program; or use another port, such as MASTER_PORT + 1\n"
)

_NO_GPU_ERRORS = (
    "Torch not compiled with CUDA enabled",
    "module 'torch._C' has no attribute '_cuda_",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "doesn't have NCCL built in",
    "only supported with GPUs, no GPUs found",
)
"""torch's messages about a program that needs a GPU, also inside of the traceback of a spawned process."""

_NO_GPU = (
    "hpc-kit: the program needs a GPU, and this process has none\n"
    "  do     run it on a cluster with GPUs, with --gpus-per-node=N, and a torch that was built for CUDA\n"
)


def main(words: list[str]) -> None:
    """Run the program that `words` names, and return after its normal end."""
    rank, ranks_by, process = None, "launcher", os.getpid()
    try:
        words, ranks_by = _parse_options(words)
        command = program.ProgramCommand.read(words)
        if _makes_own_worlds(command):
            command.as_process().replace_this_process()
        world = first_failure.resolve_or_record(os.environ)
        rank = world.rank
        _write_own_log(world)
        _forget_recovered_failure(world)
        _run_as_rank(command, world, starts_ranks=_starts_ranks(world, ranks_by))
    except BaseException as error:  # noqa: BLE001 (whatever ends the program ends this process, with its code)
        code = first_failure.exit_code(error)
        if os.getpid() != process:  # a process that the program has forked is no rank
            if code:
                _print_error(error)
                shutdown.exit_forked(code)
            return
        is_recorded = _record_stop(code)
        if rank is not None:
            first_failure.record_failure(error, rank)
        if code:
            _print_error(error if rank is None else first_failure.shorten_repeated(error, rank))
            if ranks_by == "program" and _misses_a_rank(error):
                sys.stderr.write(_RANK_NOT_SET)
            elif _needs_gpu(error):
                sys.stderr.write(_NO_GPU)
            elif (port := _port_of_store(error)) is not None:
                start = shlex.quote(shlex.join(["exec", "python", *words]))
                sys.stderr.write(_PORT_OF_STORE.format(port=port, start=start))
            shutdown.exit_rank(0 if is_recorded else code)


def _record_stop(code: int) -> bool:
    """Record that a rank of torchrun ended because of the stop signal, for the batch script. Return False for others.

    Such a rank ends with 0 for torchrun, which would otherwise end ranks that still save.
    """
    run = os.environ.get(RUN_VARIABLE)
    if not run or not first_failure.is_stop(code) or not os.environ.get("TORCHELASTIC_RUN_ID"):
        return False
    try:
        Path(run, STOPPED).touch()
    except OSError:  # the exit code has the same meaning
        return False
    return True


def _parse_options(words: list[str]) -> tuple[list[str], str]:
    """Parse the runtime's own options, and return the remaining words and the value of --ranks-by.

    The other options go into the environment, where the program's `distributed()` reads them.
    """
    ranks_by = _RANKS_BY[0]
    while words and words[0].startswith("--"):
        option, equals, value = words[0].partition("=")
        words = words[1:]
        if option == "--help":
            sys.stdout.write(f"{__doc__}\nusage: {USAGE}\n")
            raise SystemExit(0)
        if option == "--report" and not equals:
            os.environ[REPORT] = "1"
            continue
        if option not in {*_OPTIONS, "--ranks-by"} or not (equals or words):
            raise SpecError(f"unknown option {option}", remedy=USAGE)
        if not equals:
            value, *words = words
        if option == "--ranks-by":
            if value not in _RANKS_BY:
                raise SpecError(f"unknown value of --ranks-by: {value}", remedy="--ranks-by launcher or program")
            ranks_by = value
        else:
            os.environ[_OPTIONS[option]] = value
    return words, ranks_by


def _makes_own_worlds(command: program.ProgramCommand) -> bool:
    """Return whether the job asks for a separate world of torchrun in each task, and this process is such a task."""
    is_asked = os.environ.get(CHOICE, "").strip() == "torchrun" and not os.environ.get("TORCHELASTIC_RUN_ID")
    return is_asked and (command.kind == "command" or command.is_torchrun)


def _starts_ranks(world: World, ranks_by: str) -> bool:
    """Return whether the program starts its own ranks.

    Raises:
        SpecError: It would start them in each of several ranks.
    """
    if ranks_by == "program" and world.world_size > 1:
        raise SpecError(
            "a program that starts its own ranks must be started once",
            found=f"--ranks-by program in {world}",
            remedy="start one task, or leave --ranks-by out",
        )
    return ranks_by == "program"


def _misses_a_rank(error: BaseException) -> bool:
    """Return whether the program has failed because a variable of one rank is not set."""
    if isinstance(error, KeyError):
        return error.args[:1] != () and error.args[0] in RANK_VARIABLES
    return isinstance(error, ValueError) and any(
        f"environment variable {name} expected" in str(error) for name in RANK_VARIABLES
    )


def _needs_gpu(error: BaseException) -> bool:
    """Return whether the program has failed because there is no GPU, or because it divided by the number of GPUs."""
    if not isinstance(error, ZeroDivisionError):
        return any(text in str(error) for text in _NO_GPU_ERRORS)
    torch = sys.modules.get("torch")
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    divides = re.search(r"(?i)device_count|\bn(um)?_?gpus?\b", line) is not None
    return torch is not None and not torch.cuda.is_available() and divides


def _port_of_store(error: BaseException) -> int | None:
    """Return the port of rank 0's store if the program or one of its processes tried to listen there."""
    found = re.search(r"port: (\d+).*EADDRINUSE", str(error))
    port = first_failure.store_port()
    return port if found and int(found[1]) == port else None


def _run_as_rank(command: program.ProgramCommand, world: World, *, starts_ranks: bool) -> None:
    if command.is_torchrun and world.launcher == "slurm" and world.world_size > 1:
        # Each task would train a model of its own. Ours makes the tasks agents of one world, or explains why it cannot.
        own = ("-P", "-m", "hpc_kit.runtime.torchrun", *command.arguments)
        program.ProgramCommand("command", sys.executable, own).replace_this_process()
    # Lightning starts the other ranks of the first node from the program of rank 0, so they cannot meet before it runs.
    starts_others = world.launcher == "env" and not os.environ.get("RANK")
    if command.kind == "command" or starts_others or find_spec("torch") is None:
        joined_ranks.print_warnings(world)
        variables = torch_variables(world, os.environ, starts_ranks=starts_ranks)
        if starts_others:  # Lightning divides the CPUs among its ranks, but only if this is not set
            variables.pop("OMP_NUM_THREADS", None)
        update_environ(variables)
        if command.kind == "command":
            command.replace_this_process()
        _run_program(command)
    else:
        with joined_ranks.ranks_joined_with_torch(
            world, joined_ranks.timeout_seconds(None, os.environ), command.file, starts_ranks=starts_ranks
        ):
            _run_program(command)
            if world.is_main and world.world_size > 1 and (caught := backend.group_error()):
                _report_missing_group(world, *caught)


def _report_missing_group(world: World, error: str, remedy: str) -> None:
    """Print a note: the program went on after an error of `init_process_group`, so each rank may have trained alone."""
    sys.stderr.write(
        f"hpc-kit: note: rank 0 of {world.world_size} has created no process group with other ranks\n"
        f"  found  the program caught {error}\n"
        f"  do     {remedy}\n"
    )


def _run_program(command: program.ProgramCommand) -> None:
    process = os.getpid()
    try:
        command.run()
    except SystemExit as stop:
        if first_failure.exit_code(stop):
            raise
    if os.getpid() != process:  # only the rank itself leaves the other ranks
        raise SystemExit(0)
    if "torch.distributed" in sys.modules:
        shutdown.destroy_process_group()
        shutdown.wait_for_gloo_threads()  # the program may have destroyed the group itself


def _write_own_log(world: World) -> None:
    """Give each rank of torchrun its own log, as under srun; torchrun's ranks share the agent's output."""
    folder = os.environ.get(LOGS_VARIABLE) or os.environ.get(RUN_VARIABLE)
    if world.launcher != "torchrun" or not folder:
        return
    log = os.open(Path(folder, rank_log(world.rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)


def _forget_recovered_failure(world: World) -> None:
    """Remove the record of a failure after which torchrun has started all workers again (--max-restarts)."""
    run, restarts = os.environ.get(RUN_VARIABLE), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if run and world.is_main and world.launcher == "torchrun" and restarts != "0":
        with suppress(OSError):
            Path(run, FIRST_FAILURE).unlink()


def _print_error(error: BaseException) -> None:
    """Print an error as the interpreter does, starting at the program's own first line."""
    if isinstance(error, HpcKitError):
        sys.stderr.write(f"hpc-kit: {error}\n")
    elif isinstance(error, SystemExit):
        if not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
    else:
        trace = _strip_own_frames(error.__traceback__)
        try:
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        except Exception as failure:  # noqa: BLE001 - the program's own hook may fail in any way
            sys.stderr.write("Error in sys.excepthook:\n")
            if failure.__context__ is error:
                failure.__context__ = None  # it is printed below
            of_hook = _strip_own_frames(failure.__traceback__)
            sys.__excepthook__(type(failure), failure.with_traceback(of_hook), of_hook)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(type(error), error, trace)


def _strip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename in _OUR_FILES:
        start = start.tb_next
    return start or trace


if __name__ == "__main__":
    main(sys.argv[1:])
