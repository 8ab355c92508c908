"""Reads the reports of srun, torchrun and MPI about the ends of tasks and ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_kit.runs.why.evidence import Evidence, TaskEnd, signal_text
from hpc_kit.runs.why.log_reader import parse_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpc_kit.runs.why.log_reader import Line, LogFile

_TASK = re.compile(
    r"^srun: error: (?P<host>[^\s:]+): tasks? (?P<tasks>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*): "
    r"(?:Exited with exit code (?P<code>\d+)|(?P<signal>[A-Z][\w ]+?)(?: \(core dumped\))?$)"
)
"""srun reports how tasks ended: with an exit code, or by a signal."""

_ELASTIC = re.compile(r"^\s*(time|host|rank|exitcode)\s*: (.+)")
"""An entry of torchrun's report about failed ranks."""

_MPI_END = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?P<number>\d+) \((?P<signal>[\w "
    r"]+)\)"
    r"|exited due to process rank (?P<rank5>\d+) with PID \d+ on$"
    r"|MPI_ABORT was invoked on rank (?P<rank3>\d+)"
    r"|application called MPI_Abort\(MPI_COMM_WORLD, [^()]*\) - process (?P<rank6>\d+)"
    r"|Process name: \[(?:[\w.-]+@)?\[?[\d,]+\]?,(?P<rank2>\d+)\]"
    r"|(?:RANK (?P<rank4>\d+) )?PID \d+ RUNNING AT (?P<host4>\S+)"
    r"|E(?:xit code|XIT CODE): +(?P<code>\d+)"
    r"|noticed that process rank (?P<rank7>\d+) with PID \d+ on node (?P<host7>\S+) exited on$"
    r"|(?:KILL(?:ED BY)? SIGNAL: +|^signal )\d+ \((?P<signal2>[\w ]+)(?:: \d+)?\)"
)
"""A part of the message of Open MPI or MPICH about the rank that ended; the parts are on several lines."""

_MPI_NODE = re.compile(r"^node (?P<host>[\w.-]+) exiting (?:improperly|without)")
"""The second line of Open MPI's message about the rank that ended first."""


class LauncherReports:
    """Collects the ends of ranks from the lines of one file. A report may have several lines."""

    def __init__(self, evidence: Evidence, log: LogFile) -> None:
        self._evidence, self._log = evidence, log
        self.torchrun_hosts: set[str] = set()
        """Hosts in reports of torchrun, whose agent only reports the ranks of its own node."""
        self._entry: dict[str, str] | None = None
        """The current entry of torchrun's report about failed ranks; None outside of a report."""
        self._first_failure = 0
        """Position of the first end that the current report of torchrun lists."""
        self._reported_rank: int | None = None
        """The rank whose error torchrun's report shows: the lines after its exit code."""
        self._mpi_rank: int | None = None
        self._mpi_host: str | None = None
        self._task_ends: dict[tuple[str, int], int] = {}
        """Lines of the ends of the current step's tasks, by host and task."""

    @property
    def is_open(self) -> bool:
        """Return whether the next line may belong to a report."""
        return self._entry is not None or self._reported_rank is not None

    def read(self, line: Line, attempt: int) -> bool:
        """Read one line. Return whether similar lines matter, too."""
        body = line.body
        if found := _TASK.match(body):
            self._read_srun(found, line, attempt)
        elif found := _MPI_END.search(body):
            self._read_mpi(found, line, attempt)
        elif self._mpi_rank is not None and (found := _MPI_NODE.match(body)):
            self._evidence.hosts.setdefault(self._mpi_rank, found["host"])
        elif body == "Failures:":
            self._first_failure, self._entry = len(self._evidence.ends), {}
            return True
        elif starts_report(body):
            self._entry = {"is_root": body}
            return True
        elif self._entry is not None:
            return self._read_torchrun(self._entry, line, attempt)
        return False

    def rank_of_error(self, line: Line) -> int | None:
        """Return the rank whose error torchrun's report shows in this line; None if it shows none."""
        if line.body.startswith(("[", "---", "===")):
            self._reported_rank = None
        return self._reported_rank

    def earlier_end(self, line: Line) -> int:
        """Return the number of the line that reported an end of the same task in the current step; 0 if none did."""
        found = _TASK.match(line.body)
        tasks = _expand_tasks(found["tasks"]) if found else ()
        return max((self._task_ends.get((found["host"], task), 0) for task in tasks), default=0) if found else 0

    def close(self) -> None:
        """Drop what a cut report of torchrun lists: the first failure is its last part."""
        ends = self._evidence.ends
        if self._entry is not None:
            ends[self._first_failure :] = [end for end in ends[self._first_failure :] if end.reporter != "torchrun"]

    def start_step(self) -> None:
        """Forget the tasks of the last step, which another one follows."""
        self._task_ends.clear()

    def _read_srun(self, found: re.Match[str], line: Line, attempt: int) -> None:
        host, ranks = found["host"], tuple(_expand_tasks(found["tasks"]))
        # The tasks of srun are agents if torchrun has reported ranks.
        if not self._evidence.has_agents:
            self._evidence.hosts.update((rank, host) for rank in ranks)
            self._evidence.ranks.update(ranks)
        self._task_ends.update(((host, rank), line.number) for rank in ranks)
        code = int(found["code"]) if found["code"] else None
        self._evidence.ends.append(TaskEnd(ranks, host, code, found["signal"], line, attempt, reporter="srun"))

    def _read_mpi(self, found: re.Match[str], line: Line, attempt: int) -> None:
        ends = self._evidence.ends
        if found["rank"]:
            host = found["host"].rstrip(",")
            ends.append(TaskEnd((int(found["rank"]),), host, None, found["signal"], line, attempt))
        elif stated := found["rank3"] or found["rank6"]:
            ends.append(TaskEnd((int(stated),), None, 1, None, line, attempt))
        elif found["rank7"]:
            self._mpi_rank, self._mpi_host = int(found["rank7"]), found["host7"]
        elif found["host4"]:
            self._mpi_rank, self._mpi_host = (int(found["rank4"]) if found["rank4"] else None), found["host4"]
        elif found["rank2"] or found["rank5"]:
            self._mpi_rank = int(found["rank2"] or found["rank5"])
        elif self._mpi_rank is not None or self._mpi_host:
            ranks = () if self._mpi_rank is None else (self._mpi_rank,)
            code = int(found["code"]) if found["code"] else None
            ends.append(TaskEnd(ranks, self._mpi_host, code, found["signal2"], line, attempt))

    def _read_torchrun(self, entry: dict[str, str], line: Line, attempt: int) -> bool:
        """Read a line of torchrun's report. The exit code completes an entry."""
        found = _ELASTIC.match(line.body)
        if found:
            entry[found[1]] = found[2]
        if "exitcode" not in entry:
            if line.body.startswith("====") or "<NO_OTHER_FAILURES>" in line.body:
                self._entry = None
            return found is not None
        rank = re.match(r"\d+", entry.get("rank", ""))
        code = int((re.match(r"-?\d+", entry["exitcode"]) or ["1"])[0])
        time = parse_line(self._log, None, 1, entry.get("time", "").replace("_", " ")).time
        host = entry.get("host")
        if rank is not None:
            self._note_rank(int(rank[0]), entry)
        ranks = (int(rank[0]),) if rank else ()
        end = TaskEnd(ranks, host, code, signal_text(code), line, attempt, time, reporter="torchrun")
        # torchrun lists the first failure last.
        ends = self._evidence.ends
        ends.insert(self._first_failure if "is_root" in entry else len(ends), end)
        self._evidence.has_agents = True
        self._reported_rank = ranks[0] if ranks else None
        self._entry = None if "is_root" in entry else {}
        return True

    def _note_rank(self, rank: int, entry: dict[str, str]) -> None:
        """Note the host and the process id of a rank that torchrun reports."""
        evidence, host = self._evidence, entry.get("host")
        local = re.search(r"\(local_rank: (\d+)\)", entry["rank"])
        # The ranks of a node are numbered one after the other, from local rank 0.
        first = rank - int(local[1]) if local else rank
        if local:
            evidence.nodes.first_ranks.setdefault(self._log.name, set()).add(first)
        if host:
            self.torchrun_hosts.add(host)
            for each in range(first, rank):
                evidence.hosts.setdefault(each, host)
            evidence.hosts[rank] = host
        if number := re.search(r"\(pid: (\d+)\)", entry["exitcode"]):
            evidence.processes.setdefault(int(number[1]), set()).add((rank, host))


def starts_report(body: str) -> bool:
    """Return whether a line begins torchrun's report about failed ranks, or the part about the first failure."""
    return body == "Failures:" or "Root Cause (first observed failure)" in body


def _expand_tasks(text: str) -> Iterable[int]:
    for part in text.strip(",").split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
