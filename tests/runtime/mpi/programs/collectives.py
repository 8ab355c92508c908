"""Compares each collective, with random shapes, types and reductions, with a local computation."""

from __future__ import annotations

import os
import random
import sys
from functools import reduce
from typing import Any

import pytest
import torch
from torch import distributed as dist

import hpc_kit
from hpc_kit.runtime import Group
from hpc_kit.runtime.mpi import buffers

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64,
]  # fmt: skip
STEPS: dict[str, Any] = {
    "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum, "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip
SIZES = [(), (0,), (1,), (7,), (3, 5), (2, 3, 4), (1000,), (70_000,), (300, 1100)]


def make_input(case: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype, part: int = 0) -> torch.Tensor:
    """Return the input of a rank, which every rank can compute."""
    numbers = torch.Generator().manual_seed(case * 1000 + rank * 10 + part)
    return torch.randint(0, 4, shape, generator=numbers).to(dtype)


def combine(name: str, tensors: list[torch.Tensor]) -> Any:
    if name == "AVG":
        return combine("SUM", tensors) / len(tensors)
    if tensors[0].dtype is torch.bool and name in {"SUM", "MAX", "PRODUCT", "MIN"}:
        name = {"SUM": "BOR", "MAX": "BOR"}.get(name, "BAND")
    return reduce(STEPS[name], tensors)


def reductions(dtype: torch.dtype) -> list[str]:
    if dtype.is_complex:
        return ["SUM"]  # torch itself refuses further ones
    names = ["SUM", "PRODUCT", "MIN", "MAX"]
    return [*names, "AVG"] if dtype.is_floating_point else [*names, "BAND", "BOR", "BXOR"]


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected.to(got.dtype).view(got.shape), rtol=0.02, atol=0.01)


class Case:
    """One collective of one group, with the inputs of all ranks."""

    def __init__(self, number: int, group: dist.ProcessGroup, chosen: random.Random) -> None:
        self.number, self.group = number, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.dtype, self.shape = chosen.choice(DTYPES), chosen.choice(SIZES)
        self.op = chosen.choice(reductions(self.dtype))
        self.root, self.hurry = chosen.randrange(self.size), chosen.random() < 0.5
        self.strided = chosen.random() < 0.2 and len(self.shape) == 2
        self.ranks = range(self.size)

    def __str__(self) -> str:
        return f"case {self.number}: {self.shape} {self.dtype} {self.op} root {self.root} async {self.hurry}"

    def of(self, rank: int, part: int = 0, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        made = make_input(self.number, rank, self.shape if shape is None else shape, self.dtype, part)
        return made.t().contiguous().t() if self.strided and shape is None else made

    def done(self, work: dist.Work | None) -> None:
        if work is not None:
            work.wait()

    @property
    def kind(self) -> Any:
        return getattr(dist.ReduceOp, self.op)

    def all_reduce(self) -> None:
        mine = self.of(self.rank)
        self.done(dist.all_reduce(mine, self.kind, group=self.group, async_op=self.hurry))
        assert_same(mine, combine(self.op, [self.of(rank) for rank in self.ranks]))

    def reduce(self) -> None:
        mine = self.of(self.rank)
        self.done(dist.reduce(mine, op=self.kind, group=self.group, group_dst=self.root, async_op=self.hurry))
        if self.rank == self.root:
            assert_same(mine, combine(self.op, [self.of(rank) for rank in self.ranks]))

    def broadcast(self) -> None:
        mine = self.of(self.rank)
        self.done(dist.broadcast(mine, group=self.group, group_src=self.root, async_op=self.hurry))
        assert_same(mine, self.of(self.root))

    def all_gather(self) -> None:
        outputs = [torch.empty_like(self.of(0)) for _ in self.ranks]
        self.done(dist.all_gather(outputs, self.of(self.rank), group=self.group, async_op=self.hurry))
        for rank, output in enumerate(outputs):
            assert_same(output, self.of(rank))

    def all_gather_into_tensor(self) -> None:
        whole = torch.empty((self.size, *self.shape), dtype=self.dtype)
        self.done(dist.all_gather_into_tensor(whole, self.of(self.rank), group=self.group, async_op=self.hurry))
        assert_same(whole, torch.stack([self.of(rank) for rank in self.ranks]))

    def reduce_scatter(self) -> None:
        inputs = [self.of(self.rank, part) for part in self.ranks]
        mine = torch.empty(self.shape, dtype=self.dtype)
        self.done(dist.reduce_scatter(mine, inputs, self.kind, group=self.group, async_op=self.hurry))
        assert_same(mine, combine(self.op, [self.of(rank, self.rank) for rank in self.ranks]))

    def reduce_scatter_tensor(self) -> None:
        whole = torch.stack([self.of(self.rank, part) for part in self.ranks])
        mine = torch.empty(self.shape, dtype=self.dtype)
        self.done(dist.reduce_scatter_tensor(mine, whole, self.kind, group=self.group, async_op=self.hurry))
        assert_same(mine, combine(self.op, [self.of(rank, self.rank) for rank in self.ranks]))

    def all_to_all(self) -> None:
        outputs = [torch.empty(self.shape, dtype=self.dtype) for _ in self.ranks]
        inputs = [self.of(self.rank, part) for part in self.ranks]
        self.done(dist.all_to_all(outputs, inputs, group=self.group, async_op=self.hurry))
        for rank, output in enumerate(outputs):
            assert_same(output, self.of(rank, self.rank))

    def all_to_all_single(self) -> None:
        rows = [[1 + (rank + 2 * other) % 3 for other in self.ranks] for rank in self.ranks]
        sent = [torch.cat([self.of(rank, to, (rows[rank][to], 3)) for to in self.ranks]) for rank in self.ranks]
        expected = torch.cat([self.of(rank, self.rank, (rows[rank][self.rank], 3)) for rank in self.ranks])
        output = torch.empty_like(expected)
        received = [rows[rank][self.rank] for rank in self.ranks]
        mine = sent[self.rank]
        self.done(
            dist.all_to_all_single(output, mine, received, rows[self.rank], group=self.group, async_op=self.hurry)
        )
        assert_same(output, expected)

    def gather(self) -> None:
        outputs = [torch.empty(self.shape, dtype=self.dtype) for _ in self.ranks] if self.rank == self.root else None
        mine = self.of(self.rank)
        self.done(dist.gather(mine, outputs, group=self.group, group_dst=self.root, async_op=self.hurry))
        for rank, output in enumerate(outputs or []):
            assert_same(output, self.of(rank))

    def scatter(self) -> None:
        inputs = [self.of(self.root, part) for part in self.ranks] if self.rank == self.root else None
        mine = torch.empty(self.shape, dtype=self.dtype)
        self.done(dist.scatter(mine, inputs, group=self.group, group_src=self.root, async_op=self.hurry))
        assert_same(mine, self.of(self.root, self.rank))

    def messages(self) -> None:
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        arrived = torch.empty(self.shape, dtype=self.dtype)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self.of(self.rank), group=self.group, group_peer=right),
                dist.P2POp(dist.irecv, arrived, group=self.group, group_peer=left),
            ]
        )
        for work in works:
            work.wait()
        assert_same(arrived, self.of(left))

    def barrier(self) -> None:
        self.done(dist.barrier(group=self.group, async_op=self.hurry))

    def objects(self) -> None:
        everything: list[object] = [None] * self.size
        dist.all_gather_object(everything, {self.rank: self.shape}, group=self.group)
        assert everything == [{rank: self.shape} for rank in self.ranks]
        told: list[object] = [self.number if self.rank == self.root else None]
        dist.broadcast_object_list(told, group=self.group, group_src=self.root)
        assert told == [self.number]


KINDS = [
    Case.all_reduce, Case.reduce, Case.broadcast, Case.all_gather, Case.all_gather_into_tensor, Case.reduce_scatter,
    Case.reduce_scatter_tensor, Case.all_to_all, Case.all_to_all_single, Case.gather, Case.scatter, Case.messages,
    Case.barrier, Case.objects,
]  # fmt: skip


def coalesced(world: Group) -> None:
    """Run coalesced collectives, and the functions that torch's compiler and DTensor call."""
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.distributed_c10d import _coalescing_manager

    numbers = [torch.full((size,), float(world.rank + 1)) for size in (3, 50_000, 1)]
    total = sum(range(1, world.world_size + 1))
    with _coalescing_manager():
        for tensor in numbers:
            dist.all_reduce(tensor)
    assert all((tensor == total).all() for tensor in numbers)
    halves = torch.ones(5)
    dist.all_reduce(halves, dist._make_nccl_premul_sum(0.5))  # type: ignore[attr-defined]
    assert halves.tolist() == [world.world_size / 2] * 5
    group = dist.group.WORLD
    assert group is not None
    reduced = functional.all_reduce(torch.full((5,), float(world.rank + 1)), "sum", group)
    gathered = functional.all_gather_tensor(torch.full((2,), world.rank), 0, group)
    part = functional.reduce_scatter_tensor(torch.ones(2 * world.world_size), "sum", 0, group)
    assert (reduced.tolist(), part.tolist()) == ([total] * 5, [world.world_size] * 2)
    assert gathered.tolist() == [rank for rank in range(world.world_size) for _ in range(2)]


def overlapping(world: Group) -> None:
    """Start many collectives on two groups, and wait for them in reverse order and through their futures."""
    second = dist.new_group(list(range(world.world_size)))
    tensors = [torch.full((30_000 * (1 + number % 3),), float(number)) for number in range(12)]
    works = [dist.all_reduce(each, group=(None, second)[i % 2], async_op=True) for i, each in enumerate(tensors)]
    futures = [work.get_future() for work in works[::3]]
    for work in reversed(works):
        work.wait()
    assert all(future.done() for future in futures)
    assert all((tensor == number * world.world_size).all() for number, tensor in enumerate(tensors))


def check_unusual_types(world: Group) -> None:
    """Check sparse tensors, alone and under DistributedDataParallel, a type without arithmetic, and NaN."""
    rows = torch.tensor([[0, world.rank + 1], [0, 1]])
    mine = torch.sparse_coo_tensor(rows, [1.0, 2.0], (world.world_size + 1, 2))
    expected = torch.zeros(world.world_size + 1, 2)
    expected[0, 0] = world.world_size
    expected[1:, 1] = 2
    dist.all_reduce(mine)
    assert torch.equal(mine.to_dense(), expected)
    with pytest.raises(ValueError, match="takes sparse tensors in all_reduce alone"):
        dist.broadcast(mine, 0)
    embedding = torch.nn.Embedding(10, 2, sparse=True)
    net = torch.nn.parallel.DistributedDataParallel(embedding)
    net(torch.tensor([world.rank, 9])).sum().backward()
    gradient = embedding.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    assert gradient.to_dense()[9].tolist() == [1, 1]
    assert gradient.to_dense()[0].tolist() == pytest.approx([1 / world.world_size] * 2)
    with pytest.raises(ValueError, match="torch has no SUM of"):
        dist.all_reduce(torch.zeros(10).to(torch.float8_e4m3fn))
    for rank in range(world.world_size):
        for length in (3, 100_000):
            largest = torch.full((length,), float("nan") if rank == world.rank else 1.0)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            assert largest.isnan().all(), f"the NaN of rank {rank} is lost in {length} elements"


def main(cases: int, seed: int, most: int) -> None:
    buffers.MAX_COUNT = most
    with hpc_kit.distributed(backend="mpi", timeout=60) as world:
        evens = [rank for rank in range(world.world_size) if rank % 2 == 0]
        last = dist.new_group(list(range(min(1, world.world_size - 1), world.world_size)))
        groups = [dist.group.WORLD, dist.new_group(evens), last]
        for number in range(cases):
            chosen = random.Random(seed * 10_000 + number)
            group, kind = chosen.choice(groups), KINDS[number % len(KINDS)]
            if group == dist.GroupMember.NON_GROUP_MEMBER:
                continue
            case = Case(number, group, chosen)
            try:
                kind(case)
            except Exception as error:
                raise AssertionError(f"{kind.__name__}, {case}") from error
        if cases > len(KINDS):
            coalesced(world)  # importing its functions imports a large part of torch
        overlapping(world)
        check_unusual_types(world)
        dist.barrier()
        line = f"rank {world.rank} of {world.world_size}: {cases} cases on {dist.get_backend()}\n"
        os.write(
            1, line.encode()
        )  # one write: print() writes the end of the line separately, and ranks could mix their lines


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
