"""The real cluster has four hosts, starts and stops, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import Cluster, ClusterError, Names, Settings, cases
from .capture import capture
from .fixture import require_cluster
from .processes import Member
from .settings import visible_paths

if TYPE_CHECKING:
    from collections.abc import Iterator


NODES = ["n1", "n2", "n3", "n4"]


def answer(cluster: Cluster, *command: str, host: str = "ctl") -> str:
    return cluster.run(command, host=host, check=True).stdout


@pytest.fixture
def other() -> Iterator[Cluster]:
    """A second cluster that tests may stop or break."""
    require_cluster()
    cluster = Cluster(Settings(name="other", accounting=False, carry=visible_paths()))
    cluster.down()
    yield cluster
    Cluster(replace(cluster.settings, accounting=True)).down()


def test_srun_reaches_four_hosts(cluster: Cluster) -> None:
    assert sorted(answer(cluster, "srun", "-N4", "hostname").split()) == NODES


def test_each_host_has_its_own_address_and_name(cluster: Cluster) -> None:
    lines = sorted(answer(cluster, "srun", "-N4", "getent", "ahostsv4", "n3").splitlines())
    assert {line.split()[0] for line in lines} == {"10.77.0.13"}
    assert answer(cluster, "hostname", "-I", host="n2").split() == ["10.77.0.12"]


def test_a_host_has_its_own_loopback(cluster: Cluster) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', 7777)); print('up', flush=True); s.accept()"
    line = cluster.argv([sys.executable, "-c", listen], host="n1", cwd=cluster.settings.work)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "up\n"
        connect = [sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', 7777), 5)"]
        from_n2 = cluster.run(connect, host="n2")
        from_n1 = cluster.run(connect, host="n1")
    assert from_n2.stderr.endswith("ConnectionRefusedError: [Errno 111] Connection refused\n")
    assert from_n1.returncode == 0


def test_tmp_and_shm_are_private_and_the_work_directory_is_shared(cluster: Cluster) -> None:
    names = ["/tmp/only_on_n1", "/dev/shm/only_on_n1", f"{cluster.settings.work}/everywhere"]
    answer(cluster, "touch", *names, host="n1")
    seen = cluster.run(["ls", *names], host="n2").stdout.split()
    assert seen == [names[2]]
    assert [Path(name).exists() for name in names] == [False, False, True]


def test_tasks_get_their_gpus_and_declared_cpus(cluster: Cluster) -> None:
    shell = "echo $SLURM_CPUS_ON_NODE $CUDA_VISIBLE_DEVICES"
    assert answer(cluster, "srun", "-c8", "--gres=gpu:2", "sh", "-c", shell) == "8 0,1\n"


def test_a_job_is_accounted_with_its_exit_code(cluster: Cluster) -> None:
    done = cluster.run(["sbatch", "--wait", "--parsable", "--wrap=exit 3"])
    assert done.returncode == 3
    booked = answer(cluster, "sacct", "-nXP", "-j", done.stdout.strip(), "-o", "state,exitcode")
    assert booked == "FAILED|3:0\n"


def test_the_array_limit_is_small(cluster: Cluster) -> None:
    refused = cluster.run(["sbatch", "--array=0-20", "--wrap=true"])
    assert refused.returncode == 1
    assert refused.stderr == "sbatch: error: Batch job submission failed: Invalid job array specification\n"


def test_mpi_plugins_start_tasks_on_two_hosts(cluster: Cluster) -> None:
    for plugin, variable in (("pmix", "PMIX_RANK"), ("pmi2", "PMI_RANK")):
        ranks = answer(cluster, "srun", "-N2", "-n2", f"--mpi={plugin}", "printenv", variable)
        assert sorted(ranks.split()) == ["0", "1"]


def test_a_captured_step_contains_the_expected_ranks(cluster: Cluster) -> None:
    case = next(case for case in cases.load() if case.name == "09_arbitrary")
    ranks = sorted(capture(cluster, case), key=lambda record: int(record["truth"]["rank"]))
    assert [(record["hostname"], record["truth"]["local_rank"], record["truth"]["node_rank"]) for record in ranks] == [
        ("n2", 0, 1),
        ("n1", 0, 0),
        ("n2", 1, 1),
        ("n1", 1, 0),
    ]
    assert ranks[0]["env"]["SLURM_CONF"] == "/SCRUBBED/slurm.conf"


def test_a_second_up_changes_nothing(cluster: Cluster) -> None:
    def list_daemons() -> list[Member]:
        return [member for member in cluster.alive() if member.name != "slurmstepd"]

    before = list_daemons()
    assert cluster.up() is False
    assert list_daemons() == before


def test_other_settings_are_refused_while_the_cluster_is_up(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="is up with other settings"):
        Cluster(replace(cluster.settings, gpus=1)).up()


def machine() -> dict[str, object]:
    """Return everything that a cluster might leave behind on the machine."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return {
        "mounts": {mount for mount in mounts if "cluster-other" in mount},
        "devices": {path.name for path in Path("/sys/class/net").iterdir()},
        "cgroups": {str(path) for path in Path("/sys/fs/cgroup").rglob("*cluster-other*")},
        "hosts": Path("/etc/hosts").read_text(),
        "shm": {path.name for path in Path("/dev/shm").iterdir() if "other" in path.name},
        "root": Settings(name="other").root.exists(),
    }


def test_down_leaves_no_trace_even_of_a_running_job(other: Cluster) -> None:
    before = machine()
    other.up()
    other.run(["sbatch", "-N4", "--wrap=srun setsid sleep 1000"], check=True)
    other.run(["srun", "-N4", "true"], check=True)
    assert len({member.host for member in other.alive()}) == 5
    other.down()
    assert other.alive() == []
    assert machine() == before
    other.down()


def test_up_after_a_crash_starts_a_fresh_cluster(other: Cluster) -> None:
    other.up()
    assert len(other.stop("ctl", "slurmctld", "sleep")) == 2
    assert len(other.stop("n2", "slurmd", "munged", "sleep")) == 3
    assert not other.healthy()
    assert other.up() is True
    assert sorted(answer(other, "srun", "-N4", "hostname").split()) == NODES


def test_a_stopped_daemon_can_be_started_again(other: Cluster) -> None:
    other.up()
    assert len(other.stop("n2", "slurmd")) == 1
    other.daemons().slurmd("n2")
    assert answer(other, "srun", "-w", "n2", "hostname") == "n2\n"


def test_without_accounting_sacct_reports_it(other: Cluster) -> None:
    other.up()
    refused = other.run(["sacct"])
    assert (refused.returncode, refused.stderr) == (1, "Slurm accounting storage is disabled\n")


def test_without_names_hosts_are_reached_by_address_only(other: Cluster) -> None:
    cluster = Cluster(replace(other.settings, names=Names.ADDRESSES))
    cluster.up()
    assert cluster.run(["getent", "hosts", "n1"], host="n2").returncode == 2
    assert cluster.run(["getent", "hosts", "n2"], host="n2").returncode == 2
    assert sorted(answer(cluster, "srun", "-N4", "hostname").split()) == NODES


def test_with_loopback_names_a_host_resolves_only_its_own_name_to_the_loopback(other: Cluster) -> None:
    cluster = Cluster(replace(other.settings, names=Names.LOOPBACK))
    cluster.up()
    seen = [answer(cluster, "getent", "hosts", "n1", host=host).split()[0] for host in ("n1", "n2", "ctl")]
    assert seen == ["127.0.1.1", "10.77.0.11", "10.77.0.11"]
    assert sorted(answer(cluster, "srun", "-N4", "hostname").split()) == NODES


def test_a_directory_without_a_cluster_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    with pytest.raises(ClusterError, match="is no cluster's directory"):
        Cluster(Settings(root=tmp_path)).down()
    assert (tmp_path / "precious").exists()
