"""The origin of a run: commit, patch, packages and environment. Makes the new record of the run."""

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

from msgspec import structs

from hpc_kit import __version__
from hpc_kit.run_files import PATCH, write_whole
from hpc_kit.runs.logs import log_patterns_of
from hpc_kit.runs.record import NewRecord, RecordedGit
from hpc_kit.script.context import literal_pattern, working_folder
from hpc_kit.slurm.client import user_name
from hpc_kit.spec.search_path import current_folder
from hpc_kit.spec.secrets import MASK, looks_secret, mask_arguments, mask_text, may_be_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpc_kit.spec.job import Job
    from hpc_kit.spec.resolve import Resolved

MAX_PATCH = 10_000_000
"""Limit for a patch in bytes; a larger one contains data, not edits."""

MAX_NAMES = 100_000
"""Limit for the names of untracked files in bytes."""

GIT_SECONDS = 5.0

_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "diff.noprefix=false", "-c", "diff.relative=false")

_RECORDED_NAMES = frozenset({
    "CONDA_DEFAULT_ENV", "CONDA_PREFIX", "HOSTNAME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOADEDMODULES", "PATH",
    "PYTHONHASHSEED", "PYTHONPATH", "SLURM_CONF", "TZ", "USER", "VIRTUAL_ENV",
})  # fmt: skip
_RECORDED_PREFIXES = (
    "CUBLAS_", "CUDA_", "CUDNN_", "FI_", "GLOO_", "GOMP_", "HPC_KIT_", "I_MPI_", "KMP_", "MKL_", "MPICH_", "NCCL_",
    "NVIDIA_", "OMP_", "OMPI_MCA_", "OPENBLAS_", "PYTORCH_", "SBATCH_", "TORCH_", "UCX_", "XLA_",
)  # fmt: skip


def new_record(
    resolved: Resolved,
    root: Path,
    command_line: Sequence[str],
    environ: Mapping[str, str],
    *,
    slurm: str | None = None,
    version: str | None = None,
    slurm_cluster: str | None = None,
) -> NewRecord:
    """Return the record of a run that has no id yet.

    `slurm` is what runs the job (default: the cluster's Slurm), `slurm_cluster` is Slurm's own name of the cluster.
    """
    inside = literal_pattern(str(working_folder(resolved, root) / resolved.log_folder)) + "/"
    return NewRecord(
        job_name=resolved.job.name,
        submitted=dt.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        cluster=resolved.cluster.name,
        slurm=slurm or resolved.cluster.slurm,
        slurm_version=version,
        slurm_cluster=slurm_cluster,
        host=os.uname().nodename,
        user=user_name(),
        cwd=str(current_folder()),
        root=str(root),
        command_line=mask_arguments(command_line),
        hpc_kit=__version__,
        python_version=sys.version.split()[0],
        logs=log_patterns_of(resolved, root).apply(lambda name: name.removeprefix(inside)),  # a project may be moved
        resolved=structs.replace(resolved, job=masked_job(resolved.job)),
        packages=installed_packages(resolved.python, root),
        environment=recorded_environment(environ),
    )


def masked_job(job: Job) -> Job:
    """Return a job without the secrets that its command and its variables may contain."""
    env = {
        name: MASK if looks_secret(name, str(value)) or may_be_secret(name, str(value)) else value
        for name, value in job.env.items()
    }
    restart = job.restart and structs.replace(job.restart, resume_args=tuple(mask_arguments(job.restart.resume_args)))
    return structs.replace(job, command=tuple(mask_arguments(job.command)), env=env, restart=restart)


class GitState(NamedTuple):
    """The state of the code, as it is recorded, and the uncommitted changes."""

    recorded: RecordedGit
    patch: bytes = b""


def add_git_state(record: NewRecord, git: GitState, folder: Path) -> NewRecord:
    """Return the record with the state of the code. The patch is written to the folder."""
    recorded = git.recorded
    if git.patch:
        text = git.patch.decode(errors="surrogateescape")
        masked = mask_text(text)
        note = (
            f"{PATCH} contains {MASK} instead of secrets: git apply may refuse it" if masked != text else recorded.note
        )
        recorded = structs.replace(recorded, patch=PATCH, note=note)
        write_whole(folder / PATCH, masked.encode(errors="surrogateescape"))
    return structs.replace(record, git=recorded)


class GitQuery:
    """Queries git while sbatch runs: starts immediately, and is read when sbatch has answered.

    `runs` is the folder of the runs in the work tree, which is not part of the code.
    """

    def __init__(self, folder: Path, runs: str) -> None:
        self._problem = "no git repository here"
        self._head = self._start(folder, "rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD")
        self._diff = self._start(folder, "diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD")
        # --directory: an untracked folder of data is one name, and git does not walk through it.
        listing = ("--others", "--directory", "--no-empty-directory", "--exclude-standard", f"--exclude=/{runs}", "-z")
        self._others = self._start(folder, "ls-files", *listing)

    def _start(self, folder: Path, *arguments: str) -> subprocess.Popen[bytes] | None:
        if "GIT_DIR" not in os.environ and not any((each / ".git").exists() for each in (folder, *folder.parents)):
            return None
        # No lock in the user's index: a commit may run at this very moment.
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
            self._problem = f"git cannot be run here: {error.strerror}"
            return None

    def state(self) -> GitState:
        """Return the state of the code; call this once."""
        deadline = time.monotonic() + GIT_SECONDS
        head = _read_output(self._head, 100_000, deadline)
        diff = _read_output(self._diff, MAX_PATCH, deadline)
        others = _read_output(self._others, MAX_NAMES, deadline)
        # In a repository without a commit, rev-parse fails.
        lines = (head or b"").decode(errors="replace").splitlines()
        if len(lines) != 3:
            note = self._problem if self._head is None else "no commit here, or git did not answer"
            return GitState(RecordedGit(note=note))
        root, commit, branch = lines
        recorded = RecordedGit(
            root=root,
            commit=commit,
            branch=None if branch == "HEAD" else branch,
            dirty=None if diff is None else bool(diff),
            # Files that git neither tracks nor ignores: the patch does not contain them.
            untracked=tuple(filter(None, (others or b"").decode(errors="replace").split("\0"))),
        )
        if diff is None:
            note = f"git diff failed, took longer than {GIT_SECONDS:g} s, or differs by more than {MAX_PATCH} bytes"
            return GitState(structs.replace(recorded, note=note))
        return GitState(recorded, diff)

    def stop(self) -> None:
        """End git without reading its output."""
        for process in (self._head, self._diff, self._others):
            if process is not None:
                _end(process)


def _read_output(process: subprocess.Popen[bytes] | None, limit: int, deadline: float) -> bytes | None:
    """Return the output of a process; None if it fails, prints more than the limit or takes too long."""
    if process is None or process.stdout is None:
        return None
    output, poller = bytearray(), select.poll()
    # communicate() has no limit for the output.
    poller.register(process.stdout, select.POLLIN | select.POLLHUP)
    try:
        while len(output) <= limit:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                return None
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                return bytes(output) if process.wait(timeout=max(left, 0.1)) == 0 else None
            output += piece
    except subprocess.TimeoutExpired:
        pass
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
    """Return names and versions of the packages of an interpreter; nothing if it is only on the nodes' PATH.

    Reading the names of the `.dist-info` folders takes a millisecond, `importlib.metadata` twenty.
    """
    path = root / python
    if path == Path(sys.executable):
        folders = [Path(entry) for entry in sys.path if entry]
    else:
        # The interpreter of a virtual environment is bin/python beside lib/.
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
    """Return the variables that affect a training, without those whose name looks like a secret."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in _RECORDED_NAMES or name.startswith(_RECORDED_PREFIXES)) and not looks_secret(name)
    }
