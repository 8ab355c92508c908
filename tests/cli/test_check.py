"""`hpc-kit check` as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Kit
from tests.conftest import ROOT, find_missing
from tests.runs.fake import FakeSlurm

OLD = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8

set -euo pipefail
srun torchrun --nproc-per-node=8 train.py
"""

WARNED = "#!/bin/bash\nexport MASTER_PORT=29500\nsrun python train.py\n"


def test_a_shipped_job_has_no_faults(kit: Kit) -> None:
    for words in (["ddp_4node"], ["ddp_4node", "--standalone"]):
        done = kit("check", *words, "--cluster", "local", cwd=ROOT)
        assert (done.returncode, done.stderr.startswith("hpc-kit: ignoring --gpus-per-task=1 ")) == (0, True)
        (line,) = done.stdout.splitlines()
        assert line.startswith("ddp_4node: no fault found (")
        assert " rules for Slurm 22.05.8, bash, " in line
        assert "sbatch's parser (the job is for the embedded Slurm)" in line


@pytest.mark.parametrize("job", sorted(path.stem for path in (ROOT / "jobs").glob("*.toml")))
def test_every_shipped_job_has_no_faults(kit: Kit, job: str) -> None:
    done = kit("check", job, "--cluster", "local", "--strict", cwd=ROOT)
    if library := find_missing(job):
        (fault,) = [line for line in done.stdout.splitlines() if line.startswith(f"{job}  ")]
        assert "error KIT606  there is no " + library in fault
    else:
        assert done.returncode == 0, done.stdout


def test_a_fault_is_shown_with_place_evidence_and_remedy(kit: Kit, project: Path) -> None:
    (project / "old.sbatch").write_text(OLD)
    done = kit("check", "old.sbatch")
    assert done.returncode == 1
    assert done.stdout.splitlines()[:4] == [
        "old.sbatch:7:6  error KIT203  torchrun starts 8 processes, and srun starts it 8 times per node: 64 per node",
        "   3 | #SBATCH --ntasks-per-node=8",
        "   7 | srun torchrun --nproc-per-node=8 train.py",
        "  do: use --ntasks-per-node=1, or srun python train.py without torchrun  hpc-kit check --explain KIT203",
    ]
    assert done.stdout.splitlines()[-1].startswith("old.sbatch: 1 error (")


def test_a_script_may_come_from_standard_input(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpc_kit", "check", "-", "--json"],
        input=OLD, text=True, capture_output=True, cwd=project, timeout=60,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert set(report) == {"name", "findings", "checked", "not_checked"}
    assert report["name"] == "stdin"
    (finding,) = report["findings"]
    assert finding["code"] == "KIT203"
    assert finding["evidence"][0] == {"line": 3, "text": "#SBATCH --ntasks-per-node=8"}


def test_warnings_fail_only_with_strict(kit: Kit, project: Path) -> None:
    (project / "x.sbatch").write_text(WARNED)
    assert [kit("check", "x.sbatch", *words).returncode for words in ([], ["--strict"])] == [0, 1]


CLUSTER_FILE = """\
accounts = ["physics"]

[node]
cpus = 64
gpus = 4

[partition.gpu]
default = true
nodes = 8
max_time = 1440

[partition.cpu]
nodes = 16
cpus = 128
gpus = 0
"""


@pytest.mark.parametrize(
    ("options", "line", "severity", "words"),
    [
        ("-p gpu --time=2-00:00:00", 3, "error", "partition gpu never starts this job: --time=2-00:00:00"),
        ("--time=1-00:00:01", 3, "error", "the partition allows 1-00:00:00"),
        ("-p gpu -n 8 -N 1 -c 16", 3, "error", "128 CPUs per node, but a node has 64"),
        ("-p gpu -N 1 --gpus-per-node=8", 3, "error", "8 GPUs per node, but a node has 4"),
        ("-p cpu -N 1 --gres=gpu:1", 3, "error", "1 GPUs per node, but a node has none"),
        ("-p gpu -N 9", 3, "error", "9 nodes; the partition has 8"),
        ("-p gpuu", 3, "warning", "--partition=gpuu is not in the file of cluster 'site'"),
        ("-A chemistry", 3, "warning", "--account=chemistry is not in the file of cluster 'site'"),
    ],
)
def test_a_script_is_compared_with_the_partitions_of_the_cluster_file(
    kit: Kit, project: Path, options: str, line: int, severity: str, words: str
) -> None:
    (project / "env").mkdir(exist_ok=True)
    (project / "env/site.toml").write_text(CLUSTER_FILE)
    (project / "a.sbatch").write_text(f"#!/bin/bash\n#SBATCH --mem=8G\n#SBATCH {options}\nsrun -c 1 hostname\n")
    done = kit("check", "--json", "--cluster", "site", "a.sbatch")
    report = json.loads(done.stdout)
    (found,) = [each for each in report["findings"] if each["code"] == "KIT132"]
    assert (found["line"], found["severity"]) == (line, severity)
    assert words in found["what"]


def test_a_script_that_fits_its_partition_has_no_faults(kit: Kit, project: Path) -> None:
    (project / "env").mkdir(exist_ok=True)
    (project / "env/site.toml").write_text(CLUSTER_FILE)
    fitting = "#SBATCH -p cpu -A physics -N 2 -n 2 -c 128 --mem=8G --time=2-00:00:00"
    (project / "a.sbatch").write_text(f"#!/bin/bash\n{fitting}\nsrun -c 128 hostname\n")
    done = kit("check", "--cluster", "site", "a.sbatch")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no fault found" in done.stdout


def test_a_script_is_compared_with_the_cluster_of_the_project(kit: Kit, project: Path) -> None:
    (project / "env").mkdir(exist_ok=True)
    (project / "env/default.toml").write_text(CLUSTER_FILE)
    (project / "a.sbatch").write_text("#!/bin/bash\n#SBATCH -p gpu -N 9 --mem=8G\nsrun hostname\n")
    assert "9 nodes; the partition has 8" in kit("check", "a.sbatch").stdout
    # The embedded Slurm also runs scripts of other clusters.
    assert "partition has" not in kit("check", "a.sbatch", HPC_KIT_CLUSTER="local").stdout


def test_one_host_may_use_its_loopback_interface(kit: Kit, project: Path) -> None:
    (project / "env").mkdir(exist_ok=True)
    for slurm in ("embedded", "system"):
        (project / f"env/{slurm}.toml").write_text(f'slurm = "{slurm}"\n[node]\ncpus = 4\ngpus = 1\n')
    head = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=1\n"
    (project / "a.sbatch").write_text(f"{head}export GLOO_SOCKET_IFNAME=lo\nsrun python train.py\n")
    codes = {
        slurm: [
            each["code"]
            for each in json.loads(kit("check", "--json", "--cluster", slurm, "a.sbatch").stdout)["findings"]
        ]
        for slurm in ("embedded", "system")
    }
    assert "KIT309" not in codes["embedded"]
    assert "KIT309" in codes["system"]


def test_the_log_folder_is_sought_in_the_folder_of_sbatch(kit: Kit, project: Path) -> None:
    (project / "x.sbatch").write_text("#!/bin/bash\n#SBATCH --output=logs/%j.log\nsrun python t.py\n")
    assert "KIT113" not in kit("check", "x.sbatch").stdout  # no t.py: sbatch seems to be called in another folder
    (project / "t.py").write_text("")
    done = kit("check", "x.sbatch")
    assert done.returncode == 0
    assert "warning KIT113  the log folder does not exist: logs" in done.stdout
    assert "mkdir -p logs" in done.stdout
    (project / "logs").mkdir()
    assert "KIT113" not in kit("check", "x.sbatch").stdout


def test_a_job_is_checked_with_its_set_values(kit: Kit, project: Path) -> None:
    (project / "train.py").write_text("")
    done = kit("check", "-j", "2x2", "--cluster", "local", "--signal", "B:USR1@60", "--", "python", "train.py")
    assert done.returncode == 1
    assert "KIT411" in done.stdout


def test_notes_on_a_job_are_shown_like_those_of_render(kit: Kit) -> None:
    wide = ("--set", "resources.nodes=2", "--set", "layout.tp=4")
    done = kit("check", "tensor_1node", *wide, "--cluster", "local", cwd=ROOT)
    assert done.returncode == 0
    assert "hpc-kit: tp 4 spans 2 nodes: " in done.stderr


@pytest.mark.parametrize(
    ("lead", "remedy"),
    [
        ("20", "do: set lead = 120 or more in [restart]"),
        ("400", "do: use a longer time, or a shorter lead in [restart]"),
    ],
)
def test_the_remedy_for_a_signal_of_a_job_file_is_a_value_of_the_job_file(
    kit: Kit, project: Path, lead: str, remedy: str
) -> None:
    job = f'command = ["true"]\n[resources]\ntime = 10\n[restart]\nlead = {lead}\n'
    (project / "jobs").mkdir(exist_ok=True)
    (project / "jobs" / "mine.toml").write_text(job)
    assert remedy in kit("check", "mine").stdout


def test_a_missing_program_is_found_before_the_queue(kit: Kit, project: Path) -> None:
    (project / "train.py").write_text("")
    done = kit("check", "-j", "2x2", "--cluster", "local", "--", "python", "trian.py")
    assert done.returncode == 1
    assert done.stdout.startswith("trian  error KIT601  no program file trian.py\n")
    assert "do: did you mean train.py?" in done.stdout


def test_a_job_for_another_machine_is_checked(kit: Kit) -> None:
    words = ["check", "ddp_4node", "--cluster", "example-gpu", "--set", "resources.ntasks_per_node=4"]
    done = kit(*words, "--set", "cluster.python=/there/python", cwd=ROOT)
    assert done.returncode == 0
    assert "warning KIT601  the interpreter /there/python does not exist" in done.stdout


@pytest.mark.slow
def test_sbatch_tests_a_job_with_the_command_of_submit(
    kit: Kit, slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "slurm.conf").touch()
    own = {"SLURM_CONF": str(project / "slurm.conf"), "SBATCH_PARTITION": "debug", "SBATCH_ACCOUNT": "ada"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    done = kit("check", "-j", "2x2", "-p", "gpu", "--cluster", "fake", "--", "true")
    assert "sbatch's parser" in done.stdout, done.stdout + done.stderr
    environ = slurm.sbatch_environ()
    assert (environ.get("SBATCH_PARTITION"), environ["SBATCH_ACCOUNT"]) == (None, "ada")
    (project / "own.sbatch").write_text("#!/bin/bash\n#SBATCH --partition=gpu\nsrun true\n")
    kit("check", "own.sbatch")
    assert slurm.sbatch_environ()["SBATCH_PARTITION"] == "debug"


def test_explain_needs_no_job(kit: Kit) -> None:
    done = kit("check", "--explain", "KIT204")
    assert done.returncode == 0
    assert done.stdout.startswith("KIT204 (error): The batch shell expands a variable that only a task knows\n\n")
    assert "\nFix: " in done.stdout
    assert "\nDocumented: " in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check"], "neither a job nor a program"),
        (["check", "ddp_4nod"], "no job file 'ddp_4nod'"),
        (["check", "gone.sbatch"], "cannot read gone.sbatch"),
        (["check", "x.py"], "check the job that runs it:  hpc-kit check -j 4x2 -- python x.py"),
        (["check", "--explain", "KIT999"], "no rule KIT999"),
        (["check", "x.sbatch", "--set", "resources.nodes=2"], "a script's options are in the script"),
        (["check", "x.sbatch", "--nodes", "2"], "a script's options are in the script"),
        (["check", "x.sbatch", "--cluster", "nowhere"], "no cluster file 'nowhere'"),
        (["check", "--frobnicate"], "unrecognized option '--frobnicate'"),
    ],
)
def test_wrong_use_is_one_clear_error(kit: Kit, project: Path, words: list[str], message: str) -> None:
    (project / "x.sbatch").write_text(OLD)
    (project / "x.py").write_text("import os\n")
    done = kit(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_script_is_an_error_without_a_traceback(kit: Kit, project: Path) -> None:
    (project / "x.sbatch").write_bytes(bytes(range(256)) * 20)
    done = kit("check", "x.sbatch")
    assert done.returncode == 1
    assert done.stderr == ""
    assert "KIT101" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_a_missing_shellcheck_is_named(kit: Kit, project: Path, tmp_path: Path) -> None:
    (project / "x.sbatch").write_text(WARNED)
    done = kit("check", "x.sbatch", PATH=str(tmp_path))
    assert (
        "not checked: bash (not installed), shellcheck (not installed), sbatch's parser (this machine has no Slurm)"
        in done.stdout
    )


BAD_PORT = "#!/bin/bash\nexport MASTER_PORT=29500\nsrun python train.py\n"


def test_several_scripts_are_checked_in_one_call(kit: Kit, project: Path) -> None:
    (project / "a.sbatch").write_text(BAD_PORT)
    (project / "b.sbatch").write_text("#!/bin/bash\nsrun python train.py\n")
    done = kit("check", "a.sbatch", "b.sbatch")
    assert done.returncode == 0
    assert "a.sbatch: 1 warning (" in done.stdout
    assert "b.sbatch: no fault found (" in done.stdout
    assert len(json.loads(kit("check", "a.sbatch", "b.sbatch", "--json").stdout)) == 2
    sarif = json.loads(kit("check", "--format", "sarif", "a.sbatch", "b.sbatch").stdout)
    assert [result["ruleId"] for result in sarif["runs"][0]["results"]] == ["KIT302"]
    assert kit("check", "--format", "github", "a.sbatch", "b.sbatch").stdout.startswith(
        "::warning file=a.sbatch,line=2,"
    )


def many_scripts(project: Path, count: int) -> list[str]:
    """Write scripts of which every second one has a fault."""
    names = [f"{number:03}.sbatch" for number in range(count)]
    for number, name in enumerate(names):
        (project / name).write_text(WARNED if number % 2 else "#!/bin/bash\nsrun python train.py\n")
    return names


def test_many_scripts_are_reported_in_the_order_of_the_arguments(kit: Kit, project: Path) -> None:
    names = many_scripts(project, 63)
    (project / names[5]).write_text(OLD)
    done = kit.process("check", "--json", *names)
    reports = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert [report["name"] for report in reports] == names
    codes = [[finding["code"] for finding in report["findings"]] for report in reports]
    assert codes == [["KIT203"] if number == 5 else ["KIT302"] * (number % 2) for number in range(63)]


def children_of(process: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.skipif(os.cpu_count() == 1, reason="one processor: there are no further processes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_check_of_many_scripts_ends_with_its_processes(kit: Kit, project: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "hpc_kit", "check", *many_scripts(project, 400)]
    check = subprocess.Popen(
        argv, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (workers := children_of(check.pid)):
        assert time.monotonic() < deadline
    if number == signal.SIGINT:
        os.killpg(check.pid, number)  # as the terminal does
    else:
        check.send_signal(number)
    _, errors = check.communicate(timeout=60)
    interrupted = number == signal.SIGINT
    assert (check.returncode, errors) == ((130, b"\n") if interrupted else (-number, b""))
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_fix_shows_a_diff_and_writes_it(kit: Kit, project: Path) -> None:
    script = project / "a.sbatch"
    script.write_text(BAD_PORT)
    shown = kit("check", "--diff", "a.sbatch")
    assert "-export MASTER_PORT=29500" in shown.stdout.splitlines()
    assert script.read_text() == BAD_PORT
    fixed = kit("check", "--fix", "a.sbatch")
    assert "+export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))" in fixed.stdout.splitlines()
    assert "29500" not in script.read_text()
    assert fixed.stdout.splitlines()[-1].startswith("a.sbatch: no fault found")
    assert kit("check", "--fix", "ddp_4node").returncode == 2


@pytest.mark.parametrize(
    "text", ["#!/bin/bash\r\nls\r\n", "#!/bin/bash\r\nMASTER_PORT = 29500\r\nsrun python t.py\r\n"]
)
def test_fix_leaves_nothing_to_a_second_call_and_keeps_the_mode(kit: Kit, project: Path, text: str) -> None:
    script = project / "a.sbatch"
    script.write_bytes(text.encode())
    script.chmod(0o750)
    assert "-#!/bin/bash^M" in kit("check", "--fix", "a.sbatch").stdout.splitlines()
    fixed = script.read_bytes()
    assert b"\r" not in fixed
    assert kit("check", "--fix", "a.sbatch").stdout.splitlines()[0].startswith("a.sbatch: no fault found")
    assert (script.read_bytes(), script.stat().st_mode & 0o777) == (fixed, 0o750)


@pytest.mark.parametrize(("strict", "status"), [("false", 0), ("true", 1)])
def test_the_action_checks_the_files_of_its_patterns(project: Path, strict: str, status: int) -> None:
    step = textwrap.dedent((ROOT / "action.yml").read_text().rpartition("run: |\n")[2])
    programs, folder = project / "a runner/hpc-kit/bin", project / "jobs of a user/old"
    for path in (programs, folder):
        path.mkdir(parents=True)
    (programs / "hpc-kit").symlink_to(Path(sys.executable).parent / "hpc-kit")
    (folder / "a b.sbatch").write_text(BAD_PORT)
    inputs = {"FILES": "**/*.sbatch", "STRICT": strict, "SARIF": "a.sarif", "RUNNER_TEMP": str(project / "a runner")}
    # The options are those of the runner of GitHub.
    argv = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step]
    done = subprocess.run(argv, cwd=project, env=os.environ | inputs, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.startswith("::warning file=jobs of a user/old/a b.sbatch,line=2,")
    (run,) = json.loads((project / "a.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["KIT302"]
