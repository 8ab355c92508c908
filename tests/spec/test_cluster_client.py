"""Which Slurm a cluster file means: one queue each for the embedded one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_kit.errors import AnswerNo
from hpc_kit.slurm import embedded
from hpc_kit.spec.cluster import Cluster, Node
from hpc_kit.spec.cluster_client import embedded_environment, open_client, slurm_version_of

LOCAL = Cluster(name="local", slurm="embedded")


def state(cluster: Cluster, **environ: str) -> str:
    return embedded_environment(cluster, {"PATH": "/usr/bin:/bin", **environ})["HPC_KIT_SLURM_STATE"]


def test_each_embedded_cluster_has_its_own_queue(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path)}
    other = Cluster(name="my laptop/2", slurm="embedded", node=Node(cpus=2))
    assert state(LOCAL, **home) == f"{tmp_path}/hpc_kit/slurm"
    assert state(other, **home) == f"{tmp_path}/hpc_kit/slurm-my_laptop_2"
    assert state(other, HPC_KIT_SLURM_STATE=str(tmp_path / "named")) == str(tmp_path / "named")


def test_the_embedded_slurm_ignores_names_of_real_clusters(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(tmp_path), "SLURM_CLUSTERS": "site"}
    assert "SLURM_CLUSTERS" not in open_client(LOCAL, environ).environ


def test_a_queue_of_an_earlier_release_is_kept(tmp_path: Path) -> None:
    (tmp_path / "hpc_kit/slurm").mkdir(parents=True)
    home = {"XDG_STATE_HOME": str(tmp_path)}
    assert [state(LOCAL, **home), state(LOCAL, **home)] == [f"{tmp_path}/hpc_kit/slurm"] * 2


def test_settings_do_not_change_while_jobs_exist(tmp_path: Path) -> None:
    home = {"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(tmp_path)}
    environ = embedded_environment(LOCAL, home)
    changed = Cluster(name="local", slurm="embedded", node=Node(cpus=2))
    subprocess.run(["sbatch", "--hold", "--wrap=true"], env=environ, cwd=tmp_path, check=True, capture_output=True)
    with pytest.raises(AnswerNo, match="has other settings, and jobs that are not over") as error:
        embedded_environment(changed, home)
    assert f"end them: {tmp_path}/hpc_kit/slurm/bin/scancel --me" in str(error.value)
    assert embedded_environment(LOCAL, home) == environ
    subprocess.run([f"{tmp_path}/hpc_kit/slurm/bin/scancel", "--me"], check=True)
    embedded_environment(changed, home)
    assert '"cpus": 2' in (tmp_path / "hpc_kit/slurm/slurm.json").read_text()


def test_a_queue_is_set_up_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = {"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(tmp_path)}
    first = embedded_environment(LOCAL, home)
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "_ask_for_folder", None)
        assert embedded_environment(LOCAL, home) == first
    shutil.rmtree(tmp_path / "hpc_kit/slurm")
    assert embedded_environment(LOCAL, home) == first
    assert (tmp_path / "hpc_kit/slurm/bin/sbatch").exists()


def test_the_release_is_known_without_a_query(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pocketslurm", "info", "--json", "--state", str(tmp_path / "none")]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert json.loads(output)["slurm_version"] == str(slurm_version_of(LOCAL, {}))
    assert not (tmp_path / "none").exists()
