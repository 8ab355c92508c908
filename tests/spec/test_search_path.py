"""The names of job files, cluster files and templates."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.spec import search_path


def test_a_folder_named_like_a_job_file_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "qqqq.toml").mkdir(parents=True)
    assert "qqqq" not in search_path.file_names("jobs", tmp_path)
    with pytest.raises(SpecError, match="no job file 'qqqq'") as missing:
        search_path.find_file("jobs", "qqqq", tmp_path)
    assert "did you mean" not in str(missing.value)


def test_an_unreadable_folder_of_the_project_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files may have priority over the shipped ones."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    has_access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and has_access(path, mode))
    with pytest.raises(SpecError) as unreadable:
        search_path.file_names("jobs", tmp_path)
    assert str(unreadable.value) == (
        f"cannot read the folder {folder}\n  found  Permission denied\n  do     check its permissions"
    )
