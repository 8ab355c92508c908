"""Rendered scripts, executed with a small srun and otherwise real programs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from hpc_kit.run_files import END, FIRST_FAILURE, read_first_failure
from hpc_kit.runs.first_failure import SHELL_MESSAGE
from hpc_kit.script.render import render

Run = Callable[..., subprocess.CompletedProcess[str]]

SRUN = """#!/bin/bash
# Runs the command once for each of $TASKS (on $NODES), one after the other. Exits with the highest code.
options=()
while [[ ${1-} == -* ]]; do options+=("$1"); shift; done
printf '%s\\n' "${options[@]}" >srun-options
worst=0
for task in ${TASKS-0}; do
  nodes=(${NODES-})
  node=${nodes[task]-$((task / 2))}
  SLURM_PROCID=$task SLURM_LOCALID=$((task % 2)) SLURM_NODEID=$node SLURMD_NODENAME=n$((node + 1)) "$@"
  code=$?
  if [ "$code" -gt "$worst" ]; then worst=$code; fi
done
exit "${SRUN_STATUS:-$worst}"
"""

SCONTROL = """#!/bin/bash
# Prints one line of the configuration.
[ "$*" = "show config" ] && printf '%-23s = %s\\n' ${CONFIG-ProctrackType proctrack/cgroup}
"""

GETENT = """#!/bin/bash
# A name service that knows one address, or none.
[ -n "${ADDRESS-10.0.0.1}" ] && for each in ${ADDRESS-10.0.0.1}; do echo "$each      STREAM $2"; done
"""


@pytest.fixture
def run(project: Path) -> Run:
    """Run a job's script with the small srun, and with these variables."""
    (project / "bin").mkdir()
    srun = project / "bin" / "srun"
    srun.write_text(SRUN)
    names = project / "bin" / "getent"
    names.write_text(GETENT)
    config = project / "bin" / "scontrol"
    config.write_text(SCONTROL)
    for file in (srun, names, config):
        file.chmod(0o755)

    def start(
        *command: str,
        standalone: bool = False,
        simple: bool = False,
        set: dict[str, object] | None = None,
        stdin: IO[str] | None = None,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        changes = {"command": list(command), "name": "job", "resources.ntasks_per_node": 2, **(set or {})}
        text = render("single", "slurm", set=changes, standalone=standalone, simple=simple, root=project)
        environ = {**os.environ, "PATH": f"{project}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        nodes = str(changes.get("resources.nodes", 1))
        environ |= {"SLURMD_NODENAME": "n1", "SLURM_JOB_NUM_NODES": nodes, **variables}
        argv = ["bash", "-c", text]
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, stdin=stdin)

    return start


def folder(project: Path) -> Path:
    return project / "runs" / "job" / "7"


@pytest.mark.parametrize("status", [0, 3, 137])
def test_the_exit_code_of_the_script_is_that_of_srun(run: Run, project: Path, status: int) -> None:
    done = run("true", SRUN_STATUS=str(status))
    assert (done.returncode, done.stderr) == (status, "")
    assert (folder(project) / END).read_text().split()[0] == str(status)


def test_the_first_failed_rank_sets_the_exit_code(run: Run, project: Path) -> None:
    program = "exit $((SLURM_PROCID == 0 ? 0 : SLURM_PROCID == 2 ? 7 : 1))"
    done = run("bash", "-c", program, TASKS="0 2 1 3", SRUN_STATUS="143")
    assert done.returncode == 7
    first = read_first_failure(folder(project))
    assert first is not None
    assert first[:3] == (2, "n2", 7)
    assert done.stderr == ""


def test_a_requeue_removes_the_markers_of_the_earlier_attempt(run: Run, project: Path) -> None:
    run("false")
    assert (folder(project) / FIRST_FAILURE).exists()
    done = run("true")
    assert done.returncode == 0
    assert not (folder(project) / FIRST_FAILURE).exists()


def test_a_full_disk_at_the_end_does_not_change_the_status(run: Run) -> None:
    assert run("bash", "-c", f'ln -s /dev/full "$HPC_KIT_RUN/{END}"; exit 5').returncode == 5


def test_a_failing_setup_line_ends_the_job_before_srun(run: Run, project: Path) -> None:
    done = run("true", set={"setup": ["false"]})
    assert done.returncode == 1
    assert not (project / "srun-options").exists()


def test_a_setup_that_exits_is_a_failure(run: Run, project: Path) -> None:
    (project / "site.sh").write_text("exit 0\n")
    done = run("true", set={"setup": [". ./site.sh"]})
    assert (done.returncode, done.stderr) == (1, "hpc-kit: no rank was started: setup has ended the script\n")
    assert not (project / "srun-options").exists()


def test_a_trap_of_setup_is_kept(run: Run, project: Path) -> None:
    assert run("true", set={"setup": ["trap 'touch cleaned' EXIT"]}).returncode == 0
    assert (project / "cleaned").exists()


def test_setup_may_write_into_the_runs_folder(run: Run, project: Path) -> None:
    done = run("true", set={"setup": ['echo x >"$HPC_KIT_RUN/mine"']})
    assert done.returncode == 0
    assert (folder(project) / "mine").read_text() == "x\n"


def test_values_reach_the_program_unchanged(run: Run, project: Path) -> None:
    value = 'it\'s $HOME "and" `more`\nlines #1'
    done = run("bash", "-c", 'printf %s "$A" >a; printf %s "$1" >b', "-", value, set={"env.A": value})
    assert done.returncode == 0
    assert ((project / "a").read_text(), (project / "b").read_text()) == (value, value)


def test_a_standalone_script_gives_each_task_its_rank(run: Run, project: Path) -> None:
    names = "RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT"
    program = "for name in " + names + '; do printf "%s " "${!name}"; done >rank-$RANK'
    done = run("bash", "-c", program, standalone=True, set={"resources.nodes": 2}, TASKS="0 1 2 3")
    assert (done.returncode, done.stderr) == (0, "")
    port = 10000 + (7 * 31) % 20000
    expected = [f"{rank} {rank % 2} {rank // 2} 4 2 2 n1 {port} " for rank in range(4)]
    assert [(project / f"rank-{rank}").read_text() for rank in range(4)] == expected


def read_masters(run: Run, project: Path, **variables: str) -> list[str]:
    """Return the master address and port of the ranks on two nodes."""
    program = 'echo "$MASTER_ADDR $MASTER_PORT" >met-$RANK'
    shape: dict[str, object] = {"resources.nodes": 2, "resources.ntasks_per_node": 1}
    done = run("bash", "-c", program, standalone=True, set=shape, TASKS="0 1", NODES="0 1", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return [(project / f"met-{rank}").read_text().strip() for rank in range(2)]


def test_a_standalone_job_skips_a_busy_port(run: Run, project: Path) -> None:
    first = 10000 + 7 * 31
    with socket.create_server(("127.0.0.1", first)):
        assert read_masters(run, project) == [f"n1 {first + 1621}"] * 2
    assert read_masters(run, project, SLURM_RESTART_COUNT="2") == [f"n1 {first + 2}"] * 2


def test_a_standalone_job_uses_the_host_names_of_the_training_network(run: Run, project: Path) -> None:
    assert read_masters(run, project, HPC_KIT_MASTER_HOST="{host}-ib0") == ["n1-ib0 10217"] * 2


def test_a_standalone_job_on_one_node_needs_no_name(run: Run, project: Path) -> None:
    found = {"TASKS": "0 1", "NODES": "0 0", "ADDRESS": "", "SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3"}
    done = run("bash", "-c", 'echo "$MASTER_ADDR" >met-$RANK', standalone=True, **found)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(project / f"met-{rank}").read_text() for rank in range(2)] == ["10.1.2.3\n"] * 2


def test_without_host_names_a_standalone_job_uses_the_address_of_srun(run: Run, project: Path) -> None:
    assert read_masters(run, project, ADDRESS="", SLURM_LAUNCH_NODE_IPADDR="10.1.2.3") == ["10.1.2.3 10217"] * 2


def test_a_name_that_resolves_to_the_loopback_is_refused_with_the_line_to_fix(run: Run, project: Path) -> None:
    shape: dict[str, object] = {"resources.nodes": 2, "resources.ntasks_per_node": 1}
    own = {"TASKS": "0 1", "NODES": "0 1", "ADDRESS": "127.0.1.1", "SLURMD_NODENAME": "localhost"}
    done = run("bash", "-c", "echo >met-$RANK", standalone=True, set=shape, **own)
    assert (done.returncode, (project / "met-0").exists(), (project / "met-1").exists()) == (1, True, False)
    assert re.fullmatch(
        r"hpc-kit: the name localhost of the host of rank 0 does not lead there from n2\n"
        r"  found  it means this node, 127.0.1.1; in /etc/hosts, line \d+:127.0.0.1\s+localhost.*\n"
        r"(\d+:.*\n)*"
        r"  do     write into /etc/hosts on n2:  ADDRESS localhost   \(on the network of the nodes\)\n",
        done.stderr,
    )
    assert read_masters(run, project, ADDRESS="127.0.1.1 10.0.0.1") == ["n1 10217"] * 2
    assert read_masters(run, project, ADDRESS="127.0.0.1", SLURMD_NODENAME="127.0.0.1") == ["127.0.0.1 10217"] * 2


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("3(x2),1", ["3", "3", "3", "3", "3", "3", "1"]),
        ("5,1(x2)", ["5", "5", "5", "5", "5", "1", "1"]),
        ("1,2,4", ["1", "2", "2", "4", "4", "4", "4"]),
    ],
)
def test_a_standalone_task_gets_the_number_of_tasks_on_its_node(
    run: Run, project: Path, counts: str, expected: list[str]
) -> None:
    shape = {"resources.nodes": 3, "resources.ntasks": 7, "resources.ntasks_per_node": None}
    nodes = [str(node) for node, count in enumerate(expand_counts(counts)) for _ in range(count)]
    done = run(
        *("bash", "-c", 'printf %s "$LOCAL_WORLD_SIZE" >size-$RANK'),
        standalone=True,
        set=shape,
        TASKS="0 1 2 3 4 5 6",
        NODES=" ".join(nodes),
        SLURM_STEP_TASKS_PER_NODE=counts,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [(project / f"size-{rank}").read_text() for rank in range(7)] == expected


def expand_counts(counts: str) -> list[int]:
    parts = (re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in counts.split(","))
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


@pytest.mark.parametrize(
    "name", ['it\'s 100% "odd" #1 $HOME é', "-rf", " a  b ", "*?[x]", "`id`$(id)", "~", "!!", "%j%%A", "名前;&|<>"]
)
def test_a_job_may_have_an_unusual_name(run: Run, project: Path, name: str) -> None:
    done = run("bash", "-c", 'printf %s "$HPC_KIT_RUN" >folder', set={"name": name})
    assert (done.returncode, done.stderr) == (0, "")
    own = project / "runs" / name / "7"
    assert (own / END).read_text().split()[0] == "0"
    assert (project / "folder").read_text() == str(own)
    output = f"--output={str(own).replace('%', '%%')}/rank-%t.log"
    assert output in (project / "srun-options").read_text().splitlines()


def test_srun_gets_every_option_of_the_step(run: Run, project: Path) -> None:
    run("true", set={"resources.nodes": 2, "resources.cpus_per_task": 3})
    assert (project / "srun-options").read_text().splitlines() == [
        "--export=ALL",
        "--nodes=2",
        "--ntasks=4",
        "--ntasks-per-node=2",
        "--cpus-per-task=3",
        "--kill-on-bad-exit=1",
        f"--output={folder(project)}/rank-%t.log",
        "--open-mode=append",
    ]


def test_srun_gets_cpus_per_gpu(run: Run, project: Path) -> None:
    run("true", set={"resources.cpus_per_gpu": 3})
    printed = (project / "srun-options").read_text().splitlines()
    assert [option for option in printed if option.startswith("--cpus")] == ["--cpus-per-gpu=3"]


@pytest.mark.parametrize(
    ("given", "cpus", "threads"),
    [("32(x2),15", "7", "7"), ("8(x4)", "4", "4"), ("1", "1", "1"), ("9,64(x3)", "4", "4")],
)
def test_cpus_per_gpu_are_divided_among_the_tasks(run: Run, project: Path, given: str, cpus: str, threads: str) -> None:
    program = 'echo "threads $OMP_NUM_THREADS"'
    changes: dict[str, object] = {"resources.nodes": 3, "resources.gpus_per_node": 2}
    done = run("bash", "-c", program, set=changes, SLURM_JOB_CPUS_PER_NODE=given)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"threads {threads}\n")
    assert f"--cpus-per-task={cpus}" in (project / "srun-options").read_text().splitlines()
    done = run("bash", "-c", program, set={**changes, "env.OMP_NUM_THREADS": "3"}, SLURM_JOB_CPUS_PER_NODE=given)
    assert done.stdout == "threads 3\n"


def test_ranks_of_torchrun_share_the_cpus_of_their_agent(project: Path) -> None:
    changes: dict[str, object] = {"launch.launcher": "torchrun", "launch.nproc_per_node": 4}
    text = render("single", "slurm", set={**changes, "resources.gpus_per_node": 4}, root=project)
    assert 'OMP_NUM_THREADS=$(bash "$HPC_KIT_SHELL/cpus_per_task.sh" 1 4)\n' in text
    changes |= {"launch.launcher": "mpirun", "launch.nproc_per_node": 1, "env.OMP_NUM_THREADS": "3"}
    assert "cpus=" not in render("single", "slurm", set={**changes, "resources.gpus_per_node": 4}, root=project)


def test_threads_of_a_component_follow_from_its_cpus(run: Run, project: Path) -> None:
    components = [{"nodes": 1, "cpus_per_task": 2}, {"nodes": 1, "cpus_per_task": 5}]
    text = render("single", "slurm", set={"component": components}, root=project)
    assert [line.split()[1] for line in text.splitlines() if line.startswith("  env ")] == [
        "OMP_NUM_THREADS=2", "OMP_NUM_THREADS=5",
    ]  # fmt: skip
    assert "export OMP_NUM_THREADS" not in text


def test_a_percent_sign_in_the_name_is_not_a_pattern_of_srun(run: Run, project: Path) -> None:
    assert run("true", set={"name": "100%t"}).returncode == 0
    runs = str(project).replace("%", "%%") + "/runs"
    assert f"--output={runs}/100%%t/7/rank-%t.log" in (project / "srun-options").read_text().splitlines()


@pytest.mark.parametrize(
    ("config", "known"),
    [
        ("ProctrackType proctrack/cgroup", "tasks"),
        ("SignalChildrenProcesses no", "tasks"),
        ("SignalChildrenProcesses yes", "all"),
        ("ProctrackType proctrack/linuxproc", "all"),
        ("ProctrackType proctrack/pgid", "all"),
    ],
)
def test_the_script_adapts_to_the_processes_that_slurm_signals(
    run: Run, project: Path, config: str, known: str
) -> None:
    done = run("bash", "-c", 'printf %s "$HPC_KIT_SIGNALS" >known', CONFIG=config, HPC_KIT_SIGNALS="of another cluster")
    assert (done.returncode, done.stderr) == (0, "")
    assert (project / "known").read_text() == known


def test_the_program_has_standard_input_and_receives_sigint(run: Run, project: Path) -> None:
    (project / "input").write_text("a line")
    shown = "trap -p >traps; cat >input-seen; kill -INT $$; sleep 5"
    with (project / "input").open() as stream:
        done = run("bash", "-c", shown, stdin=stream)
    assert done.returncode == 130
    assert ((project / "traps").read_text(), (project / "input-seen").read_text()) == ("", "a line")


def test_a_missing_program_is_named(run: Run, project: Path) -> None:
    done = run("no-such-program")
    assert (done.returncode, "no-such-program: not found" in done.stderr) == (127, True)


def test_a_setup_line_may_change_the_folder_of_the_program_but_not_of_the_run_files(
    run: Run, project: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run("bash", "-c", "pwd; exit 3", set={"setup": [f"cd {elsewhere}", "run=none"]}, NODES="0")
    assert (done.returncode, done.stdout) == (3, f"{elsewhere}\n")
    assert {END, FIRST_FAILURE} <= {path.name for path in folder(project).iterdir()}
    assert f"--output={folder(project)}/rank-%t.log" in (elsewhere / "srun-options").read_text()
    assert not (elsewhere / "runs").exists()


@pytest.mark.parametrize("name", ["KILL", "SEGV", "BUS", "FPE", "ILL"])
def test_the_message_of_the_shell_about_a_signal_is_recognized(run: Run, name: str) -> None:
    done = run("bash", "-c", f"kill -{name} $$")
    assert done.returncode == 128 + signal.Signals[f"SIG{name}"]
    assert "task.sh: line" in done.stderr
    assert all(SHELL_MESSAGE.match(line) for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize("name", ["KILL", "SEGV", "ABRT", "TERM", "USR1"])
def test_the_message_about_a_signal_in_the_foreground_is_recognized(name: str) -> None:
    words = ["bash", "-c", '"$@" && exit\nexit', "worker", "bash", "-c", f"kill -{name} $$"]
    printed = subprocess.run(words, capture_output=True, text=True, timeout=60).stderr.splitlines()
    assert printed
    assert all(map(SHELL_MESSAGE.match, printed)), printed


def test_a_standalone_job_takes_the_nodes_that_sbatch_was_given(run: Run, project: Path) -> None:
    program = 'echo "$RANK of $WORLD_SIZE, $LOCAL_WORLD_SIZE here" >met-$RANK'
    done = run("bash", "-c", program, standalone=True, set={"resources.nodes": 4}, TASKS="0 1", SLURM_JOB_NUM_NODES="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert (project / "met-1").read_text() == "1 of 2, 2 here\n"
    assert (project / "srun-options").read_text().splitlines()[1:4] == [
        "--nodes=1",
        "--ntasks=2",
        "--ntasks-per-node=2",
    ]


@pytest.mark.parametrize(
    ("layout", "nodes", "error"),
    [
        ({"layout.pp": 2, "layout.tp": 2}, "3", "hpc-kit: 6 ranks: pp 2 x tp 2 needs a multiple of 4\n"),
        ({"layout.dp": 8}, "3", "hpc-kit: 3 nodes: this script is for 4\n"),
        ({"layout.pp": 2, "layout.tp": 2}, "2", ""),
    ],
)
def test_nodes_that_the_layout_cannot_use_are_refused(
    run: Run, layout: dict[str, object], nodes: str, error: str
) -> None:
    shape = {"resources.nodes": 4, **layout}
    done = run("true", standalone=True, set=shape, SLURM_JOB_NUM_NODES=nodes)
    assert (done.returncode, done.stderr) == (2 if error else 0, error)


@pytest.mark.parametrize("standalone", [False, True])
def test_elements_of_an_array_ask_the_controller_once(run: Run, project: Path, *, standalone: bool) -> None:
    asked = project / "bin" / "scontrol"
    asked.write_text(f"#!/bin/bash\necho asked >>{project}/asked\necho 'SignalChildrenProcesses = yes'\n")
    program = 'printf %s "$HPC_KIT_SIGNALS" >known-$SLURM_ARRAY_TASK_ID'
    for element in ("1", "2"):
        numbers = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": element}
        done = run("bash", "-c", program, set={"resources.array": "1-2"}, standalone=standalone, **numbers)
        assert (done.returncode, done.stderr) == (0, "")
        assert (project / f"known-{element}").read_text() == "all"
    assert (project / "asked").read_text() == "asked\n"


def test_an_element_of_an_array_does_not_write_to_a_file_that_other_elements_read(run: Run, project: Path) -> None:
    faster = f'echo all >"$HPC_KIT_RUN/../.signals-7"; ln "$HPC_KIT_RUN/../.signals-7" {project}/read'
    (project / "bin" / "scontrol").write_text(f"#!/bin/bash\n{faster}\n")
    numbers = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    done = run("true", set={"resources.array": "1-2"}, **numbers)
    assert (done.returncode, done.stderr) == (0, "")
    (known,) = (project / "runs").rglob(".signals-7*")
    assert known.read_text() == "tasks\n"
    assert (project / "read").read_text() == "all\n"


@pytest.mark.parametrize("standalone", [False, True])
def test_a_simple_script_starts_the_tasks_and_ends_like_srun(run: Run, project: Path, *, standalone: bool) -> None:
    program = 'echo "${RANK-none} ${MASTER_ADDR-none}" >met-$SLURM_PROCID; exit 3'
    done = run("bash", "-c", program, simple=True, standalone=standalone, TASKS="0 1")
    assert (done.returncode, done.stderr) == (3, "")
    assert (project / "met-1").read_text() == ("1 n1\n" if standalone else "none none\n")
    assert not (folder(project) / FIRST_FAILURE).exists()
