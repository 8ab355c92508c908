"""Sums of whole numbers, as in `$((2 * 4))`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculate(source: str) -> int | None:
    """The value of a sum of whole numbers; None where it is more than that."""
    try:
        return _evaluate(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
        return None


def _evaluate(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluate(node.left), _evaluate(node.right)
        return _OPERATORS[type(node.op)](left, right) if left is not None and right is not None else None
    return None
