"""The page: every text escaped, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_kit.report.section import Section


def page(sections: Sequence[Section], made: str) -> str:
    """The HTML of a report.

    Args:
        sections: A run or a bench each.
        made: When and by what it was made.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    title = ", ".join(section.name for section in sections)
    return environment.get_template("page.html.j2").render(sections=sections, title=title, made=made)
