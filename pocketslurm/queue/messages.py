"""What a job's supervisor is told to do: each order as a command writes it, and as the supervisor reads it.

The two may be of different releases, for a queue goes on during an upgrade: a kind keeps its form, whatever is new has
a kind of its own, and a supervisor passes over what it cannot read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple


class Cancel(NamedTuple):
    """End the job; `why` stands in its log."""

    why: str = ""


class EndComponent(NamedTuple):
    """End the steps of one component of a heterogeneous job."""

    job_id: int


class Signal(NamedTuple):
    """Send a signal to a job's `steps`, its `batch` shell or all of it (`full`); `job_id`: only to that component's."""

    number: int
    whom: str
    job_id: int | None = None


class TellStep(NamedTuple):
    """Pass `kill` or `signal N` on to a step, by its label, of the leader or, where one is named, of a component."""

    label: str
    order: str
    job_id: int | None = None


class Suspend(NamedTuple):
    """Let the job's processes stand still."""


class Resume(NamedTuple):
    """Let them go on."""


class Notify(NamedTuple):
    """Write a line into the job's log."""

    text: str


class Complete(NamedTuple):
    """The allocation's holder is done, with this wait status."""

    status: int


Told = Cancel | EndComponent | Signal | TellStep | Suspend | Resume | Notify | Complete


def write(told: Told) -> tuple[str, str]:  # noqa: PLR0911 - one for each kind
    """An order's kind and value, as the state keeps them."""
    match told:
        case Cancel(why):
            return "cancel", why
        case EndComponent(job_id):
            return "component", str(job_id)
        case Signal(number, whom, job_id):
            return "signal", f"{number} {whom}" + (f" {job_id}" if job_id is not None else "")
        case TellStep(label, order, None) if label.isdecimal():
            return "step", f"{label} {order}"
        case TellStep(label, order, job_id):
            return "part", f"{job_id or ''}.{label} {order}"
        case Suspend():
            return "suspend", ""
        case Resume():
            return "resume", ""
        case Notify(text):
            return "notify", text
        case Complete(status):
            return "complete", str(status)


def read(kind: str, value: str) -> Told | None:
    """The order that stands there, None where this release knows no such order."""
    with suppress(ValueError):
        return _read(kind, value)
    return None


def _read(kind: str, value: str) -> Told | None:  # noqa: PLR0911 - one for each kind
    words = value.split()
    match kind, words:
        case "cancel", _:
            return Cancel(value)
        case "component", [job_id]:
            return EndComponent(int(job_id))
        case "signal", [number, whom, *job_id] if len(job_id) < 2:
            return Signal(int(number), whom, int(job_id[0]) if job_id else None)
        case "step", [label, *order] if label.isdecimal() and _fits(order):
            return TellStep(label, " ".join(order))
        case "part", [name, *order] if _fits(order):
            part, _, label = name.partition(".")
            return TellStep(label, " ".join(order), int(part) if part else None)
        case "suspend", []:
            return Suspend()
        case "resume", []:
            return Resume()
        case "notify", _:
            return Notify(value)
        case "complete", [status]:
            return Complete(int(status))
    return None


def _fits(order: list[str]) -> bool:
    match order:
        case ["kill"]:
            return True
        case ["signal", number]:
            return number.isdecimal()
    return False
