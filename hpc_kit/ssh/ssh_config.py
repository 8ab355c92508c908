"""The user's and the host's ssh configuration with its `Include` lines, which paramiko does not know."""

from __future__ import annotations

import re
import shlex
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paramiko import SSHConfig

_USERS, _SYSTEMS = Path("~/.ssh/config"), Path("/etc/ssh/ssh_config")
_INCLUDE = re.compile(r"\s*include(?:\s*=\s*|\s+)(.+)", re.IGNORECASE)
_BLOCK = re.compile(r"\s*(?:host|match)[\s=]", re.IGNORECASE)
_NEEDLESS = re.compile(r"(\s*match[\s=]\s*(?:!?(?:final|canonical)\s+)+)all\s*(?:#.*)?$", re.IGNORECASE)
"""`Match final all`, as Red Hat's own file says: paramiko takes `all` for a contradiction, where it adds nothing."""
_ALL = "Host *"
_MARK = "hpc_kit"
_DEEPEST = 16
"""As ssh's."""


def ssh_config(host: str) -> SSHConfig:
    """What ssh would read for a host: of each option, that counts which is said first.

    What the system's file says that is not understood refuses nobody: the user's own counts alone then.

    Args:
        host: By the name by which it is looked up afterwards.

    Raises:
        paramiko.ConfigParseError: The user's file says what paramiko does not understand.
        OSError: It cannot be read.
    """
    from paramiko import ConfigParseError, SSHConfig

    users = _USERS.expanduser()
    said = list(lines(users, users.parent, host))
    try:
        return SSHConfig.from_text("\n".join([*said, _ALL, *lines(_SYSTEMS, _SYSTEMS.parent, host)]))
    except (ConfigParseError, OSError, ValueError):
        return SSHConfig.from_text("\n".join(said))


def lines(file: Path, folder: Path, host: str, depth: int = 0) -> Iterator[str]:
    """The lines of a file, those of included files in their place; none where there is no such file.

    Args:
        file: The file.
        folder: Where included files lie whose path is relative.
        host: What is included within a block that is not for this one is left out.
        depth: How many files include this one.
    """
    block = _ALL
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ():
        included = _INCLUDE.match(line)
        if included is None:
            kept = _NEEDLESS.sub(r"\1", line)
            block = kept if _BLOCK.match(kept) else block
            yield kept
            continue
        for word in shlex.split(included[1], comments=True) if depth < _DEEPEST and _means(block, host) else ():
            for path in sorted(glob(str(folder / Path(word).expanduser()))):  # noqa: PTH207 - it may be absolute
                yield from lines(Path(path), folder, host, depth + 1)
        yield block  # what is included ends within a block of its own


def _means(block: str, host: str) -> bool:
    """Whether a block is for this host, by itself: `Match` sees no HostName and User that were said before."""
    from paramiko import SSHConfig

    return block == _ALL or _MARK in SSHConfig.from_text(f"{block}\n{_MARK} yes").lookup(host)
