"""What starts the ranks of a bench, and what becomes of their words."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from hpc_kit.bench import local_ranks
from hpc_kit.bench.recorder import FileRecorder, pipe_recorder
from hpc_kit.bench.results import Column, Plot, ResultRow
from hpc_kit.errors import JobFailed, SpecError


@pytest.fixture
def sheet() -> FileRecorder:
    return FileRecorder("test", title="a test", columns={"seconds": Column(unit="s")}, parameters={}, load_seconds=0)


def test_the_kind_of_mpirun_is_read_from_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mpirun"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SpecError, match="there is no mpirun here"):
        local_ranks.mpirun_command(2)
    for version, options in (("mpirun (Open MPI) 4.1.4", ["--oversubscribe", "--bind-to", "none"]), ("HYDRA", [])):
        program.write_text(f"#!/bin/sh\necho '{version}'\n")
        program.chmod(0o755)
        assert local_ranks.mpirun_command(3) == [str(program), *options, "-n", "3"]


def launcher(tmp_path: Path, body: str) -> str:
    """A launcher that starts nothing and says something."""
    program = tmp_path / "launcher"
    program.write_text(f"#!{shutil.which('sh')}\n{body}\n")
    program.chmod(0o755)
    return str(program)


def test_rows_of_rank_0_are_read_among_other_output(tmp_path: Path, sheet: FileRecorder) -> None:
    lines: list[str] = []
    printed = pipe_recorder(lines.append)
    printed.expect_rows(2)
    printed.report_progress("a size")
    row = printed.add_row({"bytes": 4096}, warmup=1, seconds=[3.0, 1.0, 2.0])
    printed.add_note("a note")
    printed.add_plot(Plot(name="time", title="Time", x="bytes", y=("seconds",)))
    printed.set_version("nccl", "2.27")
    words = tmp_path / "words"
    words.write_text("noise\n" + "".join(f"{local_ranks.RESULT_PREFIX}{line}\n" for line in lines))
    local_ranks.run_ranks("none", {}, sheet, ranks=2, launcher=launcher(tmp_path, f"cat {words}"))
    document = sheet.close()
    assert document.results == [row]
    assert row == ResultRow(labels={"bytes": 4096}, values={"seconds": 2.0}, spread=row.spread)
    assert (row.spread["seconds"].low, row.spread["seconds"].high, row.spread["seconds"].warmup) == (1.5, 2.5, 1)
    assert (document.notes, document.plots[0].name, document.machine.versions["nccl"]) == (["a note"], "time", "2.27")


@pytest.mark.parametrize(
    ("body", "timeout", "fault"),
    [
        ("echo it went wrong; exit 3", 60, "exit code 3\n.*it went wrong"),
        ("true", 60, "reported no results"),
        ("exec sleep 100", 0.1, "did not end within 0.1 s"),
        ("kill -SEGV $$", 60, "launcher of the measurement was ended by SIGSEGV"),
    ],
)
def test_silent_or_failed_ranks_are_an_error(
    tmp_path: Path, sheet: FileRecorder, body: str, timeout: float, fault: str
) -> None:
    with pytest.raises(JobFailed, match=fault):
        local_ranks.run_ranks("none", {}, sheet, ranks=2, launcher=launcher(tmp_path, body), timeout=timeout)


def test_a_refusal_of_rank_0_is_raised_in_the_parent(tmp_path: Path, sheet: FileRecorder) -> None:
    output = '{"what": "too large", "found": "64 GiB", "remedy": "less"}'
    with pytest.raises(SpecError, match="too large\n  found  64 GiB\n  do     less"):
        local_ranks.run_ranks(
            "none",
            {},
            sheet,
            ranks=2,
            launcher=launcher(tmp_path, f"echo '{local_ranks.ERROR_PREFIX}{output}'; exec sleep 100"),
        )


def test_a_rank_prints_its_refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def main(_asked: object, _sheet: object) -> None:
        raise SpecError("too large", remedy="less")

    monkeypatch.setattr("hpc_kit.bench.collectives_rank.main", main)
    with pytest.raises(SpecError):
        local_ranks._main("hpc_kit.bench.collectives_rank", "{}")
    assert (
        f'{local_ranks.ERROR_PREFIX}{{"what": "too large", "found": null, "remedy": "less"}}' in capsys.readouterr().out
    )
