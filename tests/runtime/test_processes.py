"""Ranks as real processes over gloo on the nodes 127.0.0.1, 127.0.0.2, ..., with srun's variables but without Slurm."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc_kit.run_files import UNKNOWN_HOST, read_first_failure
from hpc_kit.runtime import resolve
from hpc_kit.runtime.rendezvous import store
from tests.preloaded import Preloaded
from tests.runtime.launches import Environ, Step

pytestmark = pytest.mark.waits

NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
NUMBERS = itertools.count(os.getpid() * 1000 + 500)

ENDS_WITHIN = 15.0
"""Seconds until a job ends after a rank has failed, plus the import of torch on a busy machine."""

DISTRIBUTED = """
    import os, signal, sys
    import hpc_kit
    from torch import distributed as dist, ones
    with hpc_kit.distributed(timeout=float(os.environ.get("PATIENCE", "60"))) as world:
        numbers = ones(2)
        dist.all_reduce(numbers)
        FAIL
        dist.all_reduce(numbers)
        dist.all_reduce(numbers)
    sys.stdout.write(f"{world.rank} {world.local_rank} {world.node_rank} {numbers[0].item()}\\n")
"""

PLAIN = """
    import os, sys
    from torch import distributed as dist, ones
    FAIL
    dist.init_process_group("gloo")
    numbers = ones(2)
    dist.all_reduce(numbers)
    print(dist.get_rank(), numbers[0].item(), os.environ["LOCAL_RANK"])
"""

WITHOUT_COLLECTIVES = """
    import os, pathlib, time
    import hpc_kit
    from torch import distributed as dist
    from torch.distributed import distributed_c10d

    create, destroy = dist.init_process_group, dist.destroy_process_group
    created = pathlib.Path(os.environ["HPC_KIT_RUN"], "created")

    def create_late(*args, **kwargs):
        create(*args, **kwargs)
        if os.environ["SLURM_PROCID"] == "1":
            time.sleep(0.3)
            created.touch()

    def destroy_noted():
        print("late" if created.exists() else "early")
        destroy()

    distributed_c10d.init_process_group, dist.destroy_process_group = create_late, destroy_noted
    with hpc_kit.distributed():
        pass
"""

IN_A_ROW = """
    import os, time
    import hpc_kit
    from torch import distributed as dist, ones

    with hpc_kit.distributed(timeout=20):
        pass
    if os.environ["SLURM_PROCID"] == "1":
        time.sleep(0.3)
    with hpc_kit.distributed(timeout=20):
        numbers = ones(1)
        dist.all_reduce(numbers)
    print(numbers.item())
"""

IN_A_ROW_UNCHANGED = """
    import os, time
    from torch import distributed as dist, ones

    rank = int(os.environ["RANK"])
    for number in range(4):
        url = "tcp://" + os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"] if number == 1 else None
        dist.init_process_group("gloo", url, rank=rank, world_size=2)
        if rank == 0 and number == 0:
            try:
                dist.init_process_group("gloo")
            except ValueError:
                pass  # the group exists
        numbers = ones(1)
        dist.all_reduce(numbers)
        dist.destroy_process_group()
        if rank == number % 2:
            time.sleep(0.3)
    print(numbers.item())
"""

OWN_STORE = """
    import os
    from torch import distributed as dist

    dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, os.environ["RANK"] == "0")
"""

ACCELERATE = """
    from accelerate import Accelerator
    from torch import ones

    accelerator = Accelerator()
    numbers = accelerator.gather(ones(1))
    print(accelerator.process_index, accelerator.num_processes, numbers.sum().item())
"""

NO_GPU = "the program asks for the backend nccl, and this node has no GPU"

CAUGHT = """
    import sys
    from torch import distributed as dist

    try:
        dist.init_process_group("nccl")
    except Exception:
        if sys.argv[1:] == ["gloo"]:
            dist.init_process_group("gloo")
        elif sys.argv[1:] == ["alone"]:
            dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
"""

STOP_RANK_1 = "if world.rank == 1: os.kill(os.getpid(), signal.SIGSTOP)"

STOPPING = """
    import os, signal
    from datetime import timedelta
    from torch import distributed as dist, ones
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    dist.all_reduce(ones(2))
    if dist.get_rank() == int(os.environ["STOPPED"]): os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(ones(2))
"""

SPAWNING = """
    import os
    from torch import distributed as dist, multiprocessing, ones

    def work(rank, size):
        os.environ.setdefault("MASTER_ADDR", "localhost")
        os.environ.setdefault("MASTER_PORT", "29500")
        dist.init_process_group("gloo", rank=rank, world_size=size)
        numbers = ones(1)
        dist.all_reduce(numbers)
        print(f"{rank} of {size}: {numbers.item()}\\n", end="", flush=True)
        dist.destroy_process_group()

    if __name__ == "__main__":
        multiprocessing.spawn(work, args=(2,), nprocs=2)
        dist.init_process_group("gloo")
        print(f"alone: {dist.get_world_size()}\\n", end="", flush=True)
        dist.destroy_process_group()
"""


@dataclass
class Task:
    """A task of a step."""

    process: subprocess.Popen[str] | Preloaded
    out: str = ""
    err: str = ""


class Launch:
    """Starts the tasks of a step, and kills them at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.run.mkdir()
        self.tasks: list[Task] = []

    def program(self, text: str, fail: str = "pass") -> str:
        """Write a program with this text and the code by which one rank fails."""
        path = self.folder / "train.py"
        path.write_text(textwrap.dedent(text).replace("FAIL", fail))
        return str(path)

    def start(self, environs: Sequence[Environ], *words: str, **variables: str) -> None:
        """Start one task per environment, as the ranks of one run. They have imported torch already."""
        for environ in self._environs(environs, variables):
            output = self.folder / f"task-{len(self.tasks)}"
            self.tasks.append(Task(Preloaded(["-W", "error", *words], environ, Path.cwd(), output)))

    def start_interpreters(self, environs: Sequence[Environ], *words: str, **variables: str) -> None:
        """As `start`, but with new interpreters, for tests of the import of torch and of programs that torch starts."""
        for environ in self._environs(environs, variables):
            process = subprocess.Popen(
                [sys.executable, "-W", "error", *words],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self.tasks.append(Task(process))

    def _environs(self, environs: Sequence[Environ], variables: Mapping[str, str]) -> list[Environ]:
        common = os.environ | {"HPC_KIT_RUN": str(self.run), "OMP_NUM_THREADS": "1", **variables}
        return [common | environ for environ in environs]

    def wait(self, timeout: float = 120) -> list[int]:
        """Wait for all tasks, and return their exit codes."""
        deadline = time.monotonic() + timeout
        for task in self.tasks:
            task.out, task.err = task.process.communicate(timeout=deadline - time.monotonic())
        return [task.process.wait() for task in self.tasks]

    def end(self) -> None:
        """Kill all processes."""
        for task in self.tasks:
            try:
                os.killpg(task.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for task in self.tasks:
            task.process.communicate()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    found = Launch(tmp_path)
    yield found
    found.end()


def step_of(*tasks: int) -> Step:
    """Return a step of a new job."""
    return Step.of(*tasks, hosts=NODES[: len(tasks)], job=str(next(NUMBERS)))


def test_ranks_on_two_nodes_meet_despite_a_busy_port(launch: Launch) -> None:
    step = step_of(2, 1)
    first = store.candidate_ports(resolve(step.environ(0)).key)[0]
    with socket.create_server(("", first)):
        launch.start(step.environs(), launch.program(DISTRIBUTED))
        assert launch.wait() == [0, 0, 0]
    assert [task.out for task in launch.tasks] == ["0 0 0 27.0\n", "1 1 0 27.0\n", "2 0 1 27.0\n"]
    assert [task.err for task in launch.tasks] == [""] * 3


@pytest.mark.slow
def test_no_rank_destroys_its_group_before_all_have_created_theirs(launch: Launch) -> None:
    launch.start(step_of(2).environs(), launch.program(WITHOUT_COLLECTIVES))
    assert launch.wait() == [0, 0]
    assert [task.out for task in launch.tasks] == ["late\n"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("program", [IN_A_ROW, IN_A_ROW_UNCHANGED], ids=["distributed", "init_process_group"])
def test_process_groups_can_follow_one_another(launch: Launch, program: str) -> None:
    launch.start(step_of(2).environs(), "-m", "hpc_kit.runtime", launch.program(program))
    assert launch.wait() == [0, 0]
    assert [task.out for task in launch.tasks] == ["2.0\n"] * 2


@pytest.mark.parametrize(
    ("fail", "code", "words"),
    [
        # As from a data loader that lost its server: the message is also that of a rank that lost another one.
        (
            "if world.rank == 2: raise ConnectionResetError(104, 'Connection reset by peer')",
            1,
            ["ConnectionResetError: [Errno 104] Connection reset by peer"],
        ),
        ("if world.rank == 2: sys.exit(3)", 3, []),
    ],
)
def test_a_rank_that_fails_in_its_group_is_named_and_all_end(
    launch: Launch, fail: str, code: int, words: list[str]
) -> None:
    launch.start(step_of(2, 1).environs(), launch.program(DISTRIBUTED, fail))
    codes = launch.wait()
    assert codes[2] == code
    assert 0 not in codes
    first = read_first_failure(launch.run)
    assert first is not None
    assert (first.rank, first.host, first.exit_code) == (2, "127.0.0.2", code)
    assert [line for line in launch.tasks[2].err.splitlines() if "Error: " in line] == words


def test_a_killed_rank_ends_all_ranks(launch: Launch) -> None:
    fail = "if world.rank == 1: os.kill(os.getpid(), signal.SIGKILL)"
    launch.start(step_of(1, 1).environs(), launch.program(DISTRIBUTED, fail))
    started = time.monotonic()
    while launch.tasks[1].process.poll() is None:
        assert time.monotonic() < started + 100
        time.sleep(0.05)
    killed = time.monotonic()
    assert launch.wait() == [1, -signal.SIGKILL]
    assert time.monotonic() - killed < ENDS_WITHIN


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [2, 0])
def test_a_stopped_rank_is_the_cause_and_not_a_rank_that_waited_for_it(launch: Launch, stopped: int) -> None:
    words = ("-m", "hpc_kit.runtime", launch.program(STOPPING))
    launch.start(step_of(2, 1).environs(), *words, STOPPED=str(stopped))
    for rank, task in enumerate(launch.tasks):
        if rank != stopped:
            assert task.process.wait(100) == 1
    first = read_first_failure(launch.run)
    assert first is not None
    pid, node = launch.tasks[stopped].process.pid, NODES[stopped // 2]
    assert (first.rank, first.host, first.exit_code) == (stopped, node, 1)
    if stopped:
        # The names of the nodes exist only in the environment. Ranks 0 and 1 see rank 2 on another node.
        assert first.reason == "ranks 0, 1 waited for it in vain: it is stopped, late, hangs or has ended"
    else:
        assert first.reason.endswith("waited for it in vain: its store does not answer")
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_stopped_process_of_the_same_node_is_named_with_its_number(launch: Launch) -> None:
    launch.start(step_of(2).environs(), launch.program(DISTRIBUTED, STOP_RANK_1), PATIENCE="12")
    assert launch.tasks[0].process.wait(100) == 1
    first = read_first_failure(launch.run)
    assert first is not None
    state = f"its process {launch.tasks[1].process.pid} is stopped"
    assert (first.rank, first.reason) == (1, f"rank 0 waited for it in vain: {state}")


@pytest.mark.slow
def test_a_rank_that_has_ended_too_early_is_the_cause(launch: Launch) -> None:
    launch.start(step_of(2).environs(), launch.program(DISTRIBUTED, "if world.rank == 1: os._exit(0)"))
    assert launch.wait() == [1, 0]
    first = read_first_failure(launch.run)
    assert first is not None
    reason = f"rank 0 waited for it in vain: its process {launch.tasks[1].process.pid} has ended"
    assert (first.rank, first.reason) == (1, reason)


def test_a_rank_that_fails_before_the_group_is_named_with_only_its_traceback(launch: Launch) -> None:
    fail = "if os.environ['RANK'] == '1': raise OSError('no data')"
    launch.start(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", launch.program(PLAIN, fail))
    failed = launch.tasks[1]
    failed.out, failed.err = failed.process.communicate(timeout=100)
    assert failed.process.returncode == 1
    lines = failed.err.splitlines()
    assert lines[1] == f'  File "{launch.folder}/train.py", line 4, in <module>'
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "OSError: no data")
    assert failed.err.count("File ") == 1
    first = read_first_failure(launch.run)
    assert first is not None
    assert (first.rank, first.host, first.exit_code) == (1, "127.0.0.2", 1)


def test_a_missing_rank_is_named_within_the_timeout(launch: Launch) -> None:
    environs = step_of(1, 1).environs()
    launch.start(environs[:1], launch.program(DISTRIBUTED), PATIENCE="1")
    assert launch.wait() == [1]
    assert launch.tasks[0].err.startswith("hpc-kit: 1 of 2 ranks did not come within 1 s\n  found  not there: rank 1\n")


def free_port() -> str:
    """Return a port that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def plain_variables(master_addr: str = "127.0.0.1") -> list[Environ]:
    """Return torch's variables of two ranks, as a user sets them by hand."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": master_addr, "MASTER_PORT": free_port()}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **common} for rank in range(2)]


def test_plain_variables_start_an_unchanged_program(launch: Launch) -> None:
    launch.start(plain_variables(), "-m", "hpc_kit.runtime", launch.program(PLAIN))
    assert launch.wait() == [0, 0]
    assert [(task.out, task.err) for task in launch.tasks] == [("0 2.0 0\n", ""), ("1 2.0 1\n", "")]


@pytest.mark.parametrize("start", ["a Slurm step", "plain variables"])
def test_a_late_rank_is_named_before_an_unchanged_program_starts(launch: Launch, start: str) -> None:
    environs = step_of(1, 1).environs() if start == "a Slurm step" else plain_variables()
    program = launch.program("import torch; print('started')")
    launch.start(environs[:1], "-m", "hpc_kit.runtime", program, HPC_KIT_TIMEOUT="1")
    assert launch.wait() == [1]
    assert launch.tasks[0].out == ""
    assert launch.tasks[0].err.startswith("hpc-kit: 1 of 2 ranks did not come within 1 s\n  found  not there: rank 1\n")
    first = read_first_failure(launch.run)
    assert first is not None
    assert (first.rank, first.host) == (1, "127.0.0.2" if start == "a Slurm step" else UNKNOWN_HOST)
    assert first.reason == "it did not come to the meeting of the ranks within 1 s"


@pytest.mark.parametrize("start", ["a Slurm step", "plain variables"])
def test_a_late_rank_0_is_the_first_failure(launch: Launch, start: str) -> None:
    environs = step_of(1, 1).environs() if start == "a Slurm step" else plain_variables()
    launch.start(
        environs[1:], "-m", "hpc_kit.runtime", launch.program("import torch; print('started')"), HPC_KIT_TIMEOUT="1"
    )
    assert launch.wait() == [1]
    first = read_first_failure(launch.run)
    assert first is not None
    assert (first.rank, first.host) == (0, "127.0.0.1")
    assert first.reason == "it did not come to the meeting of the ranks within 1 s"


def test_a_late_agent_of_torchrun_is_the_first_failure(launch: Launch) -> None:
    words = (
        "-m",
        "hpc_kit.runtime.torchrun",
        "--nnodes=2",
        "--nproc-per-node=2",
        launch.program("import torch; print('started')"),
    )
    launch.start(step_of(1, 1).environs()[:1], *words, HPC_KIT_TIMEOUT="1")
    assert launch.wait() == [1]
    first = read_first_failure(launch.run)
    assert first is not None
    assert (first.rank, first.host) == (2, "127.0.0.2")


@pytest.mark.slow
def test_the_time_out_of_the_job_is_that_of_groups_of_an_unchanged_program(launch: Launch) -> None:
    """A stopped rank then ends the job after [launch] timeout instead of torch's 30 minutes."""
    code = """
import time
from datetime import timedelta
import torch.distributed as dist
dist.init_process_group("gloo")
own = dist.new_group(timeout=timedelta(seconds=77))
print([group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in (dist.group.WORLD, own)])
dist.destroy_process_group()
"""
    program = launch.program(f"import torch\n{code}")
    launch.start(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", program, HPC_KIT_TIMEOUT="25")
    assert launch.wait() == [0, 0]
    assert [task.out for task in launch.tasks] == ["[25.0, 77.0]\n"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("words", [["bash", "run.sh"], ["-m", "torch.distributed.run", "--nproc-per-node=2"]])
def test_each_task_makes_a_world_of_its_own_if_the_job_asks_for_it(launch: Launch, words: list[str]) -> None:
    code = "import os, sys; sys.stdout.write(os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE'] + '\\n')"
    program = launch.program(code)
    run = launch.folder / "run.sh"
    run.write_text(f"exec {shlex.quote(sys.executable)} -m torch.distributed.run --nproc-per-node=2 {program}\n")
    words = ["bash", str(run)] if words[0] == "bash" else [*words, program]
    launch.start(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", *words, HPC_KIT_LAUNCHER="torchrun")
    assert launch.wait() == [0, 0]
    assert [sorted(task.out.splitlines()) for task in launch.tasks] == [["0 of 2", "1 of 2"]] * 2


@pytest.mark.slow
def test_under_torchrun_a_late_rank_is_named_before_an_unchanged_program_starts(launch: Launch) -> None:
    late = "import os, sys, time, runpy; os.environ['RANK'] == '1' and time.sleep(600); "
    late += "sys.argv[1:] = [os.environ['PROGRAM']]; runpy.run_module('hpc_kit.runtime', run_name='__main__')"
    (launch.folder / "late.py").write_text(late)
    words = ("-m", "torch.distributed.run", "--nproc-per-node=2", str(launch.folder / "late.py"))
    launch.start([{}], *words, PROGRAM=launch.program("import torch; print('started')"), HPC_KIT_TIMEOUT="1")
    assert launch.wait() == [1]
    log = (launch.run / "rank-0.log").read_text()
    assert log.startswith("hpc-kit: 1 of 2 ranks did not come within 1 s\n  found  not there: rank 1\n")


@pytest.mark.parametrize("start", ["a Slurm step", pytest.param("plain variables", marks=pytest.mark.slow)])
def test_a_master_address_that_does_not_resolve_is_reported_in_time(launch: Launch, start: str) -> None:
    host = "no-such-host.invalid"
    step = Step.of(1, 1, hosts=(host, "127.0.0.2"), job=str(next(NUMBERS)))
    environs = step.environs() if start == "a Slurm step" else plain_variables(host)
    launch.start(
        environs[1:], "-m", "hpc_kit.runtime", launch.program("import torch; print('started')"), HPC_KIT_TIMEOUT="1"
    )
    assert launch.wait() == [1]
    assert launch.tasks[0].err.startswith(f"hpc-kit: the name {host} of rank 0's host does not resolve on ")
    assert f":  ADDRESS {host}   (its address on the network of the nodes);\n" in launch.tasks[0].err
    assert "firewall" not in launch.tasks[0].err


WITHOUT_TORCH = """
import os, sys
assert not {"torch", "hpc_kit.planner", "jinja2", "submitit"} & sys.modules.keys()
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
print(*(os.environ[name] for name in names), int(os.environ["MASTER_PORT"]) > 0)
"""


def test_ranks_without_torch_do_not_wait_for_each_other(launch: Launch) -> None:
    launch.start_interpreters(step_of(1, 1).environs()[1:], "-m", "hpc_kit.runtime", launch.program(WITHOUT_TORCH))
    assert launch.wait() == [0]
    assert (launch.tasks[0].out, launch.tasks[0].err) == ("1 2 0 127.0.0.1 True\n", "")


@pytest.mark.slow
def test_a_rank_that_imports_torch_does_not_wait_for_one_that_ended_without_it(launch: Launch) -> None:
    program = launch.program("import os\nif os.environ['RANK'] == '0':\n    import torch")
    launch.start_interpreters(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", program)
    assert launch.wait() == [1, 0]
    assert "rank 1 has ended without importing torch, and rank 0 imports it" in launch.tasks[0].err


LATE_TORCH = """
import multiprocessing, os, time
os.environ["MASTER_PORT"] = "set by the program"
if os.environ["RANK"] == "0":  # the import takes seconds
    if os.fork() == 0:
        import torch
        os._exit(0)
    assert os.wait()[1] == 0
import torch
import torch.distributed as dist
assert torch.__spec__.loader is torch.__loader__ and hasattr(torch.__loader__, "get_filename")
print(os.environ.pop("MASTER_PORT"), "TORCH_CPP_LOG_LEVEL" in os.environ)
import hpc_kit
with hpc_kit.distributed(backend="gloo") as world:
    print(world.rank, dist.get_world_size())
"""


@pytest.mark.slow
def test_ranks_meet_once_when_the_program_imports_torch(launch: Launch) -> None:
    launch.start_interpreters(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", launch.program(LATE_TORCH))
    assert launch.wait() == [0, 0]
    assert [task.out for task in launch.tasks] == [f"set by the program False\n{rank} 2\n" for rank in range(2)]


FORKED = """
import os, sys, time
if os.fork() == 0:
    if os.environ["RANK"] == "0": raise ValueError("in the child")
    sys.exit(0)
code = os.waitstatus_to_exitcode(os.wait()[1])
if os.environ["RANK"] == "1": time.sleep(2)
import torch.distributed as dist
if os.fork() == 0:
    sys.exit(3)
print(code, os.waitstatus_to_exitcode(os.wait()[1]))
dist.init_process_group("gloo")
if os.fork() == 0:
    sys.exit(4)  # does not wait for the threads of the group, which the rank alone has
os.wait()
"""


@pytest.mark.slow
def test_a_process_that_the_program_forks_is_no_rank(launch: Launch) -> None:
    launch.start(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", launch.program(FORKED))
    assert launch.wait() == [0, 0]
    assert [task.out for task in launch.tasks] == ["1 3\n", "0 3\n"]
    assert launch.tasks[0].err.count("ValueError: in the child") == 1
    assert read_first_failure(launch.run) is None


@pytest.mark.slow
def test_a_plain_program_runs_unchanged_in_the_store_of_rank_0(launch: Launch) -> None:
    launch.start_interpreters(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", launch.program(PLAIN))
    assert launch.wait() == [0, 0]
    assert [task.out for task in launch.tasks] == ["0 2.0 0\n", "1 2.0 0\n"]
    assert [task.err for task in launch.tasks] == ["", ""]


@pytest.mark.slow
def test_accelerate_joins_the_ranks_on_cpus(launch: Launch) -> None:
    """By itself it joins ranks on GPUs only, also under torchrun: each rank would train alone, without a message."""
    pytest.importorskip("accelerate")
    words = ("-W", "default", "-m", "hpc_kit.runtime", launch.program(ACCELERATE))
    launch.start_interpreters(step_of(2).environs(), *words)
    assert launch.wait() == [0, 0]
    assert [task.out for task in launch.tasks] == ["0 2 2.0\n", "1 2 2.0\n"]


@pytest.mark.slow
def test_a_program_with_one_rank_may_start_other_processes(launch: Launch) -> None:
    """As in torch's tutorials, also with the MASTER_PORT of the environment."""
    program = launch.program(SPAWNING)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}
    launch.start_interpreters([environ], "-m", "hpc_kit.runtime", program)
    assert launch.wait() == [0]
    assert sorted(launch.tasks[0].out.splitlines()) == ["0 of 2: 2.0", "1 of 2: 2.0", "alone: 1"]


@pytest.mark.slow
def test_a_program_that_opens_a_store_at_the_port_of_rank_0_gets_the_line_that_works(launch: Launch) -> None:
    program = launch.program(OWN_STORE)
    launch.start(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", program)
    assert launch.wait() == [1, 0]
    found = re.search(
        r"hpc-kit: the program opens a store at port \d+ \(MASTER_PORT\), where the store of rank 0 listens already\n"
        r"  do     start the program by (bash -c '.*'): hpc_kit then sets\n",
        launch.tasks[0].err,
    )
    assert found
    shell, option, line = shlex.split(found[1])
    assert line == f"exec python {program}"
    launch.tasks.clear()
    own_python = line.replace("python", shlex.quote(sys.executable), 1)
    launch.start(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", shell, option, own_python)
    assert launch.wait() == [0, 0]


@pytest.mark.parametrize("fallback", ["none", "alone"])
def test_a_program_without_a_process_group_ends_with_a_note(launch: Launch, fallback: str) -> None:
    program = launch.program(CAUGHT)
    launch.start(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", program, fallback)
    assert launch.wait() == [0, 0]
    note = (
        "hpc-kit: note: rank 0 of 2 has created no process group with other ranks\n"
        f"  found  the program caught SpecError from init_process_group: {NO_GPU}\n"
        "  do     --set launch.backend=gloo, which makes `python -m hpc_kit.runtime` replace it; or run on GPUs\n"
    )
    assert [task.err for task in launch.tasks] == [note, ""]


@pytest.mark.slow
def test_a_program_that_falls_back_to_gloo_or_runs_alone_gets_no_note(launch: Launch) -> None:
    program = launch.program(CAUGHT)
    launch.start(step_of(1, 1).environs(), "-m", "hpc_kit.runtime", program, "gloo")
    launch.start(step_of(1).environs(), "-m", "hpc_kit.runtime", program)
    assert launch.wait() == [0, 0, 0]
    assert [task.err for task in launch.tasks] == ["", "", ""]


@pytest.mark.slow
def test_torchrun_starts_ranks_with_separate_logs_and_ends_quietly(launch: Launch) -> None:
    words = ("-m", "hpc_kit.runtime.torchrun", "--nproc-per-node=2", launch.program(DISTRIBUTED))
    launch.start(step_of(1, 1).environs(), *words)
    assert launch.wait() == [0, 0]
    logs = {path.name: path.read_text() for path in launch.run.iterdir()}
    assert logs == {f"rank-{rank}.log": f"{rank} {rank % 2} {rank // 2} 64.0\n" for rank in range(4)}
    assert [(task.out, task.err) for task in launch.tasks] == [("", "")] * 2


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [("torchrun",), ("-m", "torch.distributed.run")])
def test_torchrun_in_every_task_of_a_node_is_refused_before_training(launch: Launch, torchrun: tuple[str, ...]) -> None:
    words = ("-m", "hpc_kit.runtime", *torchrun, launch.program("print('trained')"))
    launch.start(step_of(2, 2).environs(), *words)
    assert launch.wait() == [2] * 4
    for task in launch.tasks:
        assert task.out == ""
        assert task.err.startswith("hpc-kit: torchrun would be started 2 times on this node\n")


@pytest.mark.slow
def test_torchrun_in_one_task_a_node_becomes_one_world(launch: Launch) -> None:
    words = ("-m", "hpc_kit.runtime", "torchrun", "--nproc-per-node=2", launch.program(PLAIN))
    launch.start(step_of(1, 1).environs(), *words)
    assert launch.wait() == [0, 0]
    logs = [(launch.run / f"rank-{rank}.log").read_text() for rank in range(4)]
    assert logs == [f"{rank} 4.0 {rank % 2}\n" for rank in range(4)]


@pytest.mark.slow
def test_workers_of_separate_torchruns_in_one_step_are_refused(launch: Launch) -> None:
    words = ("-m", "torch.distributed.run", "--standalone", launch.program(DISTRIBUTED))
    launch.start(step_of(2).environs(), *words)
    assert 0 not in launch.wait()
    for task in launch.tasks:
        assert "two launchers claim this process" in task.err


@pytest.mark.slow
def test_torchrun_reports_a_failure_in_one_line_and_exits_with_its_code(launch: Launch) -> None:
    program = launch.program(DISTRIBUTED, "if world.rank == 1: sys.exit(3)")
    launch.start(step_of(1).environs(), "-m", "hpc_kit.runtime.torchrun", "--nproc-per-node=2", program)
    assert launch.wait() == [3]
    assert launch.tasks[0].err == "hpc-kit: rank 1 ended with exit code 3: see rank-1.log\n"
    first = read_first_failure(launch.run)
    assert first is not None
    assert (first.rank, first.exit_code) == (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "waiting"), [(0, "1-3"), (3, "0-2")])
def test_a_stopped_worker_of_torchrun_is_the_cause(launch: Launch, stopped: int, waiting: str) -> None:
    words = ("-m", "hpc_kit.runtime.torchrun", "--nproc-per-node=2", launch.program(STOPPING))
    launch.start(step_of(1, 1).environs(), *words, STOPPED=str(stopped))
    assert launch.wait() == [1, 1]
    first = read_first_failure(launch.run)
    assert first is not None
    assert (first.rank, first.host) == (stopped, NODES[stopped // 2])
    assert re.fullmatch(rf"ranks {waiting} waited for it in vain: its process \d+ is stopped", first.reason)


@pytest.mark.slow
def test_under_torchs_own_torchrun_a_program_meets_in_its_agents_store(launch: Launch) -> None:
    words = ("-m", "torch.distributed.run", "--nproc-per-node=2", launch.program(DISTRIBUTED))
    launch.start([{}], *words)
    assert launch.wait() == [0]
    assert sorted(launch.tasks[0].out.splitlines()) == ["0 0 0 8.0", "1 1 0 8.0"]
