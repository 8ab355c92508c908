"""Connections of OpenSSH to a real sshd, and explanations of its failures."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import paramiko
import pytest

from hpc_kit.errors import HpcKitError, LaunchError
from hpc_kit.ssh import agent, ssh_command
from hpc_kit.ssh.hosts import LaunchHost
from hpc_kit.ssh.launch import SshLaunch
from hpc_kit.ssh.ssh_command import SshConnection, check_ssh, explain_failure
from tests.ssh.conftest import write_home

Ssh = Callable[..., Path]


@pytest.fixture
def ssh(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    """Create a home whose ssh configuration and known_hosts have additional lines."""
    folder = tmp_path / "home"
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    usual = home / ".ssh"

    def write_config(first: str = "", last: str = "", known: Callable[[str], str] = str) -> Path:
        config = (usual / "config").read_text().partition("Host *")[0]
        ssh = write_home(folder, first + config + last, known((usual / "known_hosts").read_text()))
        (ssh / "id_ed25519").write_bytes((usual / "id_ed25519").read_bytes())
        (ssh / "id_ed25519").chmod(0o600)
        return ssh

    return write_config


def connect(name: str, folder: Path, timeout: float = 20) -> str:
    """Connect to a host. Return the address by which the host was reached."""
    connection = SshConnection(LaunchHost(name), folder / "socket")
    try:
        connection.open(timeout)
        return connection.start("echo $SSH_CONNECTION").communicate(timeout=30)[0].decode().split()[2]
    finally:
        connection.close()


def error_of(name: str, folder: Path, timeout: float = 20) -> LaunchError:
    """Return why a host cannot be reached."""
    with pytest.raises(LaunchError) as error:
        connect(name, folder, timeout)
    return error.value


def port_of(ssh: Path) -> str:
    found = re.search(r"Port (\d+)", (ssh / "config").read_text())
    assert found
    return found[1]


def test_without_ssh_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_ssh()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HpcKitError, match="needs the OpenSSH client"):
        check_ssh()


def test_all_commands_share_one_connection(ssh: Ssh, tmp_path: Path) -> None:
    ssh()
    connection = SshConnection(LaunchHost("n1"), tmp_path / "socket")
    connection.open(20)
    assert (tmp_path / "socket").is_socket()
    # The same port of the client shows that there was no second connection.
    output = [connection.start("echo $SSH_CONNECTION; exit 3").communicate(timeout=30)[0] for _ in range(2)]
    assert output[0] == output[1]
    connection.close()
    deadline = time.monotonic() + 20
    while (tmp_path / "socket").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not (tmp_path / "socket").exists()


def test_an_open_connection_of_the_user_is_used_and_stays_open(ssh: Ssh, tmp_path: Path) -> None:
    """Hosts that ask for a one-time password accept only this connection."""
    control = f"Host *\n  ControlPath {tmp_path}/own-%h\n"
    folder = ssh(control)
    assert subprocess.run(["ssh", "-f", "-N", "-M", "n1"], check=False).returncode == 0
    (folder / "id_ed25519").unlink()
    try:
        assert [connect("n1", tmp_path) for _ in range(2)] == ["127.0.77.1"] * 2
        assert error_of("n2", tmp_path).what == "n2 accepts none of your keys"
    finally:
        subprocess.run(["ssh", "-O", "exit", "n1"], check=True, capture_output=True)


def test_an_unused_connection_closes_by_itself(ssh: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed launcher cannot close its connections."""
    ssh()
    monkeypatch.setattr(ssh_command, "_UNUSED_SECONDS", 1)
    SshConnection(LaunchHost("n1"), tmp_path / "socket").open(20)
    deadline = time.monotonic() + 20
    while (tmp_path / "socket").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not (tmp_path / "socket").exists()


FAILURES = {
    "unknown key": (
        "Host key verification failed.",
        "the host key of n1 is not known here",
        "ssh n1   (once: it shows the key, and asks)",
    ),
    "changed key": (
        (
            "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
            "Offending ED25519 key in /home/me/.ssh/known_hosts:1\n  remove with:\n"
            '  ssh-keygen -f "/home/me/.ssh/known_hosts" -R "n1"\n'
            "Host key for n1 has changed and you have requested strict checking.\nHost key verification failed."
        ),
        "the host key of n1 has changed",
        'if the host was installed again: ssh-keygen -f "/home/me/.ssh/known_hosts" -R "n1"; then ssh n1, and compare',
    ),
    "revoked key": (
        (
            "@       WARNING: REVOKED HOST KEY DETECTED!               @\n"
            "The ED25519 host key for n1 is marked as revoked.\nHost key verification failed."
        ),
        "the host key of n1 was revoked",
        "ask the administrator",
    ),
    "permission denied": (
        "me@n1: Permission denied (publickey,password).",
        "n1 accepts none of your keys",
        "ssh-copy-id n1",
    ),
    "too many keys": (
        "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
        "n1 accepts none of your keys",
        "ssh-copy-id n1",
    ),
    "name resolution": (
        "ssh: Could not resolve hostname n1: Name or service not known",
        "the name of n1 cannot be resolved",
        "correct the name, or add its HostName to ~/.ssh/config; see ssh -G n1",
    ),
    "refused": ("ssh: connect to host n1 port 22: Connection refused", "n1 refuses the connection", "ssh n1 true"),
    "time-out": ("ssh: connect to host n1 port 22: Connection timed out", "n1 does not answer", "ssh n1 true"),
    "banner": ("Connection timed out during banner exchange", "n1 does not answer", "ssh n1 true"),
    "no route": ("ssh: connect to host n1 port 22: No route to host", "n1 does not answer", "ssh n1 true"),
    "configuration": (
        "/home/me/.ssh/config: terminating, 1 bad configuration options",
        "ssh cannot read its configuration for n1",
        "correct that line; then ssh -G n1",
    ),
    "another": ("kex_exchange_identification: read: Connection reset", "ssh cannot connect to n1", "ssh -v n1 true"),
}


@pytest.mark.parametrize(("errors", "what", "remedy"), FAILURES.values(), ids=FAILURES)
def test_each_failure_of_ssh_has_its_remedy(
    errors: str, what: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    write_home(tmp_path, "", "")
    error = explain_failure(LaunchHost("n1"), errors)
    assert (error.what, error.found) == (what, errors)
    assert (error.remedy or "").startswith(remedy)


def test_a_silent_failure_of_ssh_has_a_remedy() -> None:
    error = explain_failure(LaunchHost("n1"), "")
    assert (error.what, error.found) == (
        "ssh cannot connect to n1",
        "ssh ended with exit status 255 and printed nothing",
    )


def test_remedies_write_a_port_as_each_command_expects_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    write_home(tmp_path, "Host n1\n  HostName 10.0.0.1\n", "")
    host = LaunchHost("me@n1:2222")
    assert (explain_failure(host, FAILURES["permission denied"][0]).remedy or "").startswith(
        "ssh-copy-id -p 2222 me@n1\n"
    )
    assert (explain_failure(host, "timed out").remedy or "").startswith("ssh ssh://me@n1:2222 true ")


def test_an_unknown_host_is_refused_and_ssh_is_quoted(ssh: Ssh, tmp_path: Path) -> None:
    ssh(known=lambda _: "")
    error = error_of("n1", tmp_path)
    assert (error.what, error.found) == ("the host key of n1 is not known here", "Host key verification failed.")
    ssh("StrictHostKeyChecking yes\n", known=lambda _: "")
    assert "and you have requested strict checking" in (error_of("n1", tmp_path).found or "")


def test_a_new_host_is_accepted_if_the_user_allows_it(ssh: Ssh, tmp_path: Path) -> None:
    folder = ssh("Host n2\n  StrictHostKeyChecking accept-new\n", known=lambda _: "other ssh-ed25519 AAAA\n")
    assert connect("n2", tmp_path) == "127.0.77.2"
    assert f"[127.0.77.2]:{port_of(folder)} ssh-ed25519 " in (folder / "known_hosts").read_text()


def test_a_changed_host_key_is_refused_with_the_command_that_removes_it(ssh: Ssh, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    folder = ssh(known=lambda usual: re.sub("ssh-ed25519 .*", other, usual))
    error = error_of("n2", tmp_path)
    assert error.what == "the host key of n2 has changed"
    assert f'ssh-keygen -f "{folder}/known_hosts" -R "[127.0.77.2]:{port_of(folder)}"; then' in (error.remedy or "")


@pytest.mark.parametrize("strict", ["yes", "accept-new"])
def test_a_revoked_key_is_refused(ssh: Ssh, strict: str, tmp_path: Path) -> None:
    def revoke_key(usual: str) -> str:
        return f"{usual}@revoked * {usual.splitlines()[0].split(' ', 1)[1]}\n"

    ssh(f"Host n2\n  StrictHostKeyChecking {strict}\n", known=revoke_key)
    assert error_of("n2", tmp_path).what == "the host key of n2 was revoked"


def test_a_host_is_accepted_by_its_certificate(ssh: Ssh, tmp_path: Path) -> None:
    ssh(known=lambda usual: f"@cert-authority * {usual.splitlines()[0].split(' ', 1)[1]}\n")
    assert connect("n2", tmp_path) == "127.0.77.2"


def test_a_host_that_accepts_no_key_is_named(ssh: Ssh, tmp_path: Path) -> None:
    (ssh() / "id_ed25519").unlink()
    error = error_of("n1", tmp_path)
    assert re.search(r"\S+@127.0.77.1: Permission denied \(publickey\)\.$", error.found or "")
    assert error.what == "n1 accepts none of your keys"
    remedy = error.remedy or ""
    assert all(command in remedy for command in ("ssh-copy-id n1\n", "ssh-keygen -t ed25519", "ssh-add"))


def test_a_name_without_address_is_named(ssh: Ssh, tmp_path: Path) -> None:
    ssh()
    error = error_of("nowhere.invalid", tmp_path)
    assert error.what == "the name of nowhere.invalid cannot be resolved"
    assert (error.found or "").startswith("ssh: Could not resolve hostname nowhere.invalid: ")


def test_a_port_without_sshd_is_named(ssh: Ssh, tmp_path: Path) -> None:
    ssh()
    error = error_of("127.0.0.1:9", tmp_path, 1)
    assert (error.what, error.found) == (
        "127.0.0.1:9 refuses the connection",
        "ssh: connect to host 127.0.0.1 port 9: Connection refused",
    )


def test_a_host_that_accepts_silently_has_a_time_limit(ssh: Ssh, tmp_path: Path) -> None:
    ssh()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        error = error_of(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path, 1)
    assert error.what.endswith("does not answer")
    assert "Connection timed out during banner exchange" in (error.found or "")


def test_ssh_as_a_whole_has_a_time_limit(ssh: Ssh, tmp_path: Path) -> None:
    ssh("Host slow\n  ProxyCommand sleep 1000\n  ConnectTimeout 0\n")
    error = error_of("slow", tmp_path, 0.3)
    assert error.what == "slow does not answer", error


def test_an_error_in_the_configuration_is_quoted_with_its_line(ssh: Ssh, tmp_path: Path) -> None:
    folder = ssh("Host n1\n  ForwardAgent maybe\n  Foo bar\n")
    error = error_of("n1", tmp_path)
    assert error.what == "ssh cannot read its configuration for n1"
    assert f"{folder}/config: line 3: Bad configuration option: foo" in (error.found or "")


def test_included_hosts_are_reached(ssh: Ssh, tmp_path: Path) -> None:
    folder = ssh()
    (folder / "config").rename(folder / "hosts.conf")
    (folder / "config").write_text(f"Include {folder}/hosts.*\nMatch final all\n  ForwardAgent yes\n")
    assert connect("n3", tmp_path) == "127.0.77.3"


def test_ports_forwarded_by_another_session_are_no_failure(ssh: Ssh, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        forward = f"  LocalForward 127.0.0.1:{taken.getsockname()[1]} 127.0.0.1:9\n  ExitOnForwardFailure yes\n"
        ssh(f"Host n3\n{forward}")
        assert connect("n3", tmp_path) == "127.0.77.3"


def add_far_host(ssh: Ssh, jumps: str, **more: Callable[[str], str]) -> None:
    """Add a host behind jump hosts. From n1, sshd forwards only to n2."""
    folder = ssh(**more)
    port = port_of(folder)
    config = (folder / "config").read_text()
    far = f"Host far\n  HostName 127.0.77.3\n  Port {port}\n  ProxyJump {jumps}\n"
    (folder / "config").write_text(far + config)


def test_jump_hosts_are_passed_in_their_order(ssh: Ssh, tmp_path: Path) -> None:
    add_far_host(ssh, "n1,ssh://n2")
    assert connect("far", tmp_path) == "127.0.77.3"


def test_an_unknown_jump_host_is_named(ssh: Ssh, tmp_path: Path) -> None:
    add_far_host(ssh, "n2", known=lambda usual: re.sub(r"(?m)^\[127\.0\.77\.2\].*\n", "", usual))
    assert error_of("far", tmp_path).what == "the host key of n2 is not known here"


def test_a_jump_host_that_does_not_forward_is_quoted(ssh: Ssh, tmp_path: Path) -> None:
    add_far_host(ssh, "n1")
    error = error_of("far", tmp_path)
    assert error.what == "ssh cannot connect to far"
    assert "open failed: administratively prohibited: open failed" in (error.found or "")


@pytest.mark.parametrize("name", ["n2", "n3"])
def test_a_jump_host_is_reached_directly_and_hosts_may_be_exempt(ssh: Ssh, name: str, tmp_path: Path) -> None:
    ssh("Host n3 n2\n  ProxyJump none\n", "Host *\n  ProxyJump n2\n")
    assert connect(name, tmp_path) == f"127.0.77.{name[1]}"


def test_a_host_that_refuses_sessions_is_named(ssh: Ssh) -> None:
    ssh()
    launch = SshLaunch([LaunchHost("n1"), LaunchHost("full")], "python3", 20)
    with pytest.raises(LaunchError, match="full is lost") as error, closing(launch):
        launch.connect()
    assert "open failed" in (error.value.found or "")


class Frozen(paramiko.ServerInterface):  # type: ignore[misc]
    """A server that accepts any key, opens a session, and then sends nothing."""

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
    """The host `ice`, which sends nothing after the authentication."""
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


def test_a_host_that_freezes_after_its_authentication_is_named(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "SILENCE", 0.5)
    launch = SshLaunch([LaunchHost("ice")], "python3", 3.0)
    with pytest.raises(LaunchError, match="ice does not answer") as error, closing(launch):
        launch.connect()
    assert error.value.found == "ssh has connected, but the agent did not start within 3.5 s"
    assert frozen.asked.is_set()
