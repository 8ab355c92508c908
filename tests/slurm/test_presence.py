"""Is there a Slurm here: sbatch and its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.slurm import presence
from hpc_kit.slurm.presence import find_slurm
from tests.slurm.test_commands import Slurm, program


def test_there_is_no_slurm_without_sbatch(tmp_path: Path) -> None:
    assert find_slurm({"PATH": str(tmp_path), "SLURM_CONF": __file__}, Slurm()) is None


def test_a_named_configuration_decides_without_a_question(tmp_path: Path) -> None:
    program(tmp_path, "sbatch")
    slurm = Slurm()
    assert find_slurm({"PATH": str(tmp_path), "SLURM_CONF": __file__}, slurm) == "system"
    assert find_slurm({"PATH": f"/nowhere:{tmp_path}", "SLURM_CONF": str(tmp_path / "none")}, slurm) is None
    assert slurm.asked == []


@pytest.mark.parametrize(
    ("sinfo", "found"),
    [
        ("main* up 1-00:00:00 4 idle n[1-4]\n", "system"),
        ((1, "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n"), "system"),
        ((1, "sinfo: fatal: Could not establish a configuration source\n"), None),
        (None, None),
    ],
)
def test_without_a_configuration_file_sinfo_is_asked(
    sinfo: str | tuple[int, str] | None, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "sbatch")
    monkeypatch.setattr(presence, "CONFIGURATIONS", (str(tmp_path / "none.conf"),))
    slurm = Slurm() if sinfo is None else Slurm(sinfo=sinfo)
    assert find_slurm({"PATH": str(tmp_path)}, slurm) == found
    assert slurm.asked == [["sinfo", "--noheader"]]


def test_a_configuration_in_its_usual_place_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "sbatch")
    monkeypatch.setattr(presence, "CONFIGURATIONS", (__file__,))
    assert find_slurm({"PATH": str(tmp_path)}, Slurm()) == "system"
