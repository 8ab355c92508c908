"""Is there a Slurm here: sbatch and its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.errors import SlurmUnavailable
from hpc_kit.slurm import client, cluster_identity
from hpc_kit.slurm.client import SlurmClient, has_slurm
from hpc_kit.spec.cluster import Cluster
from hpc_kit.spec.cluster_client import slurm_version_of
from tests.slurm.test_queries import Slurm, program


def test_there_is_no_slurm_without_sbatch(tmp_path: Path) -> None:
    assert not has_slurm({"PATH": str(tmp_path), "SLURM_CONF": __file__}, Slurm())


def test_a_named_configuration_needs_no_query(tmp_path: Path) -> None:
    program(tmp_path, "sbatch")
    slurm = Slurm()
    assert has_slurm({"PATH": str(tmp_path), "SLURM_CONF": __file__}, slurm)
    with pytest.raises(SlurmUnavailable, match="the configuration of Slurm cannot be read"):
        has_slurm({"PATH": f"/nowhere:{tmp_path}", "SLURM_CONF": str(tmp_path / "none")}, slurm)
    assert slurm.asked == []


def test_a_missing_configuration_is_an_error_at_once(tmp_path: Path) -> None:
    slurm = Slurm()
    client = SlurmClient({"PATH": str(tmp_path), "SLURM_CONF": str(tmp_path / "none")}, embedded=False, runner=slurm)
    with pytest.raises(SlurmUnavailable, match="the configuration of Slurm cannot be read"):
        client.run(["squeue"])
    assert slurm.asked == []


@pytest.mark.parametrize(
    ("sinfo", "is_there"),
    [
        ("main* up 1-00:00:00 4 idle n[1-4]\n", True),
        ((1, "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n"), True),
        ((1, "sinfo: fatal: Could not establish a configuration source\n"), False),
    ],
)
def test_without_a_configuration_file_sinfo_decides(
    sinfo: str | tuple[int, str], is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "sbatch")
    program(tmp_path, "sinfo")
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", ())
    slurm = Slurm(sinfo=sinfo)
    assert has_slurm({"PATH": str(tmp_path)}, slurm) is is_there
    assert slurm.asked == [["sinfo", "--noheader"]]


def test_a_configuration_in_its_default_place_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "sbatch")
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", (__file__,))
    assert has_slurm({"PATH": str(tmp_path)}, Slurm())


def test_a_configuration_next_to_sbatch_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", ())
    for folder in ("bin", "opt", "opt/slurm", "opt/slurm/etc"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin" / "sbatch").symlink_to(program(tmp_path / "opt/slurm/bin", "sbatch"))
    (tmp_path / "opt/slurm/etc/slurm.conf").touch()
    slurm = Slurm()
    assert has_slurm({"PATH": str(tmp_path / "bin")}, slurm)
    assert slurm.asked == []


def test_an_sbatch_alone_is_a_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "sbatch")
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", ())
    assert has_slurm({"PATH": str(tmp_path)}, Slurm())


def test_a_sinfo_that_does_not_answer_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", ())
    monkeypatch.setattr(client, "PROBE_SECONDS", 0.1)
    program(tmp_path, "sbatch")
    program(tmp_path, "sinfo", "exec sleep 60")
    with pytest.raises(SlurmUnavailable, match="does not tell whether it has a cluster") as error:
        has_slurm({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "--cluster local" in str(error.value.remedy)
    assert slurm_version_of(None, {"PATH": f"{tmp_path}:/usr/bin:/bin"}) is None


def test_the_release_is_queried_without_looking_for_slurm_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_identity, "CONFIGURATIONS", ())
    program(tmp_path, "sbatch")
    program(tmp_path, "sinfo", f'echo "$@" >>{tmp_path}/asked; echo slurm 23.02.7')
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert str(slurm_version_of(Cluster(name="here"), environ, is_present=True)) == "23.02.7"
    assert (tmp_path / "asked").read_text() == "--version\n"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (" clustername = Alpha # ours", "alpha"),
        ('ClusterName="alpha"', "alpha"),
        ("ClusterName=alpha SlurmctldHost=c", "alpha"),
        ("ClusterName=al\\\npha", None),
        ('ClusterName="alpha', None),
        ("ClusterName=\nother", None),
        ("#ClusterName=alpha", None),
    ],
)
def test_the_clusters_name_is_read_from_its_configuration(line: str, name: str | None, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(f"# ours\n{line}\nSlurmUser=slurm\n")
    assert cluster_identity.queried_cluster({"SLURM_CONF": str(tmp_path / "slurm.conf")}) == name


@pytest.mark.parametrize(
    ("hint", "typed"),
    [
        ("Release it: scontrol release 12", "Release it: hpc-kit embedded run scontrol release 12"),
        ("squeue --start --job=12", "hpc-kit embedded run squeue --start --job=12"),
        ("It will never start: scancel 12", "It will never start: hpc-kit embedded run scancel 12"),
        (
            "scontrol update jobid=ID dependency=, or scancel ID",
            "hpc-kit embedded run scontrol update jobid=ID dependency=, or hpc-kit embedded run scancel ID",
        ),
        ("MASTER_ADDR=$(scontrol show hostnames | head -n 1)", "MASTER_ADDR=$(scontrol show hostnames | head -n 1)"),
        ("the address of `scontrol show hostnames`", "the address of `scontrol show hostnames`"),
        ("ask squeue and scontrol for it", "ask squeue and scontrol for it"),
        (None, None),
    ],
)
def test_a_hint_names_commands_of_the_embedded_slurm_as_a_user_types_them(hint: str | None, typed: str | None) -> None:
    assert client.SlurmClient({}, embedded=True).typed_command(hint) == typed
    assert client.SlurmClient({}, embedded=False).typed_command(hint) == hint
