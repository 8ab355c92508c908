"""Operations of a group run one at a time in the order of submission, in a waiting thread or the group's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from hpc_kit.runtime.mpi.deadlines import Deadline, run_with_timeout
from hpc_kit.runtime.mpi.work import CallbackThreads, OperationQueue


class Request:
    """A request that completes at its n-th test."""

    def __init__(self, tests: float) -> None:
        self.tests = tests

    def Test(self) -> bool:  # noqa: N802 (as an MPI.Request)
        self.tests -= 1
        return self.tests <= 0


def note_done(done: list[int], number: int) -> Callable[[bool], None]:
    return lambda _eager: done.append(number)


def assert_true(value: object) -> None:
    assert value


def test_operations_run_in_the_order_of_their_submission() -> None:
    line, done = OperationQueue(lambda: None), list[int]()
    works = [line.enqueue(note_done(done, number), []) for number in range(50)]
    works[30].wait()
    line.run_in_caller(note_done(done, 50), [])
    assert done == list(range(51))
    assert all(work.is_success() for work in works)
    line.close()


def test_an_operation_without_a_wait_completes_its_future_in_a_thread() -> None:
    line, tensors = OperationQueue(lambda: None), [torch.ones(2)]
    work = line.enqueue(lambda _eager: time.sleep(0.01), tensors)
    assert [tensor.tolist() for tensor in work.get_future().wait()] == [[1, 1]]
    assert (work.is_completed(), work.result(), work.get_future().done()) == (True, tensors, True)
    line.close()


def test_a_callback_waits_for_another_operation() -> None:
    """Three operations: submitted by the callback, with a callback that waits again, and already complete."""
    line, done = OperationQueue(lambda: None), list[int]()

    def ask(number: int) -> Callable[[object], None]:
        def submit_next(_future: object) -> None:
            line.enqueue(note_done(done, number), []).get_future().wait()
            line.run_in_caller(note_done(done, number + 1), [])

        return submit_next

    let_go = threading.Event()
    works = [line.enqueue(lambda _eager: assert_true(let_go.wait(20)), []) for _ in range(2)]
    chained = [work.get_future().then(ask(10 * number)) for number, work in enumerate(works)]
    let_go.set()
    for future in chained:
        future.wait()
    assert sorted(done) == [0, 1, 10, 11]
    line.close()


def test_the_copying_thread_waits_for_the_streams_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is recorded at submission, in the submitting thread; the GPU is a fake."""
    seen = list[object]()

    class Stream:
        def record_event(self) -> Stream:
            seen.append(threading.current_thread())
            return self

        def synchronize(self) -> None:
            seen.append("waited")

    class OnGpu:
        is_cuda, device = True, torch.device("cuda", 0)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Stream())
    line = OperationQueue(lambda: None)
    line.enqueue(lambda _eager: seen.append("copied"), [OnGpu()]).wait()  # type: ignore[list-item]
    assert seen == [threading.current_thread(), "waited", "copied"]
    line.close()


def test_a_lost_rank_breaks_the_group_but_a_wrong_argument_does_not() -> None:
    broken = list[int]()
    line = OperationQueue(lambda: broken.append(1))

    def raise_in_run(error: Exception) -> Callable[[bool], None]:
        def run(_eager: bool) -> None:
            raise error

        return run

    with pytest.raises(ValueError, match="odd"):
        line.run_in_caller(raise_in_run(ValueError("odd")), [])
    work = line.enqueue(raise_in_run(dist.DistBackendError("gone")), [])
    with pytest.raises(dist.DistBackendError, match="gone"):
        work.wait()
    assert isinstance(work.exception(), dist.DistBackendError)
    with pytest.raises(RuntimeError, match="gone"):
        work.get_future().wait()
    with pytest.raises(dist.DistBackendError, match="the group is broken since an earlier operation failed: gone"):
        line.run_in_caller(note_done([], 0), [])
    assert broken == [1]


def test_a_wait_with_its_own_timeout_ends() -> None:
    line, let_go = OperationQueue(lambda: None), threading.Event()

    def wait_for_release(_eager: bool) -> None:
        let_go.wait(5)

    work = line.enqueue(wait_for_release, [])
    while line._turn.acquire(blocking=False):
        line._turn.release()
        time.sleep(0.001)
    with pytest.raises(dist.DistBackendError, match=r"timed out waiting 0\.05 s"):
        work.wait(timedelta(seconds=0.05))
    let_go.set()
    assert work.wait()
    line.close()


@pytest.mark.parametrize("requests", [Request(3), Request(3000)])
def test_a_request_is_waited_for(requests: Request) -> None:
    Deadline("broadcast", [], 5).finish(requests)
    assert requests.tests <= 0


def test_an_unfinished_request_ends_at_the_timeout() -> None:
    with pytest.raises(dist.DistBackendError, match=r"mpi: broadcast of 8 bytes timed out waiting .* after 0\.1 s"):
        Deadline("broadcast", [torch.ones(2)], 0.1, eager=False).finish(Request(float("inf")))


def test_an_operation_without_a_timeout_gets_the_default() -> None:
    assert run_with_timeout(lambda: 3, 5, "no rank") == 3
    with pytest.raises(KeyError):
        run_with_timeout(lambda: dict[int, int]()[1], 5, "no rank")
    with pytest.raises(dist.DistBackendError, match=r"timed out waiting 0\.01 s for other ranks"):
        run_with_timeout(lambda: time.sleep(0.2), 0.01, "other ranks")


def test_a_callback_thread_survives_a_failed_callback(capsys: pytest.CaptureFixture[str]) -> None:
    threads, called = CallbackThreads(), threading.Event()

    def fail() -> None:
        raise OSError("no such tensor")

    threads.submit(fail)
    threads.wait_until_idle(10)
    threads.submit(called.set)
    assert called.wait(10)
    assert "no such tensor" in capsys.readouterr().err


def test_a_callback_runs_at_once_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in exit handlers since Python 3.12."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads, called = CallbackThreads(), threading.Event()
    threads.submit(called.set)
    assert called.is_set()
