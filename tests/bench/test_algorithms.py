"""All-reduce by hand: the sum is right, and the bytes are those that are said."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest
import torch
from torch import Tensor

from hpc_kit.bench.collectives_rank import ALL_REDUCES, CountedMessages


class Post(CountedMessages):
    """Messages among threads, counted."""

    def __init__(self, rank: int, ranks: int, boxes: dict[tuple[int, int], Queue[Tensor]]) -> None:
        # Without a process group.
        self.rank, self.ranks, self.boxes = rank, ranks, boxes
        self.sent = self.received = 0

    def send(self, tensor: Tensor, to: int) -> None:
        self.sent += tensor.numel()
        self.boxes[self.rank, to].put(tensor.clone())

    def receive(self, tensor: Tensor, source: int) -> None:
        self.received += tensor.numel()
        tensor.copy_(self.boxes[source, self.rank].get(timeout=20))

    def send_receive(self, sent: Tensor, to: int, received: Tensor, source: int) -> None:
        self.send(sent, to)
        self.receive(received, source)


def run(algorithm: Callable[..., None], ranks: int, length: int) -> tuple[list[Tensor], list[Post]]:
    boxes: dict[tuple[int, int], Queue[Tensor]] = {(a, b): Queue() for a in range(ranks) for b in range(ranks)}
    posts = [Post(rank, ranks, boxes) for rank in range(ranks)]
    tensors = [torch.arange(length, dtype=torch.float32) * 10**rank for rank in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        done = [
            pool.submit(algorithm, tensor, torch.zeros(length), post)
            for tensor, post in zip(tensors, posts, strict=True)
        ]
        for each in done:
            each.result(timeout=30)
    return tensors, posts


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("name", sorted(ALL_REDUCES))
def test_every_rank_has_the_sum(name: str, ranks: int) -> None:
    length = 4 * ranks
    tensors, _ = run(ALL_REDUCES[name], ranks, length)
    expected = torch.arange(length, dtype=torch.float32) * sum(10**rank for rank in range(ranks))
    assert all(torch.equal(tensor, expected) for tensor in tensors)


def test_a_ring_spreads_the_traffic_that_a_star_concentrates() -> None:
    ranks, length = 4, 16
    _, posts = run(ALL_REDUCES["ring"], ranks, length)
    assert [(post.sent, post.received) for post in posts] == [(2 * 3 * 4, 2 * 3 * 4)] * ranks
    _, posts = run(ALL_REDUCES["star"], ranks, length)
    assert [(post.sent, post.received) for post in posts] == [(48, 48), (16, 16), (16, 16), (16, 16)]
