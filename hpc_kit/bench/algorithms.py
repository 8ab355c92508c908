"""All-reduce by hand, of plain messages: around a ring, and over one device that gathers; each byte is counted.

The parameter device of a star takes in and gives out everybody's tensor, 2 (n - 1) of them; each rank of a ring
2 (n - 1) / n of one, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from torch import distributed as dist

if TYPE_CHECKING:
    from torch import Tensor

ROOT = 0
"""The rank that is the star's parameter device."""


class Messages(Protocol):
    """One rank's messages in a group."""

    rank: int
    ranks: int

    def send(self, tensor: Tensor, to: int) -> None:
        """Return when the tensor may be written to again."""

    def receive(self, tensor: Tensor, source: int) -> None:
        """Return when it is there."""

    def swap(self, sent: Tensor, to: int, received: Tensor, source: int) -> None:
        """Both at once: nobody waits for the other to begin."""


class Counted:
    """Messages over torch.distributed, with the bytes that this rank has sent and received."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.sent = self.received = 0

    def send(self, tensor: Tensor, to: int) -> None:
        """As in `Messages`."""
        self.sent += _bytes(tensor)
        dist.send(tensor, group=self.group, group_dst=to)

    def receive(self, tensor: Tensor, source: int) -> None:
        """As in `Messages`."""
        self.received += _bytes(tensor)
        dist.recv(tensor, group=self.group, group_src=source)

    def swap(self, sent: Tensor, to: int, received: Tensor, source: int) -> None:
        """As in `Messages`."""
        self.sent += _bytes(sent)
        self.received += _bytes(received)
        exchange(sent, to, received, source, self.group)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def exchange(sent: Tensor, to: int, received: Tensor, source: int, group: Any) -> None:
    """Send to one rank of a group while receiving from another."""
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, group=group, group_peer=to),
            dist.P2POp(dist.irecv, received, group=group, group_peer=source),
        ]
    ):
        work.wait()


def ring(tensor: Tensor, spare: Tensor, messages: Messages) -> None:
    """Sum over all ranks, in place: once around to add up a part each, once more to hand the parts on.

    Args:
        tensor: One dimension, as many elements as a multiple of the ranks.
        spare: Room for a part of it, `tensor.numel() / ranks`.
        messages: To and from the neighbours.
    """
    rank, ranks = messages.rank, messages.ranks
    parts = tensor.chunk(ranks)
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    room = spare[: parts[0].numel()]
    for step in range(ranks - 1):
        messages.swap(parts[(rank - step) % ranks], right, room, left)
        parts[(rank - step - 1) % ranks].add_(room)
    for step in range(ranks - 1):
        messages.swap(parts[(rank + 1 - step) % ranks], right, parts[(rank - step) % ranks], left)


def star(tensor: Tensor, spare: Tensor, messages: Messages) -> None:
    """Sum over all ranks, in place: `ROOT` takes in everybody's, adds them up, and hands the sum to each.

    Args:
        tensor: Any.
        spare: Room for as much.
        messages: To and from the root.
    """
    if messages.rank != ROOT:
        messages.send(tensor, ROOT)
        messages.receive(tensor, ROOT)
        return
    others = [rank for rank in range(messages.ranks) if rank != ROOT]
    room = spare[: tensor.numel()]
    for rank in others:
        messages.receive(room, rank)
        tensor.add_(room)
    for rank in others:
        messages.send(tensor, rank)


ALGORITHMS: dict[str, Callable[[Tensor, Tensor, Messages], None]] = {"ring": ring, "star": star}
