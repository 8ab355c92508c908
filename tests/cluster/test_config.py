"""The contents of the configuration files. No daemon starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from . import Cluster, ClusterError, cases, cgroups, moments
from .config import hosts_file, slurm_conf
from .fixture import require_cluster
from .settings import Names, Settings, load

RING = Settings(root=Path("/srv/ring"))


def test_each_host_has_an_address() -> None:
    assert RING.hosts == {
        "ctl": "10.77.0.1",
        "n1": "10.77.0.11",
        "n2": "10.77.0.12",
        "n3": "10.77.0.13",
        "n4": "10.77.0.14",
    }


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (Names.HOSTS, "127.0.0.1 localhost\n10.77.0.1 ctl\n10.77.0.11 n1\n10.77.0.12 n2\n"),
        (Names.ADDRESSES, "127.0.0.1 localhost\n"),
        (Names.LOOPBACK, "127.0.0.1 localhost\n10.77.0.1 ctl\n127.0.1.1 n1\n10.77.0.12 n2\n"),
    ],
)
def test_each_variant_of_the_hosts_file(names: Names, expected: str) -> None:
    assert hosts_file(replace(RING, nodes=2, names=names), "n1") == expected


def test_nodes_have_an_address_if_their_name_does_not_resolve() -> None:
    lines = slurm_conf(replace(RING, nodes=1, names=Names.ADDRESSES)).splitlines()
    assert "NodeName=n1 NodeAddr=10.77.0.11 CPUs=8 RealMemory=16000 State=UNKNOWN Gres=gpu:2" in lines


def test_without_accounting_no_job_is_accounted() -> None:
    lines = slurm_conf(replace(RING, accounting=False)).splitlines()
    booking = [line for line in lines if line.startswith("AccountingStorage")]
    assert booking == ["AccountingStorageType=accounting_storage/none"]


def test_a_line_of_slurm_conf_can_be_replaced() -> None:
    lines = slurm_conf(replace(RING, slurm={"KillWait": "30"})).splitlines()
    assert [line for line in lines if line.startswith("KillWait")] == ["KillWait=30"]


@pytest.mark.parametrize(("there", "tracked"), [(True, "proctrack/cgroup"), (False, "proctrack/linuxproc")])
def test_processes_are_tracked_by_cgroups_if_available(
    there: bool, tracked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "available", lambda: there)
    assert f"ProctrackType={tracked}" in slurm_conf(RING).splitlines()


def test_settings_read_back_unchanged(tmp_path: Path) -> None:
    settings = Settings(name="other", root=tmp_path, names=Names.LOOPBACK, carry=(Path("/tmp/x"),), gpus=0)
    settings.save()
    assert load(tmp_path) == settings


def test_a_half_written_settings_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"name": "ri')
    assert load(tmp_path) is None


def test_a_name_that_slurm_would_change_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lower-case letters, digits and _: 'My-Ring'"):
        Settings(name="My-Ring")


def test_every_captured_launch_has_a_unique_name_and_a_description() -> None:
    names = [case.name for case in cases.load()]
    assert sorted(names) == sorted(set(names))
    assert all(case.description and case.script for case in cases.load())


def test_components_of_a_het_job_follow_the_wrapped_script() -> None:
    het = next(job for job in moments.load()["ended"] if job.name == "het")
    components = ["-N1", "-n1", "--wrap=srun --het-group=0,1 hostname", ":", "-N1", "-n2"]
    assert het.argv({}) == ["sbatch", "--parsable", "--job-name=het", *components]


def test_without_root_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="a real cluster needs root"):
        require_cluster()


def test_missing_packages_skip_the_ring_and_fail_where_oracles_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("HPC_KIT_REQUIRE_ORACLES", raising=False)
    monkeypatch.setattr("tests.cluster.cluster.PACKAGES", {"slurmctld-of-nowhere": "slurm-wlm"})
    with pytest.raises(pytest.skip.Exception, match="apt-get install slurm-wlm"):
        require_cluster()
    monkeypatch.setenv("HPC_KIT_REQUIRE_ORACLES", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install slurm-wlm"):
        require_cluster()


def test_a_directory_hidden_from_the_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cluster.cluster.missing_packages", list)
    with pytest.raises(ClusterError, match="/tmp/ring would not be shared"):
        Cluster(Settings(root=Path("/tmp/ring"), gpus=0)).up()
