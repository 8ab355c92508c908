"""The settings of one cluster, and the paths of its files."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTROLLER = "ctl"
"""The host of slurmctld, slurmdbd and the database. It is also the login host."""


class Names(StrEnum):
    """The host names that resolve on each host."""

    HOSTS = "hosts"
    """Each host's /etc/hosts contains all names."""
    ADDRESSES = "addresses"
    """No name resolves, including the host's own."""
    LOOPBACK = "loopback"
    """The own name is 127.0.1.1, as in Debian's installer; all other names are right."""


def default_root(name: str) -> Path:
    """Return the directory that contains all files of the cluster."""
    base = Path(os.environ.get("HPC_KIT_CLUSTER_BASE", "/var/tmp"))
    return base / f"hpc_kit-cluster-{name}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The size and the variants of a cluster."""

    name: str = "ring"
    root: Path = Path()
    work: Path = Path()
    """The shared directory; below `root` by default."""
    nodes: int = 4
    cpus: int = 8
    memory: int = 16000
    """Declared memory of a node, in MiB."""
    gpus: int = 2
    max_array_size: int = 20
    subnet: str = "10.77.0.0/24"
    accounting: bool = True
    names: Names = Names.HOSTS
    carry: tuple[Path, ...] = ()
    """Directories below /tmp that the nodes see despite their private /tmp."""
    small: int = 0
    """Size in MiB of a separate shared file system at `work/small`, for tests of a full disk."""
    slurm: dict[str, str] = field(default_factory=dict)
    """Lines of slurm.conf that replace the default ones."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"a cluster's name is lower-case letters, digits and _: {self.name!r}")
        root = self.root if self.root != Path() else default_root(self.name)
        object.__setattr__(self, "root", root)
        if self.work == Path():
            object.__setattr__(self, "work", root / "work")

    @property
    def hosts(self) -> dict[str, str]:
        """Return the address of each host, the controller first."""
        network = ipaddress.ip_network(self.subnet)
        nodes = {f"n{index}": str(network[10 + index]) for index in range(1, self.nodes + 1)}
        return {CONTROLLER: str(network[1]), **nodes}

    @property
    def node_names(self) -> list[str]:
        return [host for host in self.hosts if host != CONTROLLER]

    @property
    def prefix_length(self) -> int:
        return ipaddress.ip_network(self.subnet).prefixlen

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def own_directory(self) -> Path:
        """Return the path at which each host sees its private directory."""
        return self.root / "own"

    @property
    def small_disk(self) -> Path:
        """Return the mount point of the small file system."""
        return self.work / "small"

    @property
    def munge_socket(self) -> Path:
        return self.own_directory / "munge" / "socket"

    def private(self, host: str) -> Path:
        """Return the private directory of one host, seen from the machine."""
        return self.root / "hosts" / host

    @property
    def marker(self) -> Path:
        """Return the file that marks `root` as the directory of a cluster, which may be removed."""
        return self.root / "cluster.json"

    def save(self) -> None:
        """Write the settings into the cluster's own directory."""
        self.marker.write_text(json.dumps(dataclasses.asdict(self), default=str, indent=1) + "\n")


def load(root: Path) -> Settings | None:
    """Return the settings of the cluster in `root`, or None if they are missing or incomplete."""
    try:
        values = json.loads((root / "cluster.json").read_text())
        values |= {key: Path(values[key]) for key in ("root", "work")}
        values |= {"names": Names(values["names"]), "carry": tuple(map(Path, values["carry"]))}
        return Settings(**values)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def visible_paths(wanted: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Return the directories of /tmp that nodes must see: this Python, this repository and the requested ones."""
    repository = Path(__file__).resolve().parents[2]
    own = [path for path in (Path(sys.prefix), repository) if path.is_relative_to("/tmp")]
    return tuple(dict.fromkeys(path.absolute() for path in (*own, *wanted)))
