"""`hpc-kit bench start`: what is refused, the jobs that are submitted, and what is read of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_kit.bench import slurm_job, startup
from hpc_kit.bench.recorder import FileRecorder
from hpc_kit.errors import JobFailed, SpecError
from hpc_kit.runs.follow import LOST_POLLS
from hpc_kit.slurm.client import SlurmClient

FOUND = {"queue": 1.0, "srun": 0.5, "imports": 2.0, "rendezvous": 0.25, "model": 0.5, "data": 0.5, "step": 0.25}

SBATCH = """#!/bin/sh
[ "$1" = --parsable ] || exit 9
for word; do script=$word; done
cp "$script" {folder}/seen
to=$(sed -n 's/.*--to \\([^ ]*\\).*/\\1/p' "$script" | tr -d "'")
if [ -e {folder}/refuse ]; then echo "sbatch: error: no such thing" >&2; exit 1; fi
[ -e {folder}/silent ] || echo '{found}' >"$to"
echo 7
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> startup.SubmitSettings:
    """A Slurm whose jobs are done at once."""
    monkeypatch.setattr(slurm_job, "QUEUE_PAUSE", 0.02)
    programs = tmp_path / "bin"
    programs.mkdir()
    texts = {"sbatch": SBATCH.format(folder=tmp_path, found=json.dumps(FOUND)), "squeue": "#!/bin/sh\n"}
    for name, text in {**texts, "scancel": f'#!/bin/sh\necho "$1" >{tmp_path}/ended\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    client = SlurmClient({**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}, embedded=False)
    return startup.SubmitSettings(None, client, Path("/jobs/train/first_step.py"), tmp_path)


@pytest.fixture
def _rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of our script, without rendering it in a process of its own."""
    monkeypatch.setattr(startup, "render_site_header", lambda *_: startup.SiteHeader((), "", "python"))


def make_progress() -> FileRecorder:
    return FileRecorder("start", title="", columns=startup.COLUMNS, parameters={}, load_seconds=0)


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (startup.StartOptions(ways=("srun",)), "unknown way 'srun'"),
        (startup.StartOptions(ranks=(2, 6)), "do not divide over the nodes"),
    ],
)
def test_impossible_measurements_are_refused(asked: startup.StartOptions, fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        asked.check()


@pytest.mark.slow
def test_handwritten_scripts_are_submitted_and_their_phases_become_rows(slurm: startup.SubmitSettings) -> None:
    sheet = FileRecorder("start", title="", columns=startup.COLUMNS, parameters={}, load_seconds=0)
    asked = startup.StartOptions(ranks=(2, 8), ways=("plain torchrun",), nodes=2, repeats=2)
    startup.measure_startup(asked, sheet, slurm)
    assert [(row.labels["ranks"], row.labels["nodes"], row.labels["way"]) for row in sheet.rows] == [
        (2, 2, "plain torchrun"),
        (8, 2, "plain torchrun"),
    ]
    assert sheet.rows[0].values == {**FOUND, "total": 5.0}
    assert sheet.rows[0].spread["total"].repeats == 2
    script = (slurm.folder / "seen").read_text()
    assert {"#SBATCH --nodes=2", "#SBATCH --cpus-per-task=4", "#SBATCH --ntasks-per-node=1"} <= set(script.splitlines())
    assert "srun --cpus-per-task=${SLURM_CPUS_PER_TASK:-1} --ntasks-per-node=1" in script
    assert "--nnodes=2 --nproc-per-node=4 --node-rank=$SLURM_NODEID" in script
    assert not list(slurm.folder.glob("start-*"))


RENDERED = """\
#!/bin/bash
# name: of ours
#SBATCH --account=physics
#SBATCH --gpus-per-node=2
#SBATCH --job-name=first_step
#SBATCH --open-mode=append
#SBATCH --output=runs/%j.log
#SBATCH --requeue

set -euo pipefail

export OMP_NUM_THREADS=1

set +u
module load cuda || unusable 'module load cuda failed'
set -u

# The files of this run: a log for each rank, which rank failed first, how it ended.
srun --export=ALL --nodes=4 \\
  bash -c "$task" task \\
  .venv/bin/python /jobs/first_step.py || status=$?
"""


def test_a_handwritten_script_requests_the_same_resources_and_environment() -> None:
    site = startup.parse_site_header(RENDERED)
    assert site.header == ("#SBATCH --account=physics", "#SBATCH --gpus-per-node=2")
    assert site.environment.startswith("export OMP_NUM_THREADS=1\n")
    assert site.environment.endswith("\nset -u")
    text = startup.render_plain_script("plain srun", 4, 2, site, Path("/runs"), ["/a b/first_step.py", "--to", "x"])
    assert "#SBATCH --gpus-per-node=2\n#SBATCH --job-name=by-hand\n" in text
    assert "module load cuda" in text
    assert ".venv/bin/python '/a b/first_step.py' --plain --to x" in text


def test_a_queue_time_missing_from_one_start_counts_to_the_next_phase_of_all() -> None:
    sheet = FileRecorder("start", title="", columns=startup.COLUMNS, parameters={}, load_seconds=0)
    late = {name: seconds for name, seconds in FOUND.items() if name != "queue"} | {"srun": 1.0}
    starts = [
        startup.MeasuredStart(FOUND, 0.5, -1.0),
        startup.MeasuredStart(late, 0.002, 3.0),
        startup.MeasuredStart(FOUND),
    ]
    startup._add_start_row(sheet, 2, 2, "hpc-kit", starts)
    startup._note_unknown_queues(sheet, "2 ranks, hpc-kit", starts)
    startup._note_clocks(sheet, starts)
    (row,) = sheet.rows
    assert "queue" not in row.values
    assert (row.values["srun"], row.values["total"]) == (1.5, 5.0)
    joined, apart, ahead = sheet.close().notes
    assert "not known of 1 of 3 starts" in joined
    assert "agree to within 500 ms" in apart
    assert "at least 3 s ahead" in ahead


@pytest.mark.usefixtures("_rendered")
def test_a_refused_job_is_noted_and_the_bench_continues(slurm: startup.SubmitSettings) -> None:
    (slurm.folder / "refuse").touch()
    sheet = FileRecorder("start", title="", columns=startup.COLUMNS, parameters={}, load_seconds=0)
    startup.measure_startup(startup.StartOptions(ranks=(2,), ways=("plain srun",), repeats=3), sheet, slurm)
    assert not sheet.rows
    document = sheet.close()
    (note,) = document.notes
    assert document.missing == ["2 ranks, plain srun"]
    assert note.startswith("2 ranks, plain srun: the job was not submitted")
    assert "sbatch: error: no such thing" in note


@pytest.mark.usefixtures("_rendered")
def test_a_job_without_a_step_is_reported_with_its_log(
    slurm: startup.SubmitSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_job, "QUEUE_PAUSE", 0.0)
    (slurm.folder / "silent").touch()
    with pytest.raises(JobFailed, match="job 7 ended without a first step"):
        startup.measure_start("plain srun", 1, 2, slurm, 60, make_progress())
    assert (slurm.folder / "ended").read_text() == "7\n"


@pytest.mark.parametrize(
    ("message", "ended"), [("Unable to contact slurm controller", False), ("Invalid job id specified", True)]
)
def test_a_failing_squeue_does_not_end_the_wait(message: str, ended: bool, slurm: startup.SubmitSettings) -> None:
    (slurm.folder / "bin" / "squeue").write_text(f"#!/bin/sh\necho 'slurm_load_jobs error: {message}' >&2\nexit 1\n")
    job = slurm_job.QueuedJob("7", slurm.client)
    assert [job.has_ended() for _ in range(LOST_POLLS)][-1] == ended


QUEUE = """#!/bin/sh
case "$*" in
*--user=*) echo "{mine}" ;;
*) [ -e {folder}/ended ] || echo "7|7|PENDING|me|batch|N/A|N/A|N/A|10:00|0:00||{reason}|by-hand" ;;
esac
"""


@pytest.mark.usefixtures("_rendered")
@pytest.mark.parametrize(
    ("reason", "mine", "ends"),
    [
        ("PartitionConfig", "7 6", True),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "", True),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "", False),
        ("ReqNodeNotAvail, May be reserved for other job", "", False),
        ("AssocMaxJobsLimit", "6", True),  # the job around this bench is all that runs
        ("AssocMaxJobsLimit", "6 5", False),
        ("Priority", "", False),
        ("AssocGrpCpuLimit", "", False),
    ],
)
def test_a_job_that_never_begins_is_not_waited_for(
    reason: str, mine: str, ends: bool, slurm: startup.SubmitSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUEUE_PAUSE", "STUCK_SECONDS", "NODES_STUCK_SECONDS"):
        monkeypatch.setattr(slurm_job, name, 0.0)
    (slurm.folder / "silent").touch()
    (slurm.folder / "bin" / "squeue").write_text(QUEUE.format(folder=slurm.folder, reason=reason, mine=mine))
    slurm = slurm._replace(client=slurm.client._replace(environ={**slurm.client.environ, "SLURM_JOB_ID": "6"}))
    kind = slurm_job.JobNeverStarts if ends else JobFailed
    with pytest.raises(kind) as caught:
        startup.measure_start("plain srun", 1, 2, slurm, 60 if ends else 0.5, make_progress())
    assert isinstance(caught.value, slurm_job.JobNeverStarts) == ends
    assert f"PENDING ({reason})" in str(caught.value)
    assert ("on the login node" in str(caught.value)) == (ends and reason == "AssocMaxJobsLimit")
    assert (slurm.folder / "ended").read_text() == "7\n"


@pytest.mark.usefixtures("_rendered")
@pytest.mark.parametrize(
    ("nodes", "ends"),
    [
        ("n1 1/31/0/32\\nn2 0/32/0/32", True),
        ("n1 1/31/0/32\\nn2 4/28/0/32", False),  # another job's
        ("n1 5/27/0/32\\nn2 0/32/0/32", False),  # another job's, too
        ("n2 0/32/0/32", False),  # the job around this bench is elsewhere
        ("n1 1.5K/1/0/2K", False),
    ],
)
def test_a_job_blocked_by_the_surrounding_job_is_not_waited_for(
    nodes: str, ends: bool, slurm: startup.SubmitSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUEUE_PAUSE", "STUCK_SECONDS"):
        monkeypatch.setattr(slurm_job, name, 0.0)
    (slurm.folder / "silent").touch()
    (slurm.folder / "bin" / "squeue").write_text(QUEUE.format(folder=slurm.folder, reason="Resources", mine="6"))
    sinfo = slurm.folder / "bin" / "sinfo"
    sinfo.write_text(f'#!/bin/sh\ncase "$*" in *--partition=batch*) printf "{nodes}\\n" ;; esac\n')
    sinfo.chmod(0o755)
    around = {"SLURM_JOB_ID": "6", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "1"}
    slurm = slurm._replace(client=slurm.client._replace(environ={**slurm.client.environ, **around}))
    with pytest.raises(JobFailed) as caught:
        startup.measure_start("plain srun", 1, 2, slurm, 60 if ends else 0.5, make_progress())
    words = str(caught.value)
    assert isinstance(caught.value, slurm_job.JobNeverStarts) == ends
    assert ("on the login node, where it holds nothing; or fewer --ranks" in words) == ends
    assert (slurm.folder / "ended").read_text() == "7\n"


def test_ctrl_c_while_a_job_is_submitted_cancels_it(
    slurm: startup.SubmitSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = slurm.folder / "bin" / "sbatch"
    sbatch.write_text(f"#!/bin/sh\nsleep 0.3\nkill -INT {os.getpid()}\nsleep 0.3\necho 8\n")
    with pytest.raises(KeyboardInterrupt):
        slurm_job.submit_job(["sbatch"], slurm.client)
    assert (slurm.folder / "ended").read_text() == "8\n"


def test_a_job_that_does_not_leave_the_queue_is_named(
    slurm: startup.SubmitSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_job, "_LEAVE_QUEUE_SECONDS", -1.0)
    (slurm.folder / "bin" / "squeue").write_text(
        "#!/bin/sh\necho '7|7|RUNNING|me|batch|N/A|N/A|N/A|10:00|0:00|n1|None|by-hand'\n"
    )
    notes: list[str] = []
    with slurm_job.submitted_job(["sbatch", "--parsable", "/dev/null"], slurm.client, notes.append):
        pass
    assert "scancel 7" in notes[0]


def test_the_command_lines_of_the_built_in_ways() -> None:
    reached = startup.SubmitSettings("mine", SlurmClient({}, embedded=False), Path("/a b/first_step.py"), Path("/runs"))
    argv = startup.hpc_kit_command("submit", "hpc-kit torchrun", 4, 2, reached, ["--to", "/x"])
    assert argv[2:7] == ["hpc_kit", "submit", "ddp_torchrun", "--cluster", "mine"]
    assert {"resources.nodes=4", "resources.ntasks_per_node=1", "launch.nproc_per_node=2"} < set(argv)
    assert "resources.gpus_per_task=2" in argv
    few = " ".join(startup.hpc_kit_command("submit", "hpc-kit", 4, 4, reached._replace(gpus=2), []))
    assert "resources.gpus_per_task=0" in few
    assert "resources.gpus_per_task=1" in " ".join(
        startup.hpc_kit_command("submit", "hpc-kit", 4, 2, reached._replace(gpus=2), [])
    )
    assert 'command=["python", "/a b/first_step.py", "--to", "/x"]' in argv


@pytest.mark.parametrize(
    ("output", "gpus"),
    [
        ("(null)", 0),
        ("(null)\ngpu:2", 2),
        ("gpu:a100:4(S:0-1),shard:8\ngpu:1", 4),
        ("gpu:a100:2,gpu:h100:6,nvme:1", 8),
        ("", None),
    ],
)
def test_gpus_per_node_are_read_from_the_cluster(output: str, gpus: int | None, slurm: startup.SubmitSettings) -> None:
    rows = "\\n".join(f"main|1|8|infinite|1-infinite|n/a|1000|{gres}" for gres in output.split())
    (slurm.folder / "bin" / "sinfo").write_text(f"#!/bin/sh\nprintf '{rows}\\n'\n")
    (slurm.folder / "bin" / "sinfo").chmod(0o755)
    assert startup.gpus_per_node(slurm.client) == gpus
