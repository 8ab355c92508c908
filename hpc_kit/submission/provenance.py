"""What a job was run with: the commit and what differs from it, the packages, the environment that may be kept."""

from __future__ import annotations

import datetime as dt
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit import __version__
from hpc_kit.runs.logs import log_patterns_of, working_folder
from hpc_kit.runs.record import NewRecord, RecordedLogs
from hpc_kit.script.context import pattern
from hpc_kit.slurm.user import user_name
from hpc_kit.spec.search_path import current_folder
from hpc_kit.spec.secrets import looks_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpc_kit.runs.logs import LogPatterns
    from hpc_kit.spec.resolve import Resolved


MAX_PATCH = 10_000_000
"""Bytes of a patch that are kept; more than that is data, not an edit."""

MAX_NAMES = 100_000
"""Bytes of names of files that git does not know."""

GIT_SECONDS = 5.0

_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "diff.noprefix=false", "-c", "diff.relative=false")

_KEPT_NAMES = frozenset({
    "CONDA_DEFAULT_ENV", "CONDA_PREFIX", "HOSTNAME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOADEDMODULES", "PATH",
    "PYTHONHASHSEED", "PYTHONPATH", "SLURM_CONF", "TZ", "USER", "VIRTUAL_ENV",
})  # fmt: skip
_KEPT_PREFIXES = (
    "CUBLAS_", "CUDA_", "CUDNN_", "FI_", "GLOO_", "GOMP_", "HPC_KIT_", "I_MPI_", "KMP_", "MKL_", "MPICH_", "NCCL_",
    "NVIDIA_", "OMP_", "OMPI_MCA_", "OPENBLAS_", "PYTORCH_", "SBATCH_", "TORCH_", "UCX_", "XLA_",
)  # fmt: skip


class GitState(NamedTuple):
    """The state of the code; `note` says what could not be found out."""

    root: str | None = None
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    patch: bytes = b""
    untracked: tuple[str, ...] = ()
    """Files and folders below the project that git neither tracks nor ignores: no patch has them."""

    note: str | None = None


class GitQuery:
    """Git, asked beside sbatch: started at once, read when sbatch has answered.

    Args:
        folder: A folder of the work tree.
        runs: The folder of the runs in it, which is none of the code.
    """

    def __init__(self, folder: Path, runs: str) -> None:
        self._why_none = "no git repository here"
        self._head = self._start(folder, "rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD")
        self._diff = self._start(folder, "diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD")
        # --directory: a folder of data, new as a whole, is one name and is not gone through.
        listing = ("--others", "--directory", "--no-empty-directory", "--exclude-standard", f"--exclude=/{runs}", "-z")
        self._others = self._start(folder, "ls-files", *listing)

    def _start(self, folder: Path, *arguments: str) -> subprocess.Popen[bytes] | None:
        if "GIT_DIR" not in os.environ and not any((each / ".git").exists() for each in (folder, *folder.parents)):
            return None
        # No lock in the user's index: they may be committing at this very moment.
        environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        try:
            return subprocess.Popen(
                [*_GIT, *arguments],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            self._why_none = f"git cannot be run here: {error.strerror}"
            return None

    def state(self) -> GitState:
        """What git has said; call it once."""
        deadline = time.monotonic() + GIT_SECONDS
        head = _read(self._head, 100_000, deadline)
        diff = _read(self._diff, MAX_PATCH, deadline)
        others = _read(self._others, MAX_NAMES, deadline)
        lines = (head or b"").decode(errors="replace").splitlines()
        if len(lines) != 3:
            return GitState(note=self._why_none if self._head is None else "no commit here, or git did not answer")
        root, commit, branch = lines
        names = (others or b"").decode(errors="replace").split("\0")
        untracked = tuple(name for name in names if name)
        branch_name = None if branch == "HEAD" else branch
        state = GitState(root=root, commit=commit, branch=branch_name, untracked=untracked)
        if diff is None:
            note = f"git diff failed, took longer than {GIT_SECONDS:g} s, or differs by more than {MAX_PATCH} bytes"
            return state._replace(note=note)
        return state._replace(dirty=bool(diff), patch=diff)

    def stop(self) -> None:
        """End it unread."""
        for process in (self._head, self._diff, self._others):
            if process is not None:
                _end(process)


def _read(process: subprocess.Popen[bytes] | None, most: int, deadline: float) -> bytes | None:
    """All that a process prints; None where it fails, prints too much or takes too long."""
    if process is None or process.stdout is None:
        return None
    found, poller = bytearray(), select.poll()
    poller.register(process.stdout, select.POLLIN | select.POLLHUP)
    try:
        while len(found) <= most:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                return None
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                return bytes(found) if process.wait(timeout=max(left, 0.1)) == 0 else None
            found += piece
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def installed_packages(python: str, root: Path) -> dict[str, str]:
    """Names and versions of what is installed for an interpreter; nothing for one that is only on the nodes' PATH.

    The names of the `.dist-info` folders tell it in a millisecond; `importlib.metadata` takes twenty.
    """
    import sys

    path = root / python
    if path == Path(sys.executable):
        folders = [Path(entry) for entry in sys.path if entry]
    else:
        folders = sorted(path.parent.parent.glob("lib*/python3*/site-packages")) if "/" in python else []
    found: dict[str, str] = {}
    for folder in folders:
        try:
            names = sorted(entry.name for entry in os.scandir(folder))
        except OSError:
            continue
        for name in names:
            if match := re.fullmatch(r"(.+?)-([^-]+)\.(?:dist|egg)-info", name):
                found.setdefault(match[1].replace("_", "-").lower(), match[2])
    return dict(sorted(found.items()))


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide how a training runs; never one whose name looks like a secret."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in _KEPT_NAMES or name.startswith(_KEPT_PREFIXES)) and not looks_secret(name)
    }


def redact_command_line(words: Sequence[str]) -> list[str]:
    """A command line without the values of what looks like a secret: `--set env.TOKEN=X`, `--api-key X`.

    The words behind `--` are the program's own and stand in the script as well: they stay.
    """
    own = words[: words.index("--")] if "--" in words else words
    kept: list[str] = []
    hide = False
    for word in own:
        name, equals, _ = word.partition("=")
        secret = looks_secret(name.lstrip("-").rpartition(".")[2].replace("-", "_"))
        kept.append("***" if hide and not word.startswith("-") else f"{name}=***" if secret and equals else word)
        hide = secret and not equals and word.startswith("-")
    return [*kept, *words[len(own) :]]


def new_record(
    resolved: Resolved,
    root: Path,
    command_line: Sequence[str],
    environ: Mapping[str, str],
    *,
    slurm: str | None = None,
    version: str | None = None,
    recipient: str | None = None,
) -> NewRecord:
    """What is known of a run before it has an id.

    Args:
        resolved: The job.
        root: The user's project.
        command_line: What the user typed.
        environ: The environment that it is started from.
        slurm: What runs it (default: the cluster's Slurm).
        version: The release of that Slurm.
        recipient: Slurm's own name for the cluster.
    """
    return NewRecord(
        job_name=resolved.job.name,
        submitted=dt.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        cluster=resolved.cluster.name,
        slurm=slurm or resolved.cluster.slurm,
        slurm_version=version,
        slurm_cluster=recipient,
        host=os.uname().nodename,
        user=user_name(),
        cwd=str(current_folder()),
        root=str(root),
        command_line=redact_command_line(command_line),
        hpc_kit=__version__,
        python_version=sys.version.split()[0],
        logs=_relative(log_patterns_of(resolved, root), working_folder(resolved, root) / resolved.log_folder),
        resolved=resolved,
        packages=installed_packages(resolved.python, root),
        environment=recorded_environment(environ),
    )


def _relative(logs: LogPatterns, folder: Path) -> RecordedLogs:
    """Names inside the folder of the runs without it: a project that is moved keeps its logs."""
    inside = pattern(str(folder)) + "/"
    names = {name: value and value.removeprefix(inside) for name, value in logs._asdict().items()}
    return RecordedLogs(**names)
