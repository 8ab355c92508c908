"""The page: every text escaped, nothing from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

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
    environment.filters["marked"] = marked
    names = dict.fromkeys(section.name for section in sections)
    title = sections[0].title if len(sections) == 1 else ", ".join(names)
    return environment.get_template("page.html.j2").render(sections=told_apart(sections), title=title, made=made)


def told_apart(sections: Sequence[Section]) -> list[Section]:
    """Those of one title with where each comes from behind it."""
    number = Counter(section.title for section in sections)
    return [
        section._replace(title=f"{section.title}: {section.source}") if number[section.title] > 1 else section
        for section in sections
    ]


def marked(text: str) -> Markup:
    """A note as HTML: what stands in backticks as code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before
