"""SIGUSR1 sets a flag, and the handler before it comes back."""

from __future__ import annotations

import os
import signal
import threading

from hpc_kit.runtime.restart.stop_signal import StopSignal, TrainingStopped


def test_the_signal_sets_a_flag_and_the_previous_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with StopSignal() as stop:
        flags = [stop.requested]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert [*flags, stop.requested] == [False, True]
    assert signal.getsignal(signal.SIGUSR1) is before


def test_outside_of_the_main_thread_no_handler_is_installed() -> None:
    def listen() -> None:
        with StopSignal() as stop:
            assert not stop.requested

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()


def test_without_a_checkpoint_the_error_mentions_the_loss() -> None:
    assert "found  step 4 of 9; nothing is saved" in str(TrainingStopped.at_step(4, 9, None))
