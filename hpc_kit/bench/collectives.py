"""Options and checks of `hpc-kit bench comm`: collectives of several backends, and the links between ranks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.bench import local_ranks, option_checks
from hpc_kit.bench.results import Column, Plot, Value, format_quantity
from hpc_kit.errors import SpecError
from hpc_kit.runtime.mpi import library

if TYPE_CHECKING:
    import torch

BACKENDS = ("gloo", "mpi", "nccl")
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda _ranks: 1.0,
    "send_recv": lambda _ranks: 1.0,
}
"""Bytes that the link of each rank carries, divided by the bytes of the collective: busbw / algbw.

Source: doc/PERFORMANCE.md and src/sendrecv.cu of nccl-tests.
"""

ALGORITHMS = ("ring", "star")
"""All-reduces made of plain messages; see `collectives_rank`."""

TITLE = "Collectives, side by side"
COLUMNS = {
    "seconds": Column(unit="s", title="time"),
    "algbw": Column(unit="GB/s", better="higher", kind="reckoned"),
    "busbw": Column(unit="GB/s", better="higher", kind="reckoned"),
    "sent": Column(unit="B", better="none", kind="counted"),
    "received": Column(unit="B", better="none", kind="counted"),
    "traffic": Column(unit="B", better="none", title="sent and received", kind="reckoned"),
    "alpha": Column(unit="s"),
    "alpha_error": Column(unit="s", better="none", title="+-", kind="reckoned"),
    "beta": Column(unit="ns/B"),
    "beta_error": Column(unit="ns/B", better="none", title="+-", kind="reckoned"),
    "bandwidth": Column(unit="GB/s", better="higher", title="1 / beta", kind="reckoned"),
}
"""seconds: time of one collective on the slowest rank, or of one message. algbw: bytes / seconds. busbw: algbw times
the bus factor, comparable between collectives and numbers of ranks."""

ELEMENT_BYTES = 4
"""Bytes of an element of the tensors, which are of type float32."""
_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])i?)?B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE_FACTOR = 4
"""Factor between neighbouring sizes of a range."""
_TENSORS_PER_RANK = 3
"""Tensors of the largest size in each rank: two are filled, and the backend may copy another one."""
_PROCESS_BYTES = 150 << 20
"""Memory of a rank before it allocates tensors."""


class CommOptions(NamedTuple):
    """Options of `bench comm`."""

    backends: tuple[str, ...] = ("auto",)
    collectives: tuple[str, ...] = ("all_reduce",)
    ranks: int = 2
    sizes: tuple[int, ...] = (4 << 10, 4 << 20, 64 << 20)
    """Bytes of the tensor; of the whole result for all_gather, reduce_scatter and all_to_all."""
    algorithms: tuple[str, ...] = ()
    links: bool = False

    def resolve(self, step_ranks: int) -> CommOptions:
        """Return the options with names instead of `auto` and `all`; `step_ranks` as for `check`."""
        backends = available_backends(self.ranks, step_ranks) if self.backends == ("auto",) else self.backends
        collectives = tuple(BUS_FACTORS) if self.collectives == ("all",) else self.collectives
        return self._replace(backends=backends, collectives=collectives)

    def row_count(self, pairs: int) -> int:
        """Return the number of result rows for this many links."""
        times = (len(self.collectives) + len(self.algorithms)) * len(self.sizes)
        # Each link has a row for each size, and one for the line through them.
        links = pairs * (len(self.sizes) + 1)
        traffic = len(self.algorithms) * self.ranks
        return len(self.backends) * (times + links) + traffic

    def check(self, step_ranks: int, *, elsewhere: bool = False) -> None:
        """Check the options before any rank starts. The ranks check the sizes.

        Args:
            step_ranks: Ranks of the step that this process is in; 1: this process starts the ranks.
            elsewhere: The ranks may run on other hosts, and check their memory and GPUs themselves.

        Raises:
            SpecError: A name is unknown, there is one rank only, or a backend cannot be used here.
        """
        for kind, names, known in (
            ("backend", self.backends, BACKENDS),
            ("collective", self.collectives, BUS_FACTORS),
            ("algorithm", self.algorithms, ALGORITHMS),
        ):
            option_checks.check_known_names(kind, names, known)
        option_checks.check_several_ranks(self.ranks, "there is nothing to measure among fewer than 2 ranks")
        if self.algorithms and "all_reduce" not in self.collectives:
            raise SpecError(
                "ring and star are ways to do an all_reduce",
                found=",".join(self.collectives),
                remedy="--collectives all_reduce",
            )
        for name in self.backends:
            if (error := unavailable_reason(name)) is not None:
                raise error
        if elsewhere:
            return
        _check_gpu_count(self, step_ranks)
        if step_ranks == 1:
            option_checks.check_memory(
                self.ranks * _PROCESS_BYTES, f"bench comm on {self.ranks} ranks", "fewer --ranks"
            )


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse `4KiB,64MiB` into sorted bytes; `1KiB-256MiB` is a range in powers of 4, including its end.

    Raises:
        SpecError: A size is invalid, or a range goes down.
    """
    found: set[int] = set()
    for word in text.split(","):
        low, dash, high = word.partition("-")
        first, last = parse_size(low), parse_size(high if dash else low)
        if last < first:
            raise SpecError(f"{word!r} goes down", found=f"{last} < {first}", remedy=f"{high}-{low}")
        size = first
        while size < last:
            found.add(size)
            size *= _SIZE_FACTOR
        found.add(last)
    return tuple(sorted(found))


def parse_size(text: str) -> int:
    """Parse 4096, 4KiB, 4K or 4 MB into bytes; units are powers of 1024.

    Raises:
        SpecError: The text is no size, or the size is smaller than one element.
    """
    match = _SIZE.fullmatch(text.strip())
    number = int(match[1]) << _POWERS[(match[2] or "").upper()] if match else 0
    if number < ELEMENT_BYTES:
        raise SpecError(
            f"{text!r} is no size", found=f"--sizes {text}", remedy="bytes from 4 up: 4096, 4KiB, 64MiB, 1KiB-256MiB"
        )
    return number


def collective_plots(options: CommOptions) -> list[Plot]:
    """Return the plots: time and bandwidth for each collective, bytes of each rank, and each link."""
    found = []
    for collective in options.collectives:
        where: dict[str, Value] = {"collective": collective}
        series = ("backend", "algorithm") if options.algorithms and collective == "all_reduce" else ("backend",)
        for column, words in (("seconds", "time"), ("busbw", "bus bandwidth")):
            title = f"{collective}, {options.ranks} ranks: {words}"
            name = f"{collective}-{words.replace(' ', '-')}"
            plot = Plot(
                name=name, title=title, x="bytes", y=(column,), series=series, where=where, log_x=True, log_y=True
            )
            found.append(plot)
    if options.algorithms:
        title = f"One all-reduce, {options.ranks} ranks: bytes that each sends and receives"
        found.append(Plot(name="traffic", title=title, x="rank", y=("traffic",), series=("algorithm",), kind="bars"))
    if options.links:
        for column, words in (("bandwidth", "bandwidth"), ("alpha", "latency")):
            title = f"Each link: {words} by the line through its times"
            found.append(
                Plot(name=f"link-{words}", title=title, x="link", y=(column,), series=("backend",), kind="bars")
            )
    return found


def _check_gpu_count(options: CommOptions, step_ranks: int) -> None:
    """Check for one GPU for each rank with NCCL."""
    if "nccl" not in options.backends:
        return
    import torch

    # In a step, Slurm may show each rank only its own GPU, and other ranks may be on other hosts.
    found, needed = torch.cuda.device_count(), options.ranks if step_ranks == 1 else 1
    if found < needed:
        raise SpecError(
            "the backend nccl needs a GPU a rank",
            found=f"{options.ranks} ranks, {found} GPUs that this process sees",
            remedy="--ranks with no more, or as a job: hpc-kit submit bench_comm --set resources.gpus_per_task=1",
        )


def available_backends(wanted: int, step_ranks: int) -> tuple[str, ...]:
    """Return the backends that can be measured here; `step_ranks` as for `CommOptions.check`.

    gloo always; nccl with one GPU for each rank; mpi if it started the ranks or can start them.
    """
    import torch

    alone = step_ranks == 1
    mpi = local_ranks.find_mpirun() if alone else library.find_evidence(os.environ)
    gpus = torch.cuda.device_count()
    usable = {"gloo": True, "mpi": mpi is not None, "nccl": gpus >= (wanted if alone else 1)}
    return tuple(name for name, is_usable in usable.items() if is_usable and unavailable_reason(name) is None)


def unavailable_reason(name: str) -> SpecError | None:
    """Return the reason why this Python cannot use a backend; None if it can."""
    from torch import __version__ as version
    from torch import distributed as dist

    if name == "mpi" and not dist.is_mpi_available() and find_spec("mpi4py") is None:
        return SpecError(
            "the backend mpi needs mpi4py", found="it is not installed", remedy="pip install 'hpc_kit[mpi]'"
        )
    if name != "mpi" and not dist.is_backend_available(name):
        return SpecError(
            f"the backend {name} is not built in",
            found=f"torch {version} of {sys.executable}",
            remedy="a torch that has it; for nccl: pip install torch, without +cpu, on a machine with a GPU",
        )
    return None


def check_sizes(options: CommOptions, hosts: Sequence[str], gpu: torch.device | None = None) -> None:
    """Check that every host and GPU has memory for the sizes. Every rank must call this collective.

    Without NCCL, `gpu` is None. `hosts` contains the host of each rank.

    Raises:
        SpecError: A host or a GPU has too little memory. All ranks raise the same error.
    """
    import torch
    from torch import distributed as dist

    free: list[tuple[str, int | None, int | None]] = [("", None, None)] * len(hosts)
    free_on_gpu = None if gpu is None else torch.cuda.mem_get_info(gpu)[0]
    dist.all_gather_object(free, (hosts[dist.get_rank()], option_checks.free_memory(), free_on_gpu))
    for host, host_bytes, gpu_bytes in free:
        if set(options.backends) != {"nccl"}:
            _check_tensors(max(options.sizes), hosts.count(host), host, host_bytes)
        _check_tensors(max(options.sizes), 1, f"a GPU of {host}", gpu_bytes)


def _check_tensors(size: int, ranks: int, place: str, free: int | None) -> None:
    """Check that the tensors of `ranks` ranks fit into the `free` bytes of a place (None: unknown).

    Raises:
        SpecError: The size is too large; the error names the largest that fits.
    """
    if free is not None:
        needed, largest = _TENSORS_PER_RANK * size * ranks, free // (_TENSORS_PER_RANK * ranks) >> 20
        shown = format_quantity(size, "B")
        what = f"a size of {shown}, {_TENSORS_PER_RANK} times for each of {ranks} ranks of {place},"
        option_checks.check_memory(needed, what, f"--sizes up to {largest}MiB", free=free)
