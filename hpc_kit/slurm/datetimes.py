"""Parses points in time such as `now+1hour`, `16:00` or `2026-12-24T18:00`: values of `--begin` and `--deadline`."""

from __future__ import annotations

import datetime as dt
import re

from hpc_kit.errors import UnitError

_REMEDY = "write now+2hours, 16:00, tomorrow, 2026-12-24 or 2026-12-24T18:00"
_OFFSET = re.compile(r"\s*([+-])\s*([0-9]{1,9})(?:\s*(second|minute|hour|day|week)s?)?", re.IGNORECASE)
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?\s*([AaPp][Mm])?")
_DATES = (
    re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{1,2})"),
    re.compile(r"(?P<month>[0-9]{1,2})[/.](?P<day>[0-9]{1,2})(?:[/.](?P<year>[0-9]{2}|[0-9]{4}))?"),
    re.compile(r"(?P<month>[0-9]{2})(?P<day>[0-9]{2})(?P<year>[0-9]{2})"),
)
_DAYS = {"today": 0, "tomorrow": 1}
_HOURS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


class _ReadError(ValueError):
    """The text is wrong at this character."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def parse_datetime(text: str, now: dt.datetime | None = None) -> dt.datetime:
    """Return the local time that a text means. A clock time that has passed today means tomorrow.

    Raises:
        UnitError: The manual of sbatch does not allow this form.
    """
    now = (now or dt.datetime.now()).replace(microsecond=0)  # noqa: DTZ005 - Slurm means the local clock
    try:
        return _Reader(text, now).read()
    except (ValueError, OverflowError) as error:
        raise UnitError("not a point in time that Slurm reads", found=repr(text), remedy=_REMEDY) from error


def error_position(text: str) -> int:
    """Return the position that Slurm's error message has for a wrong text; 0 for a correct one."""
    try:
        _Reader(text, dt.datetime.now().replace(microsecond=0)).read()  # noqa: DTZ005 - as above
    except _ReadError as stop:
        return stop.position
    except (ValueError, OverflowError):
        pass
    return 0


class _Reader:
    """Reads from left to right, as Slurm does. `at` is the index of the next character."""

    def __init__(self, text: str, now: dt.datetime) -> None:
        self.text = text
        self.now = now
        self.at = 0
        self.day: dt.date | None = None
        self.clock: dt.time | None = None
        self.moment: dt.datetime | None = None

    def read(self) -> dt.datetime:
        """Read a date, a clock time, both in any order, or `now` and an offset."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t-T":
                self.at += 1
            elif not self._word():
                self._number()
        if self.moment is not None:
            return self.moment
        if self.day is None and self.clock is None:
            raise _ReadError(self.at)
        moment = dt.datetime.combine(self.day or self.now.date(), self.clock or dt.time())
        return moment + dt.timedelta(days=int(self.day is None and moment < self.now))

    def _word(self) -> bool:
        rest = self.text[self.at :].lower()
        if rest.startswith("now"):
            self.at += 3
            self._offset()
            return True
        word = next((word for word in (*_DAYS, *_HOURS) if rest.startswith(word)), None)
        if word is None:
            return False
        if (self.day if word in _DAYS else self.clock) is not None:
            raise _ReadError(self.at)
        self.at += len(word)
        if word in _DAYS:
            self.day = self.now.date() + dt.timedelta(days=_DAYS[word])
        else:
            self.clock = dt.time(_HOURS[word])
        return True

    def _offset(self) -> None:
        """Read the offset after `now`, if there is one: a sign, a number and a unit."""
        self.moment = self.now
        match = _OFFSET.match(self.text, self.at)
        if match is None:
            self.at = len(self.text) - len(self.text[self.at :].lstrip())
            if self.at < len(self.text):
                raise _ReadError(self.at)
            return
        sign, count, unit = match.groups()
        self.at = match.end()
        if not unit and self.text[self.at : self.at + 1].strip():
            raise _ReadError(match.start(2))
        seconds = int(count) * _SECONDS[(unit or "second").lower()]
        self.moment += dt.timedelta(seconds=-seconds if sign == "-" else seconds)

    def _number(self) -> None:
        start = self.at
        if not self.text[start].isdecimal():
            raise _ReadError(start)
        is_clock = ":" in self.text[start + 1 : start + 3]
        again = (self.clock if is_clock else self.day) is not None
        if is_clock:
            self.clock = self._read_clock()
        else:
            self.day = self._read_date()
        if again:  # Slurm silently uses the second one
            raise _ReadError(start)

    def _read_clock(self) -> dt.time:
        match = _CLOCK.match(self.text, self.at)
        if match is None:
            minutes = self.text.index(":", self.at) + 1
            raise _ReadError(minutes + int(self.text[minutes : minutes + 1].isdecimal()))
        for group, most in ((1, 23), (2, 59), (3, 59)):
            if int(match[group] or 0) > most:
                raise _ReadError(match.start(group))
        hour = int(match[1])
        if match[4]:
            if not 1 <= hour <= 12:
                raise _ReadError(match.start(4))
            hour = hour % 12 + (12 if match[4].lower() == "pm" else 0)
        self.at = match.end()
        return dt.time(hour, int(match[2]), int(match[3] or 0))

    def _read_date(self) -> dt.date:
        for pattern in _DATES:
            match = pattern.match(self.text, self.at)
            if match and not re.match(r"[0-9]", self.text[match.end() :]):
                break
        else:
            digits = re.match(r"[0-9]{1,2}", self.text[self.at :])
            month = digits[0] if digits else ""
            raise _ReadError(self.at + (len(month) if month and int(month) <= 12 else 0))
        if not 1 <= int(match["month"]) <= 12:
            raise _ReadError(match.start("month"))
        year = int(match["year"] or self.now.year)
        try:
            day = dt.date(year + 2000 if year < 100 else year, int(match["month"]), int(match["day"]))
        except ValueError:
            raise _ReadError(match.start("day")) from None
        if match["year"] is None and day < self.now.date():
            day = day.replace(year=year + 1)
        self.at = match.end()
        return day
