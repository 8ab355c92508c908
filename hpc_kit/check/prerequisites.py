"""Checks that program, folders, libraries and nodes exist before submission.

A job that fails such a check would wait in the queue first. Each check is a function of the job and of the project
folder that yields errors. Its docstring explains the check.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from hpc_kit.errors import SpecError
from hpc_kit.lazy_pattern import lazy_pattern
from hpc_kit.script.context import working_folder
from hpc_kit.spec import search_path
from hpc_kit.spec.layout_checks import find_memory_shortage
from hpc_kit.spec.resolve import Resolved
from hpc_kit.spec.shell_code import find_syntax_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpc_kit.check.rules.finding import Finding, Severity


class PrerequisiteCheck(NamedTuple):
    """One check, with its code and the text that explains it."""

    code: str
    check: Callable[[Resolved, Path], Iterator[SpecError]]
    severity: Severity = "error"

    @property
    def text(self) -> str:
        """The explanation: effect, reason, fix, documentation."""
        return inspect.getdoc(self.check) or ""


def check_program(resolved: Resolved, root: Path) -> None:
    """Refuse a job with a missing program, folder or partition.

    Args:
        resolved: The job.
        root: The project folder, in which sbatch runs.

    Raises:
        SpecError: Something is missing. Similar names are suggested.
    """
    for each in CHECKS:
        for error in each.check(resolved, root):
            raise error


def find_missing(resolved: Resolved, root: Path, *, elsewhere: bool = False) -> list[Finding]:
    """Return everything that is missing, as findings.

    Args:
        resolved: The job.
        root: The project folder.
        elsewhere: The job's cluster is another machine, so that its interpreter need not exist here.
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
    """The working folder of the job does not exist.

    Slurm then starts the batch script in /tmp, with one line in the log, and the script finds no files.

    Fix: correct the path in `chdir`, or create the folder.
    Documented: sbatch(1), --chdir.
    """
    chdir = resolved.job.resources.chdir
    if chdir is not None and not (root / chdir).is_dir():
        yield SpecError(f"the folder {chdir} does not exist", found="chdir of the job", remedy=f"run mkdir -p {chdir}")


def _log_folder(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The folder of logs and records cannot be created or written to.

    A file has its name, or you have no write permission. Slurm would accept the job and end it without a log file.

    Fix: use another `runs` in the cluster file, or change the permissions.
    Documented: docs/submitting.md.
    """
    wanted = working_folder(resolved, root) / resolved.log_folder
    # Path.exists raises where it may not look, below the runs of another user.
    there = next(path for path in (wanted, *wanted.parents) if os.path.exists(path))  # noqa: PTH110
    why = f"{there} is a file" if not there.is_dir() else f"no write permission in {there}"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        problem = "written to" if there == wanted and there.is_dir() else "created"
        yield SpecError(f"{wanted} cannot be {problem}", found=why, remedy="use --set cluster.runs=FOLDER")


def _partition(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The embedded Slurm is strict and has no such partition.

    If it is not strict, the job goes to the default partition.

    Fix: use a partition of the cluster file's table [embedded], or set `strict = false` there.
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
                remedy=f"use partition = '{embedded.partitions[0]}', or remove it",
            )


def _node_count(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The job requests more nodes than the embedded Slurm has.

    Like a real Slurm, it would let the job wait forever.

    Fix: request fewer nodes, or add nodes in the cluster file under [embedded].
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
            remedy=f"use nodes = {there} at most; or --set cluster.embedded.nodes='127.0.0.[1-{resolved.nodes}]'",
        )


def _memory(resolved: Resolved, root: Path) -> Iterator[SpecError]:  # noqa: ARG001 - one form for all
    """The model does not fit this machine, which provides all nodes of the embedded Slurm.

    The check counts parameters, gradients and the optimizer state, without activations. Another machine may have more
    memory. Only `submit` refuses the job.

    Fix: use fewer ranks, a smaller model, or `zero = 3`. A cluster file with `mem` under [node] sets another size.
    Documented: docs/jobs-and-clusters.md.
    """
    if small := find_memory_shortage(resolved.job, resolved.cluster, resolved.world_size):
        yield small


LARGEST = 1_000_000
"""Bytes of a program that the check of its imports reads."""

_LIBRARIES = {
    "torch": "{python} -m pip install torch",
    "ray": "{python} -m pip install -r {env}/requirements-ray.txt",
    "horovod": "{env}/build_horovod.sh {python}",
}
"""Libraries, and the commands that install them."""

_NEEDS = {"ray.train": ("ray", "pydantic"), **{name: (name,) for name in _LIBRARIES}}
"""Imports of programs, and the modules that each of them needs."""

_IMPORTS = re.compile(rf"^(?:import|from) +({'|'.join(map(re.escape, _NEEDS))})\b".encode(), re.MULTILINE)


class MissingInterpreter(SpecError):
    """The Python interpreter of the cluster does not exist."""


def check_program_file(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The program of the job does not exist.

    The interpreter, the program file of the command, a script for a shell, or the module of `python -m` is missing. The
    job would wait in the queue and then fail in its first second on every rank. Modules are checked if the job uses the
    interpreter of hpc-kit, and neither `setup` nor PYTHONPATH may provide them.

    Fix: correct the path in `command`, relative to the folder in which sbatch runs (or to `chdir`).
    Documented: docs/jobs-and-clusters.md.
    """
    folder = working_folder(resolved, root)
    # The paths are relative to a folder that only the job enters.
    if any(line.split()[:1] == ["cd"] for line in resolved.job.setup):
        return
    programs = programs_of(resolved.argv)
    # The files of an image are not seen from here.
    if any(each.container for each in programs):
        return
    first = resolved.argv[0]
    if first.endswith(".ipynb"):
        yield _notebook(first)
        return
    if error := _executable(first, folder, resolved):
        yield error
    for each in programs:
        file = each.file if each.kind in {"python", "shell"} else None
        if file is not None and file.endswith(".ipynb"):
            yield _notebook(file)
            return
        if file is not None and file != "-" and not (folder / file).exists():
            yield _no_file(file, folder, resolved)
        of_here = each.program == resolved.python and _knows_modules(resolved, root)
        if each.module and of_here and (missing := _missing_module(each.module, folder)):
            yield SpecError(
                f"no module {missing}",
                found=f"looked in {folder} and in the modules of {resolved.python}, for job {resolved.job.name}",
                remedy="write the name with dots, as in `import`; for the path of a file, leave out -m",
            )


def _notebook(file: str) -> SpecError:
    return SpecError(
        f"{file} is a notebook, and no program",
        found="Python reads it as data, and runs none of its cells",
        remedy=f"run jupyter nbconvert --to python {shlex.quote(file)}, then submit {file.removesuffix('.ipynb')}.py",
    )


def _executable(name: str, folder: Path, resolved: Resolved) -> SpecError | None:
    command = f"command = {list(resolved.job.command)}"[:200]
    if "/" not in name:
        # A module that setup loads may bring it along.
        may_provide = resolved.job.setup or resolved.cluster.environment.activates
        if may_provide or shutil.which(name, path=_path(resolved.job.env)):
            return None
        known = ["python", "torchrun", "accelerate", "bash", "mpirun"]
        near = _near(name, [each for each in known if each != name], n=1)
        remedy = f"{near[0]}" if near else "write its path, or add a `setup` line that puts it on PATH"
        return SpecError(f"no program '{name}' on PATH", found=command, remedy=remedy)
    path = folder / name
    if not path.exists():
        if name == resolved.python:
            return MissingInterpreter(
                f"the interpreter {name} does not exist",
                found=f"python of cluster {resolved.cluster.name}; looked for {path}",
                remedy="write the path of an interpreter: python = '/path/to/python' in the cluster file, or "
                f"--set cluster.python={sys.executable}",
            )
        return _no_file(name, folder, resolved)
    if path.is_file() and not os.access(path, os.X_OK):
        return SpecError(f"{name} is not executable", found=command, remedy=f"run chmod +x {name}")
    return None


def _near(name: str, known: list[str], n: int) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, known, n=n)


def _path(env: Mapping[str, object]) -> str | None:
    path = env.get("PATH")
    return str(path) if path is not None else None


def _no_file(name: str, folder: Path, resolved: Resolved) -> SpecError:
    wanted = PurePath(name)
    # One level down only: a project folder on a shared file system may be huge.
    elsewhere = [str(path.relative_to(folder)) for path in sorted(folder.glob(f"*/{wanted.name}"))[:2]]
    beside = folder / wanted.parent
    names = sorted(path.name for path in beside.iterdir() if path.is_file()) if beside.is_dir() else []
    near = elsewhere or [str(wanted.parent / each) for each in _near(wanted.name, names, n=2)]
    remedy = f"did you mean {' or '.join(near)}?" if near else "write the path relative to that folder"
    if "$" in name or name.startswith("~"):
        remedy = "write the full path: no shell expands the words of `command`"
    shipped = search_path.shipped_folder("jobs")
    if (shipped.parent / name).exists():
        if folder.is_relative_to(shipped.parent):
            remedy = f"run cd {shlex.quote(str(shipped.parent))}"
        else:
            shipped_job = (shipped / f"{resolved.job.name}.toml").is_file()
            option = f" --job {resolved.job.name}" if shipped_job else ""
            remedy = f"run hpc-kit init{option}   (copies the job and its program into the current folder)"
    return SpecError(f"no program file {name}", found=f"looked in {folder}, for job {resolved.job.name}", remedy=remedy)


def check_libraries(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The program imports torch, ray or horovod, but the interpreter has no such module.

    The check runs if the job uses the interpreter of hpc-kit, neither `setup` nor PYTHONPATH may provide the module,
    and the program imports it at the top of its file.

    Fix: install the module there, or name another interpreter.
    Documented: docs/jobs-and-clusters.md.
    """
    from importlib.util import find_spec

    folder = working_folder(resolved, root)
    if not _knows_modules(resolved, root):
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
            install = f"run {_LIBRARIES[library].format(python=resolved.python, env=env)}"
            yield SpecError(
                f"there is no {needed} for {resolved.python}",
                found=f"{each.file} imports {'it' if name.startswith(needed) else f'{name}, which needs it'}",
                remedy=f"{install}; or use --set cluster.python=/path/to/python",
            )


def _knows_modules(resolved: Resolved, root: Path) -> bool:
    """Return whether the job finds the modules of this process, and no others."""
    return _runs_here(resolved, root) and not resolved.job.setup and "PYTHONPATH" not in resolved.job.env


_MAKES_MODULES = lazy_pattern(r"__path__|sys\.modules|meta_path")


def _missing_module(name: str, folder: Path) -> str | None:
    """Return the module that `python -m` does not find in a folder or beside this process; None if there is none.

    No package is imported. A package whose __init__.py may create modules counts as complete.
    """
    from importlib import invalidate_caches
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    invalidate_caches()
    first, *rest = name.split(".")
    try:
        spec = PathFinder.find_spec(first, [str(folder), *sys.path]) or find_spec(first)
    except (ValueError, ImportError):  # such as `python -m __main__`
        return None
    path = first
    while spec is not None and (rest or spec.submodule_search_locations is not None):
        with suppress(OSError):
            if spec.origin and _MAKES_MODULES.search(Path(spec.origin).read_text(errors="replace")):
                return None
        path = f"{path}.{rest.pop(0) if rest else '__main__'}"
        try:
            spec = PathFinder.find_spec(path, spec.submodule_search_locations or [])
        except KeyError:  # an inner package without __init__.py needs its outer package, imported
            return None
    return path if spec is None else None


def _runs_here(resolved: Resolved, root: Path) -> bool:
    """Return whether the job uses the interpreter of this process."""
    return root / resolved.python == Path(sys.executable) and not resolved.cluster.environment.activates


def check_python_syntax(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """Python cannot read the program: a syntax error.

    The job would wait in the queue and then fail in its first second on every rank. The check runs if the job uses the
    interpreter of hpc-kit, because another release of Python may read the same program.

    Fix: correct the line.
    Documented: docs/jobs-and-clusters.md.
    """
    if not _runs_here(resolved, root):
        return
    for each in programs_of(resolved.argv):
        if each.program != resolved.python or not (each.file or "").endswith(".py"):
            continue
        try:
            with (working_folder(resolved, root) / str(each.file)).open("rb") as file:
                text = file.read(LARGEST + 1)
            if len(text) <= LARGEST:
                with warnings.catch_warnings(action="ignore"):
                    compile(text, str(each.file), "exec", dont_inherit=True)
        except SyntaxError as error:
            # The encoding of a file, and null bytes, have no line.
            place = f"{each.file}, line {error.lineno}" if error.lineno else each.file
            line = (error.text or "").strip()
            yield SpecError(f"{place}: {error.msg}", found=line or None, remedy="correct the program")
        except (OSError, ValueError, RecursionError, MemoryError):
            continue  # the interpreter of the job decides


def check_torch_variables(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The program needs RANK and WORLD_SIZE, and nothing sets them.

    `init_process_group` reads the variables of torchrun. srun and mpirun set others, so each rank would end with "RANK
    expected, but not set". The check is silent if the program, `setup` or `[env]` may set the variables.

    Fix: set `bootstrap = true` in [launch].
    Documented: docs/who-am-i.md.
    """
    launch = resolved.job.launch
    settings = (*resolved.job.setup, *resolved.cluster.setup, *resolved.job.env, *resolved.cluster.env)
    if launch.bootstrap or launch.launcher == "torchrun" or any("RANK" in each for each in settings):
        return
    started = programs_of(resolved.argv)
    if len(started) != 1 or started[0].kind != "python" or not (started[0].file or "").endswith(".py"):
        return
    file = working_folder(resolved, root) / str(started[0].file)
    try:
        text = file.read_text() if file.stat().st_size <= LARGEST else ""
    except (OSError, ValueError):
        return
    from hpc_kit.check.python_code import line_that_needs_torch_variables

    if line := line_that_needs_torch_variables(text):
        yield SpecError(
            "the program needs RANK and WORLD_SIZE, and nothing sets them",
            found=f"{started[0].file}, line {line}: init_process_group without a rank; launch.bootstrap = false",
            remedy="set bootstrap = true in [launch]; or --set launch.bootstrap=true",
        )


def _imported(program: Path) -> list[str]:
    """Return the libraries that a program imports, each once."""
    try:
        with program.open("rb") as file:
            found = _IMPORTS.findall(file.read(LARGEST))
    except OSError:
        return []
    return list(dict.fromkeys(name.decode() for name in found))


def check_mpi(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The job needs MPI, which this machine does not have.

    The check runs on the embedded Slurm, whose nodes are this machine, if neither `setup` nor an environment may
    provide MPI. `launcher = "mpirun"` takes the mpirun on PATH, or the one beside the interpreter. `backend = "mpi"`
    also needs mpi4py.

    Fix: install what is missing.
    Documented: docs/mpi.md.
    """
    from importlib.util import find_spec

    job, python = resolved.job, PurePath(resolved.python)
    if resolved.cluster.slurm != "embedded" or job.setup or resolved.cluster.environment.activates:
        return
    folders = os.pathsep.join((_path(job.env) or os.environ.get("PATH", os.defpath), str(root / python.parent)))
    if job.launch.launcher == "mpirun" and shutil.which("mpirun", path=folders) is None:
        yield SpecError(
            "there is no mpirun on this machine",
            found=f"launch.launcher = mpirun; none on PATH, and none in {python.parent}",
            remedy=f"install an MPI: apt-get install openmpi-bin, or without root {python} -m pip install mpich",
        )
    if job.launch.backend == "mpi" and root / python == Path(sys.executable) and find_spec("mpi4py") is None:
        yield SpecError(
            f"there is no mpi4py for {python}",
            found="launch.backend = mpi",
            remedy=f"run {python} -m pip install mpi4py; or use --set launch.backend=gloo",
        )


class StartedProgram(NamedTuple):
    """One program of a command.

    Attributes:
        kind: The kind of `LaunchStage`: `python`, `shell`, `wrapper`, `torchrun`, ...
        program: The word that names the program.
        file: The file that it runs, if any.
        module: The module that it runs, if any.
        container: Whether the program sees other files than those of this machine.
    """

    kind: str
    program: str
    file: str | None = None
    module: str | None = None
    container: bool = False


def programs_of(words: Sequence[str]) -> list[StartedProgram]:
    """Return the programs of a command, each of which starts the next.

    The usual `python FILE` needs no parser of launch lines, which would slow down `submit`.
    """
    if PurePath(words[0]).name.rstrip("0123456789.") == "python" and len(words) > 1 and words[1][:1] != "-":
        return [StartedProgram("python", words[0], words[1])]
    from hpc_kit.check.bash_syntax import WHOLE_FILE
    from hpc_kit.check.expansion import ExpandedText
    from hpc_kit.check.launch_lines import parse_launch
    from hpc_kit.spec.shell_code import CONTAINERS

    def said(text: ExpandedText | None) -> str | None:
        return None if text is None else text.text

    stages = parse_launch([ExpandedText(word, WHOLE_FILE) for word in words])
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


def check_faults(text: str, resolved: Resolved) -> None:
    """Refuse a script in which a rule finds an error.

    Args:
        text: The script of the job.
        resolved: The job.

    Raises:
        SpecError: The job will fail or train wrong, as far as the script shows.
    """
    from hpc_kit.check.batch_script import BatchScript, Site
    from hpc_kit.check.rules import check

    name = resolved.job.name
    script = BatchScript(text, name, Site(cluster=resolved.cluster))
    errors = [finding for finding in check(script) if finding.severity == "error"]
    for finding in errors[:1]:
        lines = "".join(f"\n{line.line:>4} | {line.text}" for line in finding.evidence)
        raise SpecError(
            f"{name}: {finding.what} ({finding.code})",
            found=f"{len(errors)} error{'s' * (len(errors) > 1)} in the script{lines}",
            remedy=f"{finding.remedy}; hpc-kit check shows all, and --no-check submits the job as it is",
        )


def check_syntax(text: str) -> None:
    """Let bash read a script without running it; a few milliseconds.

    bash itself finds a syntax error only when it reaches the line, in the middle of the job.

    Raises:
        SpecError: The script is not valid bash. The message shows the line.
    """
    if message := find_syntax_error(text):
        raise SpecError(
            "the script is not valid bash",
            found=message,
            remedy="fix the template; hpc-kit render shows the script",
        )


CHECKS = (
    PrerequisiteCheck("KIT601", check_program_file),
    PrerequisiteCheck("KIT602", _chdir),
    PrerequisiteCheck("KIT603", _log_folder),
    PrerequisiteCheck("KIT604", _partition),
    PrerequisiteCheck("KIT605", _node_count),
    PrerequisiteCheck("KIT606", check_libraries),
    PrerequisiteCheck("KIT607", _memory, "warning"),
    PrerequisiteCheck("KIT608", check_mpi),
    PrerequisiteCheck("KIT609", check_python_syntax),
    PrerequisiteCheck("KIT610", check_torch_variables),
)
