"""Points in time for --begin and --deadline."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_kit.errors import UnitError
from hpc_kit.slurm.datetimes import parse_datetime

from .oracle import sbatch_defined_options

NOW = dt.datetime.fromisoformat("2026-11-21T09:25:42")

SAMPLES = {
    "now": "2026-11-21T09:25:42",
    "now+1hour": "2026-11-21T10:25:42",
    "now+60": "2026-11-21T09:26:42",
    "now+2weeks": "2026-12-05T09:25:42",
    "now - 1 day": "2026-11-20T09:25:42",
    "today": "2026-11-21T00:00:00",
    "tomorrow": "2026-11-22T00:00:00",
    "midnight": "2026-11-22T00:00:00",
    "noon": "2026-11-21T12:00:00",
    "fika": "2026-11-21T15:00:00",
    "teatime": "2026-11-21T16:00:00",
    "13:00": "2026-11-21T13:00:00",
    "9:25": "2026-11-22T09:25:00",
    "1:00PM": "2026-11-21T13:00:00",
    "12:30 am": "2026-11-22T00:30:00",
    "16:00:05": "2026-11-21T16:00:05",
    "2026-12-01": "2026-12-01T00:00:00",
    "2026-12-1": "2026-12-01T00:00:00",
    "2026-12-01T10:00": "2026-12-01T10:00:00",
    "2026-12-01T10:00:30": "2026-12-01T10:00:30",
    "2026-12-01-10:00": "2026-12-01T10:00:00",
    "10:00 2026-12-01": "2026-12-01T10:00:00",
    "12/25": "2026-12-25T00:00:00",
    "1/5": "2027-01-05T00:00:00",
    "12/25/26": "2026-12-25T00:00:00",
    "12/25-10:00": "2026-12-25T10:00:00",
    "16:00 12/25/26": "2026-12-25T16:00:00",
    "1.1.27": "2027-01-01T00:00:00",
    "122526": "2026-12-25T00:00:00",
}


@pytest.mark.parametrize(("text", "moment"), SAMPLES.items())
def test_times_are_read(text: str, moment: str) -> None:
    assert parse_datetime(text, NOW) == dt.datetime.fromisoformat(moment)


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize("text", SAMPLES)
def test_times_are_read_as_sbatch_does(text: str) -> None:
    before = dt.datetime.now(dt.UTC).replace(tzinfo=None, microsecond=0)
    seen = sbatch_defined_options("#!/bin/bash\n", [f"--begin={text}"])["begin"]
    after = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    assert parse_datetime(text, before) <= dt.datetime.fromisoformat(seen) <= parse_datetime(text, after)


@pytest.mark.parametrize(
    "text",
    [
        *("", "foo", "now+", "now+2h", "now+2 fortnights", "2026-13-01", "2026-02-30", "25:00", "10:75", "13:00PM"),
        *(
            "0:30AM",
            "10:00 11:00",
            "tomorrow today",
            "10",
            "1000",
            "10:5",
            "+1hour",
            "now+999999999weeks",
            "10:00x",
            "10:00-x",
            "10:00:61",
            "2026-01-01x",
        ),
        *("now 5", "nowish", "now+1minutesx", "tomorrowx", "13/01", "01/45", "2030-01-01T10"),
    ],
)
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="not a point in time that Slurm reads") as caught:
        parse_datetime(text, NOW)
    assert caught.value.found == repr(text)
    assert "16:00" in str(caught.value.remedy)


@given(st.text("now+-:/.0123456789 TamPp", max_size=18))
def test_any_text_is_a_time_or_an_error(text: str) -> None:
    try:
        moment = parse_datetime(text, NOW)
    except UnitError:
        return
    assert moment.tzinfo is None


def test_the_default_clock_is_that_of_the_machine() -> None:
    assert abs(parse_datetime("now") - dt.datetime.now()) < dt.timedelta(seconds=5)  # noqa: DTZ005 - local, as Slurm
