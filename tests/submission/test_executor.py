"""Pickled functions in our script on the embedded Slurm, with submitit's own code in the job."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from submitit.core.utils import FailedJobError, pickle_load
from submitit.slurm.slurm import SlurmExecutor

import hpc_kit
from hpc_kit.errors import JobFailed, RecordError, SpecError, SubmitRefused
from hpc_kit.slurm.client import SlurmClient, user_name
from hpc_kit.slurm.job_status import SACCT_FIELDS
from hpc_kit.spec.cluster_client import open_client
from hpc_kit.submission import lost_answers
from hpc_kit.submission.executor import SUBMITIT_MAIN, Executor, PartlySubmitted
from hpc_kit.submission.job_handles import FunctionJob, ScriptFailed, ScriptJob
from hpc_kit.submission.sbatch import AnswerLost, SubmitInterrupted
from tests.runs.fake import FakeSlurm, now
from tests.submission import functions


def test_submitits_hooks_are_those_that_we_override() -> None:
    text = inspect.signature(SlurmExecutor._make_submission_file_text)
    assert list(text.parameters) == ["self", "command", "uid"]
    process = inspect.signature(SlurmExecutor._internal_process_submissions)
    assert list(process.parameters) == ["self", "delayed_submissions"]
    assert list(inspect.signature(SlurmExecutor._submit_command).parameters) == ["self", "command"]
    own = {name for name in vars(Executor) if name.startswith("_") and not name.startswith("__")}
    theirs = {name for name in own if hasattr(SlurmExecutor, name)}
    assert theirs >= {
        "_make_submission_file_text",
        "_internal_process_submissions",
        "_submitit_command_str",
        "_num_tasks",
    }


@pytest.fixture
def executor(slurm: FakeSlurm, project: Path) -> Executor:
    """On the fake Slurm: for what is submitted, not for what runs."""
    return Executor(job="job", folder=project / "pickles", cluster="fake")


def read_directives(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH --")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_the_script_is_rendered_by_hpc_kit_and_keeps_submitits_protocol(
    executor: Executor, slurm: FakeSlurm, project: Path
) -> None:
    job = executor.submit(functions.add, 2, 3)
    script = slurm.read("12.script")
    folder = project / "pickles"
    given = read_directives(script)
    assert (given["nodes"], given["ntasks"], given["time"]) == ("2", "4", "00:10:00")
    assert given["signal"] == "USR2@90"
    assert given["open-mode"] == "append"
    assert (given["output"], given["error"]) == (f"{folder}/%j_0_log.out", f"{folder}/%j_0_log.err")
    assert "wckey" not in given
    assert "export SUBMITIT_EXECUTOR=slurm\n" in script
    assert f"--output={folder}/%j_%t_log.out --error={folder}/%j_%t_log.err --open-mode=append" in script
    assert f"{sys.executable} -u -c '{SUBMITIT_MAIN}' {folder} ||" in script
    assert (project / "runs/job/12/script.sbatch").read_text() == script
    assert job.paths.submission_file.read_text() == script
    assert job.paths.submitted_pickle.is_file()
    assert job.num_tasks == 4
    assert sorted(path.name for path in folder.iterdir()) == ["12_submission.sh", "12_submitted.pkl"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_with_the_job_id_is_created_by_the_script_before_srun(slurm: FakeSlurm, project: Path) -> None:
    executor = Executor(job="job", folder="my $pickles/%j/x", cluster="fake")
    executor.submit(functions.add, 2, 3)
    script = slurm.read("12.script")
    assert f'mkdir -p "{project}/my \\$pickles/""$SLURM_JOB_ID"/x\n' in script
    assert read_directives(script)["output"] == "runs/job/%j.log"
    executor.map_array(functions.add, [1, 2], [1, 2])
    script = slurm.read("13.script")
    made = next(line for line in script.splitlines() if line.startswith("mkdir -p") and "pickles" in line)
    environ = {**os.environ, "SLURM_ARRAY_JOB_ID": "13", "SLURM_ARRAY_TASK_ID": "1"}
    subprocess.run(["bash", "-c", made], env=environ, check=True)
    assert (project / "my $pickles/13_1/x").is_dir()


def test_parameters_change_what_is_submitted(executor: Executor, slurm: FakeSlurm) -> None:
    executor.update_parameters(name="sweep", nodes=1, tasks_per_node=3, timeout_min=1, mem_gb=2, slurm_partition="gpu")
    executor.update_parameters(stderr_to_stdout=True)
    job = executor.submit(functions.add, 2, 3)
    given = read_directives(slurm.read("12.script"))
    names = ("job-name", "nodes", "ntasks", "time", "mem", "partition", "signal")
    assert [given[name] for name in names] == ["sweep", "1", "3", "1", "2G", "gpu", "USR2@15"]
    assert "error" not in given
    assert job.num_tasks == 3
    assert isinstance(job, FunctionJob)
    assert job.run.folder.parent.name == "sweep"


def test_a_refused_parameter_changes_nothing(executor: Executor, slurm: FakeSlurm) -> None:
    with pytest.raises(SpecError, match="in --set resources"):
        executor.update_parameters(nodes=1, time="2h30")
    with pytest.raises(SpecError, match="no parameter 'ndoes'"):
        executor.update_parameters(ndoes=1)
    executor.submit(functions.add, 2, 3)
    assert read_directives(slurm.read("12.script"))["nodes"] == "2"


def test_a_refused_submission_leaves_no_pickle(executor: Executor, slurm: FakeSlurm, project: Path) -> None:
    slurm.write("sbatch.error", "sbatch: error: no\n")
    with pytest.raises(SubmitRefused):
        executor.submit(functions.add, 2, 3)
    assert list((project / "pickles").iterdir()) == []
    assert [path.name for path in (project / "runs").iterdir()] == [".shell"]


def test_an_accepted_job_gets_its_function_even_if_printing_fails(
    executor: Executor, slurm: FakeSlurm, project: Path
) -> None:
    slurm.write("sbatch.hook", "kill -INT $PPID; sleep 0.3\n")
    with pytest.raises(SubmitInterrupted, match="job 12 was submitted and continues"):
        executor.submit(functions.add, 2, 3)
    # Its folder is taken by what cannot hold a record.
    slurm.write("sbatch.hook", f"mkdir -p {project}/runs/job/13/record.json/x\n")
    with pytest.raises(RecordError, match="job 13 was submitted, but"):
        executor.submit(functions.add, 2, 4)
    slurm.write("sbatch.hook", "")
    folder = project / "pickles"
    assert sorted(path.name for path in folder.iterdir()) == ["12_submitted.pkl", "13_submitted.pkl"]
    assert pickle_load(folder / "13_submitted.pkl").args == (2, 4)


def test_a_job_with_a_lost_answer_gets_its_functions_when_it_is_found(
    executor: Executor, slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_SECONDS", "AWAY_SECONDS", "LOOK_PAUSE"):
        monkeypatch.setattr(lost_answers, name, 0)
    slurm.write("sbatch.error", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n")
    with pytest.raises(AnswerLost) as error:
        executor.map_array(functions.add, [1, 2], [3, 4])
    remedy = "make another submission: it first looks for this job and gives it its functions; "
    assert str(error.value.remedy).startswith(remedy)
    (slurm.folder / "sbatch.error").unlink()
    (own,) = (project / "runs/job").glob(".submitting-*")
    (slurm.folder / "11.path").write_text(f"{own}/script.sbatch\n")
    executor.submit(functions.add, 5, 6)
    folder = project / "pickles"
    found = {path.name: pickle_load(path).args for path in folder.glob("*.pkl")}
    assert found == {"11_0_submitted.pkl": (1, 3), "11_1_submitted.pkl": (2, 4), "12_submitted.pkl": (5, 6)}
    assert sorted(path.name for path in (project / "runs/job/11").iterdir()) == ["record.json", "script.sbatch"]
    # What Slurm has never taken leaves nothing.
    slurm.write("sbatch.error", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n")
    with pytest.raises(AnswerLost):
        executor.submit(functions.add, 7, 8)
    (slurm.folder / "sbatch.error").unlink()
    executor.submit(functions.add, 9, 10)
    assert {path.name for path in folder.glob("*.pkl")} == {*found, "13_submitted.pkl"}


def test_large_arrays_are_split_below_the_greatest_index(executor: Executor, slurm: FakeSlurm, project: Path) -> None:
    slurm.write("max_array_size", "3")
    jobs = executor.map_array(functions.add, range(7), range(7))
    assert [job.job_id for job in jobs] == ["12_0", "12_1", "12_2", "13_0", "13_1", "13_2", "14_0"]
    assert [read_directives(slurm.read(f"{number}.script"))["array"] for number in (12, 13, 14)] == [
        "0-2",
        "0-2",
        "0-0",
    ]
    assert all(job.paths.submitted_pickle.is_file() for job in jobs)
    assert [job.submission().args for job in jobs] == [(number, number) for number in range(7)]
    assert read_directives(slurm.read("12.script"))["output"].endswith("/%A_%a_0_log.out")
    # One table for the three arrays.
    [path] = (project / "pickles").glob("*_table.jsonl")
    assert path.name == "12_table.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["number"], row["job_id"], row["args"]) for row in rows] == [
        (index, job.job_id, [str(index), str(index)]) for index, job in enumerate(jobs)
    ]
    assert {row["function"] for row in rows} == {"add"}


def test_a_table_that_cannot_be_written_does_not_stop_the_jobs(
    executor: Executor, slurm: FakeSlurm, project: Path
) -> None:
    (project / "pickles" / "12_table.jsonl").mkdir(parents=True)
    with pytest.warns(UserWarning, match="no table of this map: .*12_table.jsonl: Is a directory"):
        jobs = executor.map_array(functions.add, range(2), range(2))
    assert [job.job_id for job in jobs] == ["12_0", "12_1"]


def test_the_limit_of_parallel_elements_is_divided_among_the_arrays(executor: Executor, slurm: FakeSlurm) -> None:
    slurm.write("max_array_size", "4")
    executor.update_parameters(slurm_array_parallelism=4)
    executor.map_array(functions.add, range(8), range(8))
    assert [read_directives(slurm.read(f"{number}.script"))["array"] for number in (12, 13)] == ["0-3%2", "0-3%2"]


def test_if_a_later_array_is_refused_the_submitted_ones_are_named(executor: Executor, slurm: FakeSlurm) -> None:
    slurm.write("max_array_size", "2")
    hook = '[ -f "$FAKE/12.script" ] && { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }'
    slurm.write("sbatch.hook", hook)
    with pytest.raises(PartlySubmitted, match="only the first 2 of 3") as error:
        executor.map_array(functions.add, range(3), range(3))
    assert [job.job_id for job in error.value.jobs] == ["12_0", "12_1"]
    assert "scancel 12" in str(error.value.remedy)


def test_a_batch_is_one_array(executor: Executor, slurm: FakeSlurm) -> None:
    with executor.batch():
        jobs = [executor.submit(functions.add, number, 1) for number in range(3)]
    assert [job.job_id for job in jobs] == ["12_0", "12_1", "12_2"]
    assert slurm.read("last") == "12\n"


def test_jobs_clusters_and_projects_are_text_or_paths(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    job, cluster, root = Path("jobs/job.toml"), Path("env/fake.toml"), str(project)
    assert hpc_kit.render(job, cluster, root=root) == hpc_kit.render(str(job), str(cluster), root=project)
    assert hpc_kit.submit(job, cluster, root=root).job_id == "12"
    assert hpc_kit.submit("job", "fake", root=root).run.folder == project / "runs/job/13"
    assert Executor(job, "pickles", cluster, root=root).root == project
    assert Executor(job="job", folder="pickles", cluster="fake", root=root).root == project


def test_a_function_that_is_too_large_is_refused(slurm: FakeSlurm, project: Path) -> None:
    executor = Executor(job="job", folder="pickles", cluster="fake", max_pickle_size_gb=1e-6)
    with pytest.raises(SpecError, match="too large"):
        executor.submit(len, "x" * 10_000)
    assert list((project / "pickles").iterdir()) == []


def test_if_one_function_cannot_be_pickled_no_pickle_remains(slurm: FakeSlurm, project: Path) -> None:
    executor = Executor(job="job", folder="pickles", cluster="fake")
    with pytest.raises(TypeError, match="pickle"):
        executor.map_array(functions.add, [1, 2, threading.Lock()], [1, 2, 3])
    assert list((project / "pickles").iterdir()) == []
    assert not (slurm.folder / "last").exists()


def test_a_custom_python_command_is_used_unchanged(slurm: FakeSlurm) -> None:
    python = "apptainer exec 'my image.sif' python"
    Executor(job="job", folder="pickles", cluster="fake", python=python).submit(functions.add, 1, 1)
    assert f"apptainer exec 'my image.sif' python -u -c '{SUBMITIT_MAIN}' /" in slurm.read("12.script")


def test_the_default_cluster_fits_the_machine(slurm: FakeSlurm, project: Path) -> None:
    (project / "env" / "default.toml").write_text((project / "env" / "fake.toml").read_text())
    assert Executor(job="job", folder="pickles").submit(functions.add, 1, 1).job_id == "12"
    known = hpc_kit.submit("job").run.record
    assert known is not None
    assert (known.job_id, known.cluster) == ("13", "default")


def test_the_folder_is_optional(slurm: FakeSlurm, project: Path) -> None:
    job = Executor(job="job", cluster="fake").submit(functions.add, 1, 1)
    assert job.paths.folder == project / "runs" / "functions"


def test_a_job_of_torchrun_is_refused(slurm: FakeSlurm, project: Path) -> None:
    with pytest.raises(SpecError, match="job job is started by torchrun"):
        Executor(
            job="job", folder="p", cluster="fake", set={"launch.launcher": "torchrun", "resources.ntasks_per_node": 1}
        )


def test_an_executor_needs_no_job(slurm: FakeSlurm, project: Path) -> None:
    executor = Executor(folder="runs/sweep", cluster="fake")
    executor.update_parameters(timeout_min=3, tasks_per_node=2)
    job = executor.submit(functions.add, 1, 1)
    script = job.paths.submission_file.read_text()
    assert job.paths.folder == project / "runs" / "sweep"
    for line in ("--job-name=submitit", "--nodes=1", "--ntasks-per-node=2", "--time=3"):
        assert f"#SBATCH {line}\n" in script


def test_logs_in_a_folder_with_a_backslash_reach_it_through_a_link(slurm: FakeSlurm, project: Path) -> None:
    folder = project / "a\\b" / "c"
    job = Executor(job="job", folder=folder, cluster="fake").submit(functions.add, 1, 1)
    [output] = re.findall(r"^#SBATCH --output=(.*)$", job.paths.submission_file.read_text(), re.MULTILINE)
    assert "\\" not in output
    log = Path(output.replace("%j", job.job_id))
    assert log.parent.resolve() == folder.resolve()
    assert log.name == job.paths.stdout.name


def test_the_teardown_runs_at_the_end_and_keeps_the_exit_status(slurm: FakeSlurm, project: Path) -> None:
    executor = Executor(job="job", folder="p", cluster="fake")
    executor.update_parameters(slurm_setup=["echo begun"], slurm_teardown=['echo "it\'s over"', "false"])
    script = executor.submit(functions.add, 1, 1).paths.submission_file.read_text()
    [trap] = re.findall(r"^trap 'set \+e.*? EXIT$", script, re.MULTILINE | re.DOTALL)
    done = subprocess.run(["bash", "-euc", f"{trap}\nexit 3"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "it's over\n")


def test_the_time_limit_reaches_the_protocol(executor: Executor, slurm: FakeSlurm) -> None:
    assert executor.submit(functions.add, 1, 1).submission()._timeout_min == 10
    executor.update_parameters(time=None)
    assert executor.submit(functions.add, 1, 1).submission()._timeout_min == 0
    executor.update_parameters(time="UNLIMITED")
    assert executor.submit(functions.add, 1, 1).submission()._timeout_min > 10**6


@pytest.fixture
def embedded(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmClient]:
    """The embedded Slurm with a queue of its own, empty again at the end."""
    from hpc_kit.spec.load import load_cluster

    monkeypatch.setenv("HPC_KIT_SLURM_STATE", str(tmp_path / "state"))
    (project / "env" / "here.toml").write_text(
        'slurm = "embedded"\n[node]\ncpus = 8\ngpus = 0\n[embedded]\nmax_array_size = 2\nkill_wait = 1\n'
    )
    (project / "jobs" / "job.toml").write_text(
        'command = ["python", "train.py"]\n[resources]\nnodes = 2\nntasks_per_node = 1\ntime = "00:10:00"\n'
    )
    client = open_client(load_cluster("here", root=project))
    yield client
    client.run(["scancel", "--me"])
    deadline = time.monotonic() + 20
    while client.run(["squeue", "--noheader"]).stdout:
        assert time.monotonic() < deadline, "the queue does not become empty"
        time.sleep(0.1)


def test_a_result_delayed_by_a_slow_file_system_is_waited_for(
    executor: Executor, slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor.update_parameters(nodes=1, ntasks_per_node=1)
    job = executor.submit(functions.add, 2, 3)
    slurm.queue("12 COMPLETED")
    late = threading.Timer(1.5, job.paths.result_pickle.write_bytes, [pickle.dumps(("success", 5))])
    late.start()
    assert cast("object", job.result()) == 5
    late.join()
    job.paths.result_pickle.unlink()
    monkeypatch.setattr(FunctionJob, "_results_timeout_s", 0)
    error = job.exception()
    assert error is not None
    assert f"COMPLETED: rank 0 left no result: {job.paths.result_pickle} is missing" in str(error)
    assert "read " not in str(error)  # there is no log


def test_a_function_returns_one_result_per_rank(embedded: SlurmClient, project: Path) -> None:
    executor = hpc_kit.Executor(job="job", folder="my pickles (größe)", cluster="here")
    job = executor.submit(functions.add, 2, 3)
    assert job.results() == [(0, 5), (1, 5)]
    assert job.task(1).result() == (1, 5)
    assert job.exception() is None
    assert "rank 1 adds" in str(job.task(1).stdout())
    assert job.state in {"COMPLETED", "RUNNING", "COMPLETING"}
    copy = pickle.loads(pickle.dumps(job))
    copy.wait()
    assert copy.results() == [(0, 5), (1, 5)]


def test_files_of_the_project_replace_no_module_of_python(embedded: SlurmClient, project: Path) -> None:
    for name in ("types", "enum", "argparse"):
        (project / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    (project / "steps.py").write_text("def double(number):\n    return 2 * number\n")
    sys.path.append(str(project))
    try:
        double = importlib.import_module("steps").double  # pickled by its name
        assert Executor(cluster="here").submit(double, 21).result() == 42
    finally:
        sys.path.remove(str(project))
        del sys.modules["steps"]


@pytest.mark.slow
def test_the_exception_of_the_first_failed_rank_is_raised(embedded: SlurmClient, project: Path) -> None:
    executor = Executor(job="job", folder="pickles", cluster="here", set={"resources.ntasks_per_node": 2})
    started = time.monotonic()
    job = executor.submit(functions.fail_on_rank, 2)
    with pytest.raises(JobFailed) as error:
        job.results()
    assert time.monotonic() - started < 30
    assert isinstance(error.value, FailedJobError)
    assert str(error.value).startswith(
        f"job {job.job_id} job FAILED: rank 2 on 127.0.0.2 failed with ValueError: bad sample on rank 2"
    )
    assert job.task(0).exception() is not None


@pytest.mark.slow
def test_a_killed_rank_is_reported_with_its_signal(embedded: SlurmClient, project: Path) -> None:
    executor = Executor(job="job", folder="pickles", cluster="here", set={"resources.nodes": 1})
    error = executor.submit(functions.kill_itself).exception()
    assert error is not None
    assert "rank 0 on 127.0.0.1 was killed by SIGKILL" in str(error)


@pytest.mark.slow
def test_elements_of_an_array_run_through_our_script(embedded: SlurmClient, project: Path) -> None:
    executor = Executor(job="job", folder="pickles/%j", cluster="here", set={"resources.nodes": 1})
    jobs = executor.map_array(lambda index: (index, functions.read_variables()), range(3))
    found = [job.result() for job in jobs]
    assert [index for index, _ in found] == [0, 1, 2]
    ids = [f"{where['SLURM_ARRAY_JOB_ID']}_{where['SLURM_ARRAY_TASK_ID']}" for _, where in found]
    assert ids == [job.job_id for job in jobs]
    assert [where["HPC_KIT_RUN"] for _, where in found] == [str(project / "runs/job" / job_id) for job_id in ids]
    assert {where["SUBMITIT_EXECUTOR"] for _, where in found} == {"slurm"}


@pytest.mark.slow
def test_a_callable_with_a_checkpoint_is_requeued_and_resumes(
    embedded: SlurmClient, project: Path, tmp_path: Path
) -> None:
    executor = Executor(job="job", folder="pickles", cluster="here", set={"resources.nodes": 1})
    job: FunctionJob[int] = cast("FunctionJob[int]", executor.submit(functions.Counter(tmp_path)))
    deadline = time.monotonic() + 30
    while not (tmp_path / "attempt-1").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job._interrupt()
    assert job.result() == 2
    assert (tmp_path / "attempt-2").exists()


def test_a_program_is_a_submitit_job(embedded: SlurmClient, project: Path) -> None:
    program = (
        'echo "rank $SLURM_PROCID"; [ $SLURM_PROCID = 0 ] && echo \'{"loss": 2.5}\' >"$HPC_KIT_RUN/summary.json"; true'
    )
    job = hpc_kit.submit("job", "here", set={"command": ["bash", "-c", program]})
    assert isinstance(job, ScriptJob)
    assert job.result() == {"loss": 2.5}
    assert (job.exception(), job.state, job.done()) == (None, "COMPLETED", True)
    assert (job.stdout(), job.stderr()) == ("rank 0\n", "")
    assert job.paths.submission_file.read_text() == hpc_kit.render(
        "job", "here", set={"command": ["bash", "-c", program]}
    )
    copy = pickle.loads(pickle.dumps(job))
    assert copy.results() == [{"loss": 2.5}]
    secret = pickle.dumps(job)
    assert os.environ["PATH"].encode() not in secret


@pytest.mark.slow
def test_a_failed_program_is_reported_with_rank_host_and_its_output(embedded: SlurmClient, project: Path) -> None:
    (project / "train.py").write_text(
        "import os, time\nif os.environ['SLURM_PROCID'] == '1':\n    raise ValueError('bad sample')\ntime.sleep(60)\n"
    )
    job = hpc_kit.submit("job", "here")
    error = job.exception()
    assert error is not None
    assert (
        error.what
        == f"job {job.job_id} job FAILED: rank 1 on 127.0.0.2 failed with ValueError: bad sample (train.py:3)"
    )
    assert error.found is not None
    assert error.found.splitlines()[0] == "Traceback (most recent call last):"
    assert error.outcome.exit_status == 1
    with pytest.raises(JobFailed, match="bad sample"):
        pickle.loads(pickle.dumps(job)).result()


def account_as(slurm: FakeSlurm, state: str) -> None:
    """Let sacct report this state of job 12."""
    fields = {"job_id": "12", "raw_id": "12", "name": "job", "state": state, "exit": "0:0", "user": user_name()}
    row = "|".join(fields.get(field, now() if field == "submit" else "") for field in SACCT_FIELDS)
    (slurm.bin / "sacct").write_text(f"#!/bin/bash\necho '{row}'\n")


@pytest.mark.parametrize(("state", "is_done"), [("CANCELLED by 0", True), ("COMPLETED", False)])
def test_the_result_of_a_cancelled_job_does_not_wait_for_processes_that_ignore_the_signal(
    executor: Executor, slurm: FakeSlurm, state: str, is_done: bool
) -> None:
    job = executor.submit(functions.add, 2, 3)
    slurm.queue("12 COMPLETING")
    account_as(slurm, state)
    assert not job.done(force_check=True)
    job.cancel()
    assert job.done(force_check=True) is is_done
    if is_done:
        with pytest.raises(ScriptFailed, match="CANCELLED"):
            job.result()


@pytest.mark.slow
def test_a_cancelled_program_is_reported_as_cancelled(embedded: SlurmClient, project: Path) -> None:
    job = hpc_kit.submit("job", "here", set={"command": ["sleep", "60"]})
    assert job.state in {"PENDING", "RUNNING"}
    job.cancel()
    error = job.exception()
    assert error is not None
    assert job.state == "CANCELLED"
    assert error.what == f"job {job.job_id} job CANCELLED: It was cancelled by its user or an administrator."


@pytest.mark.slow
def test_an_array_of_programs_returns_one_result_per_element(embedded: SlurmClient, project: Path) -> None:
    program = 'echo "{\\"index\\": $SLURM_ARRAY_TASK_ID}" >"$HPC_KIT_RUN/summary.json"'
    changes = {"command": ["bash", "-c", program], "resources.array": "0-1", "resources.nodes": 1}
    job = hpc_kit.submit("job", "here", set=changes)
    assert job.results() == [{"index": 0}, {"index": 1}]
    assert [element.state for element in job.elements()] == ["COMPLETED", "COMPLETED"]
    assert job.state == "COMPLETED"
