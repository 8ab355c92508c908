"""What must exist on this machine before a job is queued: found missing now, it costs no wait in the queue.

Each check is a function of the job and the project's folder that yields errors; its docstring explains it.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import NamedTuple

from hpc_kit.errors import SpecError
from hpc_kit.script.launch import read_launch
from hpc_kit.script.rules.base import Finding, Severity
from hpc_kit.script.shell.values import Text
from hpc_kit.script.shell.words import WHOLE_FILE
from hpc_kit.script.stages import CONTAINERS
from hpc_kit.spec.resolve import Resolved


class Check(NamedTuple):
    """One check, with its code and the text that explains it."""

    code: str
    check: Callable[[Resolved, Path], Iterator[SpecError]]
    severity: Severity = "error"

    @property
    def text(self) -> str:
        """What happens, why, how to mend it."""
        return inspect.getdoc(self.check) or ""


def check_program(resolved: Resolved, root: Path) -> None:
    """Refuse a job whose program, folder or partition is not there.

    Args:
        resolved: The job.
        root: The user's project: sbatch runs there.

    Raises:
        SpecError: What is missing, with near matches.
    """
    for each in CHECKS:
        for error in each.check(resolved, root):
            raise error


def findings(resolved: Resolved, root: Path, *, elsewhere: bool = False) -> list[Finding]:
    """Everything that is missing, as findings.

    Args:
        resolved: The job.
        root: The user's project.
        elsewhere: The job's cluster is another machine: its interpreter need not be here.
    """
    found = []
    for each in CHECKS:
        for error in each.check(resolved, root):
            doubtful = elsewhere and isinstance(error, MissingInterpreter)
            severity: Severity = "warning" if doubtful else "error"
            found.append(Finding(each.code, severity, 0, 0, error.what, error.remedy or "", error.found))
    return found


class MissingInterpreter(SpecError):
    """The cluster's Python is not there."""


def _program(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The job's program does not exist.

    The interpreter, the program file of the command, or a script that a shell is to run is not there. In the queue this
    costs the wait, and then a job that fails in its first second on every rank.

    Mend: the path in `command`, as seen from the folder in which sbatch runs (or from `chdir`).
    Documented: docs/jobs-and-clusters.md.
    """
    folder = _folder(resolved, root)
    if any(line.split()[:1] == ["cd"] for line in resolved.job.setup):
        return
    words = [Text(word, WHOLE_FILE) for word in resolved.argv]
    stages = read_launch(words).stages
    if any(stage.name in CONTAINERS for stage in stages):
        return
    first = resolved.argv[0]
    if error := _executable(first, folder, resolved):
        yield error
    for stage in stages:
        file = stage.options.get("file") if stage.kind in {"python", "shell"} else None
        if file is not None and file.text != "-" and not (folder / file.text).exists():
            yield _no_file(file.text, folder, resolved)


def _executable(name: str, folder: Path, resolved: Resolved) -> SpecError | None:
    command = f"command = {list(resolved.job.command)}"[:200]
    if "/" not in name:
        # A module that setup loads may bring it along.
        if resolved.job.setup or shutil.which(name, path=_path(resolved.job.env)):
            return None
        near = get_close_matches(name, ["python", "torchrun", "accelerate", "bash", "mpirun"], n=1)
        remedy = f"{near[0]}" if near else "its path; or a `setup` line that puts it on PATH"
        return SpecError(f"no program '{name}' on PATH", found=command, remedy=remedy)
    path = folder / name
    if not path.exists():
        if name == resolved.python:
            return MissingInterpreter(
                f"the interpreter {name} does not exist",
                found=f"python of cluster {resolved.cluster.name}, as seen from {folder}",
                remedy="python = '/path/to/python' in the cluster file, or --set cluster.python=...",
            )
        return _no_file(name, folder, resolved)
    if path.is_file() and not os.access(path, os.X_OK):
        return SpecError(f"{name} is not executable", found=command, remedy=f"chmod +x {name}")
    return None


def _path(env: Mapping[str, object]) -> str | None:
    given = env.get("PATH")
    return str(given) if given is not None else None


def _no_file(name: str, folder: Path, resolved: Resolved) -> SpecError:
    wanted = PurePath(name)
    elsewhere = [str(path.relative_to(folder)) for path in sorted(folder.glob(f"*/{wanted.name}"))[:2]]
    beside = folder / wanted.parent
    names = sorted(path.name for path in beside.iterdir() if path.is_file()) if beside.is_dir() else []
    near = elsewhere or [str(wanted.parent / each) for each in get_close_matches(wanted.name, names, n=2)]
    remedy = " or ".join(near) or "the path as seen from there"
    if "$" in name or name.startswith("~"):
        remedy = "the path itself: no shell expands the words of `command`"
    return SpecError(f"no program file {name}", found=f"looked in {folder}, for job {resolved.job.name}", remedy=remedy)


def _folder(resolved: Resolved, root: Path) -> Path:
    """Where the batch script runs."""
    return root / (resolved.job.resources.chdir or "")


def _chdir(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The job's working folder does not exist.

    Slurm then starts the batch script in /tmp, with one line in the log, and nothing is found there.

    Mend: the path in `chdir`, or make the folder.
    Documented: sbatch(1), --chdir.
    """
    chdir = resolved.job.resources.chdir
    if chdir is not None and not (root / chdir).is_dir():
        yield SpecError(f"the folder {chdir} does not exist", found="chdir of the job", remedy=f"mkdir -p {chdir}")


def _log_folder(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The folder of logs and records cannot be made.

    Something that is no folder is in its way, or this user may not write there. Slurm would take the job, and end it
    without a file that tells why.

    Mend: another `runs` in the cluster file, or the permissions.
    Documented: docs/submitting.md.
    """
    wanted = _folder(resolved, root) / resolved.log_folder
    there = next(path for path in (wanted, *wanted.parents) if path.exists())
    why = f"{there} is a file" if not there.is_dir() else f"no write permission in {there}"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield SpecError(f"{wanted} cannot be made", found=why, remedy="--set cluster.runs=FOLDER")


def _partition(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The embedded Slurm has no such partition.

    Mend: one of those that the cluster file names under [embedded].
    Documented: docs/embedded-slurm.md.
    """
    wanted, known = resolved.job.resources.partition, resolved.cluster.embedded.partitions
    if resolved.cluster.slurm != "embedded" or wanted is None:
        return
    for name in wanted.split(","):
        if name not in known:
            yield SpecError(
                f"no partition '{name}'",
                found=f"partitions of cluster {resolved.cluster.name}: {', '.join(known)}",
                remedy=f"partition = '{known[0]}', or leave it out",
            )


CHECKS = (
    Check("KIT601", _program),
    Check("KIT602", _chdir),
    Check("KIT603", _log_folder),
    Check("KIT604", _partition),
)
