"""What only a GPU does, held by stand-ins where there is none."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from data import Feed
from dataparallel import InThread
from meter import Meter
from options import Options
from report import utilisation

CUDA = torch.device("cuda")


class Stream:
    """A stream that is told by its name, and waits for nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def wait_event(self, event: list[str]) -> None:
        event.append(self.name)


def test_the_computing_stream_that_waits_for_another_one_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream("computes"))
    clock = iter(range(9))
    monkeypatch.setattr(Meter, "mark", lambda _: float(next(clock)))
    meter, waits = Meter(CUDA), list[str]()
    with meter.watching():
        Stream("computes").wait_event(waits)  # between steps
        meter.begin()
        Stream("gathers").wait_event(waits)
        Stream("computes").wait_event(waits)
    Stream("computes").wait_event(waits)
    assert waits == ["computes", "gathers", "computes", "computes"]
    assert meter.waits == [(1.0, 2.0)]


def test_a_gpu_gets_the_next_windows_while_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []

    def windows(step: int) -> Tensor:
        cut.append(step)
        return torch.tensor(step)

    sent: list[tuple[int, bool]] = []

    def to(self: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        sent.append((int(self), non_blocking))
        return self

    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self + 100)
    feed = Feed(windows, CUDA)
    for step in (3, 4):
        assert feed.take(step) == 100 + step
        feed.ahead(step + 1)
    assert cut == [3, 4, 5]
    assert sent == [(103, True), (104, True), (105, True)]


def test_a_cpu_cuts_them_when_it_comes_to_them() -> None:
    cut: list[int] = []

    def windows(step: int) -> Tensor:
        cut.append(step)
        return torch.tensor(step)

    feed = Feed(windows, torch.device("cpu"))
    assert feed.take(0) == 0
    feed.ahead(1)
    assert cut == [0]
    assert feed.take(1) == 1


def test_what_the_gpus_were_used_for_is_told_where_their_peak_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(layers=2, width=64, heads=2, sequence=16)
    # 6 x (12 x 2 x 64^2 + 64 x 256) of the matrices, 12 x 2 x 64 x 16 of the attention
    assert options.model.flops_per_token == 6 * (98304 + 16384) + 24576
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    world: Any = SimpleNamespace(device=CUDA)
    assert utilisation(options, world, 312e12 / 712704, 2) == pytest.approx(0.5)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A Card Of Its Own")
    assert utilisation(options, world, 1e6, 2) is None
    assert utilisation(options, SimpleNamespace(device=torch.device("cpu")), 1e6, 2) is None  # type: ignore[arg-type]


def test_a_thread_of_data_parallel_computes_in_bfloat16() -> None:
    """torch hands autocast on to its threads without the dtype."""
    found: list[torch.dtype] = []
    replica = InThread(torch.nn.Linear(2, 2), Options(bf16=True), torch.device("cpu"))

    def as_torch_does() -> None:
        with torch.amp.autocast("cpu", dtype=torch.float16):
            found.append(replica(torch.zeros(1, 2)).dtype)

    thread = threading.Thread(target=as_torch_does)
    thread.start()
    thread.join()
    assert found == [torch.bfloat16]
