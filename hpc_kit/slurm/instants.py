"""Points in time as `--begin` and `--deadline` take them: `now+1hour`, `16:00`, `2026-12-24T18:00`, `tomorrow`."""

from __future__ import annotations

import datetime as dt
import re

from hpc_kit.errors import UnitError

_REMEDY = "write now+2hours, 16:00, tomorrow, 2026-12-24 or 2026-12-24T18:00"
_OFFSET = re.compile(r"now(?:\s*([+-])\s*([0-9]{1,9})\s*(second|minute|hour|day|week)?s?)?", re.IGNORECASE)
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?\s*([AaPp][Mm])?")
_DATES = (
    re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"),
    re.compile(r"(?P<month>[0-9]{1,2})[/.](?P<day>[0-9]{1,2})(?:[/.](?P<year>[0-9]{2}|[0-9]{4}))?"),
    re.compile(r"(?P<month>[0-9]{2})(?P<day>[0-9]{2})(?P<year>[0-9]{2})"),
)
_HOURS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


def parse_instant(text: str, now: dt.datetime | None = None) -> dt.datetime:
    """The local time that Slurm understands; a clock time already past today is tomorrow's.

    Raises:
        UnitError: `text` is none of the forms in sbatch's manual.
    """
    now = (now or dt.datetime.now()).replace(microsecond=0)  # noqa: DTZ005 - Slurm means the local clock
    words = text.strip()
    offset = _OFFSET.fullmatch(words)
    try:
        if offset:
            seconds = int(offset[2] or 0) * _SECONDS[(offset[3] or "second").lower()]
            return now + dt.timedelta(seconds=-seconds if offset[1] == "-" else seconds)
        return _on_calendar(words, now)
    except (ValueError, OverflowError) as error:
        raise UnitError("not a point in time that Slurm reads", found=repr(text), remedy=_REMEDY) from error


def _on_calendar(words: str, now: dt.datetime) -> dt.datetime:
    """A date, a clock time, or both in either order."""
    day: dt.date | None = None
    clock: dt.time | None = None
    rest = words.lower()
    while rest:
        found_day, after_day = _read_date(rest, now)
        found_clock, after_clock = _read_clock(rest)
        if found_day and not day:
            day, rest = found_day, after_day
        elif found_clock and not clock:
            clock, rest = found_clock, after_clock
        else:
            raise ValueError(rest)
        rest = re.sub(r"^(?:t(?=[0-9])|-|\s+)", "", rest)
    if day is None and clock is None:
        raise ValueError(words)
    moment = dt.datetime.combine(day or now.date(), clock or dt.time())
    if day is None and moment < now:
        moment += dt.timedelta(days=1)
    return moment


def _read_date(text: str, now: dt.datetime) -> tuple[dt.date | None, str]:
    for word, days in (("today", 0), ("tomorrow", 1)):
        if text.startswith(word):
            return now.date() + dt.timedelta(days=days), text[len(word) :]
    for pattern in _DATES:
        match = pattern.match(text)
        # 10:00 begins like a date without its slash; only a whole number is one.
        if match and not re.match(r"[0-9:]", text[match.end() :]):
            year = int(match["year"] or now.year)
            day = dt.date(year + 2000 if year < 100 else year, int(match["month"]), int(match["day"]))
            if match["year"] is None and day < now.date():
                day = day.replace(year=year + 1)
            return day, text[match.end() :]
    return None, text


def _read_clock(text: str) -> tuple[dt.time | None, str]:
    for word, hour in _HOURS.items():
        if text.startswith(word):
            return dt.time(hour), text[len(word) :]
    match = _CLOCK.match(text)
    if match is None:
        return None, text
    hour = int(match[1])
    if match[4]:
        if not 1 <= hour <= 12:
            raise ValueError(text)
        hour = hour % 12 + (12 if match[4].lower() == "pm" else 0)
    return dt.time(hour, int(match[2]), int(match[3] or 0)), text[match.end() :]
