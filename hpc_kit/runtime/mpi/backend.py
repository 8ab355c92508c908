"""Makes the backend `mpi` work on a torch that was built without MPI, and replaces `nccl` where there is no GPU.

A group that a program creates without a time-out gets that of the job. A further default group gets keys of its own in
rank 0's store. The error of a program that creates no default group with other ranks is recorded.

torch registers backends of other packages under new names only (`Backend.register_backend`), and "mpi" is a name of its
own. So the backend is registered as "mpi4py", and torch's four public functions that take or return a backend's name
translate "mpi". This is the only place of the package that replaces functions of torch, because programs that know
nothing of hpc_kit must be able to write `init_process_group("mpi")`, or "nccl" with HPC_KIT_BACKEND=gloo.
tests/runtime/mpi/test_backend.py fails where a release of torch changes them. MPI itself is not touched before a group
is created.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hpc_kit.errors import HpcKitError, SpecError
from hpc_kit.runtime import shutdown
from hpc_kit.runtime.torch_import import after_torch_import
from hpc_kit.runtime.variables import BACKEND_VARIABLE, TIMEOUT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from hpc_kit.runtime.mpi.process_group import MpiGroup
    from hpc_kit.runtime.mpi.shared_memory import SharedMemory
    from hpc_kit.runtime.rendezvous.meeting import Meeting

BACKEND = "mpi"
"""The name that programs and job files use."""

REGISTERED = "mpi4py"
"""The name under which torch knows the backend."""


@dataclass
class _Session:
    """The state of this process: the meeting that it is in, and whether MPI has started it."""

    meeting: Callable[[], Meeting | None] = lambda: None
    started_by_mpi: bool = False
    is_installed: bool = False
    has_joined_group: bool = False
    group_error: tuple[str, str] | None = None
    torch_finder: ExitStack = field(default_factory=ExitStack)


_session = _Session()


def install(meeting: Callable[[], Meeting | None] | None = None, *, started_by_mpi: bool = False) -> None:
    """Register the backend and replace torch's functions, once. A torch that was built with MPI keeps its own backend.

    Args:
        meeting: Returns the meeting that this process is in when a group is created.
        started_by_mpi: Make `torch.distributed.is_mpi_available()` true. Programs ask it to choose a backend
            (accelerate does) and expect a world of MPI, so it is true only where MPI has started the ranks.
    """
    from torch import distributed as dist

    _session.meeting = meeting or _session.meeting
    _session.started_by_mpi = _session.started_by_mpi or started_by_mpi
    if _session.is_installed:
        return
    _session.is_installed = True
    _install_in_spawned_processes()
    _replace("init_process_group", _separate_keys)
    for name in ("init_process_group", "new_group"):
        _replace(name, _translate_argument)
    _replace("init_process_group", _record_result)
    if dist.is_mpi_available():
        return
    dist.Backend.register_backend(REGISTERED, _create, extended_api=True, devices=["cpu", "cuda"])
    _replace("get_backend", _translate_result)
    _replace("is_mpi_available", lambda _: lambda: _session.started_by_mpi)


def install_with_torch() -> None:
    """Call `install` when this process imports torch."""
    _session.torch_finder.enter_context(after_torch_import(install))


class _Installation:
    """Unpickled by a process that multiprocessing spawns, before the process imports the program."""

    CODE = """
try:
    from hpc_kit.runtime.mpi.backend import install_with_torch
except ImportError:  # the program has changed the folder, and hpc_kit is not installed
    pass
else:
    install_with_torch()
"""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, object]]]:
        return exec, (self.CODE, {})


def _install_in_spawned_processes() -> None:
    """Install the backend in the processes that this one starts by multiprocessing's methods spawn and forkserver.

    They are new interpreters, so torch's functions are not replaced there. `torch.multiprocessing.spawn` starts ranks
    in this way. multiprocessing ignores keys that it does not know. On a node with a GPU there is nothing to replace.
    """
    from multiprocessing import spawn  # torch has imported it

    import torch

    own = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return own(name) if torch.cuda.is_available() else {**own(name), "hpc_kit": _Installation()}

    spawn.get_preparation_data = get_preparation_data


def group_error() -> tuple[str, str] | None:
    """Return the error of the last `init_process_group` and its remedy, if there never was a group with others."""
    return None if _session.has_joined_group else _session.group_error


def is_registered() -> bool:
    """Return whether `mpi` means the process group of this package."""
    from torch import distributed as dist

    return REGISTERED in dist.Backend.backend_list


def _replace(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a public function of torch where it is defined, for its other functions, and where programs import it."""
    from torch import distributed as dist
    from torch.distributed import device_mesh, distributed_c10d

    function = getattr(distributed_c10d, name)
    wrapped = functools.wraps(function)(wrap(function))
    for module in (distributed_c10d, dist, device_mesh):
        if hasattr(module, name):
            setattr(module, name, wrapped)


def _translate_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with the argument `backend` translated, and with the time-out of the job as its default."""
    signature = inspect.signature(function)

    def translated(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        backend = str(call.arguments.get("backend") or "").lower()
        parts = backend.replace(",", ":").split(":")
        if backend == BACKEND and is_registered():
            call.arguments["backend"] = REGISTERED
        elif BACKEND in parts and is_registered():
            raise SpecError(
                "the backend mpi cannot be one of several backends of a group",
                found=f"backend {backend!r}",
                remedy='use "mpi" alone (it takes tensors on GPUs, too, through the host), or create a second group:\n'
                'dist.new_group(backend="nccl")',
            )
        elif "nccl" in parts:
            instead = _without_gpu(backend, call.arguments.get("rank", -1))
            call.arguments["backend"] = instead or call.arguments["backend"]
        seconds = os.environ.get(TIMEOUT_VARIABLE)
        if seconds and call.arguments.get("timeout") is None:
            call.arguments["timeout"] = timedelta(seconds=float(seconds))
        return function(*call.args, **call.kwargs)

    return translated


def _separate_keys(function: Callable[..., None]) -> Callable[..., None]:
    """Return `init_process_group` with keys of its own in rank 0's store for each group after the first.

    torch uses the same keys again, because it expects a new store. A rank would find addresses of the earlier group.
    """
    from torch import distributed as dist

    signature = inspect.signature(function)

    def separated(*args: Any, **kwargs: Any) -> None:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given, meeting = call.arguments, _session.meeting()
        url = urlsplit(given.get("init_method") or "env://")
        port = os.environ.get("MASTER_PORT") if url.scheme == "env" else url.scheme == "tcp" and url.port
        # Where the program has replaced torch's function, the arguments are unknown.
        if meeting is not None and given.get("store", 0) is None and str(port) == str(meeting.port):
            rank, size = (
                given[field] if given[field] >= 0 else int(os.environ.get(name, "-1"))
                for field, name in (("rank", "RANK"), ("world_size", "WORLD_SIZE"))
            )
            # A call that torch refuses because the default group exists gets no number: other ranks may not make it.
            if size == meeting.world.world_size > 1 and not dist.is_initialized():
                number, store = meeting.next_group_store()
                if number > 1:
                    given.update(init_method=None, store=store, rank=rank, world_size=size)
        function(*call.args, **call.kwargs)

    return separated


def _record_result(function: Callable[..., None]) -> Callable[..., None]:
    """Return `init_process_group` that records its result: a program may catch the error and train alone."""
    from torch import distributed as dist

    def recorded(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            remedy = error.remedy if isinstance(error, HpcKitError) else None
            what = f"{type(error).__name__} from init_process_group: {reason}"
            _session.group_error = what, remedy or "do not catch this error"
            raise
        # A program may fall back to a group of one rank.
        _session.has_joined_group |= dist.get_world_size() > 1

    return recorded


def _without_gpu(backend: str, rank: int) -> str | None:
    """Return the job's backend in place of nccl if this node has no GPU; None if it has one.

    Args:
        backend: The backend that the program asks for.
        rank: The rank that the program gives, or -1. One rank prints the note.

    Raises:
        SpecError: The job names no other backend.
    """
    import torch

    if torch.cuda.is_available():
        return None
    instead = os.environ.get(BACKEND_VARIABLE, "")
    if instead in {"", "auto", "nccl"}:
        raise SpecError(
            "the program asks for the backend nccl, and this node has no GPU",
            found=f"backend {backend!r}",
            remedy="--set launch.backend=gloo, which makes `python -m hpc_kit.runtime` replace it; or run on GPUs",
        )
    meeting = _session.meeting()
    is_main = rank <= 0 if meeting is None else meeting.world.is_main
    if is_main:
        sys.stderr.write(f"hpc-kit: {instead} replaces the backend {backend}, because this node has no GPU\n")
    return REGISTERED if instead == BACKEND and is_registered() else instead


def _translate_result(function: Callable[..., str]) -> Callable[..., str]:
    """Return `function` with the backend's name translated back."""

    def translated(*args: Any, **kwargs: Any) -> str:
        backend = function(*args, **kwargs)
        return BACKEND if backend == REGISTERED else backend

    return translated


def _create(options: Any, _backend_options: object) -> MpiGroup:
    """Create a process group for torch.

    Raises:
        HpcKitError: MPI has not started the ranks, mpi4py finds no library of it, or the library is not thread-safe.
        DistBackendError: Not all ranks of the group came in time.
    """
    from hpc_kit.runtime.launchers import resolve
    from hpc_kit.runtime.mpi import library

    meeting = _session.meeting()
    module = library.import_mpi4py(meeting.world if meeting is not None else resolve(os.environ))
    library.check_thread_level(module)
    return create_group(module, options.global_ranks_in_group, options.timeout)


def create_group(module: ModuleType, ranks: Sequence[int], timeout: timedelta) -> MpiGroup:
    """Create the process group of these ranks of the world, or of all ranks if `ranks` is empty.

    Raises:
        DistBackendError: Not all ranks came in time.
    """
    from hpc_kit.runtime.mpi.collectives import Collectives
    from hpc_kit.runtime.mpi.deadlines import MpiErrors, run_with_timeout
    from hpc_kit.runtime.mpi.point_to_point import Messages
    from hpc_kit.runtime.mpi.process_group import MpiGroup
    from hpc_kit.runtime.mpi.work import OperationQueue

    comm, shared = run_with_timeout(
        lambda: _communicator(module, ranks), timeout.total_seconds(), "the ranks of a new group"
    )
    types, errors = _datatypes(module), MpiErrors(module)
    queue = OperationQueue(lambda: shutdown.set_abort_function(module.COMM_WORLD.Abort, at_exit=True))
    collectives = Collectives(comm, types, module.IN_PLACE, shared)
    return MpiGroup(collectives, Messages(comm, module, types, queue, errors), queue, errors, timeout=timeout)


@functools.cache
def _datatypes(module: ModuleType) -> Any:
    from hpc_kit.runtime.mpi.buffers import Datatypes

    return Datatypes(module)


def _communicator(module: ModuleType, ranks: Sequence[int]) -> tuple[Any, SharedMemory | None]:
    """Create a communicator of these ranks and their shared memory."""
    from hpc_kit.runtime.mpi.shared_memory import SharedMemory

    world = module.COMM_WORLD
    comm = world.Create_group(world.group.Incl(ranks or range(world.size)))
    comm.Set_errhandler(module.ERRORS_RETURN)
    return comm, SharedMemory.of(comm, module)
