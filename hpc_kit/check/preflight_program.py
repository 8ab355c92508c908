"""Whether the program of a job is there, with what it needs: the checks that look into its command."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path, PurePath

from hpc_kit.check.started import started
from hpc_kit.errors import SpecError
from hpc_kit.script.context import working_folder
from hpc_kit.spec import search_path
from hpc_kit.spec.resolve import Resolved

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


def program_file(resolved: Resolved, root: Path) -> Iterator[SpecError]:
    """The job's program does not exist.

    The interpreter, the program file of the command, or a script that a shell is to run is not there. In the queue this
    costs the wait, and then a job that fails in its first second on every rank.

    Mend: the path in `command`, as seen from the folder in which sbatch runs (or from `chdir`).
    Documented: docs/jobs-and-clusters.md.
    """
    folder = working_folder(resolved, root)
    if any(line.split()[:1] == ["cd"] for line in resolved.job.setup):
        return
    programs = started(resolved.argv)
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
    from hpc_kit.check.launch import read_launch
    from hpc_kit.check.shell.values import Text
    from hpc_kit.check.shell.words import WHOLE_FILE
    from hpc_kit.script.quoting import copyable_command

    stages = read_launch([Text(word, WHOLE_FILE) for word in words]).stages
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
    shipped = search_path.shipped("jobs")
    if (shipped.parent / name).exists():
        inside = folder.is_relative_to(shipped.parent)
        remedy = (
            f"cd {shipped.parent}" if inside else f"cp -r {shipped} .   (the jobs that come along, with their programs)"
        )
    return SpecError(f"no program file {name}", found=f"looked in {folder}, for job {resolved.job.name}", remedy=remedy)


def libraries(resolved: Resolved, root: Path) -> Iterator[SpecError]:
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
    for each in started(resolved.argv):
        if each.file is None or each.program != resolved.python:
            continue
        env = search_path.shipped("env")
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
