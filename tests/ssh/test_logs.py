"""Logs, signals and the record of a launch."""

from __future__ import annotations

import signal
from pathlib import Path
from queue import SimpleQueue

import pytest

from hpc_kit.ssh.launch import RankLogs, _fold_names, _signals_as_messages


def test_chunks_of_output_become_lines_and_logs(tmp_path: Path) -> None:
    shown: list[str] = []
    logs = RankLogs(tmp_path, ["n1", "gpu12"], 12, shown.append)
    for host, rank, text in (
        ("gpu12", 11, "half "),
        ("n1", 3, "10%\r20%\r\n"),
        ("gpu12", 11, "a line\nand "),
        ("n1", None, "torchrun\n"),
        ("n1", 3, "\udcff"),
    ):
        logs.write(host, rank, text)
    logs.close()
    assert shown == [
        " 3 n1    | 20%",
        "11 gpu12 | half a line",
        "   n1    | torchrun",
        "11 gpu12 | and ",
        " 3 n1    | \N{REPLACEMENT CHARACTER}",
    ]
    assert (tmp_path / "rank-3.log").read_bytes() == b"10%\r20%\r\n\xff"
    assert (tmp_path / "node-n1.log").read_text() == "torchrun\n"


def test_a_progress_bar_is_printed_once_per_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    logs = RankLogs(tmp_path, ["n1"], 1, shown.append)
    for tenth in range(25):
        monkeypatch.setattr("hpc_kit.ssh.launch.time.monotonic", lambda now=tenth / 10: now)
        logs.write("n1", 0, f"\r{tenth} %")
    logs.write("n1", 0, "\n")
    logs.close()
    assert shown == ["0 n1 | 0 %", "0 n1 | 10 %", "0 n1 | 20 %", "0 n1 | 24 %"]


def test_a_signal_ignored_by_nohup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _signals_as_messages(SimpleQueue()):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_record_accepts_any_host_name() -> None:
    assert [_fold_names(hosts) for hosts in (["n1", "n2"], ["fd00::1", "[::1]:22"])] == [
        "n[1-2]",
        "fd00::1,[::1]:22",
    ]
