"""The table [restart]: values that contradict the job are refused, each with one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.script.render import render, resolve_arguments
from hpc_kit.spec.restart import Restart
from tests.conftest import ROOT


@pytest.mark.parametrize(("lead", "seconds"), [(90, 90), ("90", 90), ("1:30", 90), ("0:02:00", 120)])
def test_a_lead_is_in_seconds_or_a_time(lead: str | int, seconds: int) -> None:
    assert Restart(lead=lead).lead_seconds == seconds


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"restart.lead": 600, "resources.time": 10}, "lead = 600 .* is 600 s; time = 10 .* is 600 s"),
        ({"restart.lead": 0}, "use 1 to 65535 seconds"),
        ({"restart.lead": "soon"}, "not a duration"),
        ({"restart.signal": "KILL"}, "signal = 'KILL'"),
        ({"restart.signal": "USR9"}, "use one of ABRT, ALRM"),
        ({"restart.exit_codes": [75, 1]}, "1 ends every Python exception"),
        ({"restart.exit_codes": [0]}, "0 is a success"),
        ({"restart.exit_codes": [300]}, "exit_codes"),
        ({"restart.max_attempts": 0}, "max_attempts"),
        ({"restart.progress": "~/saved"}, "not expanded"),
        ({"restart.lead": 60, "resources.signal": "USR1@60"}, "signal contradicts"),
        ({"restart.lead": 60, "resources.no_requeue": True}, "no_requeue contradicts"),
        ({"restart.lead": 60, "resources.open_mode": "truncate"}, "open_mode contradicts"),
        ({"restart.resume_args": ["--token", "hf_" + "a1B2" * 9]}, "looks like a secret"),
        ({"restart.spares": 1, "launch.launcher": "mpirun"}, "spare nodes need launcher srun or torchrun"),
        ({"restart.spares": 1, "resources.gpus": 2, "resources.gpus_per_node": 2}, "same options on each node"),
        ({"restart.leda": 60}, "did you mean|lead"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(SpecError, match=f"(?s){expected}"):
        resolve_arguments("ddp_1node", "slurm", settings, ROOT)


@pytest.mark.parametrize(
    ("cluster", "restart", "notes"),
    [
        ("slurm", {"progress": "/tmp/saved", "resume_args": ["--resume", "/dev/shm/x"]}, ["/tmp/saved", "/dev/shm/x"]),
        ("slurm", {"progress": "/home/me/saved"}, []),
        ("local", {"progress": "/tmp/saved"}, []),
    ],
)
def test_checkpoints_on_the_disk_of_a_node_are_noted(
    cluster: str, restart: dict[str, object], notes: list[str]
) -> None:
    found = [
        note for note in resolve_arguments("ddp_1node", cluster, {"restart": restart}, ROOT).notes if "disk" in note
    ]
    assert [note.partition(" ")[0] for note in found] == notes


def test_a_lead_that_is_not_shorter_than_the_limit_of_the_partition_is_noted(project: Path) -> None:
    (project / "env" / "mine.toml").write_text('slurm = "system"\n[partition.short]\ndefault_time = "1:00"\n')
    changes = {"restart.lead": 120, "resources.partition": "short", "resources.time": None}
    notes = resolve_arguments("ddp_1node", "mine", changes, project).notes
    assert "the time limit 1:00 of partition short is not longer than lead = 120: set time" in notes


@pytest.mark.parametrize("job", ["hetjob", "ray_4node"])
def test_a_launch_that_cannot_be_watched_is_refused(job: str) -> None:
    with pytest.raises(SpecError, match="does not support"):
        resolve_arguments(job, "slurm", {"restart.lead": 60}, ROOT)


def test_spare_nodes_belong_to_the_job_and_not_to_the_step(project: Path) -> None:
    changes = {"restart.spares": 1, "resources.nodes": 2, "resources.ntasks_per_node": 2}
    text = render("ddp_1node", "slurm", set=changes, root=project)
    for line in ("#SBATCH --nodes=3", "#SBATCH --ntasks=6", "#SBATCH --no-kill", "choose_nodes 1"):
        assert f"{line}\n" in text
    assert "srun --export=ALL --nodes=2 --ntasks=4 --ntasks-per-node=2" in text
    with pytest.raises(SpecError, match="leave --standalone out"):
        render("ddp_1node", "slurm", set=changes, standalone=True, root=project)


def test_a_simple_script_has_no_restart(project: Path) -> None:
    with pytest.raises(SpecError, match="leave --simple out"):
        render("ddp_1node", "slurm", set={"restart.lead": 60}, simple=True, root=project)


def test_a_job_file_with_the_table_alone_uses_the_defaults(project: Path) -> None:
    (project / "jobs" / "mine.toml").write_text('command = ["./train"]\n[resources]\ntime = "1:00:00"\n[restart]\n')
    text = render("mine", "slurm", root=project)
    assert "#SBATCH --signal=B:USR1@120\n" in text
    assert "#SBATCH --requeue\n" in text
    assert "#SBATCH --open-mode=append\n" in text
