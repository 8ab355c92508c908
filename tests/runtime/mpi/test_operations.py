"""Operations of a group: one after the other, in the order asked for, by whoever waits or by their own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from hpc_kit.runtime.mpi.operations import CallbackThreads, Deadline, OperationQueue, run_with_timeout


class Request:
    """Done at its n-th test."""

    def __init__(self, tests: float) -> None:
        self.tests = tests

    def Test(self) -> bool:  # noqa: N802 (as an MPI.Request)
        self.tests -= 1
        return self.tests <= 0


def noting(done: list[int], number: int) -> Callable[[bool], None]:
    return lambda _eager: done.append(number)


def assert_true(value: object) -> None:
    assert value


def test_the_order_is_that_of_the_asking_whoever_waits() -> None:
    line, done = OperationQueue(lambda: None), list[int]()
    works = [line.enqueue(noting(done, number), []) for number in range(50)]
    works[30].wait()
    line.run_in_caller(noting(done, 50), [])
    assert done == list(range(51))
    assert all(work.is_success() for work in works)
    line.close()


def test_what_nobody_waits_for_is_done_by_a_thread_and_told_to_its_future() -> None:
    line, tensors = OperationQueue(lambda: None), [torch.ones(2)]
    work = line.enqueue(lambda _eager: time.sleep(0.01), tensors)
    assert [tensor.tolist() for tensor in work.get_future().wait()] == [[1, 1]]
    assert (work.is_completed(), work.result(), work.get_future().done()) == (True, tensors, True)
    line.close()


def test_a_callback_waits_for_another_operation() -> None:
    """One asked for by the callback, one whose own callback waits in turn, and one done at once."""
    line, done = OperationQueue(lambda: None), list[int]()

    def ask(number: int) -> Callable[[object], None]:
        def asking(_future: object) -> None:
            line.enqueue(noting(done, number), []).get_future().wait()
            line.run_in_caller(noting(done, number + 1), [])

        return asking

    let_go = threading.Event()
    works = [line.enqueue(lambda _eager: assert_true(let_go.wait(20)), []) for _ in range(2)]
    chained = [work.get_future().then(ask(10 * number)) for number, work in enumerate(works)]
    let_go.set()
    for future in chained:
        future.wait()
    assert sorted(done) == [0, 1, 10, 11]
    line.close()


def test_streams_of_the_caller_are_waited_for_by_the_thread_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked when asked, in the asking thread; a fake GPU."""
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


def test_a_lost_rank_breaks_the_group_and_a_wrong_argument_does_not() -> None:
    broken = list[int]()
    line = OperationQueue(lambda: broken.append(1))

    def failing(error: Exception) -> Callable[[bool], None]:
        def run(_eager: bool) -> None:
            raise error

        return run

    with pytest.raises(ValueError, match="odd"):
        line.run_in_caller(failing(ValueError("odd")), [])
    work = line.enqueue(failing(dist.DistBackendError("gone")), [])
    with pytest.raises(dist.DistBackendError, match="gone"):
        work.wait()
    assert isinstance(work.exception(), dist.DistBackendError)
    with pytest.raises(RuntimeError, match="gone"):
        work.get_future().wait()
    with pytest.raises(dist.DistBackendError, match="the group is broken since an earlier operation failed: gone"):
        line.run_in_caller(noting([], 0), [])
    assert broken == [1]


def test_a_wait_of_its_own_length_ends() -> None:
    line, let_go = OperationQueue(lambda: None), threading.Event()

    def held(_eager: bool) -> None:
        let_go.wait(5)

    work = line.enqueue(held, [])
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


def test_a_request_that_is_never_done_ends_at_the_time_out() -> None:
    with pytest.raises(dist.DistBackendError, match=r"mpi: broadcast of 8 bytes timed out waiting .* after 0\.1 s"):
        Deadline("broadcast", [torch.ones(2)], 0.1, eager=False).finish(Request(float("inf")))


def test_what_has_no_end_of_its_own_gets_one() -> None:
    assert run_with_timeout(lambda: 3, 5, "nobody") == 3
    with pytest.raises(KeyError):
        run_with_timeout(lambda: dict[int, int]()[1], 5, "nobody")
    with pytest.raises(dist.DistBackendError, match=r"timed out waiting 0\.01 s for the others"):
        run_with_timeout(lambda: time.sleep(0.2), 0.01, "the others")


def test_a_teller_outlives_a_call_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    tellers, told = CallbackThreads(), threading.Event()

    def fail() -> None:
        raise OSError("no such tensor")

    tellers.submit(fail)
    tellers.wait_until_idle(10)
    tellers.submit(told.set)
    assert told.wait(10)
    assert "no such tensor" in capsys.readouterr().err
