"""What one cluster is made of, and where its files lie."""

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
"""The host of slurmctld, slurmdbd and the database; it is the login host as well."""


class Names(StrEnum):
    """How the hosts know one another's names."""

    HOSTS = "hosts"
    """Every name is in every host's /etc/hosts."""
    ADDRESSES = "addresses"
    """No name resolves, not even the own one."""
    LOOPBACK = "loopback"
    """The own name is 127.0.1.1, as Debian's installer writes it; the others' are right."""


def default_root(name: str) -> Path:
    """The one directory below which everything of the cluster lies."""
    base = Path(os.environ.get("HPC_KIT_CLUSTER_BASE", "/var/tmp"))
    return base / f"hpc_kit-cluster-{name}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The size and the variants of a cluster; the same settings give the same cluster."""

    name: str = "ring"
    root: Path = Path()
    work: Path = Path()
    """The shared directory; below `root` unless told otherwise."""
    nodes: int = 4
    cpus: int = 8
    memory: int = 16000
    """Declared MiB a node."""
    gpus: int = 2
    max_array_size: int = 20
    subnet: str = "10.77.0.0/24"
    accounting: bool = True
    names: Names = Names.HOSTS
    carry: tuple[Path, ...] = ()
    """Directories under /tmp that the nodes see in spite of their private /tmp."""
    small: int = 0
    """MiB of a file system of its own at `work/small`, shared as the rest is: a disk to be filled."""
    slurm: dict[str, str] = field(default_factory=dict)
    """Lines of slurm.conf put in place of ours."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"a cluster's name is lower-case letters, digits and _: {self.name!r}")
        root = self.root if self.root != Path() else default_root(self.name)
        object.__setattr__(self, "root", root)
        if self.work == Path():
            object.__setattr__(self, "work", root / "work")

    @property
    def hosts(self) -> dict[str, str]:
        """Each host's address, the controller first."""
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
        """Where each host finds its private directory: the same path on all of them."""
        return self.root / "own"

    @property
    def small_disk(self) -> Path:
        """Where the small file system is mounted."""
        return self.work / "small"

    @property
    def munge_socket(self) -> Path:
        return self.own_directory / "munge" / "socket"

    def private(self, host: str) -> Path:
        """The private directory of one host, as seen from the machine."""
        return self.root / "hosts" / host

    @property
    def marker(self) -> Path:
        """Its presence says that `root` is a cluster's and may be removed."""
        return self.root / "cluster.json"

    def save(self) -> None:
        """Write the settings into the cluster's own directory."""
        self.marker.write_text(json.dumps(dataclasses.asdict(self), default=str, indent=1) + "\n")


def load(root: Path) -> Settings | None:
    """The settings of the cluster in `root`; None where there is none, or only a half-written one."""
    try:
        values = json.loads((root / "cluster.json").read_text())
        values |= {key: Path(values[key]) for key in ("root", "work")}
        values |= {"names": Names(values["names"]), "carry": tuple(map(Path, values["carry"]))}
        return Settings(**values)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def visible_paths(wanted: Iterable[Path] = ()) -> tuple[Path, ...]:
    """What nodes must see of /tmp: this Python and this repository if they lie there, and what is asked for."""
    repository = Path(__file__).resolve().parents[2]
    own = [path for path in (Path(sys.prefix), repository) if path.is_relative_to("/tmp")]
    return tuple(dict.fromkeys(path.absolute() for path in (*own, *wanted)))
