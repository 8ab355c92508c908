"""A real sshd of this user on four loopback addresses: hosts n1, n2, n3 of a launch, and one that takes no session."""

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
HOSTS = ("n1", "n2", "n3", "full")
SUPERVISOR = b"exec(s.read(int(s.readline())))"


@dataclass
class Hosts:
    """The hosts, and a user's home whose ssh reaches them."""

    home: Path
    project: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """In the environment of everything that a launch starts."""

    def launch(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """`hpc-kit launch ...`, with a mark by which its processes are found."""
        return subprocess.Popen(
            [sys.executable, "-m", "hpc_kit", "launch", f"--export=PYTHONPATH,MARK={self.mark}", *words],
            cwd=self.project,
            env={**os.environ, "HOME": str(self.home), "PYTHONPATH": str(ROOT), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def launched(self, *words: str, **variables: str) -> tuple[int, str, str]:
        """The same to its end: exit status, what it printed, what it complained of."""
        process = self.launch(*words, **variables)
        out, err = process.communicate(timeout=150)
        return process.returncode, out, err

    def left(self) -> list[int]:
        """What runs of this launch, on all hosts."""
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

    def supervisors(self) -> list[int]:
        """The agents' carried halves."""
        return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if SUPERVISOR in _words(folder)]

    def await_none(self, patience: float = 60) -> list[int]:
        """What is still left after a while: nothing, as it should be."""
        deadline = time.monotonic() + patience
        while (self.left() or self.supervisors()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.left()


def _words(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose ssh reaches them."""
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
    config = [f"Port {port}", *(f"ListenAddress {each}" for each in addresses), f"HostKey {folder}/host_key"]
    config += [f"PidFile {folder}/pid", f"AuthorizedKeysFile {ssh}/id_ed25519.pub", "PasswordAuthentication no"]
    config += ["KbdInteractiveAuthentication no", "UsePAM no", "StrictModes no", "PermitRootLogin prohibit-password"]
    config += [f"Match LocalAddress {addresses[0]}", f"PermitOpen {addresses[1]}:{port}"]  # as a jump host
    config += [f"Match LocalAddress {addresses[-1]}", "MaxSessions 0"]
    (folder / "sshd_config").write_text("\n".join(config) + "\n")
    own = (folder / "host_key.pub").read_text()
    (ssh / "known_hosts").write_text("".join(f"[{each}]:{port} {own}" for each in addresses))
    blocks = [f"Host {host}\n  HostName {each}\n  Port {port}\n" for host, each in zip(HOSTS, addresses, strict=True)]
    (ssh / "config").write_text("".join(blocks))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # Debian's makes it when it starts as a service
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
    """The hosts, for one test; nothing of it is left behind."""
    found = Hosts(home, project)
    yield found
    for pid in found.left():
        os.kill(pid, signal.SIGKILL)
