"""Failures of ranks: the first one is recorded with its exit code, and the process ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from hpc_kit.errors import HpcKitError, IncompleteEnvironment, LauncherError, RendezvousError, SpecError
from hpc_kit.run_files import RUN_VARIABLE, claim_first_failure, read_first_failure
from hpc_kit.runtime import first_failure, shutdown
from hpc_kit.runtime.launchers import guess_rank
from tests.runtime.launches import Step, worker

GLOO = RuntimeError("[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:61104.")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    return tmp_path


class Ended(BaseException):
    """Raised in place of the end of the process, with its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_now(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(shutdown, "exit_rank", exit_now)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), 1),
        (SystemExit(3), 3),
        (SystemExit("words"), 1),
        (SystemExit(None), 0),
        (SystemExit(0), 0),
        (SystemExit(-1), 255),
        (KeyboardInterrupt(), 130),
        (RendezvousError("late"), 1),
        (IncompleteEnvironment("half"), 2),
    ],
)
def test_the_exit_code_is_that_of_the_interpreter(error: BaseException, code: int) -> None:
    assert first_failure.exit_code(error) == code


def test_the_first_failure_is_recorded_with_rank_host_and_code(run: Path) -> None:
    with pytest.raises(SystemExit), first_failure.recording_failures(5):
        raise SystemExit(3)
    first = read_first_failure(run)
    assert first is not None
    assert (first.rank, first.host, first.exit_code) == (5, "n3", 3)
    assert abs(first.time - time.time()) < 60


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(None)])
def test_a_successful_end_is_no_failure(run: Path, error: BaseException) -> None:
    with pytest.raises(SystemExit), first_failure.recording_failures(5):
        raise error
    assert read_first_failure(run) is None


def test_outside_of_a_run_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first_failure.record_failure(ValueError("x"), 0)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_run_folder_does_not_hide_the_failure(run: Path) -> None:
    run.rmdir()
    with pytest.raises(ValueError, match="bad batch"), first_failure.recording_failures(5):
        raise ValueError("bad batch")


@pytest.mark.parametrize("error", [ValueError("bad batch"), GLOO], ids=["culprit", "victim"])
def test_a_run_folder_that_cannot_be_examined_does_not_hide_the_failure(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with an expired ticket of Kerberos or a stale handle of NFS, the look-up is an error, and not "no such file".
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path / ("x" * 300)))
    monkeypatch.setattr(first_failure, "_PEER_LOSS_DELAY", 0.05)
    with pytest.raises(type(error)) as left, first_failure.recording_failures(5):
        raise error
    assert left.value is error


def test_a_reason_with_names_in_any_language_is_recorded_under_any_locale(tmp_path: Path) -> None:
    reason = "rank 1 is in tr\udce4in.py:3 in обучить"  # a file name in Latin-1
    code = f"from hpc_kit.run_files import *; claim_first_failure(Path({str(tmp_path)!r}), 1, 'n1', 124, {reason!a})"
    # Without PYTHONUTF8=0, Python uses UTF-8 in the locale C.
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert subprocess.run([sys.executable, "-c", code], env=environ, timeout=60, check=False).returncode == 0
    first = read_first_failure(tmp_path)
    assert first is not None
    assert (first.rank, first.reason) == (1, "rank 1 is in tr\\udce4in.py:3 in обучить")


@pytest.mark.parametrize(
    ("error", "victim"),
    [
        (GLOO, True),
        (RuntimeError("NCCL error: unhandled system error, ncclSystemError: socketStartConnect failed"), True),
        (RuntimeError("[Rank 2] Watchdog caught collective operation timeout: ncclRemoteError"), True),
        (type("DistNetworkError", (RuntimeError,), {})("gone"), True),
        (type("DistNetworkError", (RuntimeError,), {})("failed to listen. port: 29500, name: EADDRINUSE"), False),
        (type("DistNetworkError", (RuntimeError,), {})("timed out while trying to connect to (127.0.0.1, 9)."), True),
        (type("DistNetworkError", (RuntimeError,), {})("timed out while trying to connect to (no.invalid, 9)."), False),
        (ValueError("bad batch"), False),
        (FileNotFoundError(2, "No such file"), False),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), False),
        (RuntimeError("the object store timed out waiting for a connection"), False),
    ],
)
def test_a_victim_is_recognized_by_its_exception(error: Exception, victim: bool) -> None:
    assert first_failure.is_peer_loss(error) is victim


def test_a_victim_is_recognized_under_a_german_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    german = "Die Verbindung wurde vom Kommunikationspartner zurückgesetzt"
    monkeypatch.setattr(os, "strerror", {errno.ECONNRESET: german, errno.EPIPE: "Datenübergabe unterbrochen"}.get)
    assert first_failure.is_peer_loss(RuntimeError(f"[.../gloo/transport/tcp/pair.cc:547] Read error: {german}"))
    assert not first_failure.is_peer_loss(ValueError("bad batch"))


def test_a_later_exception_of_a_victim_is_no_first_failure() -> None:
    later = ValueError("could not save")
    later.__context__ = GLOO
    GLOO.__context__ = None
    assert first_failure.is_peer_loss(later)
    GLOO.__context__ = later
    assert first_failure.is_peer_loss(later), "a circle ends"
    GLOO.__context__ = None


def test_an_unwritable_file_system_adds_no_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    assert not claim_first_failure(run, 2, "n4", 9)


def test_the_culprit_is_recorded_before_its_victim(run: Path) -> None:
    victim = threading.Thread(target=first_failure.record_failure, args=(GLOO, 1))
    victim.start()
    assert claim_first_failure(run, 2, "n4", 9)
    victim.join()
    first = read_first_failure(run)
    assert first is not None
    assert first.rank == 2


@pytest.mark.parametrize(("error", "rank"), [(GLOO, 1), (RendezvousError("late"), 3)])
def test_a_victim_without_a_culprit_is_recorded_itself(
    run: Path, error: Exception, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_failure, "_PEER_LOSS_DELAY", 0.05)
    first_failure.record_failure(error, rank)
    first = read_first_failure(run)
    assert first is not None
    assert first.rank == rank


@pytest.mark.parametrize(
    ("reported", "first", "host", "reason"),
    [
        ({3}, 0, "?", "rank 3 waited in vain for one of ranks 0-2; their logs show which"),
        ({0, 1, 3}, 2, "n9", "ranks 0, 1, 3 waited for it in vain: it is stopped, late, hangs or has ended"),
    ],
    ids=["several", "one"],
)
def test_if_several_ranks_did_not_report_no_host_is_to_blame(
    reported: set[int], first: int, host: str, reason: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time-out of a pipeline's first stages begins later than that of its last one."""
    entries = {rank: SimpleNamespace(host="n9", pid=1) for rank in range(4)}
    meeting = SimpleNamespace(world=SimpleNamespace(world_size=4, rank=3), entries=lambda: entries)
    monkeypatch.setattr(first_failure, "_meeting", meeting)
    monkeypatch.setattr(first_failure, "_exchange_reports", lambda *_: reported)
    first_failure.record_failure(GLOO, 3)
    marker = read_first_failure(run)
    assert marker is not None
    assert (marker.rank, marker.host, marker.reason) == (first, host, reason)


@pytest.mark.usefixtures("ends")
def test_an_uncaught_exception_ends_the_process_after_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process group that an earlier test created in this process has left torch's hook, which names the rank.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    error = ValueError("bad batch")
    before = sys.excepthook
    with pytest.raises(ValueError, match="bad batch"), shutdown.exit_on_failure():
        raise error
    hook, sys.excepthook = sys.excepthook, before
    with pytest.raises(Ended) as ended:
        hook(ValueError, error, error.__traceback__)
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "ValueError: bad batch"


@pytest.mark.usefixtures("ends")
def test_an_error_of_hpc_kit_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.excepthook
    error = IncompleteEnvironment("SLURM_PROCID is not set", found="nothing", remedy="srun")
    with pytest.raises(IncompleteEnvironment), shutdown.exit_on_failure():
        raise error
    hook, sys.excepthook = sys.excepthook, before
    with pytest.raises(Ended) as ended:
        hook(IncompleteEnvironment, error, None)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "hpc-kit: SLURM_PROCID is not set\n  found  nothing\n  do     srun\n"


def test_a_successful_end_removes_the_hook() -> None:
    before = sys.excepthook
    with shutdown.exit_on_failure():
        assert sys.excepthook is not before
    assert sys.excepthook is before


def refusals(environs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the error output of each rank for contradictory variables."""
    errors = []
    for environ in environs:
        with pytest.raises(LauncherError) as refused:
            first_failure.resolve_or_record(environ)
        errors.append(str(refused.value))
    return errors


@pytest.mark.parametrize("stale", [{"WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "1"}, worker(1, agents=1)])
def test_if_all_ranks_are_refused_rank_0_prints_the_remedy_and_other_ranks_one_line(
    stale: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    first, *others = refusals([environ | stale for environ in Step.of(2, 2).environs()])
    assert "\n  do     " in first and (" unset " in first or "torchrun" in first)
    for line in others:
        assert line.startswith("two launchers claim this process: the srun step")
        assert line.endswith("; rank 0 shows the remedy")
        assert "\n" not in line


def test_a_refusal_of_unknown_ranks_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    first, second = refusals([{"PALS_RANKID": str(rank), "PALS_LOCAL_RANKID": str(rank)} for rank in range(2)])
    assert "export WORLD_SIZE=RANKS" in first
    assert second.endswith("PALS_RANKID = 1; rank 0 shows the remedy")


def test_if_only_some_ranks_are_refused_each_prints_the_whole_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With RANK=$SLURM_PROCID on the command line of srun, RANK is 0 everywhere, which is right for rank 0."""
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    environs = [environ | {"RANK": "0", "WORLD_SIZE": "4"} for environ in Step.of(2, 2).environs()]
    assert first_failure.resolve_or_record(environs[0]).rank == 0
    assert ["  do     unset RANK WORLD_SIZE" in error for error in refusals(environs[1:])] == [True] * 3


def test_an_error_found_later_by_all_ranks_is_printed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For example, srun has started them without MPI and the program asks for the backend mpi."""

    def print_refusal(rank: int, error: HpcKitError) -> str:
        with pytest.raises(type(error)) as raised, first_failure.recording_failures(rank):
            raise error
        return str(raised.value)

    def make_refusal(*, everywhere: bool) -> IncompleteEnvironment:
        return IncompleteEnvironment("no MPI", found="nothing", remedy="srun --mpi=pmix", everywhere=everywhere)

    line = "no MPI: nothing; rank {} shows the remedy"
    monkeypatch.delenv(RUN_VARIABLE, raising=False)
    assert [print_refusal(rank, make_refusal(everywhere=True)) for rank in (1, 0)] == [
        line.format(0),
        str(make_refusal(everywhere=True)),
    ]
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path))
    assert [print_refusal(rank, make_refusal(everywhere=True)) for rank in (2, 0)] == [
        str(make_refusal(everywhere=True)),
        line.format(2),
    ]
    for other in (make_refusal(everywhere=False), SpecError("no MPI", remedy="srun --mpi=pmix")):
        assert print_refusal(1, other) == str(other)


def test_with_a_run_folder_the_first_refused_rank_prints_the_whole_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path))
    environs = [environ | {"RANK": "0", "WORLD_SIZE": "4"} for environ in Step.of(2, 2).environs()]
    errors = refusals([environs[2], environs[1], environs[3]])
    assert "\n  do     unset RANK WORLD_SIZE" in errors[0]
    assert [line.endswith("; rank 2 shows the remedy") for line in errors[1:]] == [True, True]
    first = read_first_failure(tmp_path)
    assert first is not None
    assert (first.rank, first.exit_code) == (2, 2)


@pytest.mark.parametrize(
    ("environ", "number"),
    [
        (Step.of(2, 2).environ(3) | {"RANK": "0"}, 3),
        (Step.of(2, 2).environ(3) | {"SLURM_PROCID": "x"}, None),
        ({"PMI_RANK": "5"}, 5),
        ({"PMIX_RANK": "5"}, 5),
        ({"RANK": "7"}, 7),
        ({}, None),
    ],
)
def test_a_refused_process_is_identified_by_variables_of_its_launcher(
    environ: dict[str, str], number: int | None
) -> None:
    assert guess_rank(environ) == number


@pytest.mark.parametrize(("ends", "code"), [("shutdown.exit_rank(3)", 3), ("", 1)], ids=["the quick end", "a good end"])
def test_an_open_file_is_flushed_before_the_exit(ends: str, code: int, tmp_path: Path) -> None:
    """Also one that a running thread keeps open. The program calls posix._exit, because coverage replaces os._exit."""
    program = (
        "import os, posix, sys, threading; from hpc_kit.runtime import shutdown; file = open(sys.argv[1], 'w');"
        "file.write('a line');"
        "threading.Thread(target=lambda file: threading.Event().wait(), args=[file], daemon=True).start();"
        "last = lambda code, write=os.write, end=posix._exit: (write(1, b'last %d' % code), end(code));"
        f"shutdown.set_abort_function(last, at_exit=True); {ends}"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "metrics")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, f"last {code}"), done.stderr
    assert (tmp_path / "metrics").read_text() == "a line"


@pytest.mark.parametrize("ends", ["raise ValueError", "shutdown.exit_rank(1)"], ids=["its end", "the quick end"])
@pytest.mark.parametrize("writer", ["thread", "file"])
def test_a_blocked_pipe_does_not_prevent_the_exit(writer: str, ends: str) -> None:
    """Neither while a thread writes, nor with unwritten data in a file."""
    program = (
        "import os, sys, threading; from hpc_kit.runtime import shutdown; shutdown._EXIT_TIMEOUT = 0.5;"
        "r, w = os.pipe(); os.set_blocking(w, False);\n"
        "try:\n    while True: os.write(w, bytes(1 << 16))\n"
        "except BlockingIOError: os.set_blocking(w, True)\n"
        "class Pipe(io.RawIOBase):\n"
        "    def writable(self): return True\n"
        "    def write(self, data): begun.set(); return os.write(w, data)\n"
        "begun = threading.Event(); file = io.BufferedWriter(Pipe(), 1 << 20)\n"
        "last = lambda code, say=os.write, end=os._exit: (say(1, b'last %d' % code), end(code))\n"
        "shutdown.set_abort_function(last, at_exit=True); file.write(b'a line')\n"
        "if sys.argv[1] == 'thread':\n"
        "    threading.Thread(target=file.flush, daemon=True).start(); begun.wait()\n" + ends
    )
    command = [sys.executable, "-c", "import io; " + program, writer]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "last 1"), done.stderr
