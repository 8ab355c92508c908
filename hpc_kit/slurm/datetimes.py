"""Parses points in time such as `now+1hour`, `16:00` or `2026-12-24T18:00`: values of `--begin` and `--deadline`."""

from __future__ import annotations

import datetime as dt
import re

from hpc_kit.errors import UnitError

_REMEDY = "write now+2hours, 16:00, tomorrow, 2026-12-24 or 2026-12-24T18:00"
_SEPARATORS = " \t-T"
"""Characters between a date and a clock time, which may come in any order."""
_NOW = re.compile(
    r"now\s*(?:(?P<sign>[+-])\s*(?P<count>[0-9]{1,9})(?:\s*(?P<unit>second|minute|hour|day|week)s?)?)?", re.IGNORECASE
)
_WORD = re.compile("today|tomorrow|midnight|noon|fika|teatime", re.IGNORECASE)
_CLOCK = re.compile(r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?\s*(?P<half>[AaPp][Mm])?")
_DATES = (
    re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{1,2})(?![0-9])"),
    re.compile(r"(?P<month>[0-9]{1,2})[/.](?P<day>[0-9]{1,2})(?:[/.](?P<year>[0-9]{2}))?(?![0-9])"),
    re.compile(r"(?P<month>[0-9]{2})(?P<day>[0-9]{2})(?P<year>[0-9]{2})(?![0-9])"),
)
_DAYS = {"today": 0, "tomorrow": 1}
_HOURS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


def parse_datetime(text: str, now: dt.datetime | None = None) -> dt.datetime:
    """Return the local time that a text means. A clock time that has passed today means tomorrow.

    Raises:
        UnitError: The manual of sbatch does not allow this form.
    """
    now = (now or dt.datetime.now()).replace(microsecond=0)  # noqa: DTZ005 - Slurm means the local clock
    try:
        if match := _NOW.fullmatch(text.strip()):
            seconds = int(match["count"] or 0) * _SECONDS[(match["unit"] or "second").lower()]
            return now + dt.timedelta(seconds=-seconds if match["sign"] == "-" else seconds)
        return _read_day_and_clock(text, now)
    except (ValueError, OverflowError) as error:
        raise UnitError("not a point in time that Slurm reads", found=repr(text), remedy=_REMEDY) from error


def _read_day_and_clock(text: str, now: dt.datetime) -> dt.datetime:
    day: dt.date | None = None
    clock: dt.time | None = None
    while text := text.lstrip(_SEPARATORS):
        match = next(filter(None, (pattern.match(text) for pattern in (_WORD, _CLOCK, *_DATES))), None)
        value = _read_value(match, now) if match else None
        if match and isinstance(value, dt.date) and day is None:
            day = value
        elif match and isinstance(value, dt.time) and clock is None:
            clock = value
        else:  # also for a second date or clock time, which Slurm silently takes instead of the first one
            raise ValueError(text)
        text = text[match.end() :]
    if day is None and clock is None:
        raise ValueError(text)
    moment = dt.datetime.combine(day or now.date(), clock or dt.time())
    return moment + dt.timedelta(days=int(day is None and moment < now))


def _read_value(match: re.Match[str], now: dt.datetime) -> dt.date | dt.time:
    """Return the date or the clock time of a match; dt itself refuses an hour 25 or a month 13."""
    if match.re is _WORD:
        word = match[0].lower()
        return now.date() + dt.timedelta(days=_DAYS[word]) if word in _DAYS else dt.time(_HOURS[word])
    if match.re is _CLOCK:
        hour = int(match["hour"])
        if match["half"]:
            if not 1 <= hour <= 12:
                raise ValueError(match[0])
            hour = hour % 12 + (12 if match["half"].lower() == "pm" else 0)
        return dt.time(hour, int(match["minute"]), int(match["second"] or 0))
    year = int(match["year"] or now.year)
    year += 2000 if year < 100 else 0
    day = dt.date(year, int(match["month"]), int(match["day"]))
    return day.replace(year=year + 1) if match["year"] is None and day < now.date() else day
