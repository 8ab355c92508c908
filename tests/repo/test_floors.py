"""The house stands: rooms import only from lower floors, nothing imports in a circle, the heavy things come late."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import hpc_kit
from tests.conftest import ROOT

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("hpc_kit", "pocketslurm")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "share" not in path.parts
}

ROOMS = (
    "errors",
    "lazy_pattern",
    "run_files",
    "shared_folders",
    "plotting",
    "slurm",
    "spec",
    "script",
    "check",
    "runs",
    "submission",
    "runtime",
    "ssh",
    "planner",
    "bench",
    "report",
    "cli",
    "__main__",
)
"""Rooms of hpc_kit, lowest first. A room imports only from rooms before it."""

RUNTIME_MAY_IMPORT_OF_SLURM = {"hpc_kit.slurm", "hpc_kit.slurm.nodelist"}


class Statements(NamedTuple):
    """The parts of a file that the rules are about."""

    imports: list[ast.Import | ast.ImportFrom]
    type_imports: set[ast.Import | ast.ImportFrom]
    calls: dict[int, str]


@cache
def read(path: Path) -> Statements:
    """Return the imports of a file, those below `if TYPE_CHECKING`, and by their lines the calls that print or exit."""
    found = Statements([], set(), {})
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.append(node)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            inner = (each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom))
            found.type_imports.update(inner)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in LOUD_NAMES and (text := ast.unparse(node.func)) in LOUD:
                found.calls[node.lineno] = text
    return found


@cache
def imports(path: Path, *, types: bool = True) -> set[str]:
    """Return the modules that a file imports, also inside functions, and their packages' `__init__`.

    Args:
        path: The file.
        types: Also return imports for type annotations only.
    """
    statements = read(path)
    found: set[str] = set()
    for node in statements.imports:
        if node in statements.type_imports and not types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner if inner <= MODULES.keys() else inner | {node.module}
    packages = {name.rsplit(".", dots)[0] for name in found for dots in range(1, name.count(".") + 1)}
    # The packages that contain the file itself are imported before it.
    own = path.relative_to(ROOT).parents
    found |= {name for name in packages if Path(*name.split(".")) not in own}
    return {name for name in found if name in MODULES}


def room(module: str) -> str:
    """Return the room of a module: the first folder or file below the package; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def test_a_room_imports_only_from_lower_rooms() -> None:
    upward = [
        (module, name)
        for module, path in MODULES.items()
        if module.startswith("hpc_kit.")
        for name in imports(path)
        if name != "hpc_kit" and room(name) not in ROOMS[: ROOMS.index(room(module)) + 1]
    ]
    assert upward == []


def test_the_toolkit_reaches_pocketslurm_through_commands_alone() -> None:
    importers = {
        module
        for module, path in MODULES.items()
        if module.startswith("hpc_kit") and any(name.startswith("pocketslurm") for name in imports(path))
    }
    assert importers == set()


def test_every_package_has_a_place_in_the_order() -> None:
    assert {room(name) for name in MODULES if name.startswith("hpc_kit.")} == set(ROOMS)


def test_pocketslurm_imports_only_hpc_kit_slurm() -> None:
    of_pocketslurm = [path for module, path in MODULES.items() if module.startswith("pocketslurm")]
    foreign = {name for path in of_pocketslurm for name in imports(path) if not name.startswith("pocketslurm")}
    assert {room(name) for name in foreign} <= {"", "slurm"}


def test_the_runtime_imports_only_node_lists_from_slurm() -> None:
    taken = {name for module in MODULES if room(module) == "runtime" for name in imports(MODULES[module])}
    assert {name for name in taken if name.startswith("hpc_kit.slurm")} <= RUNTIME_MAY_IMPORT_OF_SLURM


def test_there_is_no_import_cycle() -> None:
    graph = {module: imports(path, types=False) - {module} for module, path in MODULES.items()}
    while graph:
        free = {module for module, wanted in graph.items() if not wanted & graph.keys()}
        assert free, f"import cycle among {sorted(graph)}"
        graph = {module: wanted for module, wanted in graph.items() if module not in free}


LOUD = {"print", "exit", "sys.exit", "sys.stdout.write", "os._exit"}
LOUD_NAMES = {call.rpartition(".")[2] for call in LOUD}

ON_NODES = ("hpc_kit.runtime.", "hpc_kit.ssh.agent", "hpc_kit.bench.local_ranks", "hpc_kit.bench.preflight")
"""They speak in a job's log, and end a rank that cannot end by itself."""


def test_only_the_command_line_and_the_embedded_commands_print_or_exit() -> None:
    loud = []
    for module, path in MODULES.items():
        if room(module) == "cli" or module.startswith("pocketslurm"):
            continue
        unwanted = LOUD - ({"sys.stdout.write", "os._exit"} if module.startswith(ON_NODES) else set())
        loud += [f"{module}:{line}" for line, call in read(path).calls.items() if call in unwanted]
    assert loud == []


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import hpc_kit", ("jinja2", "submitit", "torch", "msgspec", "click")),
        ("import hpc_kit.runtime", ("jinja2", "submitit", "torch", "msgspec", "click")),
        ("import hpc_kit.script.render", ("torch", "submitit", "jinja2", "tomlkit", "tree_sitter")),
        ("import hpc_kit.spec.load", ("torch", "submitit", "jinja2", "tomlkit", "tree_sitter")),
        ("import hpc_kit.check.prerequisites", ("torch", "submitit", "jinja2", "tree_sitter")),
        ("import hpc_kit.planner.cases, hpc_kit.planner.target", ("torch", "numpy", "submitit", "jinja2", "rich")),
        ("import hpc_kit.cli", ("torch", "submitit", "jinja2", "msgspec", "rich", "tree_sitter")),
    ],
)
def test_heavy_packages_are_imported_late(statement: str, unwanted: tuple[str, ...]) -> None:
    program = f"{statement}; import sys; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_every_public_name_exists() -> None:
    namespace: dict[str, object] = {}
    exec("from hpc_kit import *", namespace)
    assert sorted(set(hpc_kit.__all__) - namespace.keys()) == []
