"""The hosts: namespaces kept open by a sleeping process, connected by a bridge in the controller's namespace."""

from __future__ import annotations

import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from . import cgroups
from .processes import host_of
from .settings import CONTROLLER, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

HOLDER = "holder.pid"


def holder(settings: Settings, host: str) -> int | None:
    """Return the process that keeps the host's namespaces open, or None if the host is down."""
    try:
        pid = int((settings.private(host) / HOLDER).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return pid if host_of(pid, settings.own_directory) == host else None


def enter(pid: int, argv: Sequence[str], *, cwd: Path | None = None) -> list[str]:
    """Return the command line that runs `argv` on the host whose holder is `pid`."""
    where = [] if cwd is None else [f"--wdns={cwd}"]
    return ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--cgroup", *where, "--", *argv]


def start_hosts(settings: Settings) -> dict[str, int]:
    """Create all hosts and their network. Return the pid of each holder."""
    _hold(settings, CONTROLLER)
    pids = {CONTROLLER: _await_holder(settings, CONTROLLER)}
    # Namespaces copied from the one in which a file system was mounted share it.
    origin = ["nsenter", f"--target={pids[CONTROLLER]}", "--mount", "--"] if settings.small else []
    nodes = [host for host in settings.hosts if host != CONTROLLER]
    for host in nodes:
        _hold(settings, host, origin)
    pids |= {host: _await_holder(settings, host) for host in nodes}
    for host in settings.hosts:
        _connect(settings, host, pids)
    return pids


def _hold(settings: Settings, host: str, origin: Sequence[str] = ()) -> None:
    log = settings.private(host) / "host.log"
    # The cgroup of a process at the creation of its cgroup namespace becomes the root of that namespace.
    moved = "\n".join([*cgroups.join_commands(settings, host), 'exec unshare --net --uts --mount --cgroup "$@"'])
    argv = ["setsid", "--fork", *origin, "sh", "-euc", moved, "sh", "sh", "-euc", _setup(settings, host)]
    with log.open("w") as stream:
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd="/")


def _setup(settings: Settings, host: str) -> str:
    """Return the commands of the holder: set the host name, start the loopback, mount the host's files, and sleep."""
    own = shlex.quote(str(settings.own_directory))
    lines = [
        f"hostname {host}",
        "ip link set lo up",
        f"mount --bind {shlex.quote(str(settings.private(host)))} {own}",
        f"mount --bind {own}/hosts /etc/hosts",
        *cgroups.mount_commands(settings, host),
    ]
    if host == CONTROLLER and settings.small:
        disk = shlex.quote(str(settings.small_disk))
        lines += [f"mkdir {disk}", f"mount -t tmpfs -o mode=1777,size={settings.small}m small {disk}"]
    if host != CONTROLLER:
        lines += _private_tmp(settings)
        lines += ["mount -t tmpfs -o mode=1777 shm /dev/shm"]
    lines += [f"echo $$ > {own}/{HOLDER}.new", f"mv {own}/{HOLDER}.new {own}/{HOLDER}", "exec sleep infinity"]
    return "\n".join(lines)


def _private_tmp(settings: Settings) -> list[str]:
    """Return the commands that mount a private /tmp, in which the directories of visible_paths keep their paths."""
    carried = [
        (shlex.quote(str(path)), shlex.quote(f"{settings.own_directory}/carry/{n}"))
        for n, path in enumerate(settings.carry)
    ]
    lines = [line for path, kept in carried for line in (f"mkdir -p {kept}", f"mount --rbind {path} {kept}")]
    lines += ["mount -t tmpfs -o mode=1777 tmp /tmp"]
    lines += [line for path, kept in carried for line in (f"mkdir -p {path}", f"mount --rbind {kept} {path}")]
    return lines


def _await_holder(settings: Settings, host: str, patience: float = 30.0) -> int:
    deadline = time.monotonic() + patience
    while (pid := holder(settings, host)) is None:
        if time.monotonic() > deadline:
            log = (settings.private(host) / "host.log").read_text()
            raise TimeoutError(f"host {host} did not come up: {log.strip() or 'no message'}")
        time.sleep(0.01)
    return pid


def _connect(settings: Settings, host: str, pids: dict[str, int]) -> None:
    """Give the host its address, and connect a node to the bridge in the controller's namespace."""
    address = f"{settings.hosts[host]}/{settings.prefix_length}"
    if host == CONTROLLER:
        device = "br0"
        _ip(pids[host], "link", "add", device, "type", "bridge")
    else:
        device = "eth0"
        peer = ["peer", "name", host, "netns", str(pids[CONTROLLER])]
        _ip(pids[host], "link", "add", device, "type", "veth", *peer)
        _ip(pids[CONTROLLER], "link", "set", host, "master", "br0", "up")
    _ip(pids[host], "address", "add", address, "dev", device)
    _ip(pids[host], "link", "set", device, "up")


def _ip(pid: int, *words: str) -> None:
    subprocess.run(enter(pid, ["ip", *words]), check=True)
