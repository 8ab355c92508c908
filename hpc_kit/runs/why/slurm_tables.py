"""Reads the states of jobs in outputs of sacct, squeue, scontrol and seff, wherever they stand in a log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_kit.errors import HostlistError
from hpc_kit.slurm.nodelist import expand
from hpc_kit.slurm.states import JobState, parse_state

if TYPE_CHECKING:
    from hpc_kit.runs.why.log_reader import Line


@dataclass(slots=True)
class JobRow:
    """The state of a job or step."""

    job_id: str
    state: JobState
    raw_state: str
    line: Line | None = None
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    nodes: str = ""
    max_rss: str = ""
    req_mem: str = ""
    user: str = ""
    time_limit: str = ""
    elapsed: str = ""
    comment: str = ""
    """A comment of an administrator."""
    batch_host: str = ""
    log: str = ""

    @property
    def is_step(self) -> bool:
        """A step and not the job."""
        return "." in self.job_id

    @property
    def element(self) -> str:
        """The element of an array, such as `123_4`; empty for other jobs."""
        job = self.job_id.partition(".")[0]
        return job if "_" in job else ""


def expand_nodes(nodes: str) -> list[str]:
    """Return the hosts of a node list in a listing; none if it is empty, or cut to the width of its column."""
    if nodes.endswith("+") or "(" in nodes or nodes.lower().startswith("none"):
        return []
    try:
        return expand(nodes) if nodes else []
    except HostlistError:
        return []


_COLUMNS = {
    "jobid": "job_id", "jobidraw": "job_id", "state": "raw_state", "st": "raw_state", "exitcode": "exit",
    "reason": "reason",
    "nodelist(reason)": "reason", "nodelist": "nodes", "maxrss": "max_rss", "reqmem": "req_mem", "user": "user",
    "timelimit": "time_limit", "time_limit": "time_limit", "elapsed": "elapsed", "time": "elapsed",
    "admincomment": "comment",
}  # fmt: skip
MAX_MISSES = 5
"""Lines without a job after which a table counts as ended."""

_JOB_ID = re.compile(r"\d+(?:_(?:\d+|\[[^\]]*\]))?(?:\+\d+)?(?:\.\w+)?")
_BARE_ROW = re.compile(
    r"(?P<job_id>\d+(?:_\d+)?(?:\.\w+)?)[| ](?:.*[| ])?"
    r"(?P<raw_state>[A-Z_]{6,}(?: by \d+)?)\+?[| ] *(?P<exit>\d+:\d+)(?:$|[| ])"
)
"""A row of `sacct --noheader` that contains a state and an exit code."""

_SCONTROL_ID = re.compile(r"\bJobId=(\S+)")
_SCONTROL = {
    "JobState": "raw_state", "Reason": "reason", "ExitCode": "exit", "NodeList": "nodes", "TimeLimit": "time_limit",
    "RunTime": "elapsed", "UserId": "user", "BatchHost": "batch_host", "StdErr": "log",
}  # fmt: skip

_SEFF_ID = re.compile(r"(?:Array )?Job ID: (?P<job_id>\d+(?:_\d+)?)$")
_SEFF_STATE = re.compile(r"State: (?P<raw_state>[A-Z_]+)(?: \(exit code (?P<exit>\d+)\))?$")
_SEFF_MEMORY = re.compile(r"Memory (?:Utilized:|Efficiency: \S+ of) (?P<size>[\d.]+) (?P<unit>[KMGT])B")


class TableParser:
    """Recognises headers and reads the rows below them."""

    def __init__(self) -> None:
        self.is_open = False
        self._names: list[str] = []
        self._widths: list[tuple[int, int]] | None = None
        self._separator: str | None = None
        self._record: JobRow | None = None
        self._summary: JobRow | None = None
        """The job that seff describes."""
        self._misses = 0

    def parse(self, line: Line) -> list[JobRow]:
        """Return the rows that a line completes."""
        text = line.body
        if "JobId=" in text or self._record is not None:
            return self._scontrol(line)
        if self._summary is not None or text.startswith("Job ID: "):
            return self._seff(line)
        if self._is_header(text):
            return []
        if not self.is_open:
            bare = _BARE_ROW.match(text)
            row = self._row(bare.groupdict(), line) if bare else None
            return [row] if row else []
        if set(text) <= {"-", " "}:
            self._widths = [match.span() for match in re.finditer(r"-+", text)]
            return []
        cells = self._cells(text)
        row = self._row(dict(zip(self._names, cells, strict=False)), line)
        self._misses = 0 if row else self._misses + 1
        if self._misses > MAX_MISSES or (row is None and self._separator is None):
            self.is_open = False
        return [row] if row else []

    def _is_header(self, text: str) -> bool:
        words = text.split("|") if "|" in text else text.split()
        names = [_COLUMNS.get(word.strip().lower(), "") for word in words]
        if "job_id" not in names or "raw_state" not in names:
            return False
        first = names.index("job_id")  # JobIDRaw may follow JobID
        self._names = [name if name != "job_id" or at == first else "" for at, name in enumerate(names)]
        self._separator = "|" if "|" in text else None
        self._widths, self.is_open = None, True
        return True

    def _cells(self, text: str) -> list[str]:
        if self._separator:
            return text.split(self._separator)
        if self._widths:
            return [text[start:end].strip() for start, end in self._widths]
        # squeue: the last column may contain spaces.
        return text.split(None, len(self._names) - 1)

    def _row(self, values: dict[str, str], line: Line) -> JobRow | None:
        job_id, raw = values.get("job_id", "").strip(), values.get("raw_state", "").strip()
        if not _JOB_ID.fullmatch(job_id) or not raw:
            return None
        state = parse_state(raw)
        if state is JobState.UNKNOWN:
            return None
        row = JobRow(job_id, state, raw, line)
        # The last column of squeue contains the nodes of a job that runs.
        if state is JobState.RUNNING and not (nodes := values.get("reason", "(")).startswith("("):
            values = {**values, "nodes": nodes, "reason": ""}
        _fill_row(row, values)
        return row

    def _scontrol(self, line: Line) -> list[JobRow]:
        text = line.body
        done: list[JobRow] = []
        if found := _SCONTROL_ID.search(text):
            self._record = JobRow(found[1], JobState.UNKNOWN, "")
        if self._record is None:
            return done
        pairs = dict(re.findall(r"(\w+)=(\S+)", text))
        if {"ArrayJobId", "ArrayTaskId"} <= pairs.keys():
            self._record.job_id = f"{pairs['ArrayJobId']}_{pairs['ArrayTaskId']}"
        values = {ours: pairs[theirs] for theirs, ours in _SCONTROL.items() if theirs in pairs}
        # A reason may contain spaces: it ends at the next key.
        if found := re.search(r"\bReason=(.*?)(?: [A-Za-z]+=|$)", text):
            values["reason"] = found[1]
        if found := re.search(r"\bAdminComment=(.+)", text):
            values["comment"] = found[1]
        if "raw_state" in values:
            self._record.raw_state, self._record.line = values["raw_state"], line
            self._record.state = parse_state(values["raw_state"])
            done.append(self._record)
        _fill_row(self._record, values)
        self.is_open = True
        if "=" not in text:
            self._record, self.is_open = None, False
        return done

    def _seff(self, line: Line) -> list[JobRow]:
        """Read a line of seff. Its summary ends with the first line that is no name and value."""
        text = line.body
        if found := _SEFF_ID.match(text):
            self._summary = JobRow(found["job_id"], JobState.UNKNOWN, "")
        row = self._summary
        self.is_open = row is not None and ": " in text
        if row is None or not self.is_open:
            self._summary = None
            return []
        if found := _SEFF_MEMORY.match(text):
            name = "max_rss" if "Utilized" in text else "req_mem"
            setattr(row, name, found["size"] + found["unit"])
        if not (found := _SEFF_STATE.match(text)) or row.line is not None:
            return []
        row.state, row.raw_state, row.line = parse_state(found["raw_state"]), found["raw_state"], line
        _fill_row(row, {"exit": found["exit"] or ""})
        return [row]


def _fill_row(row: JobRow, values: dict[str, str]) -> None:
    exit_code, _, signal = values.get("exit", "").partition(":")
    if exit_code.strip().isdigit():
        row.exit_code = int(exit_code)
        row.signal = int(signal) if signal.strip().isdigit() else None
    for name in (
        "reason",
        "nodes",
        "max_rss",
        "req_mem",
        "user",
        "time_limit",
        "elapsed",
        "comment",
        "batch_host",
        "log",
    ):
        value = values.get(name, "").strip()
        if value and value not in {"None", "(null)", "N/A", "Unknown"}:
            setattr(row, name, value)
    row.reason = row.reason.strip().removeprefix("(").removesuffix(")") if row.reason.startswith("(") else row.reason
