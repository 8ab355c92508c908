"""`hpc-kit bench dp`: what is refused, how each way starts its processes, what fails."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_kit.bench import data_parallel, training_runs
from hpc_kit.bench.recorder import FileRecorder
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.run_files import RUN_VARIABLE

SUMMARY: training_runs.Summary = {
    "tokens_per_second": 100.0,
    "step_time_median": 0.5,
    "peak_memory_mib": 2.0,
    "communication_share": 0.25,
}


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (data_parallel.DataParallelOptions(ways=("DDP",)), "unknown way 'DDP'"),
        (data_parallel.DataParallelOptions(ranks=3), "do not divide the global-batch"),
        (data_parallel.DataParallelOptions(ranks=10**6, global_batch=10**6), "does not fit into memory"),
    ],
)
def test_impossible_measurements_are_refused(asked: data_parallel.DataParallelOptions, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        asked.check()


def test_each_way_starts_the_same_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "srun").touch(0o755)
    seen: list[tuple[list[str], str, str]] = []

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout: float) -> str | None:
        if argv[-2] == "--to":
            Path(argv[-1]).write_text(json.dumps({"imports": 1.5, "step": 0.5}))
        else:
            Path(environ[RUN_VARIABLE], "summary.json").write_text(json.dumps(SUMMARY))
            seen.append((list(argv), environ["OMP_NUM_THREADS"], environ.get("HPC_KIT_LAUNCHER", "")))
        return "exit code 3" if "torch.distributed.run" in argv else None

    monkeypatch.setattr(training_runs, "run_program", run)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    sheet = FileRecorder("dp", title="", columns=data_parallel.COLUMNS, parameters={}, load_seconds=0)
    environ = {**os.environ, "PATH": str(tmp_path)}
    data_parallel.measure_data_parallel(data_parallel.DataParallelOptions(ranks=4, repeats=1), sheet, environ)
    ways = {row.labels["way"]: row for row in sheet.rows}
    assert list(ways) == list(data_parallel.VARIANTS[:-1])
    assert [ways[way].labels["processes"] for way in ways] == [1, 1, 4, 4]
    assert ways[data_parallel.SRUN].values == {
        "tokens_per_second": 100,
        "step": 0.5,
        "memory": 2 << 20,
        "communication": 25,
        "start": 2,
    }
    assert "start" not in ways[data_parallel.DATAPARALLEL].values
    threads = {tuple(word for word in argv if word != "-P")[:3]: number for argv, number, _ in seen}
    assert (
        threads[sys.executable, "-m", "hpc_kit.bench.training_runs"]
        == threads["srun", "--nodes=1", "--ntasks=4"]
        == "1"
    )
    assert [number for argv, number, launcher in seen if launcher == "single"] == ["4", "4"]
    assert sheet.close().notes[-1].startswith("DDP by torchrun: it failed\n  found  exit code 3")


def test_ways_alternate_and_a_failed_way_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def take(
        way: str,
        _asked: data_parallel.DataParallelOptions,
        _environ: Mapping[str, str],
        taken: data_parallel.VariantTimes,
    ) -> None:
        seen.append((way, len(sheet.rows)))
        if seen.count((way, 2)) == 1 and way == data_parallel.SPAWN:
            raise JobFailed("it failed")
        taken.summaries.append({**SUMMARY, "tokens_per_second": 100.0 * len(seen)})

    monkeypatch.setattr(data_parallel, "_measure_once", take)
    sheet = FileRecorder("dp", title="", columns=data_parallel.COLUMNS, parameters={}, load_seconds=0)
    data_parallel.measure_data_parallel(
        data_parallel.DataParallelOptions(ways=(data_parallel.SINGLE_PROCESS, data_parallel.SPAWN), repeats=3),
        sheet,
        {},
    )
    assert seen == [
        (data_parallel.SINGLE_PROCESS, 0),
        (data_parallel.SPAWN, 1),
        (data_parallel.SINGLE_PROCESS, 2),
        (data_parallel.SPAWN, 2),
        (data_parallel.SINGLE_PROCESS, 2),
    ]
    one, spawn = sheet.rows
    assert (one.values["tokens_per_second"], one.spread["tokens_per_second"].repeats) == (300, 3)
    assert (spawn.values["tokens_per_second"], spawn.spread["tokens_per_second"].repeats) == (200, 1)
    assert sheet.close().notes == ["DDP by spawn: it failed"]


def test_without_srun_its_row_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sheet = FileRecorder("dp", title="", columns=data_parallel.COLUMNS, parameters={}, load_seconds=0)
    data_parallel.measure_data_parallel(
        data_parallel.DataParallelOptions(ways=(data_parallel.SRUN,)), sheet, {"PATH": str(tmp_path)}
    )
    assert sheet.close().notes == ["DDP by srun: there is no srun here."]


def test_a_failed_command_is_shown_with_its_last_output(tmp_path: Path) -> None:
    environ = training_runs.program_environment(tmp_path)
    assert (environ[RUN_VARIABLE], environ["OMP_NUM_THREADS"]) == (str(tmp_path), "1")
    assert training_runs.run_program(["true"], environ, 10) is None
    assert (
        training_runs.run_program(["sh", "-c", "echo so; echo what >&2; exit 4"], environ, 10)
        == "exit code 4\nso\nwhat"
    )
    assert training_runs.run_program(["sleep", "60"], environ, 0.05) == "not ended within 0.05 s"
    with pytest.raises(JobFailed, match="left no summary"):
        training_runs.read_summary(tmp_path)


def test_a_program_of_the_project_comes_before_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert training_runs.find_training_program("ddp.py").is_file()
    own = tmp_path / "jobs" / "train" / "ddp.py"
    own.parent.mkdir(parents=True)
    own.touch()
    assert training_runs.find_training_program("ddp.py") == own
    with pytest.raises(SpecError, match="there is no program none"):
        training_runs.find_training_program("none.py")
