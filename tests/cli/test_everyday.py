"""Everyday commands: pages of the documentation, deleting old runs, completion in the shell."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from hpc_kit.cli import root
from hpc_kit.cli.clean import command as clean
from hpc_kit.cli.doctor import command as doctor
from hpc_kit.cli.launch import command as launch
from hpc_kit.cli.logs import command as logs
from hpc_kit.cli.report import command as report
from hpc_kit.cli.stacks import command as stacks
from hpc_kit.cli.status import command as status
from hpc_kit.cli.watch import command as watch
from hpc_kit.spec import cluster_client
from hpc_kit.submission.executor import Executor
from hpc_kit.submission.submit import submit
from tests.cli.conftest import Kit
from tests.conftest import ROOT
from tests.runs.fake import FakeSlurm


def test_a_page_of_the_documentation_is_printed(kit: Kit) -> None:
    assert kit("docs", "when-it-fails").stdout.startswith("# When a job fails\n")
    assert kit("docs", "fails").stdout.startswith("# When a job fails\n")
    assert "when-it-fails" in kit("docs").stdout
    done = kit("docs", "rendevous")
    assert (done.returncode, done.stderr) == (
        2,
        "hpc-kit: no page 'rendevous'\n  do     hpc-kit docs rendezvous\n",
    )
    assert "hpc-kit docs lists the pages" in kit("docs", "nothing").stderr


def test_a_page_is_found_by_the_code_of_a_rule_several_words_and_its_title(kit: Kit) -> None:
    assert kit("docs", "kit302").stdout.startswith("# KIT302: ")
    assert kit("docs", "when", "it", "fails").stdout.startswith("# When a job fails\n")
    assert kit("docs", "check").stdout.startswith("# Rules of `hpc-kit check`\n")


@pytest.mark.parametrize(
    ("words", "what", "remedy"),
    [
        (["init", "--job", "ddp_1nod"], "no shipped job 'ddp_1nod'", "did you mean ddp_1node?"),
        (["completion", "instal"], "no completion for instal", "did you mean install?"),
        (["completion", "csh"], "no completion for csh", "did you mean zsh?"),
        (["check", "jobs"], "'jobs' is a folder, and no job file", "see: hpc-kit list"),
        (["check", "--explain", "KIT999"], "no rule KIT999", "hpc-kit docs rules lists all rules"),
        (["check", "--explain", "302"], "no rule 302", "did you mean KIT302?"),
        (["check", "nb.ipynb"], "'nb.ipynb' is a notebook", "jupyter nbconvert --to python nb.ipynb"),
        (["status", "nope"], "no job nope", "hpc-kit status --all\n"),
        (["render", "-j", "99999x99999", "--", "true"], "more CPUs than a node has", "start at most "),
        (["render", "ok", "--set", "command="], "wrong value for command", 'command = ["python", "train.py"]'),
        (["cluster"], "Write cluster files", "cluster discover"),
        (["render", "bad"], "`setup` in the job file are not valid bash", "line 3 of setup"),
        (["render", "open"], "`setup` in the job file are not valid bash", "here-document"),
        (["check", "bad"], "`setup` in the job file are not valid bash", "line 3 of setup"),
    ],
)
def test_the_remedy_of_a_wrong_word_helps(kit: Kit, project: Path, words: list[str], what: str, remedy: str) -> None:
    (project / "nb.ipynb").write_text("{}")
    (project / "jobs" / "ok.toml").write_text('command = ["true"]\n')
    (project / "jobs" / "bad.toml").write_text('command = ["true"]\nsetup = ["true", "if true"]\n')
    (project / "jobs" / "open.toml").write_text('command = ["true"]\nsetup = ["cat <<EOF", "text"]\n')
    done = kit(*words)
    assert done.returncode in {1, 2}
    assert what in done.stderr
    assert "hpc-kit: Usage" not in done.stderr
    assert remedy in done.stderr
    assert not done.stdout


def test_check_names_the_line_of_setup(kit: Kit, project: Path) -> None:
    setup = '["true", "export CUDA_VISIBLE_DEVICES=0"]'
    (project / "jobs" / "gpus.toml").write_text(f'command = ["true"]\nsetup = {setup}\n')
    assert "found: line 2 of `setup` in the job file" in kit("check", "gpus").stdout


COMMANDS_OF_PAGES = [
    line
    for page in ("recipes.md", "faq.md")
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("hpc-kit ") and not line.startswith("hpc-kit doctor")  # which follows a job
]


@pytest.mark.slow
@pytest.mark.usefixtures("own_slurm")
def test_the_commands_of_the_recipes_and_of_the_faq_are_accepted(kit: Kit, project: Path) -> None:
    (project / "train.py").write_text("")
    (project / "my.sbatch").write_text("#!/bin/bash\nsrun hostname\n")
    done = kit("submit", "-j", "1x4", "--hold", "--no-wait", "--save", "jobs/mine.toml", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    for line in COMMANDS_OF_PAGES:
        real = line.replace(" ID", " mine").replace("/path/to/python", sys.executable)
        words = [word for word in shlex.split(real, comments=True)[1:] if word != "-f"]  # a held job has no end
        if words[0] == "submit" and "--test-only" not in words:
            words[1:1] = ["--hold", "--no-wait"]
        done = kit(*words)
        # A held job has no logs yet.
        assert done.returncode == 0 or "has not started" in done.stderr, (line, done.stderr)


def make_older(run: Path, days: float) -> None:
    record = json.loads((run / "record.json").read_text())
    record["submitted"] = (dt.datetime.now().astimezone() - dt.timedelta(days=days)).isoformat()
    (run / "record.json").write_text(json.dumps(record))


@pytest.fixture
def runs(slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jobs 12, 13 and 14: 40 days, 40 days and a day old; 13 still waits."""
    monkeypatch.setenv("HPC_KIT_CLUSTER", "fake")
    for days in (40, 40, 1):
        make_older(submit("job", "fake").run.folder, days)
    slurm.queue("13 PENDING")
    (project / "runs" / "job" / "12.log").write_text("batch\n")
    return project / "runs" / "job"


def test_only_old_runs_that_have_ended_are_deleted(runs: Path) -> None:
    done = CliRunner().invoke(clean, ["--older-than", "30d", "--yes"])
    assert done.exit_code == 0, done.output
    assert "kept: 1 old run of" in done.output
    assert "deleted 1 run" in done.output
    assert sorted(path.name for path in runs.iterdir()) == ["13", "14", "latest"]


def test_runs_on_another_disk_are_deleted_and_the_link_to_them_stays(
    runs: Path, slurm: FakeSlurm, tmp_path: Path
) -> None:
    runs.rename(tmp_path / "scratch")
    runs.symlink_to(tmp_path / "scratch")
    slurm.queue()
    done = CliRunner().invoke(clean, ["--older-than", "1h", "--yes"])
    assert done.exit_code == 0, done.output
    assert (runs.is_symlink(), list(runs.iterdir())) == (True, [])


def test_the_folder_in_which_a_later_job_goes_on_is_kept(runs: Path, slurm: FakeSlurm) -> None:
    """A batch script that submits itself again links the new id to its run folder."""
    for link, target in (("77", "12"), ("78_3", "13_3")):
        (runs / link).symlink_to(target)
    (runs / "13_3").mkdir()
    slurm.queue("77 RUNNING", "78_3 RUNNING")
    done = CliRunner().invoke(clean, ["--older-than", "30d", "--yes"])
    assert done.exit_code == 0, done.output
    assert "kept: 3 old runs" in done.output
    assert {"12", "13", "13_3", "77"} <= {path.name for path in runs.iterdir()}


def test_the_results_of_an_executor_are_kept(runs: Path, slurm: FakeSlurm, project: Path) -> None:
    folder = project / "functions"
    job = Executor("job", folder, "fake").submit(os.getpid)
    assert (job.job_id, job.paths.submitted_pickle.is_file(), job.paths.submission_file.is_file()) == ("15", True, True)
    run = project / "runs" / "job" / "15"
    make_older(run, 40)
    old = time.time() - 35 * 24 * 3600
    for name in ("15_0_log.out", "15_1_log.err", "15_0_result.pkl", "15_table.jsonl", "150_0_log.out"):
        (folder / name).touch()
    for path in folder.iterdir():
        os.utime(path, (old, old))
    (folder / "15_2_log.out").touch()  # of a younger job 15, of another queue
    slurm.queue()
    done = CliRunner().invoke(clean, ["--older-than", "30d", "--yes"])
    assert done.exit_code == 0, done.output
    kept = {"15_0_result.pkl", "15_table.jsonl", "150_0_log.out", "15_2_log.out"}
    assert {path.name for path in folder.iterdir()} == kept
    assert not run.exists()


def test_nothing_is_deleted_without_an_answer(runs: Path, kit: Kit) -> None:
    done = kit("clean", "--older-than", "30d")
    assert (done.returncode, "add --yes" in done.stderr) == (2, True)
    assert (runs / "12").is_dir()


def test_nothing_is_deleted_while_slurm_does_not_answer(runs: Path, slurm: FakeSlurm, kit: Kit) -> None:
    slurm.write("squeue.error", "squeue: error: Unable to contact slurm controller\n")
    done = kit("clean", "--older-than", "30d", "--yes")
    assert done.returncode == 1
    assert (runs / "12").is_dir()


def test_completion_is_installed_once_and_completes_names_of_jobs(kit: Kit, tmp_path: Path) -> None:
    for _ in range(2):
        done = kit("completion", "install", "bash", HOME=str(tmp_path), XDG_DATA_HOME="")
        assert done.returncode == 0, done.stderr
    [line] = (tmp_path / ".bashrc").read_text().splitlines()
    assert subprocess.run(["bash", "-n", line.split()[2]], check=False).returncode == 0
    words = {"COMP_WORDS": "hpc-kit submit --wait ddp_4", "COMP_CWORD": "3", "_HPC_KIT_COMPLETE": "bash_complete"}
    start = "import sys; sys.argv[0] = 'hpc-kit'; from hpc_kit.__main__ import main; main()"
    environ = {**os.environ, **words}
    done = subprocess.run([sys.executable, "-c", start], env=environ, capture_output=True, text=True, check=False)
    assert "plain,ddp_4node" in done.stdout


def test_a_completion_that_cannot_be_written_names_its_file(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_to_full_disk(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_to_full_disk)
    done = kit("completion", "install", "bash", HOME=str(tmp_path), XDG_DATA_HOME="")
    file = tmp_path / ".local/share/hpc_kit/complete.bash"
    assert done.stderr.splitlines()[0] == f"hpc-kit: cannot write {file}"


def test_completion_works_with_a_blank_in_the_path_and_keeps_the_lines_of_the_shell(kit: Kit, tmp_path: Path) -> None:
    home = tmp_path / "my home"
    home.mkdir()
    (home / ".bashrc").write_text("MINE=1")  # without the end of the line
    assert kit("completion", "install", "bash", HOME=str(home), XDG_DATA_HOME="").returncode == 0
    test = ["bash", "-c", 'source "$1" && echo "$MINE" && complete -p hpc-kit', "bash", str(home / ".bashrc")]
    done = subprocess.run(test, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("1\ncomplete "), done.stderr


def test_a_run_is_private_even_if_its_folder_is_shared(kit: Kit, project: Path) -> None:
    words = ["-j", "1x1", "--cluster", "local", "--job-name", "mine", "--", "bash", "-c", "echo told"]
    before = os.umask(0o002)
    try:
        for command in ("render", "submit"):  # `render` makes the folders
            done = kit(command, *words)
            assert done.returncode == 0, done.stderr
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (project / "runs/mine").iterdir()}
    run = (project / "runs/mine/latest").readlink().name
    assert modes == {run: "0o700", f"{run}.log": "0o600", "latest": "0o700"}
    assert "told" in (project / f"runs/mine/{run}/rank-0.log").read_text()
    shared = [(project / name).stat().st_mode & 0o777 for name in ("runs", "runs/mine")]
    assert shared == [0o775, 0o775]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_the_jobs_of_two_users_of_a_project_have_different_folders(kit: Kit, project: Path) -> None:
    """Each user has an embedded queue, and each queue counts from 1."""
    words = [
        "submit",
        "-j",
        "1x1",
        "--cluster",
        "local",
        "--job-name",
        "mine",
        "--wait",
        "--",
        "bash",
        "-c",
        "echo told",
    ]
    assert kit(*words, HPC_KIT_SLURM_STATE=str(project / "first")).returncode == 0
    [first] = [path for path in (project / "runs/mine").iterdir() if path.name.isdecimal()]
    os.chown(first, 1234, -1)
    (first / "record.json").unlink()
    done = kit(*words, HPC_KIT_SLURM_STATE=str(project / "second"))
    assert done.returncode == 0, done.stderr
    assert (project / "runs/mine/latest").readlink().name == str(int(first.name) + 1)


def test_the_stacks_of_an_array_are_those_of_its_elements(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_CLUSTER", "fake")
    submit("job", "fake", set={"resources.array": "4-6"})
    done = CliRunner().invoke(stacks, ["12", "--timeout", "0"], standalone_mode=False)
    assert str(done.exception) == (
        "job 12 is an array\n  found  3 elements\n  do     name one of them: hpc-kit stacks 12_4"
    )


def complete(*words: str) -> list[str]:
    """Return what the shell offers after these words."""
    return [item.value for item in ShellComplete(logs, {}, "logs", "").get_completions(list(words[:-1]), words[-1])]


def test_the_shell_completes_names_and_ids_of_runs(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("") == ["job", "14", "13", "12"]
    assert complete("1") == ["14", "13", "12"]
    (tmp_path / "old" / "train" / "7").mkdir(parents=True)
    assert complete("--runs", str(tmp_path / "old"), "") == ["train", "7"]
    monkeypatch.setenv("HPC_KIT_CLUSTER", "nowhere")
    assert complete("") == []


@pytest.mark.parametrize(("line", "found"), [
    ("submit mi", {"mine"}),
    ("submit mine --set resources.nod", {"resources.nodefile=", "resources.nodelist=", "resources.nodes="}),
    ("render mine --set en", {"env."}),
    ("render mine --set component", {"component="}),
    ("submit mine --set cluster.embedded.n", {"cluster.embedded.nodes="}),
    ("check --cluster la", {"lab"}),
    ("submit mine --no-req", {"--no-requeue"}),
    ("submit mine --node", {"--nodes", "--nodelist", "--nodefile"}),
    ("submit mine --wa", {"--wait", "--wait-all-nodes"}),
    ("submit -j 2x2 -- python mi", {"mi"}),
    ("check job.sba", {"job.sba"}),
])  # fmt: skip
def test_the_shell_completes_jobs_keys_options_and_clusters(project: Path, line: str, found: set[str]) -> None:
    (project / "jobs/mine.toml").touch()
    (project / "env/lab.toml").touch()
    *words, start = line.split()
    items = ShellComplete(root, {}, "hpc-kit", "").get_completions(words, start)
    assert {item.value for item in items} == found
    assert {item.type for item in items} == {"file" if start in found else "plain"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_completion_in_zsh_needs_no_configuration(kit: Kit, tmp_path: Path) -> None:
    assert kit("completion", "install", "zsh", HOME=str(tmp_path), XDG_DATA_HOME="").returncode == 0
    argv = ["zsh", "-d", "-i", "-c", "print $_comps[hpc-kit]"]
    done = subprocess.run(argv, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("_hpc_kit_completion\n", "")


@pytest.mark.parametrize(("words", "example"), [
    (["clean"], "hpc-kit clean --older-than 30d"),
    (["resubmit"], "hpc-kit resubmit 12"),
    (["cluster", "include"], "hpc-kit cluster include n3"),
])  # fmt: skip
def test_a_command_without_its_arguments_shows_an_example(kit: Kit, words: list[str], example: str) -> None:
    done = kit(*words)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"  do     {example}")


def test_a_waiting_job_has_no_logs_and_its_hint_is_a_command_of_this_machine(
    runs: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.queue("14 PENDING JobHeldUser")
    done = CliRunner().invoke(logs, ["14"], standalone_mode=False)
    assert str(done.exception) == ("job 14 has not started\n  found  PENDING (JobHeldUser)\n  do     hpc-kit status 14")
    slurm.queue("13 CANCELLED")
    assert "CANCELLED" in CliRunner().invoke(logs, ["13"], standalone_mode=False).output
    (runs / "13").mkdir(exist_ok=True)
    (runs / "13" / "rank-0.log").write_text("loss 3.0\n")  # the log of the batch script is lost
    assert "loss 3.0" in CliRunner().invoke(logs, ["13"], standalone_mode=False).output
    slurm.queue("14 PENDING JobHeldUser")
    assert "Release it: scontrol release 14" in CliRunner().invoke(status, ["14"]).output
    monkeypatch.setattr(cluster_client, "open_client", lambda _: slurm.client(os.environ))
    assert "Release it: hpc-kit embedded run scontrol release 14" in CliRunner().invoke(status, ["14"]).output


def test_a_report_without_a_run_is_that_of_the_latest(runs: Path) -> None:
    done = CliRunner().invoke(report, ["-o", "-"], standalone_mode=False)
    assert "job 14" in done.output


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("PENDING Resources", "job 12 has not started\n  found  PENDING (Resources)\n  do     hpc-kit status 12"),
        ("NODE_FAIL", "job 12 has ended\n  found  {run}\n  do     hpc-kit stacks 12 --last"),
    ],
)
def test_stacks_of_a_job_that_does_not_run_are_refused_at_once(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch, state: str, error: str
) -> None:
    monkeypatch.setenv("HPC_KIT_CLUSTER", "fake")
    run = submit("job", "fake").run.folder
    slurm.queue(f"12 {state}")
    done = CliRunner().invoke(stacks, ["12"], standalone_mode=False)
    assert str(done.exception) == error.format(run=run)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (watch, ["--interval"]),
        (stacks, ["--timeout"]),
        (launch, ["-j", "1x1", "--hosts", "a", "--connect-timeout"]),
        (doctor, ["--in-job", "--timeout"]),
    ],
)
@pytest.mark.parametrize("seconds", ["inf", "-1", "nan"])
def test_a_wait_without_an_end_is_refused(command: click.Command, words: list[str], seconds: str) -> None:
    done = CliRunner().invoke(command, [*words, seconds])
    assert (done.exit_code, "is not in the range" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("words", "what", "remedy"),
    [
        (["render", "real.yaml"], "'real.yaml' is no .toml file", "write the same keys as TOML"),
        (["render", "a", "--set"], "Option '--set' requires an argument.", "hpc-kit render --help"),
        (
            ["submit", "-j", "1x1", "--", "python", "a b.ipynb"],
            "a b.ipynb is a notebook",
            "nbconvert --to python 'a b.ipynb'",
        ),
        (["submit", "-j", "1x1", "--", "a.ipynb"], "a.ipynb is a notebook", "then submit a.py"),
    ],
)
def test_a_wrong_file_is_refused_with_the_way_to_the_right_one(
    kit: Kit, project: Path, words: list[str], what: str, remedy: str
) -> None:
    for name in ("real.yaml", "a b.ipynb", "a.ipynb"):
        (project / name).write_text("{}")
    done = kit(*words)
    lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert lines[0].startswith(f"hpc-kit: {what}")
    assert remedy in lines[-1]


def test_a_failed_line_of_setup_is_quoted_instead_of_a_line_number(kit: Kit, project: Path) -> None:
    (project / "jobs/mine.toml").write_text('command = ["true"]\nsetup = ["true", "no-such-command x"]\n')
    done = kit("submit", "mine", "--cluster", "local", "--wait")
    assert "`no-such-command x`: no-such-command: command not found (script.sbatch, line " in done.stdout + done.stderr
    assert "slurm_script" not in done.stdout + done.stderr
