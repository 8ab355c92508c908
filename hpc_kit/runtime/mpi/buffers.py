"""Tensors as MPI buffers and datatypes, copied only where necessary."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from math import gcd
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from torch import Tensor

Spec = list[Any]
"""Buffer argument of mpi4py: [memory, count or counts, datatype]."""

MAX_COUNT = 1 << 30
"""Maximum number of elements of one call. MPI 3 has 31-bit counts and displacements."""


class Datatypes:
    """Datatypes and reductions of one MPI library."""

    def __init__(self, module: ModuleType) -> None:
        self._mpi = module
        self._address = module.memory.fromaddress
        # A transfer depends only on the size of the elements, so bfloat16 is sent as 16-bit integers.
        self._by_size = {1: module.UINT8_T, 2: module.UINT16_T, 4: module.UINT32_T, 8: module.UINT64_T}
        self._by_size[16] = module.C_DOUBLE_COMPLEX
        self._numbers = {
            torch.float32: module.FLOAT,
            torch.float64: module.DOUBLE,
            torch.int8: module.INT8_T,
            torch.int16: module.INT16_T,
            torch.int32: module.INT32_T,
            torch.int64: module.INT64_T,
            torch.uint8: module.UINT8_T,
            torch.uint16: module.UINT16_T,
            torch.uint32: module.UINT32_T,
            torch.uint64: module.UINT64_T,
            torch.bool: module.UINT8_T,
            torch.complex64: module.C_FLOAT_COMPLEX,
            torch.complex128: module.C_DOUBLE_COMPLEX,
        }
        self._operations: dict[tuple[str, torch.dtype], Any] = {}
        # Open MPI 4 splits a longer Ireduce into steps and waits in each until this rank calls MPI again.
        self.step = 1 << 15 if "Open MPI" in module.Get_library_version() else 1 << 20
        """Bytes of one call of Ireduce."""
        self._wide: dict[tuple[int, int], Any] = {}

    def transfer_type(self, tensor: Tensor, counts: Sequence[int] | None = None) -> Spec:
        """Return the buffer of a contiguous CPU tensor for a transfer; `counts` are the elements for each rank.

        Raises:
            ValueError: MPI cannot count so many elements, also not in equal parts.
        """
        memory, total = self._address(tensor.data_ptr(), tensor.nbytes), tensor.numel()
        if total <= MAX_COUNT:
            return [memory, total if counts is None else counts, self._by_size[tensor.element_size()]]
        unit = gcd(*counts) if counts else total
        if total // unit > MAX_COUNT:
            raise ValueError(f"MPI cannot count {total} elements in parts of {list(counts or ())}: use equal parts")
        return [memory, [count // unit for count in counts] if counts else 1, self._wide_type(tensor, unit)]

    def _wide_type(self, tensor: Tensor, length: int) -> Any:
        """Return a datatype of `length` elements."""
        size = tensor.element_size()
        if (size, length) not in self._wide:
            kind = self._by_size[size]
            blocks, rest = divmod(length, MAX_COUNT)
            block = kind.Create_contiguous(MAX_COUNT)
            wide = self._mpi.Datatype.Create_struct([blocks, rest], [0, blocks * MAX_COUNT * size], [block, kind])
            self._wide[size, length] = wide.Commit()
            block.Free()
        return self._wide[size, length]

    def reduction_type(self, tensor: Tensor) -> Spec:
        """Return the buffer of a contiguous CPU tensor for a reduction."""
        kind = self._numbers.get(tensor.dtype) or self._by_size[tensor.element_size()]
        return [self._address(tensor.data_ptr(), tensor.nbytes), tensor.numel(), kind]

    def operation(self, name: str, dtype: torch.dtype) -> Any:
        """Return the MPI operation for `name` (SUM, MAX, ...) over elements of this type.

        Raises:
            ValueError: It does not exist, as bitwise operations on floating point numbers or an order of complex
                numbers.
        """
        known = self._operations.get((name, dtype))
        if known is None:
            known = self._operations[name, dtype] = self._new_operation(name, dtype)
        return known

    def _new_operation(self, name: str, dtype: torch.dtype) -> Any:
        if dtype is torch.bool:
            # Bytes with the values 0 and 1: a nonzero sum is true and stays 1.
            name = {"SUM": "MAX", "PRODUCT": "MIN"}.get(name, name)
        bits = name in {"BAND", "BOR", "BXOR"}
        if name not in TORCH_OPERATIONS and not bits:
            raise ValueError(f"the mpi backend has no reduction {name}")
        if (bits and dtype.is_floating_point) or (dtype.is_complex and name not in {"SUM", "PRODUCT"}):
            raise ValueError(f"{name} means nothing for {dtype}")
        # MPI's MAX keeps or loses a NaN depending on the order of the ranks. torch's MAX keeps it.
        may_meet_nan = dtype.is_floating_point and name in {"MIN", "MAX"}
        if dtype in self._numbers and not may_meet_nan:
            return getattr(self._mpi, {"PRODUCT": "PROD"}.get(name, name))
        one = torch.empty(1, dtype=dtype)
        try:
            combine(name, one, one, one)
        except RuntimeError as error:  # an exception inside MPI would end all ranks
            raise ValueError(f"torch has no {name} of {dtype} on the CPU: {error}") from error
        return self._mpi.Op.Create(_torch_reduction(name, dtype), commute=True)


TORCH_OPERATIONS: dict[str, Any] = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}


def combine(name: str, left: Tensor, right: Tensor, out: Tensor) -> None:
    """Combine two operands of a reduction with torch's arithmetic."""
    TORCH_OPERATIONS[name](left, right, out=out)


def _torch_reduction(name: str, dtype: torch.dtype) -> Any:
    """Return a reduction in torch's arithmetic for types that MPI lacks, such as bfloat16 and float16."""

    def reduce(arrived: Any, mine: Any, _datatype: Any) -> None:
        result = torch.frombuffer(mine, dtype=dtype)
        combine(name, torch.frombuffer(arrived, dtype=dtype), result, result)

    return reduce


@contextmanager
def copy_to_host(tensors: Sequence[Tensor], *, written: bool) -> Iterator[list[Tensor]]:
    """Yield the tensors contiguous and on the CPU, and copy written ones back afterwards."""
    hosted = [host_copy(tensor) for tensor in tensors]
    yield hosted
    if written:
        for tensor, host in zip(tensors, hosted, strict=True):
            copy_to_device(tensor, host)


def host_copy(tensor: Tensor) -> Tensor:
    """Return the detached tensor, or a contiguous copy of it on the CPU.

    Raises:
        ValueError: The tensor is sparse.
    """
    if tensor.layout is not torch.strided:
        raise ValueError(f"the mpi backend takes sparse tensors in all_reduce alone, and this one is {tensor.layout}")
    if not (tensor.is_cpu and tensor.is_contiguous()):
        return tensor.detach().cpu().contiguous()
    if tensor.is_inference() and tensor.numel():
        # Tensors created in inference_mode may be changed only there. A new tensor over their memory may be changed
        # anywhere.
        memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
        return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
    return tensor.detach() if tensor.requires_grad else tensor


def stream_events(tensors: Sequence[Tensor]) -> list[torch.cuda.Event]:
    """Record an event on the current stream of each GPU with one of these tensors, to wait for before a copy."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return [torch.cuda.current_stream(device).record_event() for device in devices]


def copy_to_device(tensor: Tensor, host: Tensor) -> None:
    """Copy the values back to the device, unless `host` is the tensor itself."""
    if tensor.data_ptr() != host.data_ptr():
        tensor.detach().copy_(host)


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate flattened tensors on the CPU."""
    return torch.cat([tensor.detach().cpu().reshape(-1) for tensor in tensors])


def check_equal_size(whole: Tensor, part: Tensor, ranks: int, what: str) -> None:
    """Check that `whole` has one part of the size of `part` for each rank.

    Raises:
        ValueError: The sizes differ.
    """
    if whole.numel() != part.numel() * ranks or whole.dtype != part.dtype:
        raise ValueError(
            f"{what} has {whole.numel()} elements of {whole.dtype}; {ranks} ranks of {part.numel()} {part.dtype} need "
            f"{ranks * part.numel()}"
        )
