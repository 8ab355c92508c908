"""Documents as a bench leaves them, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_kit.bench.machine import HostLoad, MeasuredHost, MeasuredMachine
from hpc_kit.bench.results import BenchResult, Column, Plot, ResultRow, summarize

COLUMNS = {
    "seconds": Column(unit="s", title="time"),
    "algbw": Column(unit="GB/s", better="higher", kind="reckoned"),
    "memory": Column(unit="B"),
    "total": Column(unit="B", kind="counted"),
}


def host(name: str = "n1", *, cpu: str = "a processor", busy: float = 0.0, after: float | None = None) -> MeasuredHost:
    before, then = (None if share is None else HostLoad(average=(0.5, 0.4, 0.3), busy=share) for share in (busy, after))
    assert before is not None
    return MeasuredHost(name=name, cpu=cpu, cores=2, memory=4 << 30, before=before, after=then)


def row(size: int, seconds: Sequence[float], backend: str = "gloo") -> ResultRow:
    median, spread = summarize(seconds, warmup=3)
    return ResultRow(
        labels={"backend": backend, "bytes": size},
        values={"seconds": median, "algbw": size / median / 1e9},
        spread={"seconds": spread},
    )


def document(
    rows: Sequence[ResultRow], *, hosts: Sequence[MeasuredHost] = (), bench: str = "comm", torch: str = "2.13.0"
) -> BenchResult:
    return BenchResult(
        bench=bench,
        title="Collectives",
        command=["hpc-kit", "bench", "comm"],
        started="2026-11-22T08:00:00+00:00",
        ended="2026-11-22T08:01:00+00:00",
        interrupted=False,
        machine=MeasuredMachine(hosts=tuple(hosts or [host()]), versions={"torch": torch}, kernel="Linux 6"),
        columns=COLUMNS,
        results=list(rows),
        plots=[Plot(name="time", title="Time", x="bytes", y=("seconds",), series=("backend",), log_x=True)],
        notes=["A note."],
        hpc_kit="0.1.0",
    )
