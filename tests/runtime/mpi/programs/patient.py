"""Actions that break no group: waits with a time-out, many groups, the abort of an idle group, wrong calls."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

import hpc_kit

with hpc_kit.distributed(backend="mpi", timeout=40) as world:
    other = 1 - world.rank
    numbers = torch.ones(10)
    dist.barrier()
    if world.rank:
        time.sleep(3)
    work = dist.all_reduce(numbers, async_op=True)
    assert work is not None
    if not world.rank:
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"timed out waiting 0\.5 s"):
            work.wait(timedelta(seconds=0.5))
        assert time.monotonic() - start < 2
    assert work.wait(timedelta(seconds=30))
    assert numbers.tolist() == [2] * 10

    for _ in range(5):
        group = dist.new_group()
        arrived = torch.zeros(1 << 18)
        messages = [dist.irecv(arrived, other, group=group), dist.isend(torch.ones(1 << 18), other, group=group)]
        for message in messages:
            assert message is not None
            message.wait()
        assert arrived.sum() == 1 << 18
        dist.destroy_process_group(group)
    until = time.monotonic() + 10
    while (left := sum(thread.name == "hpc_kit_mpi" for thread in threading.enumerate())) > 1:
        assert time.monotonic() < until, f"{left} threads of groups that are gone"
        time.sleep(0.01)

    aborted = dist.new_group()
    dist.barrier(group=aborted)
    aborted.abort()
    with pytest.raises(dist.DistBackendError, match="the group was aborted"):
        dist.barrier(group=aborted)
    long = torch.ones(1 << 16, dtype=torch.float64)
    for mode in (True, False):
        with torch.inference_mode(mode):
            dist.all_reduce(long)
    assert (long == 4).all()

    for wrong in (
        lambda: dist.send(numbers, 7),
        lambda: dist.send(numbers, other, tag=-3),
        lambda: dist.broadcast(numbers, 7),
    ):
        with pytest.raises(
            ValueError, match=r"(?i)mpi: (a message to send|broadcast of 40 bytes): .*(invalid|rank|tag|root)"
        ):
            wrong()
    dist.barrier()
    os.write(1, f"rank {world.rank} ends well\n".encode())
