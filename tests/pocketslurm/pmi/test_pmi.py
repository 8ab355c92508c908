"""`srun --mpi=pmi2`: the answers of Slurm 22.05.8, and programs with the MPICH of PyPI."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketslurm.errors import SettingsError
from pocketslurm.pmi.key_values import process_mapping
from pocketslurm.pmi.protocol import PMI2, Connection, ProtocolError
from pocketslurm.settings import settings_from_json
from tests.pocketslurm.conftest import Slurm
from tests.pocketslurm.pmi import pmi_talk
from tests.pocketslurm.running_job import RunningJob, StepOutput, start_job

CLIENT = Path(__file__).parent / "pmi_client.py"
ONE, TWO = "cmd=init pmi_version=1 pmi_subversion=1", "cmd=init pmi_version=2 pmi_subversion=0"


@pytest.fixture(scope="module")
def running_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """A job of four nodes."""
    yield from start_job(tmp_path_factory, "-N4", "-n8", gpus=0)


def send_requests(running_job: RunningJob, size: str, *requests: str) -> StepOutput:
    """Run a step whose tasks send these requests and print the answers."""
    return running_job.srun("--mpi=pmi2", *size.split(), sys.executable, str(CLIENT), *requests)


# The two versions on the wire


@pytest.mark.parametrize("talk", [pmi_talk.ONE, pmi_talk.TWO], ids=["PMI-1", "PMI-2"])
def test_requests_are_answered_as_by_slurm(running_job: RunningJob, talk: dict[str, str]) -> None:
    output = send_requests(running_job, "-N2 -n3", *talk)
    assert (output.status, output.err) == (0, [])
    assert output.out == sorted(f"{task} {reply}" for task in range(3) for reply in pmi_talk.answers(talk, task))


@pytest.mark.parametrize(("version", "request_"), [(ONE, "cmd=get_my_kvsname"), (TWO, "cmd=job-getid;")])
def test_the_worlds_name_is_the_steps(running_job: RunningJob, version: str, request_: str) -> None:
    output = send_requests(running_job, "-N1 -n1", version, request_, f"0:{request_}")
    assert len({*output.out}) == 2
    assert all(f"={running_job.job_id}." in line for line in output.out if "init" not in line)


def test_equal_steps_of_two_queues_have_different_worlds(make_slurm: Callable[..., Slurm]) -> None:
    """MPICH derives the names of its shared memory from it."""
    tell = ("srun", "--mpi=pmi2", "-n1", "bash", "-c", "echo $SLURM_JOB_ID.$SLURM_STEP_ID $PMI_JOBID")
    steps, names = zip(*(make_slurm().check_output(*tell).split() for _ in range(2)), strict=True)
    assert steps == ("1.0", "1.0")
    assert names[0] != names[1]


def test_an_attribute_belongs_to_its_node_and_can_be_waited_for(running_job: RunningJob) -> None:
    output = send_requests(
        running_job, "-N2 -n4", TWO,
        "1:cmd=info-getnodeattr;key=a;wait=TRUE;", "0:cmd=info-putnodeattr;key=a;value=1;", "cmd=kvs-fence;",
        "3:cmd=info-getnodeattr;key=a;wait=FALSE;",
    )  # fmt: skip
    assert [line for line in output.out if "nodeattr" in line] == [
        "0 35    cmd=info-putnodeattr-response;rc=0;",
        "1 54    cmd=info-getnodeattr-response;rc=0;found=TRUE;value=1;",
        "3 47    cmd=info-getnodeattr-response;rc=0;found=FALSE;",
    ]


@pytest.mark.parametrize(
    ("version", "unknown", "complaint"),
    [
        (ONE, "cmd=bogus", "invalid pmi1 command received: 'bogus'"),
        (ONE, "cmd=getbyidx idx=0", "pmi1 request of 'getbyidx' not supported"),
        (TWO, "cmd=bogus;", "invalid pmi2 command received: 'bogus'"),
        (TWO, "cmd=job-connect;jobid=1;", "pmi2 request of 'job-connect' not supported"),
    ],
)
def test_an_unknown_request_is_reported_and_not_answered(
    running_job: RunningJob, version: str, unknown: str, complaint: str
) -> None:
    after, output = ("cmd=put key=k", "cmd=put_result") if version == ONE else ("cmd=kvs-fence;", "kvs-fence-response")
    found = send_requests(running_job, "-N1 -n1", version, f"~{unknown}", after)
    assert any(output in line for line in found.out)
    assert (found.status, found.err) == (0, [f"slurmstepd: error: mpi/pmi2: {complaint}"])


@pytest.mark.parametrize(
    ("line", "code", "complaint"),
    [
        ("cmd=init pmi_version=3 pmi_subversion=0", "rc=-1 pmi_version=3", "unsupported PMI version: 3.0"),
        ("cmd=initx", "rc=1 pmi_version=2", "invalid PMI1 init command: `cmd=initx'"),
    ],
)
def test_a_version_that_is_not_known_is_refused(running_job: RunningJob, line: str, code: str, complaint: str) -> None:
    printed = [f"0 cmd=response_to_init {code} pmi_subversion=0"]
    assert send_requests(running_job, "-N1 -n1", line) == StepOutput(
        0, printed, [f"slurmstepd: error: mpi/pmi2: {complaint}"]
    )


@pytest.mark.parametrize(
    ("version", "request_", "reply"),
    [
        (ONE, "mcmd=spawn\\nnprocs=1\\nexecname=true\\ntotspawns=1\\nspawnssofar=1\\nendcmd", "cmd=spawn_result rc=1"),
        (TWO, "cmd=spawn;ncmds=1;preputcount=0;subcmd=true;maxprocs=1;argc=0;", "cmd=spawn-response;rc=14;errmsg="),
    ],
)
def test_no_tasks_are_spawned(running_job: RunningJob, version: str, request_: str, reply: str) -> None:
    output = send_requests(running_job, "-N1 -n1", version, request_)
    assert any(reply in line for line in output.out)
    assert "spawn failed: the embedded Slurm starts no tasks" in "".join(output.err)


@pytest.mark.parametrize(
    ("version", "request_", "reply"),
    [
        (ONE, "cmd=publish_name service=s port=p", "cmd=publish_result info=fail"),
        (ONE, "cmd=lookup_name service=s", "cmd=lookup_result info=fail"),
        (TWO, "cmd=name-lookup;name=s;", "cmd=name-lookup-response;rc=1;"),
        (TWO, "cmd=ring;ring-count=2;ring-left=L;ring-right=R;", "cmd=ring-response;rc=1;"),
    ],
)
def test_an_unsupported_request_is_reported_and_answered(
    running_job: RunningJob, version: str, request_: str, reply: str
) -> None:
    output = send_requests(running_job, "-N1 -n1", version, request_)
    assert any(reply in line for line in output.out)
    assert output.err[0].endswith("not supported")


@pytest.mark.parametrize(
    ("version", "aborts", "others"),
    [
        (ONE, "cmd=abort exitcode=3", "cmd=barrier_in"),
        (TWO, "cmd=abort;isworld=TRUE;msg=x;", "cmd=kvs-fence;"),
    ],
)
def test_an_abort_ends_the_step_as_slurm_ends_it(
    running_job: RunningJob, version: str, aborts: str, others: str
) -> None:
    output = send_requests(running_job, "-N2 -n2", version, f"0:{aborts}", others)
    assert output.status == 137
    assert any(line.startswith("srun: Job step aborted: Waiting up to ") for line in output.err)
    assert {"srun: error: n1: task 0: Killed", "srun: error: n2: task 1: Killed"} <= {*output.err}


def test_an_abort_of_less_than_the_world_ends_nothing(running_job: RunningJob) -> None:
    output = send_requests(running_job, "-N1 -n1", TWO, "~cmd=abort;isworld=FALSE;msg=x;", "cmd=finalize;")
    assert (output.status, output.out[-1], output.err) == (
        0,
        "0 cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0",
        [],
    )


def test_garbage_only_disconnects_its_writer(running_job: RunningJob) -> None:
    client = f"exec {shlex.quote(sys.executable)} {CLIENT} '{TWO}' 'cmd=job-getid;'"
    program = f"[ $PMI_RANK = 0 ] || {client}; echo '{TWO}' >&$PMI_FD; echo garbage >&$PMI_FD"
    output = running_job.srun("--mpi=pmi2", "-N2", "-n2", "bash", "-c", program)
    assert output.status == 0
    assert output.err == ["slurmstepd: error: mpi/pmi2: invalid length of a request: b'garbag'"]
    assert any("job-getid-response;rc=0" in line for line in output.out)


@pytest.mark.parametrize(
    ("version", "request_", "complaint"),
    [
        (ONE, "cmd=barrier_in\ncmd=barrier_in", "a task that waits at a barrier asks for another one"),
    ],
)
def test_a_malformed_request_closes_the_connection(
    running_job: RunningJob, version: str, request_: str, complaint: str
) -> None:
    header = "" if version == ONE else f"{len(request_):<6d}"
    program = f"trap '' PIPE; [ $PMI_RANK = 0 ] || exit 0; echo '{version}' >&$PMI_FD; head -c 10 <&$PMI_FD; "
    text = f"printf %s '{header}{request_}' >&$PMI_FD; echo >&$PMI_FD; cat <&$PMI_FD; true"
    output = running_job.srun("--mpi=pmi2", "-N2", "-n2", "bash", "-c", program + text)
    assert output.status == 0
    assert any(f"mpi/pmi2: {complaint}" in line for line in output.err)


LONG = """
import os
fd = int(os.environ["PMI_FD"])
def ask(text, size=0):
    rest = b"%-6d" % len(text) + text
    while rest:
        rest = rest[os.write(fd, rest):]
    found = os.read(fd, 999)
    while size and len(found) < 6 + size:
        found += os.read(fd, 1 << 20)
    return found
os.write(fd, b"cmd=init pmi_version=2 pmi_subversion=0\\n")
os.read(fd, 999)
ask(b"cmd=kvs-put;key=a;value=" + b"v" * 900000 + b";")
ask(b"cmd=kvs-fence;")
head = b"cmd=kvs-get-response;rc=0;found=TRUE;value="
print(len(ask(b"cmd=kvs-get;key=a;", len(head) + 900001)), ask(b"cmd=job-getid;")[6:28])
"""


def test_a_long_answer_arrives_complete(running_job: RunningJob) -> None:
    (running_job.folder / "long.py").write_text(LONG)
    output = running_job.srun("--mpi=pmi2", "-N1", "-n1", sys.executable, "long.py")
    assert (output.status, output.out) == (0, ["900050 b'cmd=job-getid-response'"])


def test_a_version_of_any_length_is_refused(running_job: RunningJob) -> None:
    output = send_requests(running_job, "-N1 -n1", "cmd=init pmi_version=" + "9" * 5000 + " pmi_subversion=0")
    assert (output.status, output.out) == (0, ["0 cmd=response_to_init rc=1 pmi_version=2 pmi_subversion=0"])


def test_a_task_that_could_not_be_launched_ends_those_that_would_wait_for_it(running_job: RunningJob) -> None:
    (running_job.folder / "out" / "1").mkdir(parents=True)
    output = running_job.srun(
        "--mpi=pmi2", "-N2", "-n2", "-o", "out/%t", sys.executable, str(CLIENT), ONE, "cmd=barrier_in"
    )
    assert output.status == 137
    assert "srun: error: task 1 launch failed: Slurmd could not connect IO" in output.err


def test_requests_come_in_any_pieces() -> None:
    wire = Connection()
    lines = b"cmd=a b=c\nmcmd=spawn\nx=y\nendcmd\ncmd=d\n"
    found = [each for byte in lines for each in wire.feed(bytes([byte]))]
    assert [each.text for each in found] == ["cmd=a b=c", "mcmd=spawn\nx=y", "cmd=d"]
    wire.version = PMI2
    found = [each for byte in b"8     cmd=a;b=6     cmd=c;" for each in wire.feed(bytes([byte]))]
    assert [(each.command, dict(each.values)) for each in found] == [("a", {"b": ""}), ("c", {})]
    with pytest.raises(ProtocolError):
        list(wire.feed(b"-1    "))


@pytest.mark.parametrize(
    ("tasks", "distribution", "shown"),
    [
        ([[0]], "block", "(0,1,1)"),
        ([[0, 1, 2, 3], [4], [5]], "block", "(0,1,4),(1,2,1)"),
        ([[0, 2, 3, 4], [1]], "cyclic", "(0,2,1),(0,1,1),(0,1,1),(0,1,1)"),
        ([[0, 1, 2, 4, 5, 6, 7], [3]], "plane", "(0,1,3),(1,1,1),(0,1,4)"),
        ([[0, 1, 4, 5, 6], [2], [3]], "plane", "(0,1,2),(1,2,1),(0,1,3)"),
    ],
)
def test_the_mapping_of_tasks_is_slurms(tasks: list[list[int]], distribution: str, shown: str) -> None:
    assert process_mapping(tasks, distribution) == f"(vector,{shown})"


# Variables and messages of srun


def test_tasks_have_the_plug_ins_variables(running_job: RunningJob) -> None:
    tell = ("bash", "-c", "echo $PMI_RANK $PMI_SIZE $SLURM_JOB_ID $SLURM_MPI_TYPE $(readlink /proc/self/fd/$PMI_FD)")
    output = running_job.srun("-N2", "-n3", "--mpi=pmi2", *tell)
    words = [line.split() for line in output.out]
    assert [each[:2] for each in words] == [[str(task), "3"] for task in range(3)]
    assert all(each[3] == "pmi2" and each[4].startswith("socket:") for each in words)
    assert len({each[4] for each in words}) == 3


def test_slurm_mpi_type_names_the_plugin_unless_it_is_none(running_job: RunningJob) -> None:
    tell = ("-N1", "-n1", "bash", "-c", "echo ${SLURM_MPI_TYPE-no} ${PMI_RANK-no}")
    assert running_job.srun(*tell, env={"SLURM_MPI_TYPE": "pmi2"}).out == ["pmi2 0"]
    assert running_job.srun("--mpi=none", *tell, env={"SLURM_MPI_TYPE": "pmi2"}).out == ["no no"]
    assert running_job.srun(*tell).out == ["no no"]


def test_the_plug_ins_are_listed_and_others_refused(running_job: RunningJob) -> None:
    assert running_job.srun("--mpi=list").out == ["\tnone", "\tpmi2", "MPI plugin types are..."]
    output = running_job.srun("--mpi=pmix", "true")
    assert output.status == 1
    assert "srun: error: cannot find mpi plugin for mpi/pmix" in output.err
    assert "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types" in output.err


def test_the_setting_mpi_default_chooses_the_plugin(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(mpi_default="pmi2")
    tell = ("sh", "-c", "echo ${SLURM_MPI_TYPE-no} ${PMI_SIZE-no}")
    assert slurm.check_output("srun", "-n2", *tell) == "pmi2 2\n" * 2
    assert slurm.check_output("srun", "-n2", "--mpi=none", *tell) == "no no\n" * 2
    assert "MpiDefault              = pmi2\n" in slurm.check_output("scontrol", "show", "config")
    with pytest.raises(SettingsError):
        settings_from_json('{"mpi_default": 3}', Path("slurm.json"))


def test_pmix_means_pmi2_unless_strict(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(strict=False)
    output = slurm.check_output("srun", "-N2", "-n2", "--mpi=pmix", "sh", "-c", "echo $PMI_SIZE $SLURM_MPI_TYPE")
    assert output == "2 pmix\n" * 2


# MPICH


MPICH = pytest.mark.skipif(
    not Path(sys.prefix, "lib", "libmpi.so.12").exists(), reason="needs MPICH's wheel (pip install mpich)"
)

HELLO = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
names = set(node.allgather(os.environ["SLURMD_NODENAME"]))
print(world.rank, world.size, world.allreduce(world.rank + 1), node.size, *names, flush=True)
assert MPI.Get_processor_name()
"""

LEAVES = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
if world.rank == 1:
    {}
while not os.path.exists("gone"):
    world.Iprobe()
print("goes on", flush=True)
os._exit(0)
"""


def program(running_job: RunningJob, text: str) -> tuple[str, str]:
    """The words that run a program."""
    (running_job.folder / "program.py").write_text(text)
    return sys.executable, "program.py"


@MPICH
def test_mpi4py_makes_one_world_on_the_virtual_nodes(running_job: RunningJob) -> None:
    output = running_job.srun("--mpi=pmi2", "-N2", "-n4", *program(running_job, HELLO))
    assert output == StepOutput(0, ["0 4 10 3 n1", "1 4 10 3 n1", "2 4 10 3 n1", "3 4 10 1 n2"], [])


@MPICH
def test_without_pmi_each_task_is_its_own_world(running_job: RunningJob) -> None:
    assert running_job.srun("-N2", "-n2", *program(running_job, HELLO)).out == ["0 1 1 1 n1", "0 1 1 1 n2"]


@MPICH
def test_parallel_steps_are_separate_worlds(running_job: RunningJob) -> None:
    words = program(running_job, HELLO.replace("print(", 'world.Barrier(); print(os.environ["SLURM_STEP_ID"] > "", '))
    options = ("--mpi=pmi2", "--exact", "-N2", "-n2")
    steps = [running_job.start(*options, *words) for _ in range(2)]
    for step in steps:
        output = running_job.end(step)
        assert (output.status, [line[:8] for line in output.out]) == (0, ["True 0 2", "True 1 2"])


@MPICH
def test_mpi_abort_ends_the_step(running_job: RunningJob) -> None:
    output = running_job.srun("--mpi=pmi2", "-N2", "-n2", *program(running_job, LEAVES.format("world.Abort(7)")))
    assert output.status == 137
    assert any("application called MPI_Abort(MPI_COMM_WORLD, 7)" in line for line in output.err)
    assert "srun: error: n1: task 0: Killed" in output.err


@MPICH
@pytest.mark.parametrize(
    ("leaves", "status", "printed"),
    [
        ("open('gone', 'w'); os._exit(0)", 0, []),
        ("open('gone', 'w'); os._exit(3)", 3, ["srun: error: n2: task 1: Exited with exit code 3"]),
    ],
)
def test_a_rank_that_exits_without_finalize_ends_alone(
    running_job: RunningJob, leaves: str, status: int, printed: list[str]
) -> None:
    (running_job.folder / "gone").unlink(missing_ok=True)
    output = running_job.srun("--mpi=pmi2", "-N2", "-n2", *program(running_job, LEAVES.format(leaves)))
    assert output == StepOutput(status, ["goes on"], printed)


@MPICH
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_program_of_torch_is_one_world(make_slurm: Callable[..., Slurm]) -> None:
    running_job = RunningJob(make_slurm(nodes="127.0.0.[1-4]"), "-N2", "-n2")
    text = """
import torch, torch.distributed as dist
for backend in ("gloo", "mpi"):
    dist.init_process_group(backend)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(dist.get_backend(), dist.get_rank(), ones.item(), flush=True)
    dist.destroy_process_group()
"""
    python, file = program(running_job, text)
    environ = {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    process = running_job.start("--mpi=pmi2", "-N2", "-n2", python, "-m", "hpc_kit.runtime", file, env=environ)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["gloo 0 2.0", "gloo 1 2.0", "mpi 0 2.0", "mpi 1 2.0"]
