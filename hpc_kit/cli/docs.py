"""`hpc-kit docs`."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

import click

from hpc_kit.cli.output import print_wrapped
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError, page


@click.command("docs")
@click.argument("words", nargs=-1, metavar="[TOPIC]")
def command(words: tuple[str, ...]) -> None:
    """Print a page of the documentation, such as `when-it-fails`; without TOPIC, list the pages.

    TOPIC may also be the code of a rule, such as KIT302. Needs no network. The pages are those of the installed
    release.
    """
    folder, topic = Path(page("index.md")).parent, " ".join(words)
    pages = {path.stem: path for path in sorted(folder.glob("*.md"))}
    rule = folder / "rules" / f"{topic.upper().removesuffix('.MD')}.md"
    if not topic:
        width = max(map(len, pages))
        for name, path in pages.items():
            print_wrapped(f"{name:<{width}}  {_page_title(path)}", indent=width + 2)
        return
    if rule.is_file():
        echo(rule.read_text(encoding="utf-8"), nl=False)
        return
    name = topic.lower().removesuffix(".md").replace("_", "-").replace(" ", "-")
    # One word of a name is enough where it is clear: `hpc-kit docs fails`.
    matches = [name] if name in pages else [each for each in pages if name in each.split("-")]
    if not matches:
        matches = [each for each, path in pages.items() if name in re.findall(r"\w+", _page_title(path).lower())]
    if len(matches) != 1:
        near = matches or get_close_matches(name, pages, n=1, cutoff=0.7)
        remedy = " or ".join(f"hpc-kit docs {each}" for each in near[:3]) or "hpc-kit docs lists the pages"
        raise SpecError(f"no page '{topic}'", remedy=remedy)
    echo(pages[matches[0]].read_text(encoding="utf-8"), nl=False)


def _page_title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return next((line.lstrip("# ").strip() for line in file if line.startswith("# ")), "")
