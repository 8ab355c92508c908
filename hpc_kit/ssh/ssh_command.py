"""Starts the OpenSSH client: one authenticated connection per host, which all commands on this host share."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from math import ceil
from pathlib import Path

from hpc_kit.errors import HpcKitError, LaunchError
from hpc_kit.ssh.hosts import SSH_SCHEME, LaunchHost

CONNECTION_FAILED = 255
"""Exit status of ssh if the connection failed; any other status is that of the command on the host."""

_CONNECT_STEPS = 6
"""ConnectTimeout limits only some steps of a connection. ssh as a whole gets this multiple of it."""

_UNUSED_SECONDS = 30
"""The connection closes by itself if no command has used it for so long, also after a launcher was killed."""

_LOCAL_TIMEOUT = 10
"""Seconds for commands that do not connect: requests to a background process of ssh, and `ssh -G`."""

_LONGEST_FOLDER = 60
"""Characters. The path of a socket has at most 108, of which ssh needs 17 for a temporary name."""

_JUMP_HOST_FAILED = "UNKNOWN port 65535"
"""Part of ssh's message if the connection through a jump host or proxy command was closed."""

_DENIED = r"Permission denied \(|Too many authentication failures"
TRY_COMMAND = "ssh {ssh} true   (with a longer --connect-timeout if it is only slow)"
_REMOVAL_COMMAND = re.compile(r"^\s*(ssh-keygen (?:-f \S+ )?-R \S+)", re.MULTILINE)


def check_ssh() -> None:
    """Check that the OpenSSH client is installed.

    Raises:
        HpcKitError: PATH has no ssh.
    """
    if shutil.which("ssh") is None:
        raise HpcKitError(
            "hpc-kit launch needs the OpenSSH client",
            found="no ssh on PATH",
            remedy="install it, for example: apt install openssh-client",
        )


def make_socket_folder() -> Path:
    """Create a private folder with a short path, for the sockets of the connections."""
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_FOLDER:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes the folder private
    return Path(tempfile.mkdtemp(prefix="hpc_kit-", dir=parent))


class SshConnection:
    """A connection to one host.

    OpenSSH reads its own configuration: host aliases, keys, agents, certificates, jump hosts and known hosts work as in
    `ssh HOST true`. A background process of ssh (ControlMaster) owns the connection and listens on a socket.
    """

    def __init__(self, host: LaunchHost, socket: Path) -> None:
        self._host, self._socket = host, socket
        self._errors = socket.with_suffix(".err")
        self._socket_options: tuple[str, ...] = ("-o", "ControlMaster=no", "-S", str(socket))
        self._processes: list[subprocess.Popen[bytes]] = []

    def open(self, timeout: float) -> None:
        """Connect and authenticate, without asking the user anything.

        Args:
            timeout: Seconds for each step that ssh limits by ConnectTimeout.

        Raises:
            LaunchError: ssh cannot connect.
        """
        if _run_locally("ssh", "-O", "check", self._host.ssh_argument).returncode == 0:
            # The user has an open connection of ControlMaster, perhaps because the host asks for a one-time password.
            self._socket_options = ()
            return
        limit = f"ConnectTimeout={ceil(timeout)}"
        options = ("-o", "ControlMaster=yes", "-o", f"ControlPersist={_UNUSED_SECONDS}", "-S", str(self._socket))
        # With -f, ssh ends as soon as the host has accepted the user. A background process keeps the connection.
        if self._try_to_connect("-f", "-N", "-o", limit, *options, timeout=timeout):
            return
        errors = self.errors()
        if _JUMP_HOST_FAILED in errors:  # With ControlPersist, ssh discards the messages of jump hosts.
            self._try_to_connect("-o", limit, "-S", "none", command="true", timeout=timeout)
            errors = self.errors() or errors
        raise explain_failure(self._host, errors)

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command on the host, with pipes to its standard input and output."""
        return self._start(*self._socket_options, command=command, pipe=subprocess.PIPE)

    def errors(self) -> str:
        """Return the standard error of ssh and of the command on the host."""
        return self._errors.read_text(errors="replace").strip()

    def close(self) -> None:
        """End the commands and the connection. A connection that the user opened stays."""
        if self._socket_options and self._socket.exists():
            _run_locally("ssh", *self._socket_options, "-O", "exit", self._host.ssh_argument)
        for process in self._processes:
            _kill(process)

    def _try_to_connect(self, *options: str, command: str = "", timeout: float) -> bool:
        process = self._start(*options, command=command, environ={**os.environ, "LC_ALL": "C"})
        try:
            return process.wait(_CONNECT_STEPS * timeout) == 0
        except subprocess.TimeoutExpired:
            _kill(process)
            with self._errors.open("a") as errors:
                errors.write(f"ssh: connecting timed out after {_CONNECT_STEPS * timeout:g} s\n")
            return False

    def _start(
        self, *options: str, command: str = "", pipe: int = subprocess.DEVNULL, environ: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        # Another session of the user may already have the ports that the configuration forwards.
        words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", *options, self._host.ssh_argument]
        # Standard error is a file: a full pipe would block, and the background process of old releases keeps it open.
        with self._errors.open("wb") as errors:
            process = subprocess.Popen(
                [*words, command] if command else words,
                stdin=pipe,
                stdout=pipe,
                stderr=errors,
                env=environ,
                start_new_session=True,  # Ctrl-C in the terminal must not cut the connections.
            )
        self._processes.append(process)
        return process


_FAILURES = (
    # Pattern in the messages of ssh, problem, remedy. The first match counts: several end with "verification failed".
    (
        r"marked as revoked|was revoked",
        "the host key of {name} was revoked",
        "ask the administrator of the host for its new key",
    ),
    (
        r"IDENTIFICATION HAS CHANGED|has changed and you have requested strict",
        "the host key of {name} has changed",
        "if the host was installed again: {removal}; then ssh {ssh}, and compare its key",
    ),
    (
        r"Host key verification failed|host key is known for",
        "the host key of {name} is not known here",
        "ssh {ssh}   (once: it shows the key, and asks)",
    ),
    (
        _DENIED,
        "{name} accepts none of your keys",
        "ssh-copy-id {copy_id}\nwithout a key: ssh-keygen -t ed25519; for a key with a passphrase: ssh-agent, ssh-add",
    ),
    (
        r"Could not resolve hostname",
        "the name of {name} cannot be resolved",
        "correct the name, or add its HostName to ~/.ssh/config; see ssh -G {ssh}",
    ),
    (
        r"Connection refused",
        "{name} refuses the connection",
        "ssh {ssh} true   (is sshd running on this host and port?)",
    ),
    (r"timed out|No route to host|Network is unreachable", "{name} does not answer", TRY_COMMAND),
    (
        r"bad configuration options|Bad owner or permissions|line \d+: ",
        "ssh cannot read its configuration for {name}",
        "correct that line; then ssh -G {ssh}",
    ),
    ("", "ssh cannot connect to {name}", "ssh -v {ssh} true"),
)


def explain_failure(host: LaunchHost, errors: str) -> LaunchError:
    """Explain why ssh could not connect. The error contains all that ssh printed."""
    _, problem, remedy = next(failure for failure in _FAILURES if re.search(failure[0], errors))
    if _JUMP_HOST_FAILED in errors and re.search(f"verification failed|{_DENIED}", errors):
        host = _jump_host(host) or host
    removal = _REMOVAL_COMMAND.search(errors)  # It names the file that contains the old key.
    values = {
        "name": host.name,
        "ssh": host.ssh_argument,
        "copy_id": host.copy_id_arguments,
        "removal": removal[1] if removal else "ssh-keygen -R with the name in known_hosts",
    }
    return LaunchError(
        problem.format(**values),
        found=errors or "ssh ended with exit status 255 and printed nothing",
        remedy=remedy.format(**values),
    )


def _jump_host(host: LaunchHost) -> LaunchHost | None:
    """Return the jump host of a host if there is exactly one, as the user's configuration names it."""
    found = re.search(r"^proxyjump ([^,\s]+)$", _run_locally("ssh", "-G", host.ssh_argument).stdout, re.MULTILINE)
    return LaunchHost(found[1].removeprefix(SSH_SCHEME)) if found else None


def _run_locally(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that works on this machine only. After a time-out, its exit status is 255."""
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LOCAL_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, CONNECTION_FAILED, "", "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill ssh and the proxy commands that it started."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LOCAL_TIMEOUT)
