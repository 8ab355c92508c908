"""One cluster: start, stop, its processes, and commands on its hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from . import cgroups, config, daemons, hosts, processes
from .settings import CONTROLLER, Settings, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PACKAGES = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    "slurmdbd": "slurmdbd",
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "faketime": "faketime",
    "mariadb-install-db": "mariadb-server",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
}
"""Each required program, and the Debian package that contains it."""

LIBRARIES = {"pmix2/lib/libpmix.so": "libpmix-dev"}
"""Libraries below /usr/lib/TRIPLET that Slurm's plug-ins open by name; the PMIx plug-in uses no version."""


class ClusterError(Exception):
    """The cluster cannot be started or used. The message contains the remedy."""


def find_obstacle() -> str | None:
    """Return why a cluster is impossible on this machine, or None if it is possible."""
    if os.geteuid() != 0:
        return "a real cluster needs root: hosts are network namespaces"
    absent = missing_packages()
    if absent:
        return f"not installed: apt-get install {' '.join(absent)}"
    spaces = ["--net", "--uts", "--mount", "--cgroup"]
    tried = subprocess.run(["unshare", *spaces, "true"], check=False, capture_output=True, text=True)
    return f"this root may not make namespaces: {tried.stderr.strip()}" if tried.returncode else None


def missing_packages() -> list[str]:
    """Return the Debian packages that are not installed."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    absent = {package for program, package in PACKAGES.items() if not shutil.which(program, path=path)}
    absent |= {package for name, package in LIBRARIES.items() if not any(Path("/usr/lib").glob(f"*/{name}"))}
    return sorted(absent)


def install_packages() -> None:
    """Install the missing packages, without starting their daemons."""
    packages = missing_packages()
    if not packages or os.geteuid() != 0:
        return
    # With RUNLEVEL=1, Debian's invoke-rc.d starts no services.
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "--quiet"], check=True, env=environ)
    install = ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *packages]
    subprocess.run(install, check=True, env=environ)


class Cluster:
    """A real Slurm in namespaces of this machine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def up(self) -> bool:
        """Start the cluster. Return False if it was already running. Remains of a crash are removed first."""
        self._check()
        with self._alone():
            if self._stands():
                return False
            self._clear()
            try:
                self._build()
            except BaseException:
                processes.end_all(self.settings.own_directory)  # the logs stay, because they contain the reason
                raise
        return True

    def down(self) -> None:
        """End every process of the cluster and remove its directory, if the cluster exists."""
        with self._alone():
            self._clear()

    def alive(self) -> list[processes.Member]:
        """Return every process of the cluster, with its host."""
        return processes.members(self.settings.own_directory)

    def argv(self, command: Sequence[str], *, host: str = CONTROLLER, cwd: Path | None = None) -> list[str]:
        """Return the command line that runs `command` on a host; the login host by default."""
        pid = hosts.holder(self.settings, host)
        if pid is None:
            raise ClusterError(f"host {host} of cluster {self.settings.name} is not up; bring it up first")
        return hosts.enter(pid, command, cwd=cwd or Path.cwd())

    def environ(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return an ordinary environment for commands that use this cluster."""
        return {**(os.environ if environ is None else environ), "SLURM_CONF": str(self.settings.conf)}

    def run(
        self, command: Sequence[str], *, host: str = CONTROLLER, cwd: Path | None = None, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host; in the shared directory by default."""
        line = self.argv(command, host=host, cwd=cwd or self.settings.work)
        return subprocess.run(
            line, check=check, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=self.environ()
        )

    def stop(self, host: str, *names: str) -> list[int]:
        """Kill the named daemons of one host (`slurmstepd`: its steps), and return the killed pids."""
        return self._kill([member for member in self.alive() if member.host == host and member.name in names])

    def lose(self, node: str) -> None:
        """Simulate a power failure of a node: end its network and all its processes except its holder."""
        self.run(["ip", "link", "set", "eth0", "down"], host=node, check=True)
        held = hosts.holder(self.settings, node)
        self._kill([member for member in self.alive() if member.host == node and member.pid != held])

    def send_signal(self, host: str, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon."""
        for member in self.alive():
            if (member.host, member.name) == (host, name):
                os.kill(member.pid, number)

    def repair_daemons(self) -> None:
        """Start daemons that do not run, and continue stopped ones."""
        self.send_signal(CONTROLLER, "slurmctld", signal.SIGCONT)
        running = {(member.host, member.name) for member in self.alive()}
        starter = self.daemons()
        for host, name in sorted(daemons.expected(self.settings) - running):
            starter.start(host, name)
        starter.await_answers()

    def repair(self) -> None:
        """Restore the network, the daemons and the nodes after a fault, and remove all jobs."""
        for node in self.settings.node_names:
            self.run(["ip", "link", "set", "eth0", "up"], host=node)
        self.repair_daemons()
        self.run(["scancel", "--me"])
        for node in self.settings.node_names:
            for state in ("resume", "undrain"):
                self.run(["scontrol", "update", f"nodename={node}", f"state={state}"])
        self.run(["scontrol", "update", "partitionname=high", "state=up"])
        self.daemons().await_ready()

    def _kill(self, found: list[processes.Member]) -> list[int]:
        for member in found:
            processes.kill(member, self.settings.own_directory)
        return [member.pid for member in found]

    def daemons(self) -> daemons.Daemons:
        """Return an object that starts single daemons again after `stop`."""
        holders = {host: hosts.holder(self.settings, host) for host in self.settings.hosts}
        return daemons.Daemons(self.settings, {host: pid for host, pid in holders.items() if pid})

    def healthy(self) -> bool:
        """Return whether every host and every daemon is alive."""
        running = {(member.host, member.name) for member in self.alive()}
        held = all(hosts.holder(self.settings, host) for host in self.settings.hosts)
        return held and daemons.expected(self.settings) <= running

    def _stands(self) -> bool:
        found = load(self.settings.root)
        if found is None or not self.healthy():
            return False
        if found != self.settings:
            raise ClusterError(
                f"cluster {found.name} is up with other settings (see {found.marker}); take it down first"
            )
        return True

    def _check(self) -> None:
        """Refuse impossible settings before the first change."""
        settings = self.settings
        reason = find_obstacle()
        if reason:
            raise ClusterError(reason)
        if settings.gpus and not config.gpu_files(settings.gpus):
            raise ClusterError(f"no {settings.gpus} device files that represent GPUs; use --gpus 0")
        for path in (settings.root, settings.work):
            if not path.is_absolute() or path.is_relative_to("/tmp") or path.is_relative_to("/dev"):
                raise ClusterError(f"{path} would not be shared: give an absolute path outside /tmp, which is private")

    def _build(self) -> None:
        self._write()
        holders = hosts.start_hosts(self.settings)
        starter = daemons.Daemons(self.settings, holders)
        starter.start_all()
        starter.await_ready()

    def _write(self) -> None:
        settings = self.settings
        if settings.work.exists():
            raise ClusterError(
                f"{settings.work} exists; the shared directory is created again and removed with the cluster"
            )
        settings.root.mkdir(mode=0o755)
        settings.save()  # the marker shows that the directory belongs to a cluster
        for path in (settings.etc, settings.own_directory, settings.root / "hosts", settings.work):
            path.mkdir(mode=0o755)
        settings.work.chmod(0o1777)
        for host in settings.hosts:
            for part in ("munge", "spool", "state"):
                (settings.private(host) / part).mkdir(parents=True)
            (settings.private(host) / "hosts").write_text(config.hosts_file(settings, host))
        settings.conf.write_text(config.slurm_conf(settings))
        (settings.etc / "gres.conf").write_text(config.gres_conf(settings))
        (settings.etc / "cgroup.conf").write_text(config.cgroup_conf())
        if settings.accounting:
            dbd = settings.etc / "slurmdbd.conf"
            dbd.touch(mode=0o600)
            dbd.write_text(config.slurmdbd_conf(settings))

    def _clear(self) -> None:
        processes.end_all(self.settings.own_directory)
        cgroups.clear(self.settings)
        found = load(self.settings.root)
        if not self.settings.root.exists():
            return
        if not self.settings.marker.exists() and any(self.settings.root.iterdir()):
            raise ClusterError(f"{self.settings.root} is no cluster's directory; not removed")
        if found and found.root == self.settings.root and found.work.is_dir():
            shutil.rmtree(found.work)
        shutil.rmtree(self.settings.root)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Allow one `up` or `down` at a time. The lock is on a directory, so it leaves no file."""
        parent = self.settings.root.parent
        parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
