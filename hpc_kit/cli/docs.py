"""`hpc-kit docs`."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click

from hpc_kit.cli.output import print_wrapped
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError, page


@click.command("docs")
@click.argument("topic", required=False)
def command(topic: str | None) -> None:
    """Print a page of the documentation, such as `when-it-fails`; without TOPIC, list the pages.

    Needs no network. The pages are those of the installed release.
    """
    pages = {path.stem: path for path in sorted(Path(page("index.md")).parent.glob("*.md"))}
    if topic is None:
        width = max(map(len, pages))
        for name, path in pages.items():
            print_wrapped(f"{name:<{width}}  {_title(path)}", indent=width + 2)
        return
    name = topic.lower().removesuffix(".md").replace("_", "-").replace(" ", "-")
    # One word of a name is enough where it is clear: `hpc-kit docs fails`.
    matches = [name] if name in pages else [each for each in pages if name in each.split("-")]
    if len(matches) != 1:
        near = matches or get_close_matches(name, pages, n=1, cutoff=0.7)
        remedy = f"hpc-kit docs {near[0]}" if near else "hpc-kit docs lists the pages"
        raise SpecError(f"no page '{topic}'", remedy=remedy)
    echo(pages[matches[0]].read_text(encoding="utf-8"), nl=False)


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return next((line.lstrip("# ").strip() for line in file if line.startswith("# ")), "")
