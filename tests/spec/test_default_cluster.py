"""Which cluster holds where none is named: told, found in the project, or seen on the machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.script.render import render
from hpc_kit.slurm import client, cluster_identity
from hpc_kit.spec.default_cluster import ClusterChoice, default_cluster, default_cluster_name
from hpc_kit.submission.submit import submit


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment in which sbatch is there; `sinfo` prints the file `sinfo`, and ends with the status in `rc`."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "sinfo.text").write_text("gpu:a100:4\n(null)\n")
    (folder / "sbatch").write_text("#!/bin/sh\nexit 0\n")
    (folder / "sinfo").write_text(f"#!/bin/sh\ncat {folder}/sinfo.text\n")
    for name in ("sbatch", "sinfo"):
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "FOLDER": str(folder)}


def test_the_environment_sets_the_default_cluster(project: Path) -> None:
    assert default_cluster(project, {"HPC_KIT_CLUSTER": "mine"}) == ClusterChoice("mine", {})


def test_the_project_sets_the_default_cluster(project: Path) -> None:
    (project / "env" / "default.toml").write_text("")
    assert default_cluster(project, {}) == ClusterChoice("default", {})


def test_without_sbatch_the_default_is_the_embedded_slurm(project: Path) -> None:
    assert default_cluster(project, {"PATH": "/nowhere"}) == ClusterChoice("local", {})


def test_an_existing_slurm_is_the_default(project: Path, slurm: dict[str, str]) -> None:
    assert default_cluster(project, slurm) == ClusterChoice("slurm", {})


def test_variables_that_filter_the_output_of_sinfo_hide_no_gpu(project: Path, slurm: dict[str, str]) -> None:
    shown = '[ -z "$SINFO_PARTITION" ] && echo gpu:a100:4; echo "(null)"'
    Path(slurm["FOLDER"], "sinfo").write_text(f"#!/bin/sh\n{shown}\n")
    assert default_cluster(project, {**slurm, "SINFO_PARTITION": "cpu"}) == ClusterChoice("slurm", {})


def test_a_folder_on_path_is_no_slurm(project: Path, tmp_path: Path) -> None:
    (tmp_path / "tools" / "sbatch").mkdir(parents=True)
    assert default_cluster(project, {"PATH": f"{tmp_path}/tools"}) == ClusterChoice("local", {})


def test_gpu_options_are_ignored_if_slurm_has_no_gpu(
    project: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(slurm["FOLDER"], "sinfo.text").write_text("(null)\n")
    assert default_cluster(project, slurm) == ClusterChoice("slurm", {"cluster.node.gpus": 0})
    monkeypatch.setenv("PATH", f"{slurm['FOLDER']}:{os.environ['PATH']}")
    text = render("ddp_4node", root=project)
    assert "# note      ignoring --gpus-per-task=1 because cluster 'slurm' has no GPUs" in text
    assert "hpc-kit render ddp_4node --cluster slurm --set cluster.node.gpus=0" in text


def test_an_sbatch_without_configuration_is_no_slurm(
    project: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", ())
    sinfo = Path(slurm["FOLDER"], "sinfo")
    sinfo.write_text("#!/bin/sh\necho 'sinfo: fatal: Could not establish a configuration source' >&2\nexit 1\n")
    assert default_cluster(project, slurm) == ClusterChoice("local", {})


def test_a_login_node_that_cannot_read_its_configuration_trains_nothing(project: Path, slurm: dict[str, str]) -> None:
    """The file may be on a file system that is not mounted."""
    environ = {**slurm, "SLURM_CONF": str(project / "missing.conf")}
    with pytest.raises(SlurmUnavailable, match="the configuration of Slurm cannot be read"):
        default_cluster(project, environ)
    assert default_cluster_name(project, environ) == "slurm"


def test_a_controller_that_is_down_is_still_a_slurm(project: Path, slurm: dict[str, str]) -> None:
    sinfo = Path(slurm["FOLDER"], "sinfo")
    sinfo.write_text("#!/bin/sh\necho 'slurm_load_partitions: Unable to contact slurm controller' >&2\nexit 1\n")
    assert default_cluster(project, slurm) == ClusterChoice("slurm", {})


def test_for_reading_an_sbatch_that_does_not_answer_is_a_slurm(
    project: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", ())
    monkeypatch.setattr(client, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr("hpc_kit.spec.default_cluster._may_have_gpus", lambda _: True)
    Path(slurm["FOLDER"], "sinfo").write_text("#!/bin/sh\nexec sleep 60\n")
    assert default_cluster_name(project, slurm) == "slurm"
    assert default_cluster(project, slurm, require_answer=False) == ClusterChoice("slurm", {})
    for refused in (
        lambda: default_cluster(project, slurm),
        lambda: default_cluster_name(project, slurm, require_answer=True),
    ):
        with pytest.raises(SlurmUnavailable, match="does not tell whether it has a cluster"):
            refused()


def test_without_a_controller_a_script_is_rendered_but_submitted_only_to_a_named_cluster(
    project: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", ())
    monkeypatch.setattr(client, "PROBE_SECONDS", 0.1)
    Path(slurm["FOLDER"], "sinfo").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("PATH", slurm["PATH"])
    assert "# again     hpc-kit render ddp_4node --cluster slurm" in render("ddp_4node", root=project)
    with pytest.raises(SlurmUnavailable, match="does not tell whether it has a cluster"):
        submit("ddp_4node", root=project)


def test_the_name_of_the_default_needs_no_query_of_nodes(project: Path, slurm: dict[str, str]) -> None:
    sinfo = Path(slurm["FOLDER"], "sinfo")
    sinfo.write_text(f'#!/bin/sh\necho "$@" >>{sinfo}.asked\n')
    (project / "slurm.conf").touch()
    environ = {**slurm, "SLURM_CONF": str(project / "slurm.conf")}
    assert default_cluster_name(project, environ) == "slurm"
    assert not Path(f"{sinfo}.asked").exists()
    default_cluster(project, environ)
    assert Path(f"{sinfo}.asked").read_text() == "--all --noheader --format=%G\n"


def test_inside_a_job_of_the_embedded_slurm_its_cluster_is_the_default(project: Path, tmp_path: Path) -> None:
    sbatch = tmp_path / "state" / "bin" / "sbatch"
    sbatch.parent.mkdir(parents=True)
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    (sbatch.parent / ".pocketslurm").touch()
    inside = {"PATH": f"{sbatch.parent}:/usr/bin:/bin", "HPC_KIT_SLURM_STATE": str(tmp_path / "state")}
    assert default_cluster(project, inside) == ClusterChoice("local", {})
    (project / "env" / "mine.toml").write_text('slurm = "embedded"\n')
    run = project / "runs" / "job" / "7"
    run.mkdir(parents=True)
    for record, cluster in (
        ('{"slurm": "embedded", "cluster": "mine"}', "mine"),
        ('{"slurm": "embedded", "cluster": "gone"}', "local"),
        ('{"slurm": "system", "cluster": "mine"}', "local"),
        ("torn", "local"),
    ):
        (run / "record.json").write_text(record)
        assert default_cluster(project, {**inside, "HPC_KIT_RUN": f"{run}_3"}) == ClusterChoice(cluster, {})
    assert default_cluster_name(project, {**inside, "PATH": "/usr/bin:/bin"}) != "mine"


@pytest.mark.slow
def test_a_job_submitted_inside_a_job_of_the_embedded_slurm_is_found_outside(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_KIT_SLURM_STATE", str(tmp_path / "state"))
    inner = f"{shlex.quote(sys.executable)} -m hpc_kit submit -j 1x1 --job-name inner --wait -- bash -c 'echo within'"
    argv = [sys.executable, "-m", "hpc_kit"]
    done = subprocess.run(
        [*argv, "submit", "--cluster", "local", "-j", "1x1", "--job-name", "outer", "--", "bash", "-c", inner],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((project / "runs/inner/latest/record.json").read_text())
    assert (record["cluster"], record["slurm"]) == ("local", "embedded")
    logs = subprocess.run([*argv, "logs", "inner", "--cluster", "local"], capture_output=True, text=True, timeout=60)
    assert "within" in logs.stdout.splitlines()
    assert "which was not queried" not in logs.stdout
