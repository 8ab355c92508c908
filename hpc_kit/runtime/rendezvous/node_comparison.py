"""Compares the nodes: Python, torch, hpc_kit, and the program with its modules from its own folder.

Every rank sends its facts when it signs in, and rank 0 compares them, so no extra message is needed.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections import Counter, defaultdict
from functools import cache
from hashlib import blake2s
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_kit import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpc_kit.runtime.world import World

COMPARE_VARIABLE = "HPC_KIT_SAME"
"""Environment variable. The value 0 switches the comparison off for all ranks."""

Facts = dict[str, str]

_OTHERS = (Path(os.__file__).parent, Path(__file__).parents[2])
"""Folders of Python's standard library and of this package, which are not the program's own."""

_MOST_FILES = 200
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+\(?[ \t]*([\w, \t]*)|import[ \t]+([\w., \t]+))", re.MULTILINE
)


def node_facts(world: World, program: Path | None, environ: Mapping[str, str]) -> Facts:
    """Return the versions and the program hash of this process, by default of the running program.

    Only the first rank of a node hashes the program.
    """
    if environ.get(COMPARE_VARIABLE, "1").strip() == "0" or world.world_size == 1:
        return {}
    import torch

    # Builds for other devices, 2.13.0+cpu and 2.13.0+cu130, can communicate.
    found = {"Python": platform.python_version(), "torch": torch.__version__.partition("+")[0], "hpc_kit": __version__}
    program = None if world.local_rank else program or _running_program()
    if program is not None and program.suffix == ".py" and program.is_file():
        found[f"the code of {program.name}"] = program_hash(program)
    return found


def find_differences(everybody: Iterable[tuple[str, Facts]]) -> list[str]:
    """Return one line for each fact that differs between nodes, with the minority hosts first."""
    hosts: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    ranks: dict[str, Counter[str]] = defaultdict(Counter)
    for host, mine in everybody:
        for name, value in mine.items():
            hosts[name][value][host] = None
            ranks[name][value] += 1
    lines = []
    for name, values in hosts.items():
        if len(values) > 1:
            odd_first = sorted(values, key=lambda value: ranks[name][value])
            lines.append(f"{name}: " + "; ".join(f"{value} on {list_some(values[value])}" for value in odd_first))
    return lines


def program_hash(program: Path) -> str:
    """Return eight hexadecimal digits for the program and all files that it imports from its own folder."""
    found = blake2s(digest_size=4)
    for name, text in _program_files(program):
        found.update(os.fsencode(name) + b"\0" + text + b"\0")
    return found.hexdigest()


def _program_files(program: Path) -> Iterator[tuple[str, bytes]]:
    """Return the program's file and its own modules, each with its path below the program's folder."""
    program = program.resolve()
    folder, waiting = program.parent, [program]
    seen = {program}
    while waiting and len(seen) <= _MOST_FILES:
        path = waiting.pop(0)
        try:
            text = path.read_bytes()
        except OSError:
            continue
        yield str(path.relative_to(folder)), text
        new = [file for file in _imported_files(text, path, folder) if file not in seen]
        seen.update(new)
        waiting += new


def _imported_files(text: bytes, path: Path, folder: Path) -> list[Path]:
    """Return the files of the program's folder that a file imports."""
    modules: dict[tuple[int, str], None] = {}
    for dots, source, names, plain in _IMPORT.findall(text):
        words = [word.split()[0].decode() for word in (names or plain).split(b",") if word.split()]
        base = source.decode()
        inside = [f"{base}.{word}".strip(".") for word in words] if dots or base else words
        modules |= dict.fromkeys((len(dots), module) for module in (base, *inside) if module)
    # Texts inside of docstrings look like imports, too: `from ... import x` in /app/train.py leads above the root.
    starts = [folder, *path.parents]
    found = [file for dots, module in modules if dots < len(starts) for file in _files(starts[dots], module)]
    return [file for file in dict.fromkeys(found) if file.is_relative_to(folder)]


def _files(start: Path, module: str) -> Iterator[Path]:
    """Return a module's file and those of its packages. Most modules lie elsewhere and have none here."""
    place = start
    for part in module.split("."):
        if f"{part}.py" in _list_folder(place):
            yield place / f"{part}.py"
        elif part not in _list_folder(place):
            return
        place /= part
        if "__init__.py" in _list_folder(place):
            yield place / "__init__.py"


@cache
def _list_folder(folder: Path) -> frozenset[str]:
    """Return the names in a folder. One listing is faster than a question for each module."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone
    except OSError:
        return frozenset()


def _running_program() -> Path | None:
    """Return the program of this process, or None if it is not a file of the user."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    path = Path(file).absolute() if file else None
    if path is None or "site-packages" in path.parts:
        return None
    return None if any(path.is_relative_to(folder) for folder in _OTHERS) else path


def list_some(items: Iterable[object], most: int = 8) -> str:
    """Join hosts or ranks with commas; beyond `most` of them only their number follows."""
    named = list(map(str, items))
    return ", ".join(named[:most]) + (f" and {len(named) - most} more" if len(named) > most else "")
