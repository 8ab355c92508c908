"""Durations and memory sizes: read and printed as Slurm does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.errors import UnitError
from hpc_kit.slurm.units import UNLIMITED, format_time, parse_memory, parse_time

TIMES = [
    ("90", 5400),
    ("0", 0),
    ("1:30", 90),
    ("2:00:00", 7200),
    ("00:00:30", 30),
    ("1:70", 130),
    ("1-12", 129600),
    ("1-12:30", 131400),
    ("1-12:30:05", 131405),
    ("0-0:0:1", 1),
    ("UNLIMITED", UNLIMITED),
    ("infinite", UNLIMITED),
    ("-1", UNLIMITED),
]


@pytest.mark.parametrize(("text", "seconds"), TIMES)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "2h30", "2h", "1.5", "1:2:3:4", "-5", "1--2", "-", "1-2-3", "1-1:2:3:4", ":30", "1-", " 5", "5 ", "٣"]
)
def test_a_text_that_is_no_duration_is_refused_with_valid_forms(text: str) -> None:
    with pytest.raises(UnitError, match="not a duration that Slurm reads") as caught:
        parse_time(text)
    assert caught.value.found == repr(text)
    assert "2:00:00" in str(caught.value.remedy)


def test_a_duration_too_large_for_slurm_is_refused() -> None:
    with pytest.raises(UnitError, match="longer than the longest in Slurm"):
        parse_time("99999999999")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(600, "00:10:00"), (131405, "1-12:30:05"), (0, "00:00:00"), (86400, "1-00:00:00"), (UNLIMITED, "UNLIMITED")],
)
def test_durations_are_printed(seconds: int, text: str) -> None:
    assert format_time(seconds) == text


def test_a_negative_duration_is_not_printed() -> None:
    with pytest.raises(UnitError, match="a negative duration"):
        format_time(-2)


@given(st.integers(-1, 10**9))
def test_a_printed_duration_reads_back(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("4096", 4096),
        ("4G", 4096),
        ("4g", 4096),
        ("4GB", 4096),
        ("1T", 1024**2),
        ("512K", 1),
        ("1025K", 2),
        ("2048KB", 2),
        ("7M", 7),
        ("0", 0),
    ],
)
def test_memory_sizes_are_read(text: str, mib: int) -> None:
    assert parse_memory(text) == mib


@pytest.mark.parametrize("text", ["", "4.5G", "-1", "4B", "4Q", "4Gi", "G", "GB", "four", "1P", "0x10", "٣G"])
def test_a_text_that_is_no_memory_size_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="not a memory size that Slurm reads") as caught:
        parse_memory(text)
    assert caught.value.found == repr(text)
    assert "64G" in str(caught.value.remedy)
