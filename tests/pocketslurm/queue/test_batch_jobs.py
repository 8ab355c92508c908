"""Batch jobs from sbatch to their end, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pocketslurm.conftest import Slurm, wait_for


def test_a_script_runs_in_the_submitters_folder_with_its_environment_and_arguments(slurm: Slurm) -> None:
    script = slurm.folder / "job.sh"
    script.write_text(
        '#!/bin/bash\n#SBATCH --job-name=first\necho "$PWD|$MINE|$*|$SLURM_JOB_ID|$SLURM_JOB_NAME|$(basename $0)"\n'
    )
    output = slurm.check_output("sbatch", str(script), "a b", "c", env={"MINE": "with 'quotes' and\nlines"})
    assert output == "Submitted batch job 1\n"
    job = slurm.until(1, "COMPLETED")
    assert slurm.log("slurm-1.out") == f"{slurm.folder}|with 'quotes' and\nlines|a b c|1|first|slurm_script\n"
    assert (job.exit_code, job.nodes, job.cpus) == (0, ["n1"], [1])


def test_nothing_is_left_when_the_queue_is_empty(slurm: Slurm) -> None:
    slurm.until(slurm.submit("true"), "COMPLETED")
    wait_for(lambda: not slurm.processes())
    assert not list((slurm.directory / "wake").iterdir())
    assert not list((slurm.directory / "jobs").iterdir())


@pytest.mark.parametrize(
    ("body", "state", "shown", "accounted"),
    [
        ("exit 0", "COMPLETED", "0:0", "0:0"),
        ("exit 3", "FAILED", "3:0", "3:0"),
        ("exit 137", "FAILED", "137:0", "9:0"),
        ("kill -9 $$", "FAILED", "0:9", "0:9"),
        ("nosuchcommand", "FAILED", "127:0", "127:0"),
    ],
)
def test_a_job_has_the_exit_status_of_its_script(
    slurm: Slurm, body: str, state: str, shown: str, accounted: str
) -> None:
    job_id = slurm.submit(body)
    assert slurm.ended(job_id).state == state
    assert f"JobState={state} " in slurm.check_output("scontrol", "show", "job", str(job_id))
    assert f" ExitCode={shown}\n" in slurm.check_output("scontrol", "show", "job", str(job_id))
    output = slurm.check_output("sacct", "-nPX", "-o", "State,ExitCode", "-j", str(job_id))
    assert output == f"{state}|{accounted}\n"


def test_a_missing_interpreter_fails_the_job_and_is_logged(slurm: Slurm) -> None:
    job_id = slurm.submit("true", shell="/no/such/shell")
    assert slurm.ended(job_id).exit_code == 2 << 8
    log = slurm.log(f"slurm-{job_id}.out")
    assert log == "slurmstepd: error: execve(): bad interpreter(/no/such/shell): No such file or directory\n"


def test_a_log_that_cannot_be_created_fails_the_job_as_on_slurm(slurm: Slurm) -> None:
    job_id = slurm.submit("true", "--output=no/such/folder/%j.out")
    job = slurm.ended(job_id)
    assert (job.state, job.exit_code, job.reason) == ("FAILED", 53, "JobLaunchFailure")
    output = slurm.check_output("sacct", "-nP", "-o", "JobID,State,ExitCode", "-j", str(job_id))
    assert output == f"{job_id}|FAILED|0:53\n{job_id}.batch|CANCELLED|0:53\n"
    assert "no/such/folder" in (slurm.directory / "controller.log").read_text()


def test_the_log_folder_may_be_created_after_sbatch_has_printed_the_id(slurm: Slurm) -> None:
    job_id = slurm.submit("echo here", "--output=%j/log")
    slurm.until(job_id, "RUNNING")
    time.sleep(0.5)
    (slurm.folder / str(job_id)).mkdir()
    assert slurm.ended(job_id).state == "COMPLETED"
    assert slurm.log(f"{job_id}/log") == "here\n"


def test_a_script_with_a_missing_working_folder_runs_in_tmp(slurm: Slurm) -> None:
    job_id = slurm.submit("pwd", "--chdir=/no/such/folder", f"--output={slurm.folder}/log")
    assert slurm.ended(job_id).state == "COMPLETED"
    error = "slurmstepd: error: couldn't chdir to `/no/such/folder': No such file or directory: going to /tmp instead"
    assert slurm.log("log") == f"{error}\n{error}\n/tmp\n"


def test_output_error_and_input_name_the_files(slurm: Slurm) -> None:
    (slurm.folder / "input").write_text("from a file\n")
    body = "cat; echo out; echo err >&2"
    job_id = slurm.submit(body, "-J", "x", "--input=input", "--output=%x-%5j.out", "--error=%u_%N.err")
    slurm.until(job_id, "COMPLETED")
    assert slurm.log(f"x-{job_id:05d}.out") == "from a file\nout\n"
    assert slurm.log(f"{slurm.job(job_id).user}_n1.err") == "err\n"


@pytest.mark.parametrize(("mode", "kept"), [("append", "before\nnew\n"), ("truncate", "new\n"), (None, "new\n")])
def test_the_open_mode_appends_to_an_older_log_or_replaces_it(slurm: Slurm, mode: str | None, kept: str) -> None:
    (slurm.folder / "log").write_text("before\n")
    slurm.until(slurm.submit("echo new", "-o", "log", *([f"--open-mode={mode}"] if mode else [])), "COMPLETED")
    assert slurm.log("log") == kept


def test_a_script_has_the_umask_of_the_submitter(slurm: Slurm) -> None:
    script = slurm.folder / "job.sh"
    script.write_text("#!/bin/sh\numask\n")
    command = f"umask 027; exec '{slurm.directory}/bin/sbatch' --parsable job.sh"
    done = subprocess.run(
        ["sh", "-c", command], cwd=slurm.folder, env=slurm.environ, capture_output=True, text=True, check=True
    )
    slurm.until(int(done.stdout), "COMPLETED")
    log = slurm.folder / f"slurm-{int(done.stdout)}.out"
    assert (log.read_text(), log.stat().st_mode & 0o777) == ("0027\n", 0o640)


@pytest.mark.parametrize(
    ("export", "seen"),
    [
        (None, "a|b|"),
        ("ALL", "a|b|"),
        ("NONE", "||"),
        ("A", "a||"),
        ("A,NEW=x", "a||x"),
        ("ALL,NEW=x", "a|b|x"),
        ("NEW='x,y'", "||x,y"),
    ],
)
def test_export_chooses_the_variables_of_the_job(slurm: Slurm, export: str | None, seen: str) -> None:
    script = slurm.folder / "job.sh"
    script.write_text('#!/bin/sh\necho "$A|$B|$NEW"\ntest -n "$HOME" -a -n "$PATH" && command -v scontrol >/dev/null\n')
    options = ["--wait", *([f"--export={export}"] if export else [])]
    slurm.check_output("sbatch", *options, str(script), env={"A": "a", "B": "b"})
    assert slurm.log("slurm-1.out") == f"{seen}\n"


@pytest.mark.parametrize("flags", ["-l", "--login", "-ul"])
def test_a_login_shell_finds_the_commands(slurm: Slurm, flags: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("echo mine >> sourced\n")
    body = 'scontrol show hostname "$SLURM_JOB_NODELIST"; env | grep -c "^HPC_KIT_SLURM_BASH_ENV"; echo $BASH_ENV'
    slurm.environ.update(BASH_ENV=str(tmp_path / "mine"), HOME=str(tmp_path))
    job_id = slurm.submit(body, "-N2", shell=f"/bin/bash {flags}")
    slurm.until(job_id, "COMPLETED")
    assert slurm.log(f"slurm-{job_id}.out") == f"n1\nn2\n0\n{tmp_path}/mine\n"
    assert slurm.log("sourced").startswith("mine\n")


@pytest.mark.parametrize("word", [".", "source"])
def test_a_script_that_reads_a_profile_finds_the_commands(slurm: Slurm, word: str, tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("PATH=/usr/bin:/bin\ndeclare -A table=([a]=1)\nfalse || return 3\n")
    body = f"""set -eux
    {word} {tmp_path}/profile || echo $? ${{table[a]}} ${{BASH_ENV-none}} $0 $LINENO
    srun hostname | sort
    """
    job_id = slurm.submit(body, "-N2", shell="/bin/bash")
    slurm.until(job_id, "COMPLETED")
    lines = slurm.log(f"slurm-{job_id}.out").splitlines()
    script = f"{slurm.directory}/jobs/job{job_id:05d}/slurm_script"
    assert [line for line in lines if not line.startswith("+")] == [f"3 1 none {script} 3", "n1", "n2"]
    assert not [line for line in lines if line.startswith("+") and f"{slurm.directory}/bin" in line]


def test_a_bash_env_that_is_missing_or_contains_variables_is_kept(slurm: Slurm) -> None:
    for value in ("/nowhere/at all", "$HOME/mine"):
        slurm.environ.update(BASH_ENV=value, HOME=str(slurm.folder))
        (slurm.folder / "mine").write_text("echo read\n")
        job_id = slurm.submit('echo "$BASH_ENV"', shell="/bin/bash")
        slurm.until(job_id, "COMPLETED")
        assert slurm.log(f"slurm-{job_id}.out") == "read\n" * value.startswith("$") + f"{value}\n"


def test_signals_that_the_submitter_ignores_reach_the_script(slurm: Slurm) -> None:
    command = "trap '' INT TERM HUP PIPE; exec \"$0\" --wait --wrap 'grep SigIgn /proc/self/status'"
    subprocess.run(
        ["sh", "-c", command, f"{slurm.directory}/bin/sbatch"],
        cwd=slurm.folder, env=slurm.environ, capture_output=True, check=True,
    )  # fmt: skip
    # 32 and 33 are glibc's own, and come as the test was started.
    assert int(slurm.log("slurm-1.out").split()[1], 16) & ~(3 << 31) == 0


def test_background_processes_of_a_script_are_killed(slurm: Slurm) -> None:
    body = """
    sleep 1001 & setsid sleep 1002 & (setsid nohup bash -c 'trap "" TERM HUP; echo $$ > pid; sleep 1003' &)
    while [ ! -s pid ]; do sleep 0.02; done
    """
    job_id = slurm.submit(body)
    slurm.until(job_id, "COMPLETED")
    wait_for(lambda: not slurm.processes())
    assert not Path("/proc", slurm.log("pid").strip()).exists()


def test_sbatch_returns_immediately_even_if_its_output_is_a_pipe(slurm: Slurm) -> None:
    started = time.monotonic()
    slurm.check_output("sbatch", "--wrap", "sleep 30")
    assert time.monotonic() - started < 10


def test_wait_ends_with_the_jobs_exit_code(slurm: Slurm) -> None:
    done = slurm.run("sbatch", "--wait", "--wrap", "exit 7")
    assert (done.returncode, done.stdout) == (7, "Submitted batch job 1\n")
    assert slurm.run("sbatch", "--wait", "--array=0-2", "--wrap", "exit $SLURM_ARRAY_TASK_ID").returncode == 2
    assert slurm.run("sbatch", "--wait", "--wrap", "kill -9 $$").returncode == 1


def test_a_script_may_come_from_stdin(slurm: Slurm) -> None:
    assert (
        slurm.check_output("sbatch", "--wait", stdin="#!/bin/sh\necho $SLURM_JOB_NAME\n") == "Submitted batch job 1\n"
    )
    assert slurm.log("slurm-1.out") == "sbatch\n"


def test_a_job_can_submit_a_job(slurm: Slurm) -> None:
    slurm.check_output("sbatch", "--wait", "--wrap", "sbatch --wait --wrap 'echo inner $SLURM_JOB_ID' > said")
    assert slurm.log("said") == "Submitted batch job 2\n"
    assert slurm.log("slurm-2.out") == "inner 2\n"
    assert slurm.job(2).state == "COMPLETED"


def test_a_job_that_a_job_submits_outlives_it(slurm: Slurm) -> None:
    slurm.submit("sbatch --wrap 'while [ ! -e go ]; do sleep 0.05; done; echo done'")
    slurm.until(1, "COMPLETED")
    slurm.until(2, "RUNNING")
    (slurm.folder / "go").touch()
    slurm.until(2, "COMPLETED")


def test_twenty_simultaneous_submissions_get_twenty_ids(slurm: Slurm) -> None:
    with ThreadPoolExecutor(20) as pool:
        output = list(pool.map(lambda _: slurm.check_output("sbatch", "--parsable", "--wrap", "true"), range(20)))
    assert sorted(map(int, output)) == list(range(1, 21))
    for job_id in range(1, 21):
        slurm.until(job_id, "COMPLETED")


def test_many_jobs_can_be_queued(slurm: Slurm) -> None:
    holder = slurm.submit("sleep 600", "-N4", "--exclusive")
    slurm.until(holder, "RUNNING")
    program = "import os; from pocketslurm.commands import sbatch\n"
    program += "for _ in range(60): sbatch.main(['-Q', '--wrap', 'true'], os.environ)"
    subprocess.run([sys.executable, "-c", program], env=slurm.environ, cwd=slurm.folder, check=True)
    reasons = slurm.check_output("squeue", "-h", "-t", "PD", "-o", "%r").split()
    assert len(reasons) == 60
    assert set(reasons) <= {"Resources", "Priority", "None"}
    slurm.check_output("scancel", "-t", "PENDING", "--me")
    assert slurm.check_output("squeue", "-h", "-o", "%i").split() == [str(holder)]


def test_settings_are_checked_where_they_are_read(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm()
    (slurm.directory / "slurm.json").write_text('{"cpu": 4}')
    status, complaint = slurm.refused("squeue")
    assert status == 1
    assert "no setting is called 'cpu'" in complaint
    (slurm.directory / "slurm.json").unlink()


def test_hostname_prints_the_node_inside_a_job_and_the_machine_outside(slurm: Slurm) -> None:
    outside = {name: value for name, value in slurm.environ.items() if name != "SLURMD_NODENAME"}
    assert subprocess.check_output(["hostname"], env=outside, text=True) == f"{os.uname().nodename}\n"
    job_id = slurm.submit("hostname; srun -N1 -n1 -w n2 hostname -s; srun -n1 -N1 hostname --fqdn", "-N2")
    slurm.until(job_id, "COMPLETED")
    assert slurm.log(f"slurm-{job_id}.out") == "n1\nn2\nn1\n"


def test_a_node_may_be_named_by_its_address(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(nodes="127.0.0.[1-2]")
    job_id = slurm.submit("srun -N1 -n1 -w 127.0.0.2 hostname --ip-address; srun -N2 -n2 -l hostname -I | sort", "-N2")
    slurm.until(job_id, "COMPLETED")
    assert slurm.log(f"slurm-{job_id}.out") == "127.0.0.2\n0: 127.0.0.1\n1: 127.0.0.2\n"


def test_the_name_of_a_folder_may_be_any_bytes(slurm: Slurm) -> None:
    folder = slurm.folder / "caf\udce9"
    folder.mkdir()
    for command in (["sbatch", "--wait", "--wrap=pwd"], ["srun", "true"], ["salloc", "true"]):
        subprocess.run(command, env=slurm.environ, cwd=folder, stdin=subprocess.DEVNULL, check=True)
    assert (folder / "slurm-1.out").read_bytes() == os.fsencode(folder) + b"\n"
    for command in (["scontrol", "show", "job", "1"], ["squeue", "--states=all", "--format=%Z"]):
        shown = subprocess.run(command, env=slurm.environ, cwd=folder, capture_output=True, check=True)
        assert os.fsencode(folder) in shown.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_commands_work_without_standard_streams(slurm: Slurm, closed: str) -> None:
    for command in ("sbatch --wait --output=log --wrap='cat; echo done'", "squeue", "srun -n2 hostname", "salloc true"):
        words = ["bash", "-c", f"{command} {closed}"]
        done = subprocess.run(words, env=slurm.environ, cwd=slurm.folder, capture_output=True, check=False)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert slurm.log("log") == "done\n"


def test_a_job_has_the_limits_of_its_own_submitter(slurm: Slurm) -> None:
    submit = "sbatch --output=%j --wrap='srun bash -c \"ulimit -Sn; ulimit -Sc; ulimit -Sf\"'"
    few = f"ulimit -Sn 100; ulimit -Sc 0; ulimit -Sf 5000; {submit}"
    script = (
        f"({few}); ulimit -Sn 200; ulimit -Sc 0; {submit}; ({few} --wait --propagate=NOFILE --dependency=afterany:1:2)"
    )
    subprocess.run(["bash", "-c", script], env=slurm.environ, cwd=slurm.folder, check=True)
    assert slurm.log("1").split() == ["100", "0", "5000"]
    assert slurm.log("2").split() == ["200", "0", "unlimited"]
    assert slurm.log("3").split()[::2] == ["100", "unlimited"]
