"""Reads Python programs without running them: the devices that they choose, and whether they need torch's variables."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from typing import NamedTuple, TypeGuard

from hpc_kit.lazy_pattern import lazy_pattern

_RANKS = lazy_pattern(r"['\"](\w*(?:LOCALID|LOCAL_RANK|PROCID))['\"]")


class DeviceChoice(NamedTuple):
    """A call that makes a number the device of the process: the variable of the environment, and the line from 1."""

    variable: str
    line: int


def chosen_device(source: str) -> DeviceChoice | None:
    """Return the first `torch.cuda.set_device` or `torch.device` whose number is a rank from the environment.

    A number that is computed further, such as a remainder, or that depends on a condition, does not count. A text that
    is no Python has no such call.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    values = _assigned_once(tree)
    for call in ast.walk(tree):
        name = call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else ""
        if isinstance(call, ast.Call) and name in {"set_device", "device"}:
            for argument in call.args:
                variable = _rank_of(argument, values)
                if variable is not None:
                    return DeviceChoice(variable, call.lineno)
    return None


def _assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of the names that a program assigns exactly once."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    pairs = [pair for node in nodes for target in node.targets for pair in _assigned(target, node.value)]
    stored = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return {name: value for name, value in pairs if stored[name] == 1}


def _assigned(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """Return the names of an assignment with their values; `a, b = x, y` has two."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [pair for one, other in zip(target.elts, value.elts, strict=True) for pair in _assigned(one, other)]
    return []


def _rank_of(node: ast.expr, values: dict[str, ast.expr], depth: int = 0) -> str | None:
    """Return the variable of the environment that is the number of an expression."""
    if isinstance(node, ast.Name) and node.id in values and depth < 5:
        return _rank_of(values[node.id], values, depth + 1)
    if isinstance(node, ast.JoinedStr):
        inner = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return _rank_of(inner[0], values, depth + 1) if len(inner) == 1 and depth < 5 else None
    # `rank % device_count()` is right, however many devices the process sees.
    if any(isinstance(part, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp) for part in ast.walk(node)):
        return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "device" and node.args:
        return _rank_of(node.args[-1], values, depth + 1)
    match = _RANKS.search(ast.unparse(node))
    return match[1] if match is not None else None


_KNOWN_IMPORTS = frozenset(sys.stdlib_module_names) | {"numpy", "torch", "torchvision", "tqdm"}
"""Packages that set no variables of torch when they are imported."""

_KNOWS_RANKS = lazy_pattern(
    r"\b(RANK|WORLD_SIZE)\b|SLURM|OMPI|PMI|\bmpi\b|environ\W*[|=]|environ\.\w*(update|set)|putenv|Process|spawn|subprocess"
)
"""Signs of a program that asks for torch's variables, or may set them itself or in processes that it starts."""


def line_that_needs_torch_variables(source: str) -> int | None:
    """Return the line of the `init_process_group` that certainly reads RANK and WORLD_SIZE from the environment.

    None if the call names a rank, a store or a method, depends on a condition, or if the program may set the variables.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if _KNOWS_RANKS.search(source) or not _imported_packages(tree) <= _KNOWN_IMPORTS:
        return None
    calls = [node for node in ast.walk(tree) if _is_init(node)]
    conditional = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If | ast.Try | ast.While | ast.Match) and not _is_main_guard(branch)
        for node in ast.walk(branch)
    }
    explicit = any(len(call.args) > 1 or any(_is_explicit(word) for word in call.keywords) for call in calls)
    return None if len(calls) != 1 or explicit or id(calls[0]) in conditional else calls[0].lineno


def _imported_packages(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add("." if node.level else node.module or ".")
    return {name.partition(".")[0] for name in names}


def _is_init(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name == "init_process_group"


def _is_explicit(word: ast.keyword) -> bool:
    """Return whether an argument replaces the environment, or hides which arguments there are."""
    by_environment = isinstance(word.value, ast.Constant) and word.value.value == "env://"
    return word.arg is None or (word.arg in {"rank", "store", "init_method"} and not by_environment)


def _is_main_guard(branch: ast.AST) -> bool:
    return isinstance(branch, ast.If) and "__name__" in ast.unparse(branch.test)
