"""squeue, sacct, scontrol and sinfo: columns, headings, filters and refused options."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from hpc_kit.slurm.job_status import parse_scontrol_job
from pocketslurm.settings import Partition
from tests.pocketslurm.conftest import Slurm, wait_for

NO_ENTITY = """No valid entity in update command
Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"
"""
SUSPEND = "scontrol: suspend is not supported by the embedded Slurm: scancel --signal=STOP stops the tasks of a job\n"
NO_ITERATION = """\
squeue: option '--iterate' is not supported by the embedded Slurm: run it in a loop, or with watch
Try "squeue --help" for more information
"""
JOB_FIELDS = {
    "account", "allocation_nodes", "array", "association", "cluster", "comment", "constraints", "container",
    "derived_exit_code", "exit_code", "flags", "group", "het", "job_id", "kill_request_user", "mcs", "name", "nodes",
    "partition", "priority", "qos", "required", "reservation", "state", "steps", "time", "tres", "user", "wckey",
    "working_directory",
}  # fmt: skip
STEP_FIELDS = {
    "CPU", "exit_code", "kill_request_user", "nodes", "pid", "state", "statistics", "step", "task", "tasks", "time",
    "tres",
}  # fmt: skip
"""The fields of a job and of a step. Source: parse_job and parse_job_step of openapi/dbv0.0.38 in Slurm 22.05."""
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"


def fill(slurm: Slurm) -> Slurm:
    """Three jobs: one that runs on two nodes, one that depends on it, and one that is held; and a failed one."""
    running = slurm.submit("sleep 600", "-J", "runner", "-N2", "-n3", "-t", "10", "--mem=200", "--comment=some words")
    slurm.until(running, "RUNNING")
    slurm.submit("true", "-J", "a-long-name", f"--dependency=afterany:{running}", "-c2", "-x", "n2")
    slurm.submit("true", "-J", "held", "--hold", "-N1-3", "--account=abc", "--wckey=trials")
    slurm.ended(slurm.submit("exit 3", "-J", "bad"))
    wait_for(lambda: "(Dependency)" in slurm.check_output("squeue"))
    return slurm


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A filled queue for all tests that only look at it."""
    slurm = Slurm(tmp_path_factory.mktemp("queue"), gpus=0)
    yield fill(slurm)
    slurm.clear()


def test_squeue_and_sacct_as_json(queue: Slurm) -> None:
    jobs = json.loads(queue.check_output("squeue", "--json"))["jobs"]
    assert {job["job_id"]: (job["name"], job["job_state"], job["nodes"], job["time_limit"]) for job in jobs} == {
        1: ("runner", "RUNNING", "n[1-2]", 10),
        2: ("a-long-name", "PENDING", "", None),
        3: ("held", "PENDING", "", None),
    }
    (job,) = json.loads(queue.check_output("sacct", "--json", "-j", "4"))["jobs"]
    assert (job["job_id"], job["name"], job["state"]["current"]) == (4, "bad", "FAILED")
    assert job["exit_code"] == {"status": "ERROR", "return_code": 3}
    assert [(step["step"]["id"], step["state"]) for step in job["steps"]] == [("batch", "FAILED")]


def test_json_has_the_fields_of_openapi_0_0_38(queue: Slurm) -> None:
    """Programs that read a field without a default fail if it is missing, such as slurm-jobmanager with `group`."""
    (job,) = json.loads(queue.check_output("sacct", "--json", "-j", "1"))["jobs"]
    assert job.keys() == JOB_FIELDS
    owner = queue.job(1)
    assert (job["group"], job["association"]["user"]) == (owner.group, owner.user)
    assert job["required"] == {"CPUs": 3, "memory": 200}
    assert job["comment"]["job"] == "some words"
    assert [(tres["type"], tres["count"]) for tres in job["tres"]["allocated"]] == [
        ("cpu", 3), ("mem", 400), ("node", 2), ("billing", 3),
    ]  # fmt: skip
    assert job["time"].keys() == {
        "elapsed", "eligible", "end", "limit", "start", "submission", "suspended", "system", "total", "user",
    }  # fmt: skip
    (step,) = job["steps"]
    assert step.keys() == STEP_FIELDS
    assert (step["nodes"], step["tasks"]) == ({"count": 1, "list": ["n1"], "range": "n1"}, {"count": 1})
    (job,) = json.loads(queue.check_output("squeue", "--json", "-j", "3"))["jobs"]
    assert (job["account"], job["wckey"], job["group_id"], job["batch_host"]) == ("abc", "trials", owner.gid, "")


def test_memory_in_json_is_in_mebibytes(slurm: Slurm) -> None:
    """1536 MiB are `1.50G` in the columns."""
    job_id = slurm.submit("true", "--hold", "--mem=1536")
    (job,) = json.loads(slurm.check_output("sacct", "--json", "-j", str(job_id)))["jobs"]
    assert {tres["type"]: tres["count"] for tres in job["tres"]["requested"]}["mem"] == 1536
    assert (job["tres"]["allocated"], job["steps"]) == ([], [])


def test_the_output_of_squeue(queue: Slurm) -> None:
    user = queue.job(1).user[:8]
    output = re.sub(r"\d:\d\d", "0:02", queue.check_output("squeue"))
    assert output == (
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        f"                 2     local a-long-n {user:>8} PD       0:02      1 (Dependency)\n"
        f"                 3     local     held {user:>8} PD       0:02      1 (JobHeldUser)\n"
        f"                 1     local   runner {user:>8}  R       0:02      2 n[1-2]\n"
    )
    long = queue.check_output("squeue", "-l").splitlines()
    assert re.fullmatch(r"\w{3} \w{3} \d\d \d\d:\d\d:\d\d \d{4}", long[0])
    assert (
        long[1]
        == "             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES NODELIST(REASON)"
    )
    assert "PENDING       0:00 UNLIMITED      1 (Dependency)" in long[2]


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (("-h", "-o", "%i %t"), "2 PD\n3 PD\n1 R\n"),
        (("-h", "-o", "%.4i|%-3t|%.2j"), "   2|PD |a-\n   3|PD |he\n   1|R  |ru\n"),
        (("-h", "-j", "1", "-o", "%A %F %j %T %D %C %l %N %R %r %P %K %E %m %k"), None),
        (("-o", "x%iy", "-j", "1"), "xJOBIDy\nx1y\n"),
        (("-h", "-t", "F", "-o", "%i %T %r"), "4 FAILED NonZeroExitCode\n"),
        (("-h", "-t", "all", "-S", "i", "-o", "%i"), "1\n2\n3\n4\n"),
        (("-h", "-t", "PD,R", "-S", "-i", "-o", "%i"), "3\n2\n1\n"),
        (("-h", "-n", "runner,held", "-S", "i", "-o", "%i"), "1\n3\n"),
        (("-h", "-A", "abc", "-o", "%i"), "3\n"),
        (("-h", "-w", "n2", "-o", "%i"), "1\n"),
        (("-h", "-p", "nope"), ""),
        (("-h", "-u", "root", "-o", "%i", "-n", "none"), ""),
        (("-h", "-j", "1,77", "-o", "%i"), "1\n"),
        (("-h", "-j", "4"), ""),
        (("-h", "--me", "-t", "R", "-O", "jobid:4,name:10,state"), "1   runner    RUNNING             \n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_columns_and_filters_of_squeue(queue: Slurm, argv: tuple[str, ...], output: str | None) -> None:
    if output is None:
        output = "1 1 runner RUNNING 2 3 10:00 n[1-2] n[1-2] None local N/A (null) 200M some words\n"
    argv = tuple(word.replace("%-3t", "%3t") for word in argv)
    assert queue.check_output("squeue", *argv) == output


def test_an_unknown_node_or_partition_is_reported_on_stdout(slurm: Slurm) -> None:
    for kind, name in (("node", "n9"), ("partition", "foo")):
        done = slurm.run("scontrol", "show", kind, name)
        assert (done.returncode, done.stdout, done.stderr) == (1, f"{kind.title()} {name} not found\n", "")


def test_every_column_of_squeue_has_a_value(queue: Slurm) -> None:
    from pocketslurm.listings.squeue_columns import BY_LETTER, BY_NAME

    assert (
        len(queue.check_output("squeue", "-h", "-o", "".join(f"%{letter} " for letter in BY_LETTER)).splitlines()) == 3
    )
    assert len(queue.check_output("squeue", "-h", "-O", ",".join(BY_NAME)).splitlines()) == 3


def test_variables_of_squeue(queue: Slurm) -> None:
    assert queue.check_output("squeue", "-h", env={"SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "R"}) == "1\n"
    assert queue.check_output("squeue", "-h", "-o", "%t", "-t", "F", env={"SQUEUE_FORMAT": "%i"}) == "F\n"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("-j", "99999"), "slurm_load_jobs error: Invalid job id specified\n"),
        (("-j", "abc"), "squeue: error: Invalid job id: abc\n"),
        (("-w", "nowhere"), "squeue: error: Invalid node name nowhere\n"),
        (("--iterate=1",), NO_ITERATION),
        (("--foo",), "squeue: unrecognized option '--foo'\nTry \"squeue --help\" for more information\n"),
        (("-Y",), "squeue: invalid option -- 'Y'\nTry \"squeue --help\" for more information\n"),
        (("-t",), "squeue: option requires an argument -- 't'\nTry \"squeue --help\" for more information\n"),
        (("--user",), "squeue: option '--user' requires an argument\nTry \"squeue --help\" for more information\n"),
        (("extra",), "squeue: error: Unrecognized option: extra\n"),
    ],
)
def test_squeue_refuses_wrong_options(slurm: Slurm, argv: tuple[str, ...], complaint: str) -> None:
    assert slurm.refused("squeue", *argv) == (1, complaint)


def test_squeue_shows_the_known_columns_and_reports_unknown_ones(slurm: Slurm) -> None:
    """As Slurm does, which ends with 0: a format for another release's fields goes on working."""
    job_id = slurm.submit("true", "--hold", "-J", "held")
    for argv, shown, complaint in (
        (("-o", "%j %? %i"), f"held %? {job_id}\n", "Invalid job format specification: ?\n"),
        (("-O", "Name:5,NoSuch,jobid:3"), f"held {job_id:<3}\n", "Invalid job format specification: NoSuch\n"),
        (("-u", "nobody-of-that-name", "-o", "%j"), "", "Invalid user: nobody-of-that-name\n\n"),
    ):
        done = slurm.run("squeue", "-h", *argv)
        assert (done.returncode, done.stdout, done.stderr) == (0, shown, f"squeue: error: {complaint}")
    assert slurm.check_output("squeue", "-h", "-j", "") == slurm.check_output("squeue", "-h", "-t", "") == ""
    assert slurm.run("squeue", "-S", "nosuch").stderr == "squeue: error: Invalid sort specification: s\n"


def test_an_unknown_state_is_refused_with_a_list_of_states(slurm: Slurm) -> None:
    _, complaint = slurm.refused("squeue", "-t", "foo")
    assert complaint.startswith("squeue: error: Invalid job state specified: foo\n")
    assert "PENDING,RUNNING,SUSPENDED,COMPLETED,CANCELLED,FAILED,TIMEOUT," in complaint


def test_sacct_without_columns_prints_blank_lines(queue: Slurm) -> None:
    count = len(queue.check_output("sacct", "-n").splitlines())
    assert queue.check_output("sacct", "-o", "") == "\n" * (2 + count)


def test_the_output_of_sacct(queue: Slurm) -> None:
    assert queue.check_output("sacct") == (
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n"
        "------------ ---------- ---------- ---------- ---------- ---------- -------- \n"
        "1                runner      local                     3    RUNNING      0:0 \n"
        "1.batch           batch                                2    RUNNING      0:0 \n"
        "2            a-long-na+      local                     2    PENDING      0:0 \n"
        "3                  held      local        abc          1    PENDING      0:0 \n"
        "4                   bad      local                     1     FAILED      3:0 \n"
        "4.batch           batch                                1     FAILED      3:0 \n"
    )


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (("-nXP", "-o", "jobid,state"), "1|RUNNING\n2|PENDING\n3|PENDING\n4|FAILED\n"),
        (("-np", "-j", "4", "-o", "JobID,JobIDRaw"), "4|4|\n4.batch|4.batch|\n"),
        (("-P", "-j", "4", "-X", "-o", "jobid,exit"), "JobID|ExitCode\n4|3:0\n"),
        (("-nX", "-j", "2", "-o", "jobid%-5,jobname%4"), "2     a-l+ \n"),
        (("-n", "-P", "-j", "4.batch", "-o", "jobid"), "4.batch\n"),
        (("-nXP", "-s", "F,CA", "-o", "jobid"), "4\n"),
        (("-nXP", "--name", "held", "-o", "jobid"), "3\n"),
        (("-nXP", "--wckeys=other,trials", "-o", "jobid,wckey"), "3|trials\n"),
        (("-nXP", "-N", "n2", "-o", "jobid"), "1\n"),
        (("-nXP", "-S", "now+1hour", "-o", "jobid"), "1\n2\n3\n"),
        (("-nXP", "-E", "2001-01-01", "-S", "2000-01-01", "-o", "jobid"), ""),
        (("-nP", "-j", "99999"), ""),
        (("-nb", "-j", "4", "-X"), "4                FAILED      3:0 \n"),
        (("-nXP", "-j", "1", "--units=G", "-o", "ReqMem,AllocTRES"), "0.39G|billing=3,cpu=3,mem=0.39G,node=2\n"),
        (("-nXP", "-j", "1", "--units=k", "-o", "ReqMem,ReqTRES"), "409600K|billing=3,cpu=3,mem=409600K,node=2\n"),
        (("-nXP", "-j", "1", "--noconvert", "-o", "ReqMem"), "400M\n"),
        (("-nXP", "--delimiter=;", "-j", "1", "-o", "ReqMem,NNodes,NodeList,Timelimit,AllocTRES"), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_columns_and_filters_of_sacct(queue: Slurm, argv: tuple[str, ...], output: str | None) -> None:
    expected = "400M;2;n[1-2];00:10:00;billing=3,cpu=3,mem=400M,node=2\n" if output is None else output
    assert queue.check_output("sacct", *argv) == expected


def test_all_columns_at_once(queue: Slurm) -> None:
    heads, row = queue.check_output("squeue", "-o", "%all", "-j", "1").splitlines()
    shown = dict(zip(heads.split("|"), row.split("|"), strict=True))
    assert (shown["NAME"], shown["JOBID"], shown["STATE"], shown["NODELIST"]) == ("runner", "1", "RUNNING", "n[1-2]")
    heads, *rows = queue.check_output("sinfo", "-n", "n3", "-o", "%all").splitlines()
    assert [dict(zip(heads.split("|"), row.split("|"), strict=True))["NODELIST "] for row in rows] == ["n3 "]
    assert queue.check_output("sinfo", "-n", "n3", "-O", "all").splitlines()[0] == heads


def test_the_long_listing_of_sacct(queue: Slurm) -> None:
    heads, row = (line.split("|") for line in queue.check_output("sacct", "-lXP", "-j", "4").splitlines())
    shown = dict(zip(heads, row, strict=True))
    assert len(heads) == 54
    assert heads[-1] == "TRESUsageOutTot"
    assert (shown["JobID"], shown["State"], shown["ExitCode"], shown["AllocCPUS"]) == ("4", "FAILED", "3:0", "1")


def test_every_column_of_sacct_has_a_value(queue: Slurm) -> None:
    from pocketslurm.listings.sacct_columns import NAMES

    lines = queue.check_output("sacct", "-P", "-o", "ALL").splitlines()
    assert lines[0].split("|") == NAMES
    assert {line.count("|") for line in lines} == {len(NAMES) - 1}
    assert queue.check_output("sacct", "-e").split() == NAMES


@pytest.mark.parametrize(
    ("columns", "shown"),
    [("JobID,State,", "JobID|State"), ("JobID,,State", "JobID"), ("JobID, State", "JobID|State")],
)
def test_an_empty_name_ends_the_columns_of_sacct(queue: Slurm, columns: str, shown: str) -> None:
    assert queue.check_output("sacct", "-P", "-j", "1", "-X", "-o", columns).splitlines()[0] == shown


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("-j", "abc"), "sacct: fatal: Bad job/step specified: abc\n"),
        (("-o", "foo"), 'sacct: error: Invalid field requested: "foo"\n'),
        (("-s", "foo"), "sacct: fatal: unrecognized job state value 'foo'\n"),
        (("--foo",), "sacct: unrecognized option '--foo'\n"),
    ],
)
def test_sacct_refuses_wrong_options(slurm: Slurm, argv: tuple[str, ...], complaint: str) -> None:
    assert slurm.refused("sacct", *argv) == (1, complaint)


def test_a_job_is_shown_in_full(queue: Slurm) -> None:
    user, now = queue.job(1), time.strftime("%Y")
    output = queue.check_output("scontrol", "show", "job", "1")
    folder = queue.folder
    pattern = re.escape(
        f"""JobId=1 JobName=runner
   UserId={user.user}({user.uid}) GroupId={user.group}({user.gid}) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=@ TimeLimit=00:10:00 TimeMin=N/A
   SubmitTime=@ EligibleTime=@
   AccrueTime=@
   StartTime=@ EndTime=@ Deadline=N/A
   PreemptEligibleTime=@ PreemptTime=None
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=@ Scheduler=Main
   Partition=local AllocNode:Sid={user.submit_host}:@
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-2]
   BatchHost=n1
   NumNodes=2 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=3,mem=400M,node=2,billing=3
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   MinCPUsNode=1 MinMemoryNode=200M MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command={folder}/job.sh
   WorkDir={folder}
   Comment=some words @
   StdErr={folder}/slurm-1.out
   StdIn=/dev/null
   StdOut={folder}/slurm-1.out
   Power=
   @

"""
    ).replace("@", r"[^\n]*?")
    assert re.fullmatch(pattern, output), output
    assert now in output
    assert queue.check_output("scontrol", "-o", "show", "job", "2").count("\n") == 1
    (status,) = parse_scontrol_job(queue.check_output("scontrol", "show", "job", "4"))
    assert (status.job_id, status.state, status.exit_code, status.name) == ("4", "FAILED", 3, "bad")


def test_other_commands_of_scontrol(queue: Slurm) -> None:
    assert queue.check_output("scontrol", "show", "hostnames", "n[08-10],m") == "n08\nn09\nn10\nm\n"
    assert queue.check_output("scontrol", "show", "hostnames", env={"SLURM_NODELIST": "a[1-2]"}) == "a1\na2\n"
    assert queue.check_output("scontrol", "show", "hostlist", "n1,n2,m3") == "n[1-2],m3\n"
    assert queue.check_output("scontrol", "show", "hostlistsorted", "n10,n2") == "n[2,10]\n"
    assert re.fullmatch(r"Slurmctld\(primary\) at \S+ is UP\n", queue.check_output("scontrol", "ping"))
    assert queue.check_output("scontrol", "version") == queue.check_output("scontrol", "-V") == "slurm 22.05.8\n"
    assert "MaxArraySize            = 1001\n" in queue.check_output("scontrol", "show", "config")
    assert queue.check_output("scontrol", "show", "step").startswith("StepId=1.batch UserId=")
    assert "PartitionName=local\n" in queue.check_output("scontrol", "show", "partition")
    node = queue.check_output("scontrol", "show", "node", "n1")
    assert "   CPUAlloc=2 CPUEfctv=8 CPUTot=8 " in node
    assert "   State=MIXED " in node


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("show", "job", "77"), "slurm_load_jobs error: Invalid job id specified\n"),
        (("show", "job", "abc"), "scontrol_print_job error: Invalid job id specified\n"),
        (("show", "step", "1.7"), "slurm_load_jobs error: Invalid job id specified\n"),
        (("show", "foo"), "invalid entity:foo for keyword:show \n"),
        (("show",), "too few arguments for keyword:show\n"),
        (("show", "job", "1", "2"), "too many arguments for keyword:show\n"),
        (("show", "hostnames"), "scontrol: error: host list is empty\n"),
        (("foo",), "invalid keyword: foo\n"),
        (("--foo",), "scontrol: unrecognized option '--foo'\nTry \"scontrol --help\" for more information\n"),
        (
            ("hold", "77"),
            "Invalid job id specified for job 77\nslurm_suspend error: Invalid job id specified\n",
        ),
        (("update", "JobId=77", "Name=x"), "Invalid job id specified for job 77\n"),
        (
            ("update", "Name=x"),
            NO_ENTITY,
        ),
        (
            ("suspend", "1"),
            SUSPEND,
        ),
        (
            ("wait_job", "1"),
            "scontrol: wait_job is not supported by the embedded Slurm: nodes need no boot\n",
        ),
        (
            ("show", "topology"),
            "scontrol: show topology is not supported by the embedded Slurm: all nodes are this machine\n",
        ),
        (
            ("update", "NodeName=n1", "State=drain"),
            "scontrol: update NodeName is not supported by the embedded Slurm: nodes are always up\n",
        ),
        ((), "scontrol: error: name a command: the embedded Slurm has no interactive scontrol\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_scontrol_refuses_wrong_commands(slurm: Slurm, argv: tuple[str, ...], complaint: str) -> None:
    assert slurm.refused("scontrol", *argv) == (1, complaint)


def test_a_malformed_host_list_is_refused(slurm: Slurm) -> None:
    status, complaint = slurm.refused("scontrol", "show", "hostnames", "n[1-3")
    assert status == 1
    assert complaint.startswith("Invalid hostlist: n[1-3 ")


def test_jobs_are_updated(slurm: Slurm) -> None:
    queue = fill(slurm)
    queue.check_output("scontrol", "update", "JobId=3", "Name=new", "TimeLimit=20", "Comment=x y", "Nice=5")
    assert queue.check_output("squeue", "-h", "-j", "3", "-o", "%j %l %k %y") == "new 20:00 x y 5\n"
    queue.check_output("scontrol", "update", "JobId=2", "Dependency=")
    queue.until(2, "COMPLETED")
    unsupported = "Update of this parameter is not supported: Foo=bar\nRequest aborted\n"
    assert queue.refused("scontrol", "update", "JobId=3", "Foo=bar") == (1, unsupported)
    assert queue.refused("scontrol", "update", "JobId=3") == (1, "No changes specified\n")
    finished = "Job has already finished for job 4\n"
    assert queue.refused("scontrol", "update", "JobId=4", "TimeLimit=1") == (1, finished)
    assert queue.refused("scontrol", "release", "4") == (
        1,
        finished + "slurm_suspend error: Job has already finished\n",
    )
    wrong = "scontrol: error: Invalid TimeLimit value\n"
    assert queue.refused("scontrol", "update", "JobId=3", "TimeLimit=x") == (1, wrong)
    assert queue.refused("scontrol", "update", "JobId=3", "Nice=x")[0] == 1
    queue.check_output("scontrol", "update", "jobid", "3", "nice", "6")
    assert queue.check_output("squeue", "-h", "-j", "3", "-o", "%y") == "6\n"
    queue.check_output("scontrol", "update", "JobName=new", "Priority=7")  # no longer held, it runs
    queue.until(3, "COMPLETED")


def test_nodes_and_partitions(make_slurm: Callable[..., Slurm]) -> None:
    partitions = (Partition("main", max_time=86400), Partition("small", nodes="n[3-4]"))
    slurm = make_slurm(partitions=partitions)
    slurm.until(slurm.submit("sleep 600", "-n8", "-w", "n1"), "RUNNING")
    slurm.until(slurm.submit("sleep 600", "-w", "n2"), "RUNNING")
    assert slurm.check_output("sinfo") == (
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        "main*        up 1-00:00:00      1    mix n2\n"
        "main*        up 1-00:00:00      1  alloc n1\n"
        "main*        up 1-00:00:00      2   idle n[3-4]\n"
        "small        up   infinite      2   idle n[3-4]\n"
    )
    assert slurm.check_output("sinfo", "-s") == (
        "PARTITION AVAIL  TIMELIMIT   NODES(A/I/O/T) NODELIST\n"
        "main*        up 1-00:00:00          2/2/0/4 n[1-4]\n"
        "small        up   infinite          0/2/0/2 n[3-4]\n"
    )
    assert slurm.check_output("sinfo", "-N") == (
        "NODELIST   NODES PARTITION STATE \n"
        "n1             1     main* alloc \n"
        "n2             1     main* mix   \n"
        "n3             1     main* idle  \n"
        "n3             1     small idle  \n"
        "n4             1     main* idle  \n"
        "n4             1     small idle  \n"
    )
    assert slurm.check_output("sinfo", "-h", "-o", "%P %D %t %N %C", "-p", "small") == "small 2 idle n[3-4] 0/16/0/16\n"
    assert slurm.check_output("sinfo", "-h", "-t", "alloc", "-o", "%n", "-p", "main") == "n1\n"
    assert slurm.check_output("sinfo", "--version") == "slurm 22.05.8\n"


def test_the_type_of_gpus_is_shown_everywhere(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(nodes="n1", gpus=2, gpu_type="a100")
    assert slurm.check_output("sinfo", "-h", "-o", "%G") == "gpu:a100:2\n"
    assert "   Gres=gpu:a100:2\n" in slurm.check_output("scontrol", "show", "node")


def test_the_format_of_times_can_be_chosen(queue: Slurm) -> None:
    seconds = {"SLURM_TIME_FORMAT": "%s"}
    started = int(queue.job(1).start_time)
    assert queue.check_output("squeue", "-h", "-j1", "-o%S", env=seconds) == f"{started}\n"
    assert queue.check_output("sacct", "-nPX", "-j1", "-oStart", env=seconds) == f"{started}\n"
    standard = queue.check_output("squeue", "-h", "-j1", "-o%S", env={"SLURM_TIME_FORMAT": "standard"})
    assert re.fullmatch(f"{STAMP}\n", standard)


def test_sinfo_refuses_wrong_options(slurm: Slurm) -> None:
    expected = "sinfo: unrecognized option '--foo'\nTry \"sinfo --help\" for more information\n"
    assert slurm.refused("sinfo", "--foo") == (1, expected)
    assert slurm.refused("sinfo", "-t", "dreaming")[1].startswith('sinfo: error: Bad state string: "dreaming"\n')
    assert slurm.refused("sinfo", "-S", "z?")[0] == 1


def test_sinfo_shows_the_known_columns_and_reports_unknown_ones(slurm: Slurm) -> None:
    done = slurm.run("sinfo", "-h", "-o", "%D %? %R")
    assert (done.returncode, done.stdout) == (0, "4 %? local\n")
    assert done.stderr == "Invalid node format specification: ?\n"


def test_nodes_share_a_row_unless_a_column_differs(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(partitions=(Partition("main", 86400, 3600), Partition("high", 86400, 600, nodes="n[3-4]")))
    assert slurm.check_output("sinfo", "-h", "-o", "%D %N") == "4 n[1-4]\n"
    assert slurm.check_output("sinfo", "-h", "-o", "%l %D") == "1-00:00:00 4\n"
    assert slurm.check_output("sinfo", "-h", "-o", "%L %D") == "1:00:00 4\n10:00 2\n"
    assert slurm.check_output("sinfo", "-h", "-S", "P", "-o", "%R %D") == "high 2\nmain 4\n"
    assert slurm.check_output("sinfo", "-h", "-N", "-S", "-N", "-p", "high", "-o", "%N") == "n4\nn3\n"
    assert slurm.check_output("sinfo", "-h", "-n", "n1", "-o", "%R %D %t") == "main 1 idle\nhigh 0 n/a\n"


def test_every_column_of_sinfo_has_a_value(slurm: Slurm) -> None:
    from pocketslurm.listings.sinfo_columns import BY_LETTER, BY_NAME

    assert (
        slurm.check_output("sinfo", "-h", "-N", "-o", "".join(f"%{letter} " for letter in BY_LETTER)).count("\n") == 4
    )
    assert slurm.check_output("sinfo", "-h", "-N", "-O", ",".join(BY_NAME)).count("\n") == 4


@pytest.mark.parametrize("command", ["sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo"])
def test_every_command_has_a_help(slurm: Slurm, command: str) -> None:
    text = slurm.check_output(command, "--help")
    assert command in text
    assert "-V, --version" in text or command == "scontrol"


def test_an_unknown_command_is_refused(slurm: Slurm) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "pocketslurm", "sview"],
        capture_output=True,
        text=True,
        env=slurm.environ,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pocketslurm: error: no such command: sview\n")


def test_times_are_never_truncated_on_the_right(slurm: Slurm) -> None:
    slurm.submit("true", "--hold", "-t", "12-10:20:00")
    assert (
        slurm.check_output("squeue", "-h", "-o", "%.3l|%3l|%.4M|%.2L|%.3P") == "12-10:20:00|12-|0:00|12-10:20:00|loc\n"
    )
    assert slurm.check_output("squeue", "-o", "%.3l").splitlines() == ["TIM", "12-10:20:00"]
    assert " 12-10:20:00 " in slurm.check_output("squeue", "-l")


def test_the_resources_of_a_batch_step(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "-N2", "-n2", "--mem=64", "--gres=gpu:1")
    slurm.until(job_id, "COMPLETED")
    found = slurm.check_output("sacct", "-nP", "-j", f"{job_id}.batch", "-o", "JobID,AllocTRES")
    assert found == f"{job_id}.batch|cpu=1,gres/gpu=1,mem=64M,node=1\n"


def test_nodes_with_equal_shares_share_a_line(slurm: Slurm) -> None:
    job_id = slurm.submit("sleep 600", "-N3", "-n4", "--ntasks-per-node=2", "--mem=64", "--gres=gpu:1")
    slurm.until(job_id, "RUNNING")
    text = slurm.check_output("scontrol", "-d", "show", "job", str(job_id))
    assert "     Nodes=n[1-3] CPU_IDs=0-1 Mem=64 GRES=gpu:1(IDX:0)\n" in text
