"""Notes about work that a stop loses, because the program does not save at the stop signal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_kit.script.render import resolve_arguments
from hpc_kit.submission.submit import list_unsaved_work


def notes(project: Path, **restart: object) -> list[str]:
    (project / "jobs/mine.toml").write_text('command = ["python", "train.py"]\n[resources]\ntime = "1:00:00"\n')
    resolved = resolve_arguments("mine", "local", {"restart": {"lead": 120, **restart}}, project)
    return list(list_unsaved_work(resolved, project))


def write_history(project: Path, job: int, *, saved: int | None, reason: str = "stopped by USR1") -> None:
    run = project / "runs/mine" / str(job)
    run.mkdir(parents=True)
    start = {"event": "start", "attempt": 1, "job_id": str(job), "time": 1000}
    end = {**start, "event": "end", "time": 5000, "decision": "requeue", "exit_code": 138, "reason": reason}
    end |= {} if saved is None else {"saved": saved}
    (run / "history").write_text("".join(f"{json.dumps(event)}\n" for event in (start, end)))


def test_an_earlier_run_shows_how_much_its_stops_lost(project: Path) -> None:
    write_history(project, 7, saved=4000)
    assert notes(project) == [
        "a stop of job 7 lost 16 min of work since its last save: handle USR1, or save at least every 2 min (lead)"
    ]
    assert notes(project, lead=1000) == []


def test_a_run_that_saved_at_its_stop_has_lost_nothing(project: Path) -> None:
    write_history(project, 7, saved=4990)
    assert notes(project) == []


@pytest.mark.parametrize(("saved", "reason"), [(None, "stopped by USR1"), (1100, "exit code 137")])
def test_runs_without_a_stop_or_a_known_save_show_nothing(saved: int | None, reason: str, project: Path) -> None:
    write_history(project, 7, saved=saved, reason=reason)
    assert notes(project) == []


def test_a_run_that_another_process_deletes_meanwhile_stops_no_submission(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_history(project, 7, saved=4000)
    found = list((project / "runs/mine").glob("*/history"))
    found[0].unlink()
    monkeypatch.setattr(Path, "glob", lambda _folder, _pattern: iter(found))
    assert notes(project) == []
