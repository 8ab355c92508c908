"""Logs, signals and the record of a launch."""

from __future__ import annotations

import resource
import signal
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pytest

from hpc_kit.cli.job_arguments import JobRequest, resolve_on_hosts
from hpc_kit.cli.launch import _run_launch
from hpc_kit.errors import RecordError
from hpc_kit.slurm.states import JobState
from hpc_kit.ssh.hosts import LaunchHost
from hpc_kit.ssh.launch import LaunchResult, RankLogs, SshLaunch, _fold_names, _signals_as_messages


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


def test_more_ranks_than_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with closing(SshLaunch([LaunchHost("n1")], "python3", 1)), closing(RankLogs(tmp_path, ["n1"], 300, print)):
            assert len(list(tmp_path.iterdir())) == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_outcome_is_printed_even_if_the_record_cannot_be_written(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(run: Path, outcomes: object) -> None:
        raise RecordError(f"cannot write {run}")

    monkeypatch.setattr("hpc_kit.ssh.launch.add_outcomes", fail)
    with closing(SshLaunch([LaunchHost("n1")], "python3", 1)) as launch:
        monkeypatch.setattr(launch, "placement_warnings", lambda *_: [])
        monkeypatch.setattr(launch, "run", lambda *_: LaunchResult(JobState.FAILED, 1, problem="n1 is lost"))
        request = JobRequest(None, ("true",), None, (), None, {})
        resolved = resolve_on_hosts((LaunchHost("n1"),), request, project)
        with pytest.raises(RecordError):
            _run_launch(launch, resolved, project, [LaunchHost("n1")], {})
    assert "failed  n1 is lost" in capsys.readouterr().out


def test_the_record_accepts_any_host_name() -> None:
    assert [_fold_names(hosts) for hosts in (["n1", "n2"], ["fd00::1", "[::1]:22"])] == [
        "n[1-2]",
        "fd00::1,[::1]:22",
    ]
