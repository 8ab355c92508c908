"""The table of versions, and which one is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.errors import UnitError
from hpc_kit.slurm import versions
from hpc_kit.slurm.versions import ReleaseFact, SlurmVersion, detect_version, first_release_with, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("22.05.8", SlurmVersion(22, 5, 8)),
        ("slurm 23.11.10\n", SlurmVersion(23, 11, 10)),
        ("slurm-wlm 22.05.8", SlurmVersion(22, 5, 8)),
        ("23.11.4-1.el9", SlurmVersion(23, 11, 4)),
        ("24.05", SlurmVersion(24, 5)),
        ("25.11.0rc1", SlurmVersion(25, 11)),
    ],
)
def test_versions_are_read_as_slurm_prints_them(text: str, version: SlurmVersion) -> None:
    assert parse_version(text) == version
    assert parse_version(str(version)) == version


@pytest.mark.parametrize("text", ["", "slurm", "2.6", "1.2.3.4", "122.05"])
def test_a_text_that_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="not a version of Slurm"):
        parse_version(text)


@pytest.mark.parametrize(
    ("fact", "span", "releases"),
    [
        (versions.CPUS_NOT_HANDED_ON, "22.05 to 23.02", "22.05 23.02"),
        (versions.LOGLESS_JOBS_VANISH, "before 23.02", "20.02 20.11 21.08 22.05"),
        (versions.MIG_SHARED, "before 23.11.4", "20.02 20.11 21.08 22.05 23.02 23.11"),
        (versions.REQUEUE_EXPEDITE, "from 25.11 on", "25.11 26.05"),
        (ReleaseFact(SlurmVersion(23, 2), SlurmVersion(23, 2, 5)), "23.02.0 to 23.02.4", "23.02"),
        (ReleaseFact(None, None), "every release", " ".join(map(str, versions.RELEASES))),
    ],
)
def test_facts_apply_to_their_releases_only(fact: ReleaseFact, span: str, releases: str) -> None:
    assert fact.releases == span
    assert [str(release) for release in versions.RELEASES if fact.holds(release)] == releases.split()


def test_a_fact_of_some_releases_is_undecided_for_an_unknown_release() -> None:
    assert not versions.MIG_SHARED.holds(SlurmVersion(23, 11, 4))
    assert versions.MIG_SHARED.holds(None) is None
    assert ReleaseFact(None, None).holds(None) is True


def test_options_missing_from_a_release_are_listed() -> None:
    old, new = SlurmVersion(22, 5, 8), SlurmVersion(26, 5)
    assert first_release_with(old, "tres-per-task", "23.11", "gpu:1") == "23.11"
    assert first_release_with(old, "requeue", None, "expedite") == "25.11"
    assert first_release_with(old, "requeue", None, "") is None
    assert first_release_with(new, "requeue", None, "expedite") is None
    assert first_release_with(new, "tres-per-task", "23.11", "gpu:1") is None


def sinfo(folder: Path, text: str) -> dict[str, str]:
    """Return an environment whose sinfo runs a text of shell."""
    folder.mkdir(exist_ok=True)
    (folder / "sinfo").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "sinfo").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_the_version_is_that_of_sinfo_on_path(tmp_path: Path) -> None:
    assert detect_version(sinfo(tmp_path / "a", 'echo "slurm-wlm 22.05.8"')) == SlurmVersion(22, 5, 8)


@pytest.mark.parametrize("text", ["exit 1", "echo nothing", "echo 22.05.8; exit 1"])
def test_a_slurm_that_does_not_answer_has_no_version(tmp_path: Path, text: str) -> None:
    assert detect_version(sinfo(tmp_path / "a", text)) is None
    assert detect_version({"PATH": str(tmp_path / "nothing")}) is None
