"""A stop signal sets a flag, and handlers that were installed before are called, too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.runtime.restart.stop_signal import StopSignal, TrainingStopped, stop_signals


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_signal_sets_a_flag_and_the_previous_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with StopSignal({}) as stop:
        flags = [stop.requested]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert [*flags, stop.requested] == [False, True]
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_handler_that_was_there_before_is_called_with_every_signal() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(number))
    with StopSignal({}) as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.requested
    assert seen == [signal.SIGUSR1] * 2


def test_a_handler_that_was_installed_later_stays() -> None:
    with StopSignal({}):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_in_a_job_with_restart_sigterm_asks_for_a_stop_too() -> None:
    environ = {"HPC_KIT_STOP_SIGNAL": "USR1", "HPC_KIT_RESTART_LEAD": "60"}
    assert stop_signals(environ) == [signal.SIGUSR1, signal.SIGTERM]
    with StopSignal(environ) as stop:
        fork = multiprocessing.get_context("fork")
        ready = fork.Event()

        def wait() -> None:
            ready.set()
            time.sleep(60)

        child = fork.Process(target=wait)
        child.start()
        assert ready.wait(60)  # Python drops a signal that comes before a new process has begun
        child.terminate()
        child.join(10)
        assert (child.exitcode, stop.requested) == (-signal.SIGTERM, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested


@pytest.mark.parametrize(("text", "numbers"), [
    ("", [signal.SIGUSR1]),
    ("USR2", [signal.SIGUSR2]),
    ("sigusr1, HUP", [signal.SIGUSR1, signal.SIGHUP]),
])  # fmt: skip
def test_the_environment_names_the_signals(text: str, numbers: list[int]) -> None:
    environ = {"HPC_KIT_STOP_SIGNAL": text}
    assert stop_signals(environ) == numbers
    for number in numbers:
        with StopSignal(environ) as stop:
            os.kill(os.getpid(), number)
            assert stop.requested


@pytest.mark.parametrize("text", ["KILL", "NOTHING"])
def test_a_signal_that_cannot_be_handled_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=f"HPC_KIT_STOP_SIGNAL={text}"):
        stop_signals({"HPC_KIT_STOP_SIGNAL": text})


def test_outside_of_the_main_thread_no_handler_is_installed() -> None:
    def listen() -> None:
        with StopSignal({}) as stop:
            assert not stop.requested

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()


def test_the_signal_does_not_end_a_forked_worker() -> None:
    context = multiprocessing.get_context("fork")
    ready, go_on = context.Event(), context.Event()

    def work() -> None:
        ready.set()
        go_on.wait(30)

    with StopSignal({}) as stop:
        worker = context.Process(target=work)
        worker.start()
        assert ready.wait(30)
        os.kill(worker.pid or 0, signal.SIGUSR1)
        go_on.set()
        worker.join(30)
        assert worker.exitcode == 0
        assert not stop.requested


def test_without_a_checkpoint_the_error_mentions_the_loss() -> None:
    assert "found  step 4 of 9; nothing is saved" in str(TrainingStopped.at_step(4, 9, None))
