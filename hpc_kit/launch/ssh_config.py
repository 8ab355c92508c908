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
_ALL = "Host *"
_DEEPEST = 16
"""As ssh's."""


def ssh_config() -> SSHConfig:
    """What ssh would read: of each option, that counts which is said first.

    Raises:
        paramiko.ConfigParseError: A file says what paramiko does not understand.
        OSError: A file cannot be read.
    """
    from paramiko import SSHConfig

    users = _USERS.expanduser()
    return SSHConfig.from_text("\n".join([*lines(users, users.parent), _ALL, *lines(_SYSTEMS, _SYSTEMS.parent)]))


def lines(file: Path, folder: Path, depth: int = 0) -> Iterator[str]:
    """The lines of a file, those of included files in their place; none where there is no such file.

    Args:
        file: The file.
        folder: Where included files lie whose path is relative.
        depth: How many files include this one.
    """
    block = _ALL
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ():
        included = _INCLUDE.match(line)
        if included is None:
            block = line if _BLOCK.match(line) else block
            yield line
            continue
        for word in shlex.split(included[1], comments=True) if depth < _DEEPEST else ():
            for path in sorted(glob(str(folder / Path(word).expanduser()))):  # noqa: PTH207 - it may be absolute
                yield from lines(Path(path), folder, depth + 1)
        yield block  # what is included ends within a block of its own
