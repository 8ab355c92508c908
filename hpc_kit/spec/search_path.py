"""Finds job files, cluster files and templates: first in the user's project, then among the shipped files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from hpc_kit.errors import SpecError, explain_file_errors

FileKind = Literal["jobs", "env", "templates"]

PROGRAMS = (".py", ".sh")
"""Suffixes of programs, which users may confuse with job files on the command line."""

TEMPLATE = ".sbatch.j2"
"""Suffix of templates."""

FEW = 8
"""An error lists at most this many names."""


def current_folder() -> Path:
    """Return the current folder."""
    with explain_file_errors(SpecError, "the current folder is gone", "change to an existing folder"):
        return Path.cwd()


def shipped_folder(kind: FileKind) -> Path:
    """Return the folder of shipped files in the wheel, or in the checkout."""
    package = Path(__file__).parents[1]
    # The wheel contains the folders in the package, a checkout beside it.
    inside = package / "share" / kind
    return inside if inside.is_dir() else package.parent / kind


def search_folders(kind: FileKind, root: Path) -> tuple[Path, ...]:
    """Return the folders to search, in order. `root` is the user's project."""
    own, ours = root / kind, shipped_folder(kind)
    # Profiles of public systems have a folder of their own, so that `hpc-kit init` does not copy them.
    systems = (ours / "systems",) if kind == "env" else ()
    return ((own,) if own == ours else (own, ours)) + systems


def file_names(kind: FileKind, root: Path, suffix: str = ".toml") -> list[str]:
    """Return all names, sorted. A user's file hides a shipped file with the same name."""
    found: set[str] = set()
    for folder in search_folders(kind, root):
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            raise SpecError(
                f"cannot read the folder {folder}", found="Permission denied", remedy="check its permissions"
            )
        found.update(path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}") if not path.is_dir())
    return sorted(found)


def find_file(
    kind: FileKind,
    name: str,
    root: Path,
    *,
    suffix: str = ".toml",
    named_in: Path | None = None,
    place: Callable[[], str] | None = None,
) -> Path:
    """Return the file with a name, or with a path if the name looks like one.

    `named_in` is the file that names this one: its folder comes first, and it may have the same name. `place` returns
    the line that contains the name, for messages.
    """
    beside: tuple[Path, ...] = (named_in.parent,) if named_in else ()
    if name.endswith(suffix) or "/" in name:
        paths = [folder / name for folder in (*beside, root)]
    else:
        paths = [folder / f"{name}{suffix}" for folder in (*beside, *search_folders(kind, root))]
    there = [] if kind == "jobs" and name.endswith(PROGRAMS) else [path for path in paths if path.is_file()]
    if not there:
        raise _not_found_error(kind, name, root, suffix, place)
    # A user's file may extend the shipped file that it replaces.
    others = [path for path in there if path.resolve() != named_in]
    return others[0] if others else there[0]


def _not_found_error(kind: FileKind, name: str, root: Path, suffix: str, place: Callable[[], str] | None) -> SpecError:
    from difflib import get_close_matches

    word = {"jobs": "job file", "env": "cluster file", "templates": "template"}[kind]
    known = file_names(kind, root, suffix)
    near = get_close_matches(Path(name).name.removesuffix(suffix), known, n=2)
    looked = ", ".join(str(folder) for folder in search_folders(kind, root))
    # People who know sbatch or python pass such files to `submit`. A name in another file (`place`) is only misspelt.
    if kind == "jobs" and not place and _is_batch_script(root / name):
        return SpecError(
            f"'{name}' is a batch script, and no job file",
            remedy=f"sbatch {name}; on the embedded Slurm:  hpc-kit embedded run sbatch {name}",
        )
    if kind == "jobs" and not near and not place and _is_program(name):
        words = f"python {name}" if name.endswith(".py") else name
        return SpecError(
            f"'{name}' is a program, and no job file",
            remedy=f"write the program after --:  hpc-kit submit -j 4x2 -- {words}",
        )
    if kind == "jobs" and name.endswith(".ipynb"):
        return notebook_error(name)
    if not place and (root / name).is_dir():
        return SpecError(f"'{name}' is a folder, and no {word}", remedy=f"name a {word} in it, or see: hpc-kit list")
    if not near and name.endswith((".yaml", ".yml", ".json")):
        return SpecError(
            f"'{name}' is no {suffix} file",
            found="job and cluster files are TOML",
            remedy="write the same keys as TOML: `hpc-kit init --minimal` copies examples",
        )
    if len(known) > FEW:
        listed, choose = f"{len(known)} files in {looked}", "write one of the names that `hpc-kit list` shows"
    else:
        listed, choose = f"{', '.join(known) or 'no file'} in {looked}", "write one of these names"
    return SpecError(
        f"no {word} '{name}'" + (f", named in {place()}" if place else ""),
        found=listed,
        remedy=f"did you mean {' or '.join(near)}?" if near else f"{choose}, or the path of a {suffix} file",
    )


def notebook_error(name: str) -> SpecError:
    """Return the error for a notebook in place of a job file or a script."""
    return SpecError(
        f"'{name}' is a notebook, and no job file",
        remedy=f"convert it to a program first:  jupyter nbconvert --to python {name}\n"
        f"then  hpc-kit submit -j 4x2 -- python {name.removesuffix('.ipynb')}.py",
    )


def similar_name(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a remedy: the most similar of some names, else the text of `otherwise`."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def _is_batch_script(path: Path) -> bool:
    """Return whether a file has #SBATCH lines, which a job would ignore if it ran the file as its program."""
    try:
        with path.open("rb") as file:
            return any(line.startswith(b"#SBATCH") for line in file.read(1 << 16).splitlines())
    except OSError:
        return False


def is_program(name: str, root: Path) -> bool:
    """Return whether a name given as a job is that of a program, and no job or batch script has it."""
    known = name in file_names("jobs", root) or (root / name).suffix == ".toml" or _is_batch_script(root / name)
    return not known and _is_program(name)


def _is_program(name: str) -> bool:
    from shutil import which

    return name.endswith(PROGRAMS) or which(name) is not None


def display_path(path: Path, root: Path) -> str:
    """Return a path for messages, relative to the project or to the shipped folder if possible."""
    for base in (root, Path(__file__).parents[2], Path(__file__).parents[1] / "share"):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)
