"""Notes about work that a stop loses, because the program does not save at the stop signal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_kit.script.render import resolve_arguments
from hpc_kit.submission.unsaved_work import list_unsaved_work


def notes(project: Path, *command: str, **restart: object) -> list[str]:
    (project / "jobs/mine.toml").write_text(f'command = {json.dumps(command)}\n[resources]\ntime = "1:00:00"\n')
    resolved = resolve_arguments("mine", "local", {"restart": {"lead": 120, **restart}}, project)
    return list(list_unsaved_work(resolved, project))


def write_history(project: Path, job: int, *, saved: int | None, reason: str = "stopped by USR1") -> None:
    run = project / "runs/mine" / str(job)
    run.mkdir(parents=True)
    start = {"event": "start", "attempt": 1, "job_id": str(job), "time": 1000}
    end = {**start, "event": "end", "time": 5000, "decision": "requeue", "exit_code": 138, "reason": reason}
    end |= {} if saved is None else {"saved": saved}
    (run / "history").write_text("".join(f"{json.dumps(event)}\n" for event in (start, end)))


def test_a_program_without_a_handler_is_noted_with_the_interval_that_it_needs(project: Path) -> None:
    (project / "train.py").write_text("import torch\n")
    [note] = notes(project, "python", "train.py")
    assert note.startswith("train.py seems not to handle USR1, and a stop loses the work since its last save: ")
    assert note.endswith("handle USR1, or save at least every 2 min (lead)")


@pytest.mark.parametrize("source", [
    "import signal\n",
    "saver = hpc_kit.Checkpointer('saved')\n",
    "from lightning import Trainer\n",
    "stop_on('SIGUSR1')\n",
    "x = (\n",
])  # fmt: skip
def test_a_program_that_seems_to_handle_the_signal_is_not_noted(source: str, project: Path) -> None:
    (project / "train.py").write_text(source)
    assert notes(project, "python", "train.py") == []


@pytest.mark.parametrize("line", ["import stops", "from stops import loop", "from tools import stops", "import tools"])
def test_the_handler_may_be_in_a_module_of_the_project(line: str, project: Path) -> None:
    (project / "src/tools").mkdir(parents=True)
    (project / "src/train.py").write_text(f"import torch\n{line}\n")
    (project / "src/tools/__init__.py").write_text("from . import stops\n" * (line == "import tools"))
    (project / "src/stops.py").write_text("import signal\n")
    (project / "src/tools/stops.py").write_text("import signal\nimport tools\n")
    assert notes(project, "python", "src/train.py") == []


def test_nothing_is_known_about_other_programs(project: Path) -> None:
    assert notes(project, "bash", "-c", "sleep 1") == notes(project, "python", "-m", "trainer") == []


def test_an_earlier_run_shows_how_much_its_stops_lost(project: Path) -> None:
    (project / "train.py").write_text("import signal\n")
    write_history(project, 7, saved=4000)
    assert notes(project, "python", "train.py") == [
        "a stop of job 7 lost 16 min of work since its last save: handle USR1, or save at least every 2 min (lead)"
    ]
    assert notes(project, "python", "train.py", lead=1000) == []


def test_a_run_that_saved_at_its_stop_is_evidence_of_a_handler(project: Path) -> None:
    (project / "train.py").write_text("import torch\n")
    write_history(project, 7, saved=4990)
    assert notes(project, "python", "train.py") == []


@pytest.mark.parametrize(("saved", "reason"), [(None, "stopped by USR1"), (1100, "exit code 137")])
def test_runs_without_a_stop_or_a_known_save_show_nothing(saved: int | None, reason: str, project: Path) -> None:
    (project / "train.py").write_text("import signal\n")
    write_history(project, 7, saved=saved, reason=reason)
    assert notes(project, "python", "train.py") == []
