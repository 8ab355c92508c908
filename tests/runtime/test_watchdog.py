"""The watchdog reports a stall and the rank that caused it, and does not stop a healthy training."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpc_kit.errors import SpecError
from hpc_kit.run_files import RankStack, read_first_failure, read_stall
from hpc_kit.runs.progress import find_slowest
from hpc_kit.runs.stacks import group_stacks, request_stacks
from hpc_kit.runtime import resolve, watchdog
from hpc_kit.runtime.flight_recorder import latest_collectives
from hpc_kit.runtime.rendezvous.network import free_port
from hpc_kit.runtime.stack_comparison import compare_stacks
from hpc_kit.runtime.wait_sampler import NodeNotes, is_communicating
from hpc_kit.runtime.watchdog import Progress
from tests import preloaded
from tests.preloaded import Preloaded
from tests.runtime.launches import Step

pytestmark = pytest.mark.waits

QUICK = """
import os, signal, sys, time
from hpc_kit.runtime import wait_sampler, watchdog
watchdog._POLL_SECONDS, watchdog._WRITE_SECONDS, watchdog._COMPARE_SECONDS = 0.1, 0.2, 1.5
watchdog._RETRY_SECONDS, wait_sampler._PAUSES, wait_sampler._LEAST_WATCHED = 3, (0.002, 0.01), 0.5
import hpc_kit
from torch import distributed as dist, ones
with hpc_kit.distributed() as world:
    for step in range(40):
        ACT
        dist.all_reduce(ones(1))
        hpc_kit.progress(step, total=40, loss=1 / (step + 1))
    print("done")
"""

Start = Callable[..., list[Preloaded]]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def start(tmp_path: Path, run_folder: Path) -> Iterator[Start]:
    """Starts the ranks of one node. Each rank calls `act` at the beginning of a step."""
    started: list[Preloaded] = []

    def launch(act: str, ranks: int = 1, **variables: str) -> list[Preloaded]:
        program = tmp_path / "train.py"
        program.write_text(QUICK.replace("ACT", textwrap.indent(textwrap.dedent(act), " " * 8).strip()))
        common = {"HPC_KIT_RUN": str(run_folder), "OMP_NUM_THREADS": "1", "HPC_KIT_WATCHDOG_TIMEOUT": "2"}
        for environ in Step.of(ranks, hosts=("127.0.0.1",), job=str(os.getpid())).environs() if ranks > 1 else [{}]:
            everything = {**os.environ, **common, **variables, **environ}
            started.append(Preloaded([str(program)], everything, tmp_path, tmp_path / f"rank-{len(started)}"))
        return started

    yield launch
    for process in started:
        process.kill()


def stack(rank: int, line: str, *, step: int = 7, waits: bool = False, number: int = 0) -> RankStack:
    call, collectives = "all_reduce" if waits else "load", {"gloo": (number, "all_reduce of [8] Float")}
    return RankStack(rank, f"n{rank // 2 + 1}", 0.0, step, None, line, call, waits, {}, collectives if number else {})


# Verdicts


@pytest.mark.timeout(120)
def test_a_rank_that_hangs_is_the_cause_and_the_job_ends(start: Start, run_folder: Path) -> None:
    ranks = start("if step == 6 and world.rank == 1: time.sleep(100)", 2, HPC_KIT_WATCHDOG="stop")
    deadline = time.monotonic() + 60
    while 124 not in [rank.poll() for rank in ranks] and time.monotonic() < deadline:
        time.sleep(0.1)
    (ended,) = [rank for rank in ranks if rank.returncode == 124]  # the launcher ends the second rank
    error = ended.communicate()[1]
    first = read_first_failure(run_folder)
    assert first is not None
    assert (first.rank, first.exit_code) == (1, 124)
    assert "rank 0 waits in train.py:11 in <module> (all_reduce) for rank 1 on " in first.reason
    assert "train.py:10 in <module>" in first.reason
    assert first.reason in error
    assert "hpc-kit stacks run" in error


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_stopped_rank_is_the_cause(start: Start, run_folder: Path) -> None:
    act = "if step == 6 and world.rank == 1: os.kill(os.getpid(), signal.SIGSTOP)"
    first, _ = start(act, 2, HPC_KIT_WATCHDOG="stop")
    assert "rank 1 does not answer: stopped, ended, or in C code" in first.communicate(timeout=60)[1]
    assert first.returncode == 124


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_without_the_action_stop_the_training_goes_on(start: Start, run_folder: Path) -> None:
    (rank,) = start("if step == 6: time.sleep(6)")
    out, err = rank.communicate(timeout=60)
    assert (rank.returncode, out) == (0, "done\n")
    assert "no step has ended for" in err
    assert "rank 0 is in train.py:10" in err


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "act",
    [
        "if step == 1: time.sleep(5)  # compilation",
        "if step == 6:\n    with hpc_kit.phase('evaluation'): time.sleep(5)",
        "time.sleep(3) if step in (4, 9) else None  # an unannounced evaluation",
    ],
    ids=["compilation", "evaluation", "gaps as before"],
)
def test_a_healthy_training_is_not_stopped(start: Start, run_folder: Path, act: str) -> None:
    (rank,) = start(act, HPC_KIT_WATCHDOG="stop", HPC_KIT_WATCHDOG_TIMEOUT="3.5" if "4, 9" in act else "2")
    out, err = rank.communicate(timeout=60)
    assert (rank.returncode, out, err) == (0, "done\n", "")
    assert read_stall(run_folder) is None


WORK = """
import torch
class SlowFile:
    def write(self, data): time.sleep(0.13); return len(data)  # 94 times: longer than 10 limits
    def flush(self): pass
def backend(*_):
    time.sleep(8)
    return lambda x: (x,)
file, model = SlowFile(), torch.nn.Linear(2, 2).eval()
model.register_forward_hook(lambda *_: time.sleep(0.5))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("act", "timeout"),
    [
        ("if step == 6 and world.rank == 0:\n    with hpc_kit.phase('evaluation'): time.sleep(8)", "2"),
        (
            WORK + "if step == 6 and world.rank == 0: torch.save({n: torch.zeros(n + 1) for n in range(12)}, file)",
            "0.8",
        ),
        (WORK + "if step == 6 and world.rank == 0:\n    for _ in range(16): model(torch.ones(2))", "2"),
        (WORK + "if step == 6 and world.rank == 0: torch.compile(torch.sin, backend=backend)(torch.ones(2))", "2"),
    ],
    ids=["announced evaluation", "save", "evaluation", "compilation"],
)
def test_ranks_may_wait_for_a_rank_at_long_work(start: Start, run_folder: Path, act: str, timeout: str) -> None:
    ranks = start(act, 2, HPC_KIT_WATCHDOG="stop", HPC_KIT_WATCHDOG_TIMEOUT=timeout)
    for rank in ranks:
        out, err = rank.communicate(timeout=200)
        assert (rank.returncode, out, err) == (0, "done\n", "")
    assert read_stall(run_folder) is None
    # The ranks have asked each other.
    assert (run_folder / "stacks" / "rank-0.json").exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "act",
    [
        "if step == 6:\n    SlowFile.write = lambda *_: time.sleep(500)\n    torch.save(model, SlowFile())",
        pytest.param("while step == 6: model(torch.ones(2))", marks=pytest.mark.slow),
    ],
    ids=["a blocked save", "an evaluation without an end"],
)
def test_a_hang_inside_long_work_is_reported_later(start: Start, run_folder: Path, act: str) -> None:
    (rank,) = start(WORK + act, HPC_KIT_WATCHDOG="stop", HPC_KIT_WATCHDOG_TIMEOUT="0.7")
    error = rank.communicate(timeout=100)[1]
    assert rank.returncode == 124
    assert 7 < float(error.partition("no step has ended for ")[2].split()[0]) < 60


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ranks_that_report_no_steps_are_compared_too(start: Start, run_folder: Path) -> None:
    act = "hpc_kit.progress = lambda *_, **__: None if world.rank else watchdog.progress(step)\n"
    ranks = start(act + "if step == 6 and world.rank == 1: time.sleep(100)", 2, HPC_KIT_WATCHDOG="stop")
    assert "rank 0 waits in train.py:12 in <module> (all_reduce) for rank 1 on " in ranks[0].communicate(timeout=60)[1]
    assert ranks[0].returncode == 124


@pytest.mark.timeout(120)
def test_a_stall_ends_the_job_also_if_the_run_folder_is_lost(start: Start, run_folder: Path) -> None:
    act = f"if step == 6: import shutil; shutil.rmtree({str(run_folder)!r}); time.sleep(100)"
    (rank,) = start(act, HPC_KIT_WATCHDOG="stop")
    error = rank.communicate(timeout=60)[1]
    assert rank.returncode == 124
    assert f"after step 5: {run_folder} cannot be written: No such file or directory" in error


@pytest.mark.parametrize(
    ("distribution", "host"), [("block", "n2"), ("cyclic", None)], ids=["as assumed", "not in this order"]
)
def test_the_host_of_a_silent_rank_is_named_only_if_the_other_ranks_confirm_the_order(
    distribution: str, host: str | None
) -> None:
    step = Step.of(2, 2, distribution=distribution)
    known = {rank: step.hosts[node] for rank, node in enumerate(step.placement[:2])}
    assert watchdog.expected_host(resolve(step.environ(0)), 2, known) == host
    assert watchdog.expected_host(resolve(Step.of(2, 1).environ(0)), 2, known) is None


def test_a_program_without_steps_gets_no_verdict() -> None:
    assert Progress().stalled_for(0.0) is None


def test_the_limit_follows_the_usual_step_and_the_longest_gap() -> None:
    progress = Progress()
    progress.seconds.extend([100.0] * 5)
    assert progress.limit(600) == 1000
    progress.longest = 2000
    assert progress.limit(600) == 4000


@pytest.mark.parametrize(
    ("stacks", "late"),
    [
        ([stack(0, "a:1", waits=True), stack(1, "a:9"), stack(2, "a:1", waits=True)], [1]),
        ([stack(0, "a:1", waits=True), stack(1, "a:9")], [1]),
        ([stack(0, "a:1"), stack(1, "a:1", step=5), stack(2, "a:1")], [1]),
        ([stack(0, "a:1"), stack(1, "a:2"), stack(2, "a:1")], [1]),
        ([stack(0, "a:1", waits=True), stack(1, "a:1", waits=True)], []),
        ([stack(0, "a:1", number=5), stack(1, "a:1", number=5, step=6), stack(2, "a:1", number=4)], [2]),
        ([stack(0, "a:1"), stack(1, "a:2")], []),
        ([stack(0, "a:1", waits=True), stack(1, "a:9"), stack(2, "a:1", waits=True)._replace(step=None)], [1]),
    ],
    ids=[
        "it does not wait",
        "of two",
        "fewer steps",
        "another line",
        "all in one collective",
        "fewer collectives",
        "undecided",
        "a rank without steps",
    ],
)
def test_the_late_rank_is_found_in_the_stacks(stacks: list[RankStack], late: list[int]) -> None:
    assert compare_stacks(stacks, len(stacks)).late == late


def test_a_verdict_without_a_late_rank_lists_the_location_of_all_ranks() -> None:
    verdict = compare_stacks([stack(rank, "a:1", waits=True) for rank in range(4)], 4)
    assert verdict.sentence == "ranks 0-3 are in a:1 (all_reduce)"


def test_ranks_in_different_collectives_are_shown_with_their_calls() -> None:
    stacks = [stack(rank, "a:1", waits=True, number=9) for rank in range(4)]
    stacks[2] = stacks[2]._replace(collectives={"gloo": (9, "broadcast of [8] Float")})
    verdict = compare_stacks(stacks, 4)
    assert verdict.late == [2]
    assert verdict.sentence == (
        "the ranks differ in collective 9 of gloo: "
        "ranks 0, 1, 3 in all_reduce of [8] Float; rank 2 in broadcast of [8] Float"
    )


def test_a_rank_whose_record_is_lost_is_not_late() -> None:
    stacks = [stack(rank, "a:1", waits=True, number=9) for rank in range(3)]
    stacks[1] = stacks[1]._replace(collectives={})
    assert compare_stacks(stacks, 3).late == []


def test_inputs_of_a_scatter_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"process_group": ["0", "default_pg"], "is_p2p": False, "collective_seq_id": 3, "input_dtypes": ["Float"]}
    found = []
    for call, shapes in (("scatter", [[2, 4]]), ("scatter", []), ("all_reduce", [[8]])):
        entries = {"entries": [{**entry, "profiling_name": f"gloo:{call}", "input_sizes": shapes}]}
        recorder = SimpleNamespace(_dump_fr_trace_json=lambda entries=entries: json.dumps(entries))
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
        found.append(latest_collectives())
    assert found == [{"gloo": (3, "scatter")}] * 2 + [{"gloo": (3, "all_reduce of [8] Float")}]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_flight_recorder_of_torch_shows_the_collective_of_each_rank(start: Start, run_folder: Path) -> None:
    ranks = start("if step == 6 and world.rank == 1: dist.broadcast(ones(2, 3), src=1)", 2, HPC_KIT_WATCHDOG="stop")
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    first = read_first_failure(run_folder)
    assert first is not None, errors
    assert "rank 0 in all_reduce of [1] Float; rank 1 in broadcast of [2, 3] Float" in first.reason


@pytest.mark.parametrize(
    "environ", [{"HPC_KIT_WATCHDOG": "kill"}, {"HPC_KIT_WATCHDOG_TIMEOUT": "soon"}, {"HPC_KIT_WATCHDOG_TIMEOUT": "0"}]
)
def test_settings_without_meaning_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        watchdog.read_settings(environ)


# Progress and stacks


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_progress_of_the_first_rank_of_a_node_is_noted(start: Start, run_folder: Path) -> None:
    for rank in start("time.sleep(0.02)", 2):
        assert rank.communicate(timeout=60)[0] == "done\n"
    progress = json.loads((run_folder / "progress-0.json").read_text())
    assert (progress["rank"], progress["step"], progress["total"]) == (0, 39, 40)
    assert progress["numbers"] == {"loss": 0.025}
    assert progress["losses"][0] == 1.0
    assert 0.01 < progress["seconds"] < 5
    assert [path.name for path in run_folder.glob("progress-*")] == ["progress-0.json"]


def test_the_training_may_note_a_new_figure_while_the_watchdog_reads_the_old_ones(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loss:  # as a tensor on a GPU: the training goes on while the watchdog waits for its value
        def __float__(self) -> float:
            watchdog.progress(7, accuracy=0.5)
            return 2.0

    monkeypatch.setattr(watchdog, "_progress", Progress())
    loss: Any = Loss()  # only its conversion to a number is used
    step: Any = np.int64(7)
    watchdog.progress(step, total=step, best=loss)
    its = watchdog.RankWatchdog(resolve({}), run_folder, action="report", shortest_stall=600.0)
    its._write_progress()
    its._node_notes.close()
    assert json.loads((run_folder / "progress-0.json").read_text())["numbers"] == {"best": 2.0}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nodes_that_only_the_meeting_shows_have_a_progress_of_their_own(start: Start, run_folder: Path) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [start("", RANK=str(rank), SLURMD_NODENAME=f"n{rank}", **address)[-1] for rank in range(2)]
    assert [rank.communicate(timeout=60) for rank in ranks] == [("done\n", "")] * 2
    progress = [json.loads((run_folder / f"progress-{node}.json").read_text()) for node in range(2)]
    assert [(each["rank"], each["host"]) for each in progress] == [(0, "n0"), (1, "n1")]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("act", "slow"),
    [("time.sleep(0.05 * world.rank)", [1]), ("time.sleep(0.05)", None)],
    ids=["a slow rank", "equal ranks"],
)
def test_the_slowest_rank_is_the_one_that_waits_least(
    start: Start, run_folder: Path, act: str, slow: list[int] | None
) -> None:
    for rank in start(act, 2):
        assert rank.communicate(timeout=60)[0] == "done\n"
    notes = json.loads((run_folder / "progress-0.json").read_text())["ranks"]
    assert set(notes) == {"0", "1"}
    assert all(note["step"] > 30 and 1 << 26 < note["memory"] < 1 << 34 for note in notes.values())
    slowest = find_slowest({int(rank): note["waits"] for rank, note in notes.items()}, {0: "n1", 1: "n1"})
    assert (slowest.ranks if slowest else None) == slow, notes


def test_ranks_of_a_node_send_their_notes_to_its_first_rank(run_folder: Path) -> None:
    first, second = (NodeNotes(run_folder, 0, is_first=is_first) for is_first in (True, False))
    second.add(1, {"step": 1})  # too early
    first.add(0, {"step": 2})
    assert first.collect() == {0: {"step": 2}}
    second.add(1, {"step": 2, "phase": "é" * 200})
    assert first.collect() == {0: {"step": 2}, 1: {"step": 2, "phase": "é" * 200}}
    other = NodeNotes(run_folder, 1, is_first=True)
    assert other.collect() == {}
    for notes in (first, other):
        notes.close()


def test_the_path_of_a_run_may_have_bytes_that_are_no_text(tmp_path: Path) -> None:
    NodeNotes(tmp_path / os.fsdecode(b"lat\xe9"), 0, is_first=True).close()


WAITING = """
import threading, time, torch
from hpc_kit.runtime import wait_sampler
wait_sampler.is_communicating = lambda *_: True

def sample():
    while not (waits := wait_sampler.is_waiting()) and time.monotonic() < end:
        time.sleep(0.01)
    print(waits)

end = time.monotonic() + 10
thread = threading.Thread(target=sample)
thread.start()
thread.join()
"""


def test_the_main_thread_of_a_forked_process_is_seen_waiting(tmp_path: Path) -> None:
    """Preloaded processes are forked ones."""
    assert preloaded.run(["-c", WAITING], tmp_path).stdout == "True\n"


def test_a_callback_of_the_program_inside_torch_is_no_wait() -> None:
    def stack_of(*files: str) -> Any:
        frame = None
        for file in files:
            frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=file), f_back=frame)
        return frame

    assert is_communicating(stack_of("/me/train.py", "/torch/_tensor.py", "/torch/autograd/graph.py"), "/torch")
    assert not is_communicating(stack_of("/me/train.py", "/torch/nn/parallel/distributed.py", "/me/model.py"), "/torch")
    assert not is_communicating(stack_of("/me/train.py", "/torch/utils/data/dataloader.py"), "/torch")


@pytest.mark.timeout(120)
def test_the_stacks_of_running_ranks_are_given_on_request(start: Start, run_folder: Path) -> None:
    ranks = start("if step == 3: time.sleep(world.rank * 100)", 2)
    deadline = time.monotonic() + 60
    while not (run_folder / "progress-0.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    waiting, sleeping = group_stacks(request_stacks(run_folder, 2, timeout=20))
    assert (waiting.ranks, sleeping.ranks) == ([0], [1])
    assert "dist.all_reduce(ones(1))" in waiting.traceback
    assert "time.sleep(world.rank * 100)" in sleeping.traceback
    (ahead,), (behind,) = waiting.collectives, sleeping.collectives
    assert int(ahead.split()[0]) == int(behind.split()[0]) + 1
    assert all(rank.poll() is None for rank in ranks)


@pytest.mark.timeout(120)
def test_a_watchdog_that_is_off_writes_nothing(start: Start, run_folder: Path) -> None:
    (rank,) = start("time.sleep(0.02)", HPC_KIT_WATCHDOG="off")
    assert rank.communicate(timeout=60)[0] == "done\n"
    assert list(run_folder.iterdir()) == []


def test_a_forked_process_notes_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog._progress, "pid", os.getpid() + 1)
    watchdog._progress.step = None
    watchdog.progress(3)
    assert watchdog._progress.step is None


def test_the_sampled_losses_cover_the_whole_training() -> None:
    progress = Progress()
    for step in range(1000):
        progress.note(step, None, {"loss": float(step)})
    assert len(progress.losses) < 41
    assert progress.losses == sorted(progress.losses)
    assert progress.losses[0] < 100
    assert progress.losses[-1] > 900
