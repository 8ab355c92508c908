"""Every `{{ value }}` of a template ends in a quoting filter: looked at when a template is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, nodes

from hpc_kit.errors import TemplateError
from hpc_kit.script.quoting import FILTERS

if TYPE_CHECKING:
    from collections.abc import Collection


class Filtered(Environment):
    """jinja2's, that refuses a value which the shell would read as it is.

    Raises:
        TemplateError: By what compiles a template: the value, with its place.
    """

    def compile(self, source: Any, name: str | None = None, filename: str | None = None, **named: Any) -> Any:  # type: ignore[override]  # its overloads are of no use here
        """As jinja2's."""
        if isinstance(source, str):
            _check(self.parse(source, name, filename), Path(filename or name or "template").name)
        return super().compile(source, name, filename, **named)


def _check(template: nodes.Template, file: str) -> None:
    # A template that extends the base has its macros without importing them.
    imported = {"macros", *(each.target for each in template.find_all(nodes.Import))}
    for output in template.find_all(nodes.Output):
        for value in output.nodes:
            if not _is_ready(value, imported):
                raise TemplateError(
                    f"a value in template {file}, line {value.lineno} ends in no filter",
                    found="whatever is in it, the shell would read it",
                    remedy="{{ value | sh }}; or directive, comment or verbatim, by the place where it stands",
                )


def _is_ready(value: nodes.Expr, imported: Collection[str]) -> bool:
    """Text of the template, of a filter, or of a macro, of which each value is looked at in turn."""
    match value:
        case nodes.TemplateData():
            return True
        case nodes.Filter():
            return value.name in FILTERS
        case nodes.CondExpr():
            return all(_is_ready(each, imported) for each in (value.expr1, value.expr2) if each is not None)
        case nodes.Call(node=nodes.Name()):
            return True
        case nodes.Call(node=nodes.Getattr(node=nodes.Name(name=name))):
            return name in imported
    return False
