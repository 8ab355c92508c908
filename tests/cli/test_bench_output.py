"""What becomes of a measurement: its files, and what is there when it does not come to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpc_kit.bench import machine, plots
from hpc_kit.bench.recorder import Recorder
from hpc_kit.bench.results import Column, Plot
from hpc_kit.cli import bench_output
from hpc_kit.cli.bench import command
from hpc_kit.cli.bench_output import run_bench
from hpc_kit.errors import JobFailed, RecordError, SpecError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "measure_load", lambda _seconds: machine.HostLoad(average=(0, 0, 0), busy=0))
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)


def measured(end: Callable[[], None] = lambda: None) -> Callable[[Recorder], None]:
    def measure(sheet: Recorder) -> None:
        sheet.expect_rows(2)
        sheet.report_progress("the first")
        sheet.add_row({"size": 1}, seconds=[1.0, 2.0, 3.0])
        sheet.add_plot(Plot(name="time", title="Time", x="size", y=("seconds",)))
        end()

    return measure


def run(measure: Callable[[Recorder], None], out: Path | None = None, *, as_json: bool = False) -> int:
    columns = {"seconds": Column(unit="s")}
    return run_bench("test", "A test", columns, {"ranks": 2}, measure, out=out, as_json=as_json)


def interrupt() -> None:
    raise KeyboardInterrupt


def fail() -> None:
    raise JobFailed("a rank failed")


def test_the_table_goes_to_stdout_and_all_files_to_a_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(measured()) == 0
    (folder,) = (project / "runs/bench_test").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["bench_test.json", "bench_test.md"]
    assert json.loads((folder / "bench_test.json").read_text())["interrupted"] is False
    told = capsys.readouterr()
    assert told.out == (folder / "bench_test.md").read_text()
    assert "bench   1/2  the first" in told.err
    assert "no plots: a plot needs matplotlib" in told.err


def test_in_a_job_results_go_to_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPC_KIT_RUN", str(tmp_path))
    run(measured())
    assert (tmp_path / "bench_test.json").is_file()


def test_json_on_stdout_writes_no_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(measured(), as_json=True)
    assert json.loads(capsys.readouterr().out)["results"][0]["seconds"] == 2
    assert not (project / "runs").exists()


def test_results_after_ctrl_c_are_marked_as_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(measured(interrupt), tmp_path / "out", as_json=True) == 130
    told = json.loads(capsys.readouterr().out)
    assert (told["interrupted"], len(told["results"])) == (True, 1)
    assert json.loads((tmp_path / "out/bench_test.json").read_text()) == told


def test_results_after_a_failed_rank_are_marked_as_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobFailed):
        run(measured(fail), as_json=True)
    assert json.loads(capsys.readouterr().out)["interrupted"] is True


def test_only_rank_0_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "12345"}.items():
        monkeypatch.setenv(name, value)
    assert run(measured(), tmp_path / "out") == 0
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot make"):
        run(measured(), tmp_path / "file/out")


def test_a_full_disk_still_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def measure(sheet: Recorder) -> None:
        measured()(sheet)
        monkeypatch.setattr(bench_output, "write_whole", raise_disk_full)
        sheet.add_row({"size": 2}, seconds=[1.0])

    with pytest.raises(RecordError, match="No space left"):
        run(measure, tmp_path / "out")
    told = capsys.readouterr().out
    assert "**Interrupted:" in told
    assert "| 2 B  |" in told
    assert len(json.loads((tmp_path / "out/bench_test.json").read_text())["results"]) == 1


def test_the_table_is_written_before_anything_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        assert "| 1 B  |" in (tmp_path / "bench_test.md").read_text()
        raise SystemExit(137)

    monkeypatch.setattr(plots, "draw_files", killed)
    with pytest.raises(SystemExit):
        run(measured(interrupt), tmp_path)


def test_no_measurement_is_a_failure(project: Path) -> None:
    with pytest.raises(JobFailed, match="nothing could be measured"):
        run(lambda sheet: sheet.note_missing("all of it", "it failed"))
    (folder,) = (project / "runs/bench_test").iterdir()
    assert json.loads((folder / "bench_test.json").read_text())["missing"] == ["all of it"]


@pytest.mark.parametrize(
    "words",
    [("memory", "--ways", "x"), ("dp", "--ways", "x"), ("strategies", "--ranks", "3"), ("pipeline", "--ranks", "1")],
)
def test_a_refused_bench_creates_no_folder(words: tuple[str, ...], project: Path) -> None:
    assert isinstance(CliRunner().invoke(command, words).exception, SpecError)
    assert not (project / "runs").exists()
