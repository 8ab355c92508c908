"""What stands between this machine and a host, in words and with the command to type."""

from __future__ import annotations

import sys
from pathlib import Path

import paramiko
import pytest

from hpc_kit.errors import HpcKitError, LaunchError
from hpc_kit.ssh import known_hosts, ssh_command, ssh_config
from hpc_kit.ssh.hosts import Host
from hpc_kit.ssh.ssh_command import _refused, need_fabric


def test_without_fabric_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fabric", None)
    with pytest.raises(HpcKitError, match="hpc-kit launch needs the library fabric") as missing:
        need_fabric()
    assert missing.value.remedy == f"{sys.executable} -m pip install fabric"


def test_each_refusal_has_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = paramiko.ECDSAKey.generate()
    refusals = [
        (paramiko.BadHostKeyException("n1", key, key), "shows another host key", "where the host was installed anew"),
        (paramiko.PasswordRequiredException("encrypted"), "the key for n1 is locked", "eval $(ssh-agent) && ssh-add"),
        (paramiko.SSHException("No authentication methods available"), "there is no ssh key here", "ssh-keygen"),
        (paramiko.SSHException("Server 'n1' not found in known_hosts"), "is not known here", "ssh n1 "),
        (TimeoutError("timed out"), "n1 does not answer", "ssh n1 true"),
        (OSError(-2, "Name or service not known"), "n1 does not answer", "ssh n1 true"),
    ]
    for error, what, remedy in refusals:
        told = _refused(Host("n1"), error, 5)
        assert (what in told.what, remedy in (told.remedy or "")) == (True, True), told
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").touch()
    told = _refused(Host("n1"), paramiko.AuthenticationException("Authentication failed."), 5)
    assert (told.what, told.remedy) == ("n1 takes none of your keys", "ssh-copy-id n1")


def test_remedies_name_the_place_that_known_hosts_knows() -> None:
    key = paramiko.ECDSAKey.generate()
    told = _refused(Host("n1"), paramiko.BadHostKeyException("10.0.0.1", key, key), 5, ("10.0.0.1", 2222))
    assert "ssh-keygen -R '[10.0.0.1]:2222'; then ssh n1," in (told.remedy or "")
    told = _refused(Host("n1"), paramiko.SSHException("'10.0.0.1' not found in known_hosts"), 5, ("10.0.0.1", 2222))
    assert "ssh-keyscan -H -p 2222 10.0.0.1 >>" in (told.remedy or "")


def test_remedies_take_a_port_as_each_command_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    told = _refused(Host("me@n1:2222"), TimeoutError("timed out"), 5)
    assert (told.remedy or "").startswith("ssh ssh://me@n1:2222 true ")
    told = _refused(Host("me@n1:2222"), paramiko.AuthenticationException("Authentication failed."), 5)
    assert (told.remedy or "").endswith("ssh-copy-id -p 2222 me@n1")


def looked_up(home: Path, host: str) -> dict[str, str]:
    """What the user's configuration in this folder says of a host."""
    config = paramiko.SSHConfig.from_text("\n".join(ssh_config.lines(home / "config", home, host)))
    return dict(config.lookup(host))


def test_included_files_stand_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "config").write_text("include more/*.conf nowhere  # ours\nPort 1\nHost b\n  Include=own\n  User you\n")
    (tmp_path / "more" / "1.conf").write_text("Host a\n  User me\n")
    (tmp_path / "more" / "2.conf").write_text("Host c\n  Port 3\n")
    (tmp_path / "own").write_text("Port 2\nInclude own\n")
    found = [looked_up(tmp_path, name) for name in "abc"]
    assert [(each.get("user"), each["port"]) for each in found] == [("me", "1"), ("you", "1"), (None, "3")]


def test_what_is_included_within_a_block_is_for_the_hosts_of_that_block(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "Host b\n  Include more\n  User you\nMatch host c\n  Include more\nMatch final all\n  Include last\n"
    )
    (tmp_path / "more").write_text("Port 2\nHost *\n  ProxyJump gate\nInclude more\n")
    (tmp_path / "last").write_text("Match final all\n  User late\n")
    found = [looked_up(tmp_path, name) for name in "abc"]
    assert [(each.get("proxyjump"), each.get("port"), each["user"]) for each in found] == [
        (None, None, "late"),
        ("gate", "2", "you"),
        ("gate", "2", "late"),
    ]


RED_HATS = """\
# The options here are in the "Match final block" to be applied as the last
# options and could be potentially overwritten by the user configuration
Match final all
\t# Follow system-wide Crypto Policy, if defined:
\tInclude /etc/crypto-policies/back-ends/openssh.config

\tGSSAPIAuthentication yes

# If this option is set to yes then remote X11 clients will have full access
# to the original X11 display. As virtually no X11 client supports the untrusted
# mode correctly we set this to yes.
\tForwardX11Trusted yes

# Send locale-related environment variables
\tSendEnv LANG LC_CTYPE LC_NUMERIC LC_TIME LC_COLLATE LC_MONETARY LC_MESSAGES
\tSendEnv LC_PAPER LC_NAME LC_ADDRESS LC_TELEPHONE LC_MEASUREMENT
\tSendEnv LC_IDENTIFICATION LC_ALL LANGUAGE
\tSendEnv XMODIFIERS

# Uncomment this if you want to use .local domain
# Host *.local
#   CheckHostIP no
"""
"""/etc/ssh/ssh_config.d/50-redhat.conf."""


def test_red_hats_own_configuration_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh_config.d").mkdir()
    (tmp_path / "ssh_config.d" / "50-redhat.conf").write_text(RED_HATS)
    (tmp_path / "ssh_config").write_text(f"Include {tmp_path}/ssh_config.d/*.conf\nUser theirs\n")
    (tmp_path / "config").write_text("Host n1\n  Port 22222\n")
    monkeypatch.setattr(ssh_config, "_USERS", tmp_path / "config")
    monkeypatch.setattr(ssh_config, "_SYSTEMS", tmp_path / "ssh_config")
    found = ssh_config.ssh_config("n1").lookup("n1")
    assert [found[name] for name in ("port", "forwardx11trusted", "user")] == ["22222", "yes", "theirs"]


@pytest.mark.parametrize("line", ["Match all host n1", "Match host", "Host 'n1", "Include 'n1"])
def test_a_systems_configuration_that_is_not_understood_refuses_no_launch(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "system").write_text(f"{line}\n")
    (tmp_path / "config").write_text("Host n1\n  Port 22222\n")
    monkeypatch.setattr(ssh_config, "_USERS", tmp_path / "config")
    monkeypatch.setattr(ssh_config, "_SYSTEMS", tmp_path / "system")
    assert ssh_config.ssh_config("n1").lookup("n1")["port"] == "22222"
    monkeypatch.setattr(ssh_config, "_USERS", tmp_path / "system")
    with pytest.raises((paramiko.ConfigParseError, ValueError)):
        ssh_config.ssh_config("n1")


HASHED = "|1|AAECAwQFBgcICQoLDA0ODxAREhM=|lUEcUUPZAbbEFu+qHoflhqg17Mc="
"""n1, as `ssh-keygen -H` writes it; with a salt of its own: all processes of a test run have the same cases."""


@pytest.mark.parametrize(
    ("known", "name", "means"),
    [
        ("n1,n2", "n2", True),
        ("N1", "n1", True),
        ("n*,!n2", "n1", True),
        ("n*,!n2", "n2", False),
        ("n?", "n10", False),
        ("[n*]:2222", "[n1]:2222", True),
        ("[n*]:2222", "n1", False),
        ("fd00::1", "fd00::1", True),
        (HASHED, "n1", True),
        (HASHED, "n2", False),
    ],
)
def test_a_line_of_known_hosts_means_what_it_does_to_ssh(known: str, name: str, means: bool) -> None:
    assert known_hosts._names(known, name) is means


def test_a_host_that_does_not_answer_costs_no_more_than_its_time() -> None:
    with pytest.raises(LaunchError, match="does not answer"):
        ssh_command.connect("127.0.0.1:9", 1)
