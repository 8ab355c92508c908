"""Status and cancel: one query for all jobs, also for jobs that Slurm has forgotten."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_kit.cli.job_tables import group_jobs
from hpc_kit.errors import SlurmUnavailable, UnknownJob
from hpc_kit.run_files import write_whole
from hpc_kit.runs import cluster_match, record
from hpc_kit.runs.cancel import cancel
from hpc_kit.runs.cluster_match import client_for, cluster_option, may_belong_to
from hpc_kit.runs.known_jobs import JobSelection
from hpc_kit.runs.logs import LogPatterns
from hpc_kit.runs.run_folders import RunIndex
from hpc_kit.runs.status import JobLine, list_jobs
from hpc_kit.slurm.client import Completed, SlurmClient, user_name
from hpc_kit.slurm.states import JobState
from hpc_kit.submission.submit import submit
from tests.runs.fake import FakeSlurm, queue_row


def statuses(words: Sequence[str] | None, runs: Path, client: SlurmClient, cluster: str | None = None) -> list[JobLine]:
    """The lines of a listing; Slurm must answer."""
    selection = JobSelection.from_words(words)
    return list_jobs(selection, RunIndex(runs), client, cluster=cluster, require_slurm=True).lines


@pytest.fixture
def client(slurm: FakeSlurm) -> SlurmClient:
    return slurm.client(os.environ)


@pytest.fixture
def runs(project: Path) -> Path:
    return project / "runs"


def summarize(lines: list[JobLine]) -> list[tuple[str, str, str]]:
    return [(line.job_id, str(line.state), line.sentence) for line in lines]


def test_the_queue_and_the_latest_runs_are_listed(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    for _ in range(3):
        submit("job", "fake")
    (runs / "job/12/end").write_text("0 1700000000\n")
    slurm.queue("13 RUNNING", "14 PENDING Dependency", "99 RUNNING")
    assert summarize(statuses(None, runs, client)) == [
        ("99", "RUNNING", "9 min 50 s left of 10 min on n[1-2]"),
        ("14", "PENDING", "It waits for other jobs."),
        ("13", "RUNNING", "9 min 50 s left of 10 min on n[1-2]"),
        (
            "12",
            "COMPLETED",
            "Its script ended with exit code 0. Slurm no longer knows the job; its state comes from its files.",
        ),
    ]
    pending = statuses(["14"], runs, client)[0]
    assert pending.next_step == ("Look at what it waits for: hpc-kit embedded run squeue --job=14 --format='%i %E'")


def test_a_failed_job_names_rank_and_exit_code_also_from_its_record(
    slurm: FakeSlurm, runs: Path, client: SlurmClient
) -> None:
    run = submit("job", "fake").run
    (run.folder / "first-failure").write_text("5 n3 1 100.0\n")
    run.rank_log(5).write_text("Traceback (most recent call last):\nValueError: bad\n")
    slurm.queue("12 FAILED")
    expected = [("12", "FAILED", "rank 5 on n3 failed with ValueError: bad")]
    assert summarize(statuses(["12"], runs, client)) == expected
    slurm.queue()
    run.rank_log(5).unlink()
    assert summarize(statuses(["12"], runs, client)) == expected
    assert summarize(statuses(None, runs, client)) == expected


def test_an_unknown_id_is_refused_with_the_existing_ids(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    submit("job", "fake")
    with pytest.raises(UnknownJob) as error:
        statuses(["77"], runs, client)
    assert str(error.value) == (
        f"no job 77\n  found  Slurm does not know it, and {runs}/ has no record of it\n"
        "  do     name one of the latest runs: 12 job; "
        "for the log of another job (StdOut of scontrol show job ID): hpc-kit why --log FILE"
    )


def test_without_any_run_the_error_names_the_queue(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    with pytest.raises(UnknownJob, match="hpc-kit status --all"):
        cancel(["77"], runs, client)
    assert statuses(None, runs, client) == []


def test_each_element_of_an_array_is_listed(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    submit("job", "fake", set={"resources.array": "0-3"})
    slurm.queue("12 PENDING", "12_0 COMPLETED", "12_1 RUNNING", "12_[2-3] PENDING")
    found = statuses(["12"], runs, client)
    assert [(line.job_id, str(line.state)) for line in found] == [
        ("12_0", "COMPLETED"), ("12_1", "RUNNING"), ("12_2", "PENDING"), ("12_3", "PENDING"),
    ]  # fmt: skip
    assert [line.name for line in found] == ["job"] * 4
    assert summarize(statuses(["12_1"], runs, client)) == [("12_1", "RUNNING", "9 min 50 s left of 10 min on n[1-2]")]


def test_many_jobs_are_one_query(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    slurm.queue(*(f"{number} RUNNING" for number in range(1000, 1500)))
    assert len(statuses([str(number) for number in range(1000, 1500)], runs, client)) == 500
    assert len(slurm.read("squeue.calls").splitlines()) == 1
    assert not (slurm.folder / "sacct.calls").exists()


def test_cancelling_lists_the_state_of_each_job(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    for _ in range(2):
        submit("job", "fake")
    slurm.queue("12 RUNNING", "13 COMPLETED")
    before = cancel(["12", "13"], runs, client)
    assert [(line.job_id, str(line.state)) for line in before] == [("12", "RUNNING"), ("13", "COMPLETED")]
    assert slurm.read("scancel.calls") == "12\n"


def test_an_element_is_cancelled_alone(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    slurm.queue("12_1 RUNNING", "12_2 RUNNING")
    cancel(["12_1"], runs, client)
    assert slurm.read("scancel.calls") == "12_1\n"


def test_waiting_tasks_are_cancelled_by_the_id_that_slurm_prints(
    slurm: FakeSlurm, runs: Path, client: SlurmClient
) -> None:
    slurm.queue("12_1 RUNNING", "12_[2-4] PENDING Resources", "13 RUNNING")
    assert len(cancel(["12_[2-3],13"], runs, client)) == 3
    assert slurm.read("scancel.calls") == "12_2 12_3 13\n"


def test_a_run_of_another_cluster_and_a_local_job_with_its_id_are_not_cancelled(
    slurm: FakeSlurm, runs: Path, client: SlurmClient
) -> None:
    submit("job", "fake")
    slurm.write("squeue.queue", queue_row("12", "RUNNING", everybody=True, name="other"))
    for words in (["12"], ["12_1"], ["job"]):
        with pytest.raises(UnknownJob, match="belongs to cluster fake, not to another") as error:
            cancel(words, runs, client, cluster="another")
    assert f"{runs}/job/12/record.json: job, submitted 20" in str(error.value.found)
    assert not (slurm.folder / "scancel.calls").exists()
    (line,) = list_jobs(JobSelection.from_words(["12"]), RunIndex(runs), client, cluster="another").lines
    assert (line.name, line.run) == ("other", None)
    cancel(["12"], runs, client, cluster="fake")
    assert slurm.read("scancel.calls") == "12\n"


def test_two_names_of_the_slurm_on_path_are_one_cluster(
    slurm: FakeSlurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (runs.parent / "env/site.toml").write_text('name = "the site"\nslurm = "system"\n')
    submit("job", "site")
    slurm.queue("12 RUNNING")
    client = SlurmClient(slurm.environ(os.environ), embedded=False)
    (line,) = list_jobs(JobSelection.from_words(["12"]), RunIndex(runs), client, cluster="slurm").lines
    assert line.run is not None
    cancel(["12"], runs, client, cluster="slurm")
    assert slurm.read("scancel.calls") == "12\n"
    other = client._replace(environ={**client.environ, "SLURM_CONF": "/other/slurm.conf"})
    with pytest.raises(UnknownJob, match="belongs to cluster the site") as error:
        cancel(["12"], runs, other, cluster="slurm")
    assert str(error.value.remedy).startswith("hpc-kit cancel 12 --cluster site;")


def test_two_slurms_differ_by_their_cluster_names(
    slurm: FakeSlurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same cluster file, in a project that both see, neither with SLURM_CONF."""
    (slurm.folder / "etc").mkdir()
    conf = slurm.folder / "etc/slurm.conf"
    monkeypatch.setattr("hpc_kit.slurm.cluster_identity.CONFIGURATIONS", (str(conf),))
    conf.write_text("ClusterName=Alpha\n")
    submit("job", "fake")
    slurm.queue("12 RUNNING")
    client = SlurmClient(slurm.environ(os.environ), embedded=False)
    conf.write_text("ClusterName=beta\n")
    with pytest.raises(UnknownJob, match="job 12 belongs to cluster alpha, not to beta") as error:
        cancel(["12"], runs, client, cluster="fake")
    remedy = (
        "hpc-kit cancel 12, on a login node of alpha or with SLURM_CLUSTERS=alpha; see who owns the id here: squeue "
    )
    assert str(error.value.remedy).startswith(remedy)
    (line,) = list_jobs(JobSelection.from_words(["12"]), RunIndex(runs), client, cluster="fake").lines
    assert line.run is None
    slurm.queue()
    (line,) = list_jobs(JobSelection.from_words(["12"]), RunIndex(runs), client, cluster="fake").lines
    assert line.sentence == "It was submitted to cluster alpha, which was not queried."
    assert line.next_step == "hpc-kit status 12, on a login node of alpha or with SLURM_CLUSTERS=alpha"
    assert not (slurm.folder / "scancel.calls").exists()
    slurm.queue("12 RUNNING")
    both = client._replace(environ={**client.environ, "SLURM_CLUSTERS": "alpha"})
    cancel(["12"], runs, both, cluster="another name of it")
    assert slurm.read("scancel.calls") == "12\n"
    for several in ("beta,alpha", "all"):
        cancel(["12"], runs, both._replace(environ={**both.environ, "SLURM_CLUSTERS": several}), cluster="fake")
    assert slurm.read("scancel.calls") == "12\n" * 3


def test_a_run_is_queried_and_cancelled_on_its_own_cluster(
    slurm: FakeSlurm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "alpha,Beta")
    for cluster in ("Beta", "alpha"):
        # Each cluster counts on its own, and here both have come to 12.
        hook = f'echo "Submitted batch job 12 on cluster {cluster}"; cp -- "$1" "$FAKE/12.script"; exit 0'
        slurm.write("sbatch.hook", hook)
        job = submit("job", "fake", set={"name": f"on_{cluster}"})
        assert job.client.environ["SLURM_CLUSTERS"] == cluster.lower()
        assert record.read_record(job.run.folder).slurm_cluster == cluster.lower()  # type: ignore[union-attr]
    asked: list[tuple[str | None, Sequence[str]]] = []

    def runner(
        argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
    ) -> Completed:
        where = (environ or {}).get("SLURM_CLUSTERS")
        asked.append((where, argv))
        row = queue_row("12", "RUNNING", everybody=True, name=f"on_{where}", nodelist=f"{where}1")
        return Completed(tuple(argv), 0, f"CLUSTER: {where}\n{row}" if argv[0] == "squeue" else "", "")

    client = SlurmClient(slurm.environ(os.environ), embedded=False, runner=runner)
    (line,) = list_jobs(JobSelection.from_words(["12"]), RunIndex(runs), client, cluster="fake").lines
    assert line.status is not None
    assert (line.name, line.status.nodelist) == ("on_alpha", "alpha1")
    (run,) = RunIndex(runs).find_by_name("on_Beta")
    assert client_for(run, client).environ["SLURM_CLUSTERS"] == "beta"
    asked.clear()
    cancel(["12"], runs, client, cluster="fake")
    assert [(where, argv) for where, argv in asked if argv[0] == "scancel"] == [("alpha", ["scancel", "12"])]
    one = client.for_cluster("beta")
    asked.clear()
    cancel(["12"], runs, one, cluster="fake")
    assert {where for where, _ in asked} == {"beta"}
    with pytest.raises(UnknownJob, match="belongs to cluster"):
        cancel(["12"], runs, client.for_cluster("alpha")._replace(environ={"SLURM_CLUSTERS": "gamma"}), cluster="fake")


def test_the_end_of_another_job_is_not_taken_for_the_end_of_a_run(
    slurm: FakeSlurm, runs: Path, client: SlurmClient
) -> None:
    """An accounting may hold another user's job of that id, or one from before the ids began anew."""
    run = submit("job", "fake").run
    early = "2026-01-01T12:00:00"
    for fields in ({"user": "ada"}, {"submit": early}):
        slurm.write("squeue.queue", queue_row("12", "FAILED", everybody=True, **fields))
        (line,) = list_jobs(JobSelection.from_words(["12"]), RunIndex(runs), client, cluster="fake").lines
        assert line.state is JobState.UNKNOWN
        assert (known := record.read_record(run.folder)) is not None
        assert known.end is None
    slurm.write("squeue.queue", queue_row("12", "FAILED", everybody=True))
    (line,) = list_jobs(JobSelection.from_words(["12"]), RunIndex(runs), client, cluster="fake").lines
    assert line.state is JobState.FAILED


@pytest.mark.parametrize(
    ("known", "output", "another"),
    [
        ("ada", "bob", True),
        ("Ada", "ada", False),
        ("1000", "ada", False),
        ("ada", "nobody", False),
        (None, "ada", False),
    ],
)
def test_names_of_two_users_are_compared(known: str | None, output: str, another: bool) -> None:
    assert cluster_match._are_different_users(known, output) == another


def test_a_run_id_on_two_clusters_means_that_of_the_chosen_cluster(slurm: FakeSlurm, runs: Path) -> None:
    submit("job", "fake")
    other = runs / "other/12"
    other.mkdir(parents=True)
    known = json.loads((runs / "job/12/record.json").read_text())
    known |= {"job_name": "other", "cluster": "there", "slurm": "embedded", "submitted": "2099-01-01T00:00:00"}
    (other / "record.json").write_text(json.dumps(known))
    client = SlurmClient(slurm.environ(os.environ), embedded=False)
    slurm.queue("12 RUNNING")
    (line,) = list_jobs(JobSelection.from_words(["12"]), RunIndex(runs), client, cluster="fake").lines
    assert line.name == "job"
    cancel(["12"], runs, client, cluster="fake")
    assert slurm.read("scancel.calls") == "12\n"


def test_embedded_clusters_with_one_queue_are_the_same(slurm: FakeSlurm, runs: Path) -> None:
    submit("job", "fake")
    path = runs / "job/12/record.json"
    known = json.loads(path.read_text())
    known |= {"slurm": "embedded", "environment": {"HPC_KIT_SLURM_STATE": "/state"}}
    path.write_text(json.dumps(known))
    run = RunIndex(runs).require("12")
    assert [
        may_belong_to(run, "local", SlurmClient({"HPC_KIT_SLURM_STATE": state}, embedded=True))
        for state in ("/state", "/other")
    ] == [True, False]
    path.write_text(json.dumps(known | {"cluster": "local", "host": "login2"}))
    client = SlurmClient({**slurm.environ(os.environ), "HPC_KIT_SLURM_STATE": "/other"}, embedded=True)
    with pytest.raises(UnknownJob, match="job 12 belongs to cluster local on login2, not to local") as error:
        cancel(["12"], runs, client, cluster="local")
    assert ", on login2; see who owns the id here: squeue --job=12" in str(error.value.remedy)
    path.write_text(json.dumps(known | {"cluster": "local"}))
    with pytest.raises(UnknownJob, match="cluster local with HPC_KIT_SLURM_STATE=/state, not to local") as error:
        cancel(["12"], runs, client, cluster="local")
    assert str(error.value.remedy).startswith("HPC_KIT_SLURM_STATE=/state hpc-kit cancel 12 --cluster fake; ")
    assert not (slurm.folder / "scancel.calls").exists()


@pytest.mark.parametrize(
    ("words", "sources", "typed"),
    [
        (["hpc-kit", "submit", "job", "--cluster", "my.toml"], ("jobs/job.toml", "env/x.toml"), "my.toml"),
        (["hpc-kit", "submit", "--cluster=a", "--", "true", "--cluster=b"], (), "a"),
        (["hpc-kit", "submit", "job"], ("jobs/job.toml", "env/default.toml"), "default"),
        (["python"], ("jobs/job.toml",), "its name"),
        (["sweep.py", "--cluster", "blobs"], ("jobs/job.toml", "env/default.toml"), "default"),
    ],
)
def test_a_cluster_is_named_so_that_it_can_be_loaded(words: list[str], sources: tuple[str, ...], typed: str) -> None:
    known = record.RunRecord(
        job_id="12",
        job_name="job",
        submitted="",
        logs=LogPatterns(batch="12.log", ranks="12/rank-%t.log"),
        cluster="its name",
        command_line=words,
        resolved=record.RecordedResolved(sources=sources),
    )
    assert cluster_option(known) == typed


def test_a_refused_scancel_is_an_error(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    slurm.queue("12 RUNNING")
    (slurm.bin / "scancel").write_text("#!/bin/bash\necho 'scancel: error: Access/permission denied' >&2; exit 1\n")
    with pytest.raises(SlurmUnavailable, match="scancel did not cancel 12"):
        cancel(["12"], runs, client)


def test_a_job_that_ends_hides_no_refusal_of_another(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    slurm.queue("12 RUNNING", "13 RUNNING")
    ended = "scancel: error: Kill job error on job id 12: Job/step already completing or completed"
    (slurm.bin / "scancel").write_text(f"#!/bin/bash\necho '{ended}' >&2; exit 1\n")
    assert len(cancel(["12", "13"], runs, client)) == 2
    refused = "scancel: error: Kill job error on job id 13: Access/permission denied"
    (slurm.bin / "scancel").write_text(f"#!/bin/bash\nprintf '%s\\n' '{ended}' '{refused}' >&2; exit 1\n")
    with pytest.raises(SlurmUnavailable, match="permission denied"):
        cancel(["12", "13"], runs, client)


def test_the_latest_run_is_the_last_one_also_if_the_clocks_were_set_back(slurm: FakeSlurm, runs: Path) -> None:
    """Summer time ends: 2:30 comes before 2:10."""
    for moment in ("2026-10-25T02:30:00.000+02:00", "2026-10-25T02:10:00.000+01:00"):
        run = submit("job", "fake").run.folder
        document = json.loads((run / "record.json").read_text())
        (run / "record.json").write_text(json.dumps({**document, "submitted": moment}))
    assert [run.job_id for run in RunIndex(runs).recent()] == ["13", "12"]


def test_a_requeued_job_keeps_its_run_in_the_hour_that_occurs_twice(
    slurm: FakeSlurm, runs: Path, client: SlurmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm prints the time of the requeue, 20 minutes after the submission, as 40 minutes before it."""
    run = submit("job", "fake").run.folder
    document = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps({**document, "submitted": "2026-10-25T02:55:00.000+02:00"}))
    slurm.write("squeue.queue", queue_row("12", "RUNNING", everybody=True, submit="2026-10-25T02:15:00", name="job"))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    try:
        time.tzset()
        [line] = statuses(["12"], runs, client)
        assert line.run is not None
        assert line.status is not None
        assert cluster_match.is_same_job(line.run, line.status)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_runs_of_a_job_may_be_on_another_disk(slurm: FakeSlurm, runs: Path, tmp_path: Path) -> None:
    submit("job", "fake")
    (runs / "job").rename(tmp_path / "scratch")
    (runs / "job").symlink_to(tmp_path / "scratch")
    assert [run.job_id for run in RunIndex(runs).recent()] == ["12"]


def test_threads_record_the_elements_of_an_array(tmp_path: Path) -> None:
    write_whole(tmp_path / "record.json", b"{}")

    def add(index: int) -> None:
        record.add_outcomes(tmp_path, {str(index): record.RecordedOutcome(state="COMPLETED", exit_status=0)})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(32)))
    assert len(json.loads((tmp_path / "record.json").read_text())["elements"]) == 32


def test_a_squeue_that_fails_is_an_error_not_an_empty_list(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    slurm.write("squeue.error", "squeue: error: Unable to contact slurm controller\n")
    with pytest.raises(SlurmUnavailable):
        statuses(None, runs, client)


def test_the_later_of_two_runs_with_one_id_counts(slurm: FakeSlurm, runs: Path, project: Path) -> None:
    (project / "jobs/other.toml").write_text('extends = "job"\n')
    submit("job", "fake")
    slurm.write("last", "11")
    submit("other", "fake")
    found = RunIndex(runs).require("12")
    assert found.name == "other"
    assert [run.name for run in RunIndex(runs).recent()] == ["other", "job"]


def test_a_run_without_a_record_is_found_by_its_folder(runs: Path) -> None:
    (runs / "byhand" / "40_2").mkdir(parents=True)
    found = RunIndex(runs).find("40_2")
    assert found is not None
    assert (found.name, found.batch_log) == ("byhand", runs / "byhand" / "40_2.log")
    assert RunIndex(runs).recent() == []


def test_private_runs_of_another_user_are_ignored(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for job_id in ("40", "41"):
        (runs / "job" / job_id).mkdir(parents=True)
    # Root may read every folder, so the answer of the system is replaced.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/40") and access(path, mode))
    index = RunIndex(runs)
    assert index.find("40") is None
    assert index.find("41") is not None


def test_an_unreadable_record_is_ignored(slurm: FakeSlurm, runs: Path) -> None:
    run = submit("job", "fake").run
    (run.folder / "record.json").write_text("{")
    found = RunIndex(runs).require("12")
    assert (found.record, found.name, found.rank_log(0)) == (None, "job", run.rank_log(0))


class Counting:
    """Answers from text, and counts."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(
        self, argv: Sequence[str], *, timeout: float | None = None, environ: Mapping[str, str] | None = None
    ) -> Completed:
        self.asked.append(argv[0])
        if argv[0] not in self.answers:
            raise SlurmUnavailable(f"{argv[0]} does not answer")
        return Completed(tuple(argv), 0, self.answers[argv[0]], "")


def queue_rows(number: int, **fields: str) -> str:
    return "".join(queue_row(str(1000 + i), "PENDING", "Priority", everybody=True, **fields) for i in range(number))


@pytest.mark.slow
def test_ten_thousand_queued_jobs_are_one_squeue_and_one_sacct_in_under_two_seconds(
    slurm: FakeSlurm, project: Path
) -> None:
    array = submit("job", "fake", set={"resources.array": "0-9999"}).run.job_id
    queue = queue_row(f"{array}_[0-9999]", "PENDING", "Priority", everybody=True, priority="900") + queue_rows(1000)
    ended = "".join(f"{4000000 + i}|{i}|COMPLETED|0:0|ada|main|||||||None|job\n" for i in range(1000))
    runner = Counting(squeue=queue, sacct=ended)
    client = SlurmClient({}, embedded=False, runner=runner)
    started = time.process_time()
    lines = statuses(None, project / "runs", client)
    assert time.process_time() - started < 2, "seconds"
    assert (len(lines), runner.asked) == (11_000, ["squeue", "sacct"])
    assert {line.sentence for line in lines if line.job_id == "1999"} == {"10999 of your own jobs ahead"}
    assert [row.job_id for row in group_jobs(lines) if row.job_id.startswith(f"{array}_")] == [f"{array}_[0-9999]"]
    runner.asked.clear()
    started = time.process_time()
    ids = [str(number) for number in (*range(1000, 2000), *range(4000000, 4001000))]
    assert len(statuses(ids, project / "runs", client)) == 2000
    assert time.process_time() - started < 2, "seconds"
    assert runner.asked == ["squeue", "sacct"]


def test_single_elements_of_a_large_array_are_found_fast(slurm: FakeSlurm, project: Path) -> None:
    runner = Counting(squeue=queue_row("12_[0-9999]", "PENDING", "Priority", everybody=True))
    lines = statuses(
        [f"12_{i}" for i in range(10_000)], project / "runs", SlurmClient({}, embedded=False, runner=runner)
    )
    assert (len(lines), runner.asked) == (10_000, ["squeue"])


def test_the_record_of_many_ended_elements_is_written_once(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = submit("job", "fake", set={"resources.array": "0-1999"}).run.job_id
    rows = "".join(queue_row(f"{array}_{i}", "COMPLETED", everybody=True) for i in range(2000))
    written: list[Path] = []

    def note_write(path: Path, data: bytes) -> None:
        written.append(path)
        write_whole(path, data)

    monkeypatch.setattr(record, "write_whole", note_write)
    client = SlurmClient({}, embedded=False, runner=Counting(squeue=rows, sacct=""))
    for _ in range(2):
        assert {line.state for line in statuses([array], project / "runs", client)} == {JobState.COMPLETED}
    assert written == [project / "runs/job" / array / "record.json"]


def test_jobs_are_found_by_name(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    submit("job", "fake")
    slurm.queue("12 RUNNING", "40 PENDING Priority")
    assert [line.job_id for line in statuses(["job"], runs, client)] == ["12"]
    with pytest.raises(UnknownJob, match="no job other"):
        statuses(["other", "12"], runs, client)
    cancel(["job"], runs, client)
    assert slurm.read("scancel.calls") == "12\n"


def test_jobs_of_other_users_are_shown_only_by_id(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    rows = queue_row("7", "RUNNING", everybody=True, user="somebody") + queue_row("8", "RUNNING", everybody=True)
    slurm.write("squeue.queue", rows)
    assert [line.job_id for line in statuses(None, runs, client)] == ["8"]
    assert [line.job_id for line in statuses(["7"], runs, client)] == ["7"]


def test_a_run_with_a_recorded_end_needs_no_query(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    submit("job", "fake")
    slurm.queue("12 COMPLETED")
    statuses(["12"], runs, client)
    slurm.queue()
    assert summarize(statuses(None, runs, client)) == [("12", "COMPLETED", "Its script ended with exit code 0.")]
    assert not (slurm.folder / "sacct.calls").exists()


def test_runs_of_another_cluster_are_not_queried(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    submit("job", "fake")
    slurm.queue()
    listing = list_jobs(JobSelection.from_words(None), RunIndex(runs), client, cluster="another")
    assert [(str(line), line.next_step) for line in listing.lines] == [
        ("UNKNOWN: It was submitted to cluster fake, which was not queried.", "hpc-kit status 12 --cluster fake")
    ]
    assert not (slurm.folder / "sacct.calls").exists()


def test_without_a_controller_accounting_and_the_files_of_the_job_are_used(slurm: FakeSlurm, project: Path) -> None:
    for _ in range(3):
        submit("job", "fake")
    (project / "runs/job/13/end").write_text("0 1700000000\n")
    ended = f"12|12|FAILED|3:0|{user_name()}|main|||||||None|job\n"
    client = SlurmClient({}, embedded=False, runner=Counting(sacct=ended))
    listing = list_jobs(JobSelection.from_words(None), RunIndex(project / "runs"), client)
    assert listing.unreachable is not None
    assert [(line.job_id, str(line.state)) for line in listing.lines] == [
        ("14", "UNKNOWN"), ("13", "COMPLETED"), ("12", "FAILED"),
    ]  # fmt: skip


def test_a_heterogeneous_job_is_listed_by_components(slurm: FakeSlurm, runs: Path, client: SlurmClient) -> None:
    submit("job", "fake")
    rows = queue_row("12+0", "RUNNING", everybody=True, raw_id="12") + queue_row(
        "12+1", "RUNNING", everybody=True, raw_id="13"
    )
    slurm.write("squeue.queue", rows)
    found = statuses(["12"], runs, client)
    assert [(line.job_id, line.run and line.run.job_id) for line in found] == [("12+0", "12"), ("12+1", "12")]
    assert [line.job_id for line in statuses(["13"], runs, client)] == ["12+1"]


def test_the_end_of_a_heterogeneous_job_is_found_by_the_first_query(
    slurm: FakeSlurm, runs: Path, client: SlurmClient
) -> None:
    submit("job", "fake")
    slurm.queue("12+1 CANCELLED", "12+0 COMPLETED")
    for _ in range(2):
        found = {line.job_id: str(line.state) for line in statuses(["12"], runs, client)}
        assert found == {"12+0": "COMPLETED", "12+1": "COMPLETED"}
