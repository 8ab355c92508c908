"""Reads Python programs that a script writes, without running them: the devices that they choose."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import NamedTuple

_RANKS = re.compile(r"['\"](\w*(?:LOCALID|LOCAL_RANK|PROCID))['\"]")


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
