"""The house stands: rooms import only from lower floors, nothing imports in a circle, the heavy things come late."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "hpc_kit"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "share" not in path.parts
}

MAY_IMPORT = {
    "errors": set[str](),
    "run_files": set[str](),
    "slurm": {"errors"},
    "spec": {"errors", "run_files", "slurm"},
    "script": {"errors", "run_files", "slurm", "spec"},
    "submit": {"errors", "run_files", "slurm", "spec", "script", "embedded"},  # embedded: to put its commands on PATH
    "launch": {"errors", "run_files", "slurm", "spec", "script", "submit"},
    "runtime": {"errors", "run_files", "slurm"},
    "embedded": {"errors", "run_files", "slurm"},
    "plotting": {"errors"},
    "planner": {"errors", "slurm", "spec", "plotting"},
    "bench": {"errors", "run_files", "slurm", "spec", "runtime", "planner", "plotting"},
    "report": {"errors", "run_files", "slurm", "submit", "bench"},
    "__main__": {"cli"},
    "cli": {
        "errors",
        "run_files",
        "slurm",
        "spec",
        "script",
        "submit",
        "launch",
        "runtime",
        "embedded",
        "planner",
        "bench",
        "plotting",
        "report",
    },
}
RUNTIME_MAY_IMPORT_OF_SLURM = {"hpc_kit.slurm", "hpc_kit.slurm.nodelist"}


def imports(path: Path, *, types: bool = True) -> set[str]:
    """hpc_kit modules that a file imports, inside functions, too; `types`: also those for types only."""
    tree = ast.parse(path.read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    passed_by = set() if types else {inner for block in blocks for inner in ast.walk(block)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in passed_by:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner if inner <= MODULES.keys() else inner | {node.module}
    return {name for name in found if name in MODULES}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", [name for name in MODULES if room(name)])
def test_a_room_imports_only_from_lower_floors(module: str) -> None:
    own = room(module)
    others = {room(name) for name in imports(MODULES[module])} - {own, ""}
    assert others <= MAY_IMPORT[own]


def test_every_room_has_its_floor() -> None:
    assert {room(name) for name in MODULES} - {""} == set(MAY_IMPORT)


def test_the_job_side_takes_only_node_lists_from_slurm() -> None:
    taken = {name for module in MODULES if room(module) == "runtime" for name in imports(MODULES[module])}
    assert {name for name in taken if name.startswith("hpc_kit.slurm")} <= RUNTIME_MAY_IMPORT_OF_SLURM


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {module: imports(path, types=False) - {module} for module, path in MODULES.items()}
    while graph:
        free = {module for module, wanted in graph.items() if not wanted & graph.keys()}
        assert free, f"import cycle among {sorted(graph)}"
        graph = {module: wanted for module, wanted in graph.items() if module not in free}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import hpc_kit", ("jinja2", "submitit", "torch", "msgspec", "click")),
        ("import hpc_kit.runtime", ("jinja2", "submitit", "torch", "msgspec", "click")),
        ("import hpc_kit.script.render", ("torch", "submitit", "jinja2")),
        ("import hpc_kit.spec.files", ("torch", "submitit", "jinja2")),
        ("import hpc_kit.planner.cases, hpc_kit.planner.target", ("torch", "numpy", "submitit", "jinja2", "rich")),
        ("import hpc_kit.cli", ("torch", "submitit", "jinja2", "msgspec", "rich")),
    ],
)
def test_heavy_packages_are_imported_late(statement: str, unwanted: tuple[str, ...]) -> None:
    program = f"{statement}; import sys; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_public_names_are_all_there() -> None:
    program = "from hpc_kit import *; import hpc_kit; print(sorted(set(hpc_kit.__all__) - set(dir())))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_modules_stay_small() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    # A table: a row an option; and what is carried to a host as one file.
    allowed = {"hpc_kit.slurm.option_table", "hpc_kit.launch.agent"}
    assert {module: lines for module, lines in lengths.items() if lines > 300 and module not in allowed} == {}


ON_NODES = ("hpc_kit.runtime.", "hpc_kit.launch.agent", "hpc_kit.bench.ranks")
"""They speak in a job's log, and end a rank that cannot end by itself."""


def test_only_the_command_line_and_the_embedded_commands_print_or_exit() -> None:
    loud = []
    for module, path in MODULES.items():
        if room(module) in {"cli", "embedded"}:
            continue
        unwanted = {"print", "exit", "sys.exit"} | (
            set() if module.startswith(ON_NODES) else {"sys.stdout.write", "os._exit"}
        )
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in unwanted:
                loud.append(f"{module}:{node.lineno}")
    assert loud == []
