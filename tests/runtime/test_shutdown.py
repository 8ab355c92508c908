"""The end of a rank, observed from outside: an error is printed, and a normal end leaves no running thread."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_kit.runtime import shutdown
from tests import preloaded


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run_with_torch(tmp_path: Path) -> Run:
    """Like `run`, for a program that imports torch."""
    return lambda program: preloaded.run(["-c", program], tmp_path)


def test_an_error_inside_the_process_group_is_printed(run_with_torch: Run) -> None:
    """torch's excepthook captures the stderr of the previous hook. Our hook ends the process before torch prints it."""
    done = run_with_torch("import hpc_kit\nwith hpc_kit.distributed():\n    raise ValueError('printed')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: printed"


def test_a_refusal_inside_the_process_group_has_no_traceback(run_with_torch: Run) -> None:
    done = run_with_torch(
        "import hpc_kit\nfrom hpc_kit.errors import SpecError\n"
        "with hpc_kit.distributed():\n    raise SpecError('no', found='3', remedy='2')"
    )
    assert (done.returncode, done.stderr) == (2, "hpc-kit: no\n  found  3\n  do     2\n")


@pytest.mark.parametrize(
    "program",
    [
        "import hpc_kit\nwith hpc_kit.distributed(): pass",
        "from hpc_kit.runtime import torchrun\nsys.exit(torchrun.main(['train.py']))",
    ],
)
def test_without_torch_the_error_names_the_package_to_install(program: str) -> None:
    done = run(f"import sys\nsys.modules['torch'] = None\n{program}")
    what, found, remedy = done.stderr.splitlines()
    assert (done.returncode, what) == (2, "hpc-kit: there is no torch for this Python")
    assert found.startswith(f"  found  {sys.executable} on ")
    assert remedy.startswith(f"  do     {sys.executable} -m pip install torch;")


def test_a_thread_may_have_a_name_that_is_no_text() -> None:
    """The kernel cuts names to 15 bytes, also in the middle of a character."""
    name = "checkpoints äöü".encode()[:15]
    done = run(
        "import ctypes\nfrom hpc_kit.runtime import shutdown\n"
        f"ctypes.CDLL(None).prctl(15, {name!r})  # PR_SET_NAME\n"
        "shutdown.wait_for_gloo_threads()"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_does_not_interrupt_a_rank_that_ends() -> None:
    """torchrun's handler raises an exception, whose traceback would follow the report of the failure."""
    done = run(
        "import os, signal, sys\nfrom hpc_kit.runtime import shutdown\n"
        "def stop(*_): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "class Output:\n    def flush(self): os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.stdout = Output()\nshutdown.exit_rank(7)"
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_a_rank_ends_with_its_code_where_the_interpreter_starts_no_thread_any_more() -> None:
    """As in exit handlers since Python 3.12."""
    done = run(
        "import sys, threading\nfrom hpc_kit.runtime import shutdown\n"
        "def refuse(*_): raise RuntimeError\n"
        "class DestroyedByTheInterpreter:\n    def __del__(self): print('too late', flush=True)\n"
        "sys.kept = DestroyedByTheInterpreter()\n"
        "shutdown.set_abort_function(lambda code: None)  # as with MPI\n"
        "try:\n    with shutdown.exit_on_failure(): sys.exit(7)\n"
        "finally: threading.Thread.start = refuse"
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_a_program_with_one_rank_may_catch_the_exit_of_its_training(run_with_torch: Run) -> None:
    """A sweep in a loop, or a test suite."""
    done = run_with_torch(
        "import sys, hpc_kit\n"
        "for number in range(2):\n"
        "    try:\n        with hpc_kit.distributed(): sys.exit(3)\n"
        "    except SystemExit as stop: print(stop.code)"
    )
    assert (done.returncode, done.stdout) == (0, "3\n3\n")


def test_exit_handlers_run_once_before_an_abort_at_the_end() -> None:
    """Those from before the failure of the group, and those that the program registers after it."""
    done = run(
        "import atexit\nfrom hpc_kit.runtime import shutdown\n"
        "atexit.register(print, 'first')\n"
        "shutdown.set_abort_function(lambda code: print('abort', code, flush=True), at_exit=True)\n"
        "atexit.register(print, 'second')"
    )
    assert done.stdout.split("\n") == ["second", "first", "abort 1", ""]


def test_a_program_that_ends_after_the_failure_of_a_group_has_its_own_code() -> None:
    done = run(
        "import sys\nfrom hpc_kit.runtime import shutdown\n"
        "shutdown.set_abort_function(lambda code: None, at_exit=True)\n"
        "with shutdown.exit_on_failure(): sys.exit(7)"
    )
    assert done.returncode == 7


def test_a_group_that_fails_in_an_exit_handler_ends_the_process_at_once() -> None:
    """MPI_Finalize, which comes next, would wait for the other ranks."""
    done = run(
        "import atexit\nfrom hpc_kit.runtime import shutdown\n"
        "def use_group():\n"
        "    try: raise OSError('rank 3 is lost')\n"
        "    except OSError: shutdown.set_abort_function(lambda code: print('abort', code, flush=True), at_exit=True)\n"
        "kept = open('/dev/stdout', 'w')\nkept.write('written, ')\n"
        "atexit.register(use_group)"
    )
    assert (done.returncode, done.stdout) == (1, "written, abort 1\n")
    assert done.stderr.splitlines()[-1] == "OSError: rank 3 is lost"


def test_a_callback_that_waits_delays_neither_the_end_nor_collectives_of_exit_handlers(run_with_torch: Run) -> None:
    done = run_with_torch(
        "import atexit, sys, time\nfrom hpc_kit.runtime import shutdown\n"
        "from hpc_kit.runtime.mpi.work import CALLBACK_THREADS, OperationQueue\n"
        "CALLBACK_THREADS.submit(lambda: time.sleep(600))\n"
        "def use_a_future():\n"
        "    work = OperationQueue(lambda: None).enqueue(lambda eager: time.sleep(0.01), [])\n"
        "    work.get_future()\n    work.wait()\n    print('done')\n"
        "atexit.register(use_a_future)\n"
        "shutdown.set_abort_function(lambda code: None)  # as with MPI\n"
        "with shutdown.exit_on_failure(): sys.exit(7)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "done\n", "")


def _thread(folder: Path, number: int, name: str, state: str) -> None:
    (folder / str(number)).mkdir()
    (folder / str(number) / "comm").write_text(f"{name}\n")
    (folder / str(number) / "stat").write_text(f"{number} ({name}) {state} 1 1\n")


@pytest.mark.parametrize(("state", "least"), [("S", 0.0), ("R", 0.2)])
def test_a_running_thread_of_gloo_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, least: float
) -> None:
    monkeypatch.setattr(shutdown, "_TASKS", tmp_path)
    _thread(tmp_path, 1, "python", "R")
    _thread(tmp_path, 2, "pt_gloo_runloop", state)
    start = time.monotonic()
    shutdown.wait_for_gloo_threads(0.2)
    assert time.monotonic() - start >= least


def test_without_gloo_nothing_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "_TASKS", tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("slept"))
    shutdown.wait_for_gloo_threads()
