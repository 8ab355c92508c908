"""The ways to a host that ~/.ssh/config describes, over a real sshd."""

from __future__ import annotations

import base64
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import paramiko
import pytest

from hpc_kit.errors import LaunchError
from hpc_kit.ssh import agent
from hpc_kit.ssh.hosts import Host
from hpc_kit.ssh.launch import Session
from hpc_kit.ssh.ssh_command import connect, disconnect

Ssh = Callable[..., Path]


@pytest.fixture
def ssh(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    """Makes a home whose ssh says something first, and knows hosts by other lines than the usual."""
    folder = tmp_path / "home" / ".ssh"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    usual = home / ".ssh"

    def made(first: str = "", last: str = "", known: Callable[[str], str] = str) -> Path:
        (folder / "config").write_text(first + (usual / "config").read_text() + last)
        (folder / "known_hosts").write_text(known((usual / "known_hosts").read_text()))
        (folder / "id_ed25519").write_bytes((usual / "id_ed25519").read_bytes())
        return folder

    return made


def place(name: str) -> str:
    """The address by which a host was reached, as it says itself."""
    connection = connect(name, 20)
    try:
        return str(connection.run("echo $SSH_CONNECTION", hide=True, in_stream=False).stdout.split()[2])
    finally:
        disconnect(connection)


def port_of(ssh: Path) -> str:
    found = re.search(r"Port (\d+)", (ssh / "config").read_text())
    assert found
    return found[1]


def test_a_time_in_the_users_file_is_no_contradiction(ssh: Ssh) -> None:
    ssh("Host *\n  ConnectTimeout 7\n")
    assert place("n1") == "127.0.77.1"


@pytest.mark.parametrize("strange", ["n7 ssh-ed25519 AAAAC\n", "@cert-authority *.x ssh-ed25519 AAAAC3Nz\n"])
def test_a_line_of_known_hosts_that_nobody_can_read_is_passed_by(ssh: Ssh, strange: str) -> None:
    ssh(known=lambda usual: strange + usual)
    assert place("n2") == "127.0.77.2"


@pytest.mark.parametrize(("hashed", "name"), [("no", "[127.0.77.2]"), ("yes", "|1|")])
def test_a_new_host_is_written_down_where_ssh_does_so(ssh: Ssh, hashed: str, name: str) -> None:
    folder = ssh(f"Host n2\n  StrictHostKeyChecking accept-new\n  HashKnownHosts {hashed}\n", known=lambda _: "")
    assert place("n2") == "127.0.77.2"
    known = (folder / "known_hosts").read_text()
    assert known.startswith(name) and known.count("\n") == 1
    assert place("n2") == "127.0.77.2" and (folder / "known_hosts").read_text() == known
    host, kind, key = known.split()
    other = base64.b64decode(key)[:-4] + b"else"
    (folder / "known_hosts").write_text(f"{host} {kind} {base64.b64encode(other).decode()}\n")
    with pytest.raises(LaunchError, match="another host key"):
        connect("n2", 20)


def test_a_new_host_gets_a_line_of_its_own(ssh: Ssh) -> None:
    folder = ssh("Host n2\n  StrictHostKeyChecking accept-new\n", known=lambda _: "other ssh-ed25519 AAAA")
    assert place("n2") == "127.0.77.2"
    assert (folder / "known_hosts").read_text().splitlines()[0] == "other ssh-ed25519 AAAA"


@pytest.mark.parametrize("strict", ["yes", "accept-new"])
def test_a_revoked_key_is_refused(ssh: Ssh, strict: str) -> None:
    def known(usual: str) -> str:
        return f"{usual}@revoked * {usual.splitlines()[0].split(' ', 1)[1]}\n"

    ssh(f"Host n2\n  StrictHostKeyChecking {strict}\n", known=known)
    with pytest.raises(LaunchError, match="was revoked"):
        connect("n2", 20)


def test_a_certificate_of_the_host_is_told_to_be_beyond_this(ssh: Ssh) -> None:
    ssh(known=lambda usual: f"@cert-authority * {usual.splitlines()[0].split(' ', 1)[1]}\n")
    with pytest.raises(LaunchError, match="certificate only"):
        connect("n2", 20)


def test_a_hashed_name_is_known(ssh: Ssh) -> None:
    def hashed(usual: str) -> str:
        lines = [line.split(" ", 1) for line in usual.splitlines()]
        return "".join(f"{paramiko.HostKeys.hash_host(name)} {rest}\n" for name, rest in lines)

    ssh(known=hashed)
    assert place("n3") == "127.0.77.3"


def test_included_hosts_are_reached(ssh: Ssh) -> None:
    folder = ssh()
    (folder / "config").rename(folder / "hosts.conf")
    (folder / "config").write_text("Include hosts.*\nMatch all\n  ForwardAgent yes\n")
    assert place("n3") == "127.0.77.3"


@pytest.mark.parametrize(
    ("config", "names"),
    [("Host n3\n  HostKeyAlias cluster\n", "cluster"), ("", "127.0.77.*"), ("", "127.0.77.3")],
    ids=["alias", "pattern", "without port"],
)
def test_a_host_is_known_as_ssh_knows_it(ssh: Ssh, config: str, names: str) -> None:
    ssh(config, known=lambda usual: f"{names} {usual.splitlines()[0].split(' ', 1)[1]}\n")
    assert place("n3") == "127.0.77.3"


def far(ssh: Ssh, jumps: str, **more: Callable[[str], str]) -> None:
    """A host behind others. From n1, only n2 is let through to."""
    folder = ssh(**more)
    with (folder / "config").open("a") as config:
        config.write(f"Host far\n  HostName 127.0.77.3\n  Port {port_of(folder)}\n  ProxyJump {jumps}\n")


def test_jump_hosts_are_passed_in_their_order(ssh: Ssh) -> None:
    far(ssh, "n1,ssh://n2")
    assert place("far") == "127.0.77.3"


def test_a_jump_host_must_be_known_too(ssh: Ssh) -> None:
    far(ssh, "n2", known=lambda usual: "".join(line + "\n" for line in usual.splitlines() if ".77.2]" not in line))
    with pytest.raises(LaunchError, match="the host key of n2 is not known here"):
        connect("far", 20)


def test_a_jump_host_that_does_not_let_through_is_told(ssh: Ssh) -> None:
    far(ssh, "n1")
    with pytest.raises(LaunchError, match="far does not answer"):
        connect("far", 20)


@pytest.mark.parametrize("name", ["n2", "n3"])
def test_a_jump_host_for_all_needs_none_itself_and_some_have_none(ssh: Ssh, name: str) -> None:
    ssh("Host n3\n  ProxyJump none\n", "Host *\n  ProxyJump n2\n")
    assert place(name) == f"127.0.77.{name[1]}"


def test_what_ssh_itself_cannot_read_is_no_silence(ssh: Ssh) -> None:
    ssh("Host n1\n  ForwardAgent maybe\n")
    with pytest.raises(LaunchError, match="no connection to n1 can be made") as told:
        connect("n1", 20)
    assert told.value.remedy == "ssh -G n1   (what ~/.ssh/config says of it)"


def test_a_host_that_takes_no_session_is_told(ssh: Ssh) -> None:
    ssh()
    session = Session([Host("n1"), Host("full")], "python3", 20)
    with pytest.raises(LaunchError, match="full is lost"), closing(session):
        session.connect()


class Frozen(paramiko.ServerInterface):  # type: ignore[misc]
    """Takes any key, opens a session, and says nothing more."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.over = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return int(paramiko.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.asked.set()
        self.over.wait(120)
        return False


@pytest.fixture
def frozen(ssh: Ssh) -> Iterator[Frozen]:
    """Host `ice`, which freezes behind the authentication."""
    server, key = Frozen(), paramiko.ECDSAKey.generate()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        ssh(
            f"Host ice\n  HostName 127.0.0.1\n  Port {port}\n",
            known=lambda _: f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n",
        )

        def serve() -> None:
            transport = paramiko.Transport(listener.accept()[0])
            transport.add_server_key(key)
            transport.start_server(server=server)

        threading.Thread(target=serve, daemon=True).start()
        yield server
        server.over.set()


def test_a_host_that_freezes_behind_its_authentication_is_named(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "SILENCE", 0.5)
    session = Session([Host("ice")], "python3", 3.0)
    with pytest.raises(LaunchError, match="ice does not answer") as told, closing(session):
        session.connect()
    assert (told.value.found, frozen.asked.is_set()) == ("starting Python: nothing came in all the time for it", True)
