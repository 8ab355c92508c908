"""The argv of Slurm's commands, the runner, and one query for any number of jobs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm import job_status as commands
from hpc_kit.slurm.client import Completed, SlurmClient, run_command
from hpc_kit.slurm.command_environment import submit_environment
from hpc_kit.slurm.job_status import JobStatus, sacct_argv, scancel_argv, scontrol_job_argv, squeue_argv
from hpc_kit.slurm.queries import add_canceller
from hpc_kit.slurm.states import JobState

RECORDED = Path(__file__).parent / "recorded"
NO_ACCOUNTING = "Slurm accounting storage is disabled\n"
NO_JOB = "slurm_load_jobs error: Invalid job id specified\n"


class Slurm:
    """Answers by the command's name, and remembers what it was asked."""

    def __init__(self, **answers: str | tuple[int, str]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []
        self.environs: list[Mapping[str, str]] = []

    def __call__(
        self, argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
    ) -> Completed:
        self.asked.append(list(argv))
        self.environs.append(environ or {})
        answer = self.answers.get(argv[0] + "_federation" * ("--federation" in argv))
        if answer is None:
            raise SlurmUnavailable(f"cannot run {argv[0]}")
        if isinstance(answer, str):
            return Completed(tuple(argv), 0, answer, "")
        return Completed(tuple(argv), answer[0], "", answer[1])

    @property
    def commands(self) -> list[str]:
        return [argv[0] for argv in self.asked]


def query_jobs(slurm: Slurm, ids: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, JobStatus]:
    return SlurmClient(environ, embedded=False, runner=slurm).query(ids)


def read_recorded(name: str, *ids: str) -> str:
    """The rows of some jobs; all without ids."""
    text = (RECORDED / f"{name}.txt").read_text()
    rows = re.split(r"^(?=JobId=|[0-9][0-9+_]*[|\[])", text, flags=re.MULTILINE)
    begins = tuple(f"{start}{each}" for each in ids for start in ("", "JobId="))
    return "".join(row for row in rows if not ids or row.startswith(begins))


def squeue_row(job_id: str, state: str) -> str:
    return f"{job_id}|{job_id}|{state}|ada|main|N/A|N/A|N/A|5:00|0:00||None|x\n"


def test_the_formats_are_plain_fields() -> None:
    assert commands.SQUEUE_FORMAT == "%i|%A|%T|%u|%P|%V|%S|%e|%l|%M|%N|%r|%j"
    assert commands.SACCT_FORMAT == (
        "JobID,JobIDRaw,State,ExitCode,User,Partition,Submit,Start,End,Timelimit,Elapsed,NodeList,Reason,JobName"
    )


def test_queries_have_fixed_arguments() -> None:
    form = f"--format={commands.SQUEUE_FORMAT}"
    assert squeue_argv(["1", "2_3"]) == ["squeue", "--noheader", "--array", "--states=all", "--jobs=1,2_3", form]
    assert squeue_argv() == ["squeue", "--noheader", "--array", "--states=all", "--me", form]
    assert squeue_argv(["1"] * 201)[4] == "--me"
    form = f"--format={commands.SACCT_FORMAT}"
    assert sacct_argv(["1", "2"]) == ["sacct", "--noheader", "--parsable2", "--allocations", "--jobs=1,2", form]
    assert scontrol_job_argv("7") == ["scontrol", "show", "job", "7"]
    assert scontrol_job_argv() == ["scontrol", "show", "job"]
    assert scancel_argv(["7", "8_1"]) == ["scancel", "7", "8_1"]
    assert scancel_argv(["7"], "USR1") == ["scancel", "--signal=USR1", "7"]


def test_a_query_without_ids_runs_no_command() -> None:
    slurm = Slurm()
    assert query_jobs(slurm, []) == {}
    assert slurm.asked == []


def test_a_complete_answer_of_squeue_needs_no_other_command() -> None:
    slurm = Slurm(squeue=read_recorded("squeue"))
    found = query_jobs(slurm, ["273", "277", "281"])
    assert {job_id: each.state for job_id, each in found.items()} == {
        "273": JobState.COMPLETED,
        "277": JobState.RUNNING,
        "281": JobState.PENDING,
    }
    assert slurm.asked == [squeue_argv(["273", "277", "281"])]


def test_one_sacct_adds_exit_codes_and_jobs_missing_from_squeue() -> None:
    slurm = Slurm(squeue=read_recorded("squeue", "275", "281"), sacct=read_recorded("sacct"))
    found = query_jobs(slurm, ["275", "276", "281"])
    assert (found["275"].exit_code, found["275"].reason) == (3, "NonZeroExitCode")
    assert (found["276"].state, found["276"].signal) == (JobState.FAILED, 9)
    assert found["281"].reason == "JobHeldUser"
    assert slurm.commands == ["squeue", "sacct"]
    assert slurm.asked[1] == sacct_argv(["276", "275"])


def test_any_number_of_jobs_fits_into_the_arguments_of_sacct() -> None:
    ids = [f"123456789_{task:05}" for task in range(20_000)]
    slurm = Slurm(squeue="", sacct="", scontrol="")
    query_jobs(slurm, [job_id.replace("_", "") for job_id in ids])
    calls = [argv for argv in slurm.asked if argv[0] == "sacct"]
    asked = [word.removeprefix("--jobs=") for argv in calls for word in argv if word.startswith("--jobs=")]
    assert ",".join(asked) == ",".join(ids).replace("_", "")
    assert max(map(len, asked)) < 128 << 10


@pytest.mark.parametrize("sacct", [(1, NO_ACCOUNTING), "", None])
def test_without_accounting_the_controller_is_queried(sacct: str | tuple[int, str] | None) -> None:
    answers = {} if sacct is None else {"sacct": sacct}
    slurm = Slurm(squeue=read_recorded("squeue", "275"), scontrol=read_recorded("scontrol", "275"), **answers)
    found = query_jobs(slurm, ["275"])
    assert (found["275"].state, found["275"].exit_code) == (JobState.FAILED, 3)
    assert slurm.asked[-1] == scontrol_job_argv("275")


def test_two_jobs_without_accounting_are_one_query_to_the_controller() -> None:
    slurm = Slurm(
        squeue=read_recorded("squeue", "275", "276"), sacct=(1, NO_ACCOUNTING), scontrol=read_recorded("scontrol")
    )
    found = query_jobs(slurm, ["275", "276"])
    assert [(each.exit_code, each.signal) for each in found.values()] == [(3, 0), (0, 9)]
    assert slurm.commands == ["squeue", "sacct", "scontrol"]
    assert slurm.asked[-1] == scontrol_job_argv()


def test_late_accounting_does_not_revive_an_ended_job() -> None:
    late = read_recorded("sacct", "275").replace("FAILED|3:0", "RUNNING|0:0")
    slurm = Slurm(squeue=read_recorded("squeue", "275"), sacct=late, scontrol=(1, NO_JOB))
    found = query_jobs(slurm, ["275"])
    assert (found["275"].state, found["275"].exit_code) == (JobState.FAILED, None)


@pytest.mark.parametrize(
    ("queue", "booked", "state"),
    [
        ("", "REVOKED", JobState.REVOKED),
        ("REVOKED", "REVOKED", JobState.UNKNOWN),
        ("RUNNING", "REVOKED", JobState.RUNNING),
        ("", "COMPLETED", JobState.COMPLETED),
        ("COMPLETED", "RUNNING", JobState.COMPLETED),
    ],
)
def test_a_job_taken_by_another_cluster_of_the_federation_is_followed_there(
    queue: str, booked: str, state: JobState
) -> None:
    row = read_recorded("sacct", "273")
    revoked, there = row.replace("COMPLETED", "REVOKED"), row.replace("COMPLETED", booked)
    output = squeue_row("273", queue) if queue else ""
    slurm = Slurm(squeue="", sacct=revoked, squeue_federation=output, sacct_federation=revoked + there)
    assert query_jobs(slurm, ["273"])["273"].state is state
    assert ["--federation" in argv for argv in slurm.asked].count(True) == 2


def test_an_unknown_job_is_omitted() -> None:
    slurm = Slurm(squeue=(1, NO_JOB), sacct="", scontrol=(1, NO_JOB))
    assert query_jobs(slurm, ["424242"]) == {}
    assert slurm.commands == ["squeue", "sacct", "scontrol"]


def test_one_unknown_id_does_not_hide_the_other_jobs() -> None:
    class OldSlurm(Slurm):
        def __call__(
            self, argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
        ) -> Completed:
            answer = super().__call__(argv, timeout=timeout, environ=environ)
            return answer._replace(returncode=1, stdout="", stderr=NO_JOB) if "--jobs=273,9" in argv else answer

    slurm = OldSlurm(squeue=read_recorded("squeue"), sacct="", scontrol=(1, NO_JOB))
    assert list(query_jobs(slurm, ["273", "9"])) == ["273"]
    assert slurm.asked[1] == squeue_argv(None)


def test_an_array_includes_tasks_missing_from_squeue() -> None:
    slurm = Slurm(squeue=read_recorded("squeue", "278_4", "278_6", "278_9"), sacct=read_recorded("sacct", "278"))
    found = query_jobs(slurm, ["278"])
    assert sorted(found) == ["278_0", "278_2", "278_4", "278_6", "278_9"]
    assert slurm.commands == ["squeue", "sacct"]


def test_late_accounting_does_not_remove_an_exit_code() -> None:
    done = read_recorded("squeue", "278_0").replace("RUNNING", "COMPLETED")
    found = query_jobs(Slurm(squeue=done, sacct=read_recorded("sacct", "278_0")), ["278"])
    assert (found["278_0"].state, found["278_0"].exit_code) == (JobState.COMPLETED, 0)


def test_a_task_is_found_by_its_own_job_id() -> None:
    slurm = Slurm(squeue=read_recorded("squeue", "278_0"))
    assert {job_id: each.job_id for job_id, each in query_jobs(slurm, ["279"]).items()} == {"279": "278_0"}


def test_components_are_listed_with_their_heterogeneous_job() -> None:
    assert sorted(query_jobs(Slurm(squeue=read_recorded("squeue")), ["284"])) == ["284+0", "284+1"]


def test_a_thousand_jobs_are_three_commands_at_most() -> None:
    ids = [str(number) for number in range(1000, 2000)]
    rows = "".join(squeue_row(job_id, "RUNNING" if int(job_id) < 1500 else "FAILED") for job_id in ids)
    slurm = Slurm(squeue=rows, sacct=(1, NO_ACCOUNTING), scontrol="")
    assert len(query_jobs(slurm, ids)) == 1000
    assert slurm.commands == ["squeue", "sacct", "scontrol"]
    assert "--me" in slurm.asked[0]


def test_a_controller_that_does_not_answer_is_an_error() -> None:
    slurm = Slurm(squeue=(1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"))
    with pytest.raises(SlurmUnavailable, match="squeue does not show") as caught:
        query_jobs(slurm, ["7"])
    assert "Unable to contact slurm controller" in str(caught.value.found)
    with pytest.raises(SlurmUnavailable, match="squeue does not show") as caught:
        query_jobs(Slurm(squeue=(3, "")), ["7"])
    assert caught.value.found == "exit status 3"


def test_variables_that_change_the_output_are_not_passed_to_commands() -> None:
    slurm = Slurm(squeue=read_recorded("squeue"))
    kept = {"SLURM_CONF": __file__, "A": "b", "SQUEUE_FEDERATION": "1", "SACCT_FEDERATION": "1"}
    environ = {"SQUEUE_USERS": "bob", "SACCT_FORMAT": "x", "SLURM_TIME_FORMAT": "relative", "SCANCEL_STATE": "R"}
    query_jobs(slurm, ["273"], environ | kept)
    assert slurm.environs == [kept | {"SLURM_BITSTR_LEN": "0"}]


def test_sacct_queries_the_same_cluster_as_squeue() -> None:
    slurm = Slurm(squeue="", sacct="")
    query_jobs(slurm, ["7"], {"SLURM_CLUSTERS": "beta"})
    assert slurm.asked[:2] == [squeue_argv(["7"]), sacct_argv(["7"], clusters="beta")]
    assert slurm.asked[1][3] == "--clusters=beta"


INSIDE = {
    "SLURM_JOB_ID": "7",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_CLUSTERS": "beta",
    "SBATCH_CLUSTERS": "beta",
    "SLURM_CLUSTER_NAME": "alpha",
    "SBATCH_ACCOUNT": "a",
    "SLURM_PROCID": "3",
    "SRUN_CPUS_PER_TASK": "4",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "n1",
    "TORCHELASTIC_RUN_ID": "x",
    "PMI_RANK": "3",
    "PMIX_RANK": "3",
    "OMPI_COMM_WORLD_RANK": "3",
    "PATH": "/bin",
    "OMP_NUM_THREADS": "4",
    "RANKING": "no rank",
}


def test_a_job_that_submits_a_job_passes_on_none_of_its_variables() -> None:
    kept = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_CLUSTERS": "beta", "SBATCH_CLUSTERS": "beta"}
    kept |= {"PATH": "/bin", "OMP_NUM_THREADS": "4", "RANKING": "no rank"}
    assert submit_environment(INSIDE) == kept
    old_name = {"SLURM_JOBID": "7"} | {name: value for name, value in INSIDE.items() if name != "SLURM_JOB_ID"}
    assert submit_environment(old_name) == kept


def test_a_job_passes_on_no_variable_of_its_script() -> None:
    own = {"HPC_KIT_BACKEND": "mpi", "HPC_KIT_LAYOUT": "tp=2", "RAY_ADDRESS": "n1:6379", "RAY_AUTH_MODE": "token"}
    own |= {"HPC_KIT_STOP_SIGNAL": "USR2", "HPC_KIT_STOP_CODE": "140", "HPC_KIT_ATTEMPT": "3", "HPC_KIT_SECRET": "s"}
    users = {"HPC_KIT_CLUSTER": "site", "HPC_KIT_REPORT": "1", "PATH": "/bin"}
    assert submit_environment({"SLURM_JOB_ID": "7", "HPC_KIT_RUN": "/runs/job/7"} | own | users) == users
    # In a shell of salloc they are the user's own.
    assert submit_environment({"SLURM_JOB_ID": "7"} | own | users) == own | users


def test_outside_a_job_the_users_own_defaults_stay() -> None:
    outside = {name: value for name, value in INSIDE.items() if name != "SLURM_JOB_ID"}
    assert submit_environment(outside) == outside


def program(folder: Path, name: str, text: str = "exit 0") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_running_a_command_returns_its_output_and_exit_code(tmp_path: Path) -> None:
    path = program(tmp_path, "talk", 'echo "out $1 $KEY"; echo err >&2; cat; printf "\\\\377"; exit 3')
    done = run_command([str(path), "a b; $HOME"], environ={"KEY": "k", "PATH": os.environ["PATH"]})
    assert done == Completed((str(path), "a b; $HOME"), 3, "out a b; $HOME k\n\ufffd", "err\n")


def test_a_missing_program_is_an_error_with_a_remedy() -> None:
    with pytest.raises(SlurmUnavailable, match="cannot run squeue-of-nowhere") as caught:
        run_command(["squeue-of-nowhere"])
    assert caught.value.found == "squeue-of-nowhere: No such file or directory"
    assert "--cluster local" in str(caught.value.remedy)


def test_a_program_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(SlurmUnavailable, match="does not answer") as caught:
        run_command([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)
    assert "nothing within 0.2 s" in str(caught.value.found)


@pytest.mark.parametrize(
    ("booked", "shown"),
    [("CANCELLED by 0", "CANCELLED by root"), ("CANCELLED by 4000000", "CANCELLED by 4000000"), (None, "CANCELLED")],
    ids=["a user", "an unknown user", "no accounting"],
)
def test_the_accounting_knows_who_cancelled_a_job(booked: str | None, shown: str) -> None:
    row = f"7|7|{booked}|0:0|ada|main|Unknown|Unknown|Unknown|5:00|0:00||None|x\n"
    slurm = Slurm(squeue=squeue_row("7", "CANCELLED"), sacct=row if booked else (1, NO_ACCOUNTING))
    client = SlurmClient(os.environ, embedded=False, runner=slurm)
    status = add_canceller(client, client.query(["7"])["7"])
    assert status.raw_state == shown
    assert add_canceller(client, status._replace(state=JobState.FAILED)).raw_state == shown
