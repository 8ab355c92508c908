"""The settings of a queue: nodes, partitions and limits, each with a default."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pocketslurm.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STATE_VARIABLE = "HPC_KIT_SLURM_STATE"
CONF_VARIABLE = "HPC_KIT_SLURM_CONF"
FIRST_ID_VARIABLE = "HPC_KIT_SLURM_FIRST_ID"
"""Lowest id of a job that is submitted with it, because folders of runs with lower ids exist."""
CONF_NAME = "slurm.json"
DATABASE = "slurm.db"
_HOST_NAME = ".host"  # no host can have this name
SLURM_VERSION = "22.05.8"
"""The Slurm whose behaviour this one has."""


class Partition(NamedTuple):
    """A partition; its times are in seconds, -1 for no limit, and None for `default_time` means `max_time`."""

    name: str
    max_time: int = -1
    default_time: int | None = None
    nodes: str | None = None


class Settings(NamedTuple):
    """The whole configuration.

    Attributes:
        nodes: The virtual nodes, as a node list.
        cpus: CPUs of each node; the machine may have fewer.
        memory: MiB of each; None for the machine's own.
        gpus: GPUs of each, numbered from 0.
        gpu_type: Their type, if they have one; `sinfo` shows it.
        partitions: The first one is the default.
        max_array_size: Every array index is smaller.
        kill_wait: Seconds between SIGTERM and SIGKILL.
        min_job_age: Seconds for which squeue and scontrol show a finished job.
        max_jobs: Number of finished jobs that sacct shows.
        requeue: Jobs can be requeued unless they say otherwise (Slurm's JobRequeue).
        mpi_default: Default of srun's --mpi: `none` or `pmi2` (Slurm's MpiDefault).
        strict: Unknown names, too large sizes and newer options are refused as by Slurm.
        minute: Real seconds of a minute in --time and --signal. Tests shorten it.
        cluster: Slurm's ClusterName.
        state: State directory; None for the one that the environment names.
    """

    nodes: str = "127.0.0.[1-4]"
    cpus: int = 8
    memory: int | None = None
    gpus: int = 0
    gpu_type: str | None = None
    partitions: tuple[Partition, ...] = (Partition("local"),)
    max_array_size: int = 1001
    kill_wait: float = 30
    min_job_age: float = 300
    max_jobs: int = 10_000
    requeue: bool = True
    mpi_default: str = "none"
    strict: bool = False
    minute: float = 60
    cluster: str = "embedded"
    state: str | None = None

    @property
    def memory_of_node(self) -> int:
        """MiB of each node."""
        if self.memory is not None:
            return int(self.memory)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20

    @property
    def gres(self) -> str:
        """The GPUs of each node as Slurm names them, such as `gpu:a100:4`."""
        if not self.gpus:
            return "(null)"
        return f"gpu:{self.gpu_type}:{self.gpus}" if self.gpu_type else f"gpu:{self.gpus}"

    def other_clusters(self, clusters: str) -> list[str]:
        """Return the errors for clusters in --clusters other than this one; empty if there are none."""
        others = [name for name in clusters.split(",") if name not in {self.cluster, "all"}]
        if not others:
            return []
        advice = "Use 'sacctmgr list clusters' to see available clusters."
        return [
            *(f"error: No cluster '{name}' known by database." for name in others),
            f"error: '{clusters}' can't be reached now, or it is an invalid entry for --cluster.  {advice}",
        ]


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the state directory: HPC_KIT_SLURM_STATE, or a folder of this machine in the user's state directory.

    Machines that share a home need different folders, because one machine cannot see the processes of another and
    would requeue its jobs. The first machine uses the folder itself; every other one a folder with its name.
    """
    if folder := environ.get(STATE_VARIABLE):
        return Path(folder)
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or "~", ".local", "state")  # noqa: PTH118
    states, host = Path(base, "hpc_kit").expanduser(), os.uname().nodename
    return states / "slurm" if _first_host(states, host) == host else states / host / "slurm"


def check_private(directory: Path) -> None:
    """Refuse a state directory in which another user could change what this user executes.

    Group members may write to folders above it: many systems give each user a private group.

    Raises:
        PermissionError: The directory, its commands or its database belong to another user, or others may write; or
            another user may rename a folder or a link above it.
    """
    for path in (directory, directory / "bin", directory / DATABASE, directory / CONF_NAME):
        with suppress(FileNotFoundError):
            found = path.stat()
            if found.st_uid != os.getuid():
                raise PermissionError(f"{path.name} belongs to another user")
            if found.st_mode & 0o022:
                raise PermissionError(f"others may write to {path.name}: chmod go-w {shlex.quote(str(path))}")
    # In a user namespace, as of Apptainer, root is another number.
    trusted = {os.getuid(), 0, Path("/").stat().st_uid}
    elsewhere = f"choose a place outside, such as {STATE_VARIABLE}=/var/tmp/slurm-{os.getuid()}"
    for path in _folders_and_links(directory.absolute()):
        found = path.lstat()
        if found.st_uid not in trusted:
            raise PermissionError(f"{path} belongs to another user: {elsewhere}")
        # In a folder such as /tmp, only the owner of a file may rename it. The mode of a link means nothing.
        if found.st_mode & 0o002 and not found.st_mode & stat.S_ISVTX and not stat.S_ISLNK(found.st_mode):
            own = found.st_uid == os.getuid()
            remedy = f"chmod o-w {shlex.quote(str(path))}" if own else elsewhere
            raise PermissionError(f"others may write to {path}, above it: {remedy}")


def _folders_and_links(path: Path) -> Iterator[Path]:
    """Yield an absolute path and all folders above it; also those of the target of each link among them."""
    for each in (path, *path.parents):
        yield each
        if each.is_symlink():
            yield from _folders_and_links(each.parent / each.readlink())


def is_full(directory: Path, error: Exception) -> bool:
    """Return whether an error is about a full disk, or a used up quota. SQLite reports it as an I/O error."""
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    with suppress(OSError):
        disk = os.statvfs(directory)
        return disk.f_bavail * disk.f_frsize < 1 << 16
    return False


def first_job_id(directory: Path) -> int:
    """Return the first job id of a queue. Machines that share a home, and so projects, start at different numbers."""
    host = os.uname().nodename
    return 1 + (1 + zlib.crc32(os.fsencode(host)) % 600) * 100_000 if directory.parent.name == host else 1


def _first_host(folder: Path, host: str) -> str:
    """Return the first machine that used a state directory; this machine if there was none."""
    path, draft = folder / _HOST_NAME, folder / f"{_HOST_NAME}.{host}.{os.getpid()}"
    with suppress(OSError):
        return path.read_text()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(host)
        # A link appears with its content and replaces no file, so that only one machine can be the first.
        with suppress(FileExistsError):
            path.hardlink_to(draft)
        draft.unlink()
        return path.read_text()
    except OSError:
        return host  # opening the queue reports a folder that cannot be written


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings: from the file in HPC_KIT_SLURM_CONF, else of the state directory, else the defaults.

    Raises:
        SettingsError: The file is unreadable, or contains something that is not a setting.
    """
    file = environ.get(CONF_VARIABLE)
    path = Path(file) if file else state_directory(environ) / CONF_NAME
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        if file:
            raise _bad(path, "there is no such file") from None
        return Settings()
    except OSError as error:
        raise _bad(path, error.strerror or str(error)) from error
    return settings_from_json(text, path)


def settings_from_json(text: str, path: Path) -> Settings:
    """Return the settings in a JSON text. Check the names and types of all settings."""
    import json

    try:
        found = json.loads(text)
    except ValueError as error:
        raise _bad(path, f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise _bad(path, "no JSON object")
    values: dict[str, object] = {}
    for name, value in found.items():
        if name not in Settings._fields:
            raise _bad(path, f"no setting is called {name!r}")
        if name != "partitions" and not _fits(value, Settings._field_defaults[name], name):
            raise _bad(path, f"{name} = {value!r}")
        values[name] = _partitions(path, value) if name == "partitions" else value
    return Settings(**values)  # type: ignore[arg-type]  # checked above, name by name


def settings_to_json(settings: Settings) -> str:
    """Return the settings that differ from the defaults as JSON."""
    import json

    values = {name: value for name, value in settings._asdict().items() if value != Settings._field_defaults[name]}
    if "partitions" in values:
        values["partitions"] = [each._asdict() for each in settings.partitions]
    return json.dumps(values, indent=1) + "\n"


def _partitions(path: Path, value: object) -> tuple[Partition, ...]:
    """Parse partitions: names, or objects with the fields of a partition."""
    found: list[Partition] = []
    for each in value if isinstance(value, list) else []:
        fields = {"name": each} if isinstance(each, str) else each
        if not isinstance(fields, dict) or not fields.get("name") or not fields.keys() <= set(Partition._fields):
            raise _bad(path, f"partitions: {each!r}")
        found.append(Partition(**fields))
    if not found:
        raise _bad(path, f"partitions = {value!r}")
    return tuple(found)


def _fits(value: object, default: object, name: str) -> bool:
    # For Python, True is a number, too.
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, str) or name in {"gpu_type", "state"}:
        return isinstance(value, str) or (default is None and value is None)
    if name == "memory" and value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _bad(path: Path, found: str) -> SettingsError:
    return SettingsError(
        "the embedded Slurm's configuration cannot be used",
        found=f"{path}: {found}",
        remedy=f"a JSON object with some of {', '.join(Settings._fields)}; or unset {CONF_VARIABLE}",
    )
