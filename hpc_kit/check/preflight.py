"""What must exist on this machine before a job is queued: found missing now, it costs no wait in the queue.

Each check is a function of the job and the project's folder that yields errors; its docstring explains it.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SpecError
from hpc_kit.script.context import working_folder
from hpc_kit.spec import search_path
from hpc_kit.spec.layout_checks import find_memory_shortage
from hpc_kit.spec.resolve import Resolved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpc_kit.check.rules.finding import Finding, Severity


class PreflightCheck(NamedTuple):
    """One check, with its code and the text that explains it."""

    code: str
    check: Callable[[Resolved, Path], Iterator[SpecError]]
    severity: Severity = "error"

    @property
    def text(self) -> str:
        """What happens, why, how to mend it."""
        return inspect.getdoc(self.check) or ""


def check_program(resolved: Resolved, root: Path) -> None:
    """Refuse a job whose program, folder or partition is not there, or whose ranks would each start ranks.

    Args:
        resolved: The job.
        root: The user's project: sbatch runs there.

    Raises:
        SpecError: What is missing, with near matches.
    """
    check_agents(resolved)
    for each in CHECKS:
        for error in each.check(resolved, root):
            raise error


def find_missing(resolved: Resolved, root: Path, *, elsewhere: bool = False) -> list[Finding]:
    """Everything that is missing, as findings.

    Args:
        resolved: The job.
        root: The user's project.
        elsewhere: The job's cluster is another machine: its interpreter need not be here.
    """
    # With it comes the parser of shell, and submit, which asks `check_program` only, does without.
    from hpc_kit.check.rules.finding import Finding

    found = []
    for each in CHECKS:
        for error in each.check(resolved, root):
            doubtful = elsewhere and isinstance(error, MissingInterpreter)
            severity: Severity = "warning" if doubtful else each.severity
            found.append(Finding(each.code, severity, 0, 0, error.what, error.remedy or "", error.found))
    return found


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
    wanted = working_folder(resolved, root) / resolved.log_folder
    # Path.exists raises where it may not look, below the runs of another user.
    there = next(path for path in (wanted, *wanted.parents) if os.path.exists(path))  # noqa: PTH110
    why = f"{there} is a file" if not there.is_dir() else f"no write permission in {there}"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield SpecError(f"{wanted} cannot be made", found=why, remedy="--set cluster.runs=FOLDER")


def _partition(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The embedded Slurm is strict, and has no such partition.

    Where it is not, the job goes to the default one.

    Mend: one of those that the cluster file names under [embedded], or `strict = false` there.
    Documented: docs/embedded-slurm.md.
    """
    wanted, embedded = resolved.job.resources.partition, resolved.cluster.embedded
    if resolved.cluster.slurm != "embedded" or wanted is None or not embedded.strict:
        return
    for name in wanted.split(","):
        if name not in embedded.partitions:
            yield SpecError(
                f"no partition '{name}'",
                found=f"partitions of cluster {resolved.cluster.name}: {', '.join(embedded.partitions)}",
                remedy=f"partition = '{embedded.partitions[0]}', or leave it out",
            )


def _node_count(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The embedded Slurm has fewer nodes.

    As a real Slurm, it would let the job wait for ever.

    Mend: fewer nodes, or more of them in the cluster file under [embedded].
    Documented: docs/embedded-slurm.md.
    """
    cluster = resolved.cluster
    if cluster.slurm != "embedded":
        return
    from hpc_kit.slurm import nodelist

    there = len(nodelist.expand(cluster.embedded.nodes))
    if resolved.nodes > there:
        yield SpecError(
            f"the job asks for more nodes than cluster {cluster.name} has",
            found=f"{resolved.nodes} nodes; there are {there}: {cluster.embedded.nodes}",
            remedy=f"nodes = {there} at most; or --set cluster.embedded.nodes='127.0.0.[1-{resolved.nodes}]'",
        )


def _memory(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The model does not fit this machine, which is all nodes of the embedded Slurm.

    Parameters, gradients and the optimizer's moments alone, without activations. Another machine may have more:
    `submit` alone refuses the job.

    Mend: fewer ranks, a smaller model, or `zero = 3`; a cluster file with `mem` under [node] says another size.
    Documented: docs/jobs-and-clusters.md.
    """
    if small := find_memory_shortage(resolved.job, resolved.cluster, resolved.world_size):
        yield small


LARGEST = 1_000_000
"""Bytes of a program that are looked through."""

_LIBRARIES = {
    "torch": "torch",
    "ray": "-r {env}/requirements-ray.txt",
    "horovod": "horovod   (it has to be built, and no release builds with torch 2.13)",
}
"""What programs import at their top, and how it is installed."""

_NEEDS = {"ray.train": ("ray", "pydantic"), **{name: (name,) for name in _LIBRARIES}}
"""What is imported, and what must be there for it."""

_IMPORTS = re.compile(rf"^(?:import|from) +({'|'.join(map(re.escape, _NEEDS))})\b".encode(), re.MULTILINE)


class MissingInterpreter(SpecError):
    """The cluster's Python is not there."""


def check_program_file(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The job's program does not exist.

    The interpreter, the program file of the command, or a script that a shell is to run is not there. In the queue this
    costs the wait, and then a job that fails in its first second on every rank.

    Mend: the path in `command`, as seen from the folder in which sbatch runs (or from `chdir`).
    Documented: docs/jobs-and-clusters.md.
    """
    folder = working_folder(resolved, root)
    if any(line.split()[:1] == ["cd"] for line in resolved.job.setup):
        return
    programs = programs_of(resolved.argv)
    if any(each.container for each in programs):
        return
    first = resolved.argv[0]
    if error := _executable(first, folder, resolved):
        yield error
    for each in programs:
        file = each.file if each.kind in {"python", "shell"} else None
        if file is not None and file != "-" and not (folder / file).exists():
            yield _no_file(file, folder, resolved)


def _executable(name: str, folder: Path, resolved: Resolved) -> SpecError | None:
    command = f"command = {list(resolved.job.command)}"[:200]
    if "/" not in name:
        # A module that setup loads may bring it along.
        own = resolved.job.setup or resolved.cluster.environment.activates
        if own or shutil.which(name, path=_path(resolved.job.env)):
            return None
        known = ["python", "torchrun", "accelerate", "bash", "mpirun"]
        near = _near(name, [each for each in known if each != name], n=1)
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


def check_agents(resolved: Resolved) -> None:
    """Refuse a torchrun that each rank would start for itself; in a script, KIT203 finds the same.

    Raises:
        SpecError: It would start processes of its own in every rank, of which none knows the others.
    """
    words = resolved.job.command
    each_alone = str(resolved.job.env.get("HPC_KIT_LAUNCHER", "")).strip() == "torchrun"
    named = any("torchrun" in word or "torch.distributed" in word for word in words)
    if resolved.ranks_per_node == 1 or each_alone or not named:
        return
    # The parser of command lines is slow to load.
    from hpc_kit.check.bash_syntax import WHOLE_FILE
    from hpc_kit.check.expansion import ExpandedText
    from hpc_kit.check.launch_lines import parse_launch
    from hpc_kit.script.quoting import copyable_command

    stages = parse_launch([ExpandedText(word, WHOLE_FILE) for word in words]).stages
    agent, inner = next(((each, own) for each, own in pairwise(stages) if each.kind == "torchrun"), (None, None))
    each = agent.option("nproc-per-node") if agent else None
    if agent is None or inner is None or each is None or each.text == "1":
        return
    agents = agent.option("nnodes")
    met = agents is not None and agents.text.rpartition(":")[2] == str(resolved.world_size)
    if met or "standalone" in agent.options:
        return
    alone = copyable_command([*words[: len(words) - len(agent.words)], *(word.text for word in inner.words)])
    raise SpecError(
        f"torchrun would start {each.text} processes in each of {resolved.world_size} ranks",
        found=f"command = {list(words)}"[:200],
        remedy=f"leave it out, each rank is a process already: {alone}\n"
        "or let it start the ranks, once a node, with that command: --ntasks-per-node=1 "
        f"--set launch.launcher=torchrun --set launch.nproc_per_node={resolved.ranks_per_node or each.text}",
    )


def _near(name: str, known: list[str], n: int) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, known, n=n)


def _path(env: Mapping[str, object]) -> str | None:
    given = env.get("PATH")
    return str(given) if given is not None else None


def _no_file(name: str, folder: Path, resolved: Resolved) -> SpecError:
    wanted = PurePath(name)
    elsewhere = [str(path.relative_to(folder)) for path in sorted(folder.glob(f"*/{wanted.name}"))[:2]]
    beside = folder / wanted.parent
    names = sorted(path.name for path in beside.iterdir() if path.is_file()) if beside.is_dir() else []
    near = elsewhere or [str(wanted.parent / each) for each in _near(wanted.name, names, n=2)]
    remedy = " or ".join(near) or "the path as seen from there"
    if "$" in name or name.startswith("~"):
        remedy = "the path itself: no shell expands the words of `command`"
    shipped = search_path.shipped_folder("jobs")
    if (shipped.parent / name).exists():
        inside = folder.is_relative_to(shipped.parent)
        remedy = (
            f"cd {shipped.parent}" if inside else f"cp -r {shipped} .   (the jobs that come along, with their programs)"
        )
    return SpecError(f"no program file {name}", found=f"looked in {folder}, for job {resolved.job.name}", remedy=remedy)


def check_libraries(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The program imports torch, ray or horovod, and the interpreter has none.

    Looked at where the interpreter is the one that submits, neither `setup` nor PYTHONPATH may bring it along, and the
    program's file imports it at its top.

    Mend: install it there, or name another interpreter.
    Documented: docs/jobs-and-clusters.md.
    """
    from importlib.util import find_spec

    job, folder = resolved.job, working_folder(resolved, root)
    own = root / resolved.python == Path(sys.executable)
    if not own or job.setup or resolved.cluster.environment.activates or "PYTHONPATH" in job.env:
        return
    for each in programs_of(resolved.argv):
        if each.file is None or each.program != resolved.python:
            continue
        env = search_path.shipped_folder("env")
        env = env.relative_to(root) if env.is_relative_to(root) else env
        absent: dict[str, tuple[str, str]] = {}
        for name in _imported(folder / each.file):
            for needed in _NEEDS[name]:
                if find_spec(needed) is None:
                    absent.setdefault(name.partition(".")[0], (needed, name))
        for library, (needed, name) in absent.items():
            install = f"{resolved.python} -m pip install {_LIBRARIES[library].format(env=env)}"
            yield SpecError(
                f"there is no {needed} for {resolved.python}",
                found=f"{each.file} imports {'it' if name.startswith(needed) else f'{name}, which needs it'}",
                remedy=f"{install}; or --set cluster.python=/path/to/python",
            )


def _imported(program: Path) -> list[str]:
    """Which of them a program imports, each once."""
    try:
        with program.open("rb") as file:
            found = _IMPORTS.findall(file.read(LARGEST))
    except OSError:
        return []
    return list(dict.fromkeys(name.decode() for name in found))


class StartedProgram(NamedTuple):
    """One program of a command.

    Attributes:
        kind: As `stages.Stage` has it: `python`, `shell`, `wrapper`, `torchrun`, ...
        program: Its word.
        file: The file that it runs, if it is told one.
        module: The module, likewise.
        container: Whether what it starts sees other files than those of this machine.
    """

    kind: str
    program: str
    file: str | None = None
    module: str | None = None
    container: bool = False


def programs_of(words: Sequence[str]) -> list[StartedProgram]:
    """The programs of a command, each starting the next."""
    if PurePath(words[0]).name.rstrip("0123456789.") == "python" and len(words) > 1 and words[1][:1] != "-":
        return [StartedProgram("python", words[0], words[1])]
    from hpc_kit.check.bash_syntax import WHOLE_FILE
    from hpc_kit.check.expansion import ExpandedText
    from hpc_kit.check.launch_lines import CONTAINERS, parse_launch

    def said(text: ExpandedText | None) -> str | None:
        return None if text is None else text.text

    stages = parse_launch([ExpandedText(word, WHOLE_FILE) for word in words]).stages
    return [
        StartedProgram(
            stage.kind,
            stage.words[0].text,
            said(stage.option("file")),
            said(stage.option("module")),
            container=stage.name in CONTAINERS,
        )
        for stage in stages
    ]


SECONDS = 10.0


def check_syntax(text: str) -> None:
    """Let bash read a script without running it; a few milliseconds.

    Raises:
        SpecError: It is no valid bash; the line is shown.
    """
    # A line of `setup` may set extglob, which nobody does for a script that is only read.
    argv = ["bash", "-O", "extglob", "-n"]
    try:
        asked = subprocess.run(argv, input=text.encode(), capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if asked.returncode:
        raise SpecError(
            "the script is no valid bash",
            found=asked.stderr.decode(errors="replace").strip(),
            remedy="mend the lines of `setup`, or the template; hpc-kit render shows the script",
        )


CHECKS = (
    PreflightCheck("KIT601", check_program_file),
    PreflightCheck("KIT602", _chdir),
    PreflightCheck("KIT603", _log_folder),
    PreflightCheck("KIT604", _partition),
    PreflightCheck("KIT605", _node_count),
    PreflightCheck("KIT606", check_libraries),
    PreflightCheck("KIT607", _memory, "warning"),
)
