"""What only a GPU does, held by stand-ins where there is none."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from data import Prefetcher
from dataparallel import AutocastInThread
from hpc_kit.runtime.step_timer import StepTimer, seconds_between
from options import Options
from training import flops_over_peak

CUDA = torch.device("cuda")


class Event:
    """An event whose time is that of its recording on a clock of whole milliseconds."""

    clock = iter(range(99))

    def __init__(self, **_: object) -> None:
        self.time = 0

    def record(self) -> None:
        self.time = next(Event.clock)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return float(end.time - self.time)


def test_the_waiting_time_of_a_gpu_is_measured_from_its_last_gradient_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks: list[Any] = []
    replica: Any = SimpleNamespace(process_group=None, register_comm_hook=lambda _, hook: hooks.append(hook))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr("hpc_kit.runtime.step_timer.allreduce_hook", lambda _, bucket: bucket)
    timer = StepTimer(SimpleNamespace(device=CUDA, world_size=2), replica, is_measured=True)  # type: ignore[arg-type]
    assert timer.is_measured
    timer.begin_step()
    timer.end_loading()
    for bucket in ("first", "last"):
        assert hooks[0](None, bucket) == bucket
    timer.end_backward()
    timer.end_step()
    [(marks, wait)] = timer.finished
    assert isinstance(wait, tuple)
    assert [seconds_between(*pair) for pair in ((marks[0], wait[0]), wait)] == [0.003, 0.001]


def test_without_ddp_the_waiting_time_of_a_gpu_is_not_measured() -> None:
    timer = StepTimer(SimpleNamespace(device=CUDA, world_size=2), None, is_measured=True)  # type: ignore[arg-type]
    assert not timer.is_measured


def test_the_next_windows_are_copied_while_a_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
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
    prefetcher = Prefetcher(windows, CUDA)
    for step in (3, 4):
        assert prefetcher.take(step) == 100 + step
        prefetcher.fetch(step + 1)
    assert cut == [3, 4, 5]
    assert sent == [(103, True), (104, True), (105, True)]


def test_a_cpu_gets_the_windows_when_it_needs_them() -> None:
    cut: list[int] = []

    def windows(step: int) -> Tensor:
        cut.append(step)
        return torch.tensor(step)

    prefetcher = Prefetcher(windows, torch.device("cpu"))
    assert prefetcher.take(0) == 0
    prefetcher.fetch(1)
    assert cut == [0]
    assert prefetcher.take(1) == 1


def test_the_utilization_of_gpus_is_printed_if_their_peak_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(layers=2, width=64, heads=2, sequence=16)
    # 6 x (12 x 2 x 64^2 + 64 x 256) of the matrices, 12 x 2 x 64 x 16 of the attention
    assert options.model.flops_per_token == 6 * (98304 + 16384) + 24576
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    assert flops_over_peak(options, CUDA, 2) == pytest.approx(712704 / (2 * 312e12))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A Card Of Its Own")
    assert flops_over_peak(options, CUDA, 2) is None
    assert flops_over_peak(options, torch.device("cpu"), 2) is None


def test_each_thread_of_data_parallel_computes_in_bfloat16() -> None:
    """torch hands autocast on to its threads without the dtype."""
    found: list[torch.dtype] = []
    replica = AutocastInThread(torch.nn.Linear(2, 2), Options(bf16=True), torch.device("cpu"))

    def run_like_torch() -> None:
        with torch.amp.autocast("cpu", dtype=torch.float16):
            found.append(replica(torch.zeros(1, 2)).dtype)

    thread = threading.Thread(target=run_like_torch)
    thread.start()
    thread.join()
    assert found == [torch.bfloat16]
