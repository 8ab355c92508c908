"""Starts sshd as this user on four loopback addresses: the hosts n1, n2, n3, and one that refuses sessions."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import ROOT, oracle

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SSH = shutil.which("ssh") or "/usr/bin/ssh"
HOSTS = ("n1", "n2", "n3", "full")
AGENT = b"exec(s.read(int(s.readline())))"


@dataclass
class Hosts:
    """The hosts, and a home folder whose ssh configuration reaches them."""

    home: Path
    project: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Marker in the environment of every process that a launch starts."""

    @property
    def port(self) -> int:
        """The port of sshd."""
        return int((self.home / ".ssh" / "config").read_text().split("Port ")[1].split()[0])

    def launch(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start `hpc-kit launch ...` with a marker by which its processes are found."""
        return subprocess.Popen(
            [sys.executable, "-m", "hpc_kit", "launch", f"--export=PYTHONPATH,MARK={self.mark}", *words],
            cwd=self.project,
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.environ(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environ(self) -> dict[str, str]:
        """Return variables with which ssh reads the configuration of this home."""
        return {"HOME": str(self.home), "PATH": f"{self.home}/bin:{os.environ['PATH']}"}

    def run_launch(self, *words: str, **variables: str) -> tuple[int, str, str]:
        """Run a launch to its end. Return its exit status, output and errors."""
        process = self.launch(*words, **variables)
        out, err = process.communicate(timeout=150)
        return process.returncode, out, err

    def list_processes(self) -> list[int]:
        """Return the processes of this launch on all hosts."""
        mark, found = f"MARK={self.mark}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                ours = mark in (folder / "environ").read_bytes() and b"hpc_kit\0launch" not in _words(folder)
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if ours and state != "Z":
                found.append(int(folder.name))
        return found

    def agents(self) -> list[int]:
        """Return the processes that run the program sent to each host."""
        port = f" {self.port}\0".encode()
        return [
            int(folder.name)
            for folder in Path("/proc").glob("[0-9]*")
            if AGENT in _words(folder) and any(port in word for word in _environ(folder) if b"SSH_CONNECTION=" in word)
        ]

    def list_connections(self) -> list[int]:
        """Return the processes of ssh on this side."""
        config = str(self.home / ".ssh" / "config").encode()
        return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if config in _words(folder).split(b"\0")]

    def await_none(self, timeout: float = 60) -> list[int]:
        """Wait until no process of this launch is left. Return what is left."""
        deadline = time.monotonic() + timeout
        while (self.list_processes() or self.agents()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.list_processes()


def _words(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:
        return b""


def _environ(folder: Path) -> list[bytes]:
    try:
        return [word + b"\0" for word in (folder / "environ").read_bytes().split(b"\0")]
    except OSError:
        return []


def write_home(home: Path, config: str, known_hosts: str) -> Path:
    """Write a home folder, and a `bin/ssh` that reads its configuration: ssh itself ignores $HOME.

    Returns:
        The folder `.ssh`.
    """
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = f"Host *\n  IdentityFile {ssh}/id_ed25519\n  UserKnownHostsFile {ssh}/known_hosts\n"
    (ssh / "config").write_text(config + files)
    (ssh / "known_hosts").write_text(known_hosts)
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin" / "ssh").write_text(f"#!/bin/sh\nexec '{SSH}' -F '{ssh}/config' \"$@\"\n")
    (home / "bin" / "ssh").chmod(0o755)
    return ssh


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start sshd. Return a home whose ssh reaches it."""
    oracle("sshd", SSHD, "openssh-server")
    assert SSHD is not None
    folder = tmp_path_factory.mktemp("ssh")
    folder.chmod(0o700)
    ssh = folder / "home" / ".ssh"
    ssh.mkdir(0o700, parents=True)
    for key in (folder / "host_key", ssh / "id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    port = 20_000 + os.getpid() % 10_000
    addresses = [f"127.0.77.{number}" for number in range(1, len(HOSTS) + 1)]
    sign = ["ssh-keygen", "-q", "-s", "host_key", "-I", "n", "-h", "-n", addresses[1], "host_key.pub"]
    subprocess.run(sign, check=True, cwd=folder)
    config = [f"Port {port}", *(f"ListenAddress {each}" for each in addresses), f"HostKey {folder}/host_key"]
    config += [f"HostCertificate {folder}/host_key-cert.pub"]
    config += [f"PidFile {folder}/pid", f"AuthorizedKeysFile {ssh}/id_ed25519.pub", "PasswordAuthentication no"]
    config += ["Subsystem sftp internal-sftp"]
    config += ["SetEnv SHLVL=2"]  # bash then does not read ~/.bashrc, which differs from machine to machine
    config += ["KbdInteractiveAuthentication no", "UsePAM no", "StrictModes no", "PermitRootLogin prohibit-password"]
    config += [f"Match LocalAddress {addresses[0]}", f"PermitOpen {addresses[1]}:{port}"]  # as a jump host
    config += [f"Match LocalAddress {addresses[-1]}", "MaxSessions 0"]
    (folder / "sshd_config").write_text("\n".join(config) + "\n")
    own = (folder / "host_key.pub").read_text()
    blocks = [f"Host {host}\n  HostName {each}\n  Port {port}\n" for host, each in zip(HOSTS, addresses, strict=True)]
    write_home(ssh.parent, "".join(blocks), "".join(f"[{each}]:{port} {own}" for each in addresses))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # Debian's service of sshd creates this folder
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        deadline = time.monotonic() + 20
        while "listening on" not in (folder / "log").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield folder / "home"
    finally:
        daemon.terminate()
        daemon.wait()


@pytest.fixture
def hosts(home: Path, project: Path) -> Iterator[Hosts]:
    """The hosts, for one test, which must leave no process."""
    found = Hosts(home, project)
    yield found
    for pid in found.list_processes():
        os.kill(pid, signal.SIGKILL)
