"""Lists of hosts on the command line and in host files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_kit.errors import SpecError
from hpc_kit.ssh.hosts import Address, LaunchHost, read_hosts


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("a,b", [LaunchHost("a"), LaunchHost("b")]),
        ("a:4, me@b:2 ,", [LaunchHost("a", 4), LaunchHost("me@b", 2)]),
        ("n[1-2,7],10.0.0.5", [LaunchHost("n1"), LaunchHost("n2"), LaunchHost("n7"), LaunchHost("10.0.0.5")]),
        ("n[1-2]:8", [LaunchHost("n1", 8), LaunchHost("n2", 8)]),
        (
            "fd00::1,[fd00::2],me@fe80::1%eth0",
            [LaunchHost("fd00::1"), LaunchHost("fd00::2"), LaunchHost("me@fe80::1%eth0")],
        ),
        ("[::1]:4,me@[fd00::1]:2", [LaunchHost("::1", 4), LaunchHost("me@fd00::1", 2)]),
        ("ssh://a,ssh://me@b:2222", [LaunchHost("a"), LaunchHost("me@b:2222")]),
        ("ssh://[fd00::1]:22:4,ssh://b:22:3", [LaunchHost("[fd00::1]:22", 4), LaunchHost("b:22", 3)]),
    ],
)
def test_hosts_on_a_command_line_are_read(words: str, hosts: list[LaunchHost]) -> None:
    read = read_hosts(words, None)
    assert list(read) == hosts
    assert read_hosts(",".join(host.hosts_argument for host in read), None) == read


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_host_file_is_read_as_mpirun_reads_it(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "hosts"
    lines = (
        b"\xef\xbb\xbf# ours",
        b"",
        b"a slots=4 max_slots=8",
        b" b:2   # small",
        b"\tme@c slots=1 ",
        b"fd00::1 slots=3",
    )
    file.write_bytes(end.join(lines))
    assert read_hosts(None, file) == (
        LaunchHost("a", 4),
        LaunchHost("b", 2),
        LaunchHost("me@c", 1),
        LaunchHost("fd00::1", 3),
    )


@pytest.mark.parametrize(
    ("name", "address", "ssh_argument"),
    [
        ("a", (None, "a", None), "a"),
        ("me@a:2222", ("me", "a", 2222), "ssh://me@a:2222"),
        ("ssh://me@a", ("me", "a", None), "ssh://me@a"),
        ("::1", (None, "::1", None), "::1"),
        ("me@fe80::1%eth0", ("me", "fe80::1%eth0", None), "me@fe80::1%eth0"),
        ("[fd00::1]:22", (None, "fd00::1", 22), "ssh://[fd00::1]:22"),
    ],
)
def test_user_host_and_port_are_read(name: str, address: tuple[object, ...], ssh_argument: str) -> None:
    assert (Address.parse(name), LaunchHost(name).ssh_argument) == (address, ssh_argument)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("a,b,a", "host a is named twice"),
        ("n[1-3],n2", "host n2 is named twice"),
        ("a:0", "'a:0' is not a host"),
        ("a:000", "'a:000' is not a host"),
        ("a:x", "'a:x' is not a host"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is not a host"),
        ("n[1-", r"'n\[1-' is not a host"),
        ("a:2:3", "'a:2:3' is not a host"),
        ("ssh://a:99999", "'ssh://a:99999' is not a host"),
        ("ssh://a:0", "'ssh://a:0' is not a host"),
        ("ssh://a:2:0", "'ssh://a:2:0' is not a host"),
        ("ssh://me:secret@a", "is not a host"),
        ("[fd00::x]", "is not a host"),
        ("a/b", "'a/b' is not a host"),
        ("a:2,b", "only some hosts have a number of ranks"),
        (" , ", "the list of hosts is empty"),
    ],
)
def test_a_text_that_is_no_host_is_refused(words: str, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        read_hosts(words, None)


def test_a_wrong_line_of_a_host_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb port=22\n")
    with pytest.raises(SpecError) as refused:
        read_hosts(None, file)
    assert (refused.value.what, refused.value.found) == ("'port=22' is not an option of a host", f"{file}, line 2")
    with pytest.raises(SpecError, match="cannot read the host file"):
        read_hosts(None, tmp_path / "gone")
    with pytest.raises(SpecError, match="a launch needs --hosts or --hostfile"):
        read_hosts("a", file)
