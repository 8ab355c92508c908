"""`hpc-kit list`."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_kit.cli.output import format_table
from hpc_kit.errors import HpcKitError
from hpc_kit.spec import search_path, toml_documents

KINDS: tuple[tuple[search_path.FileKind, str, str], ...] = (
    ("jobs", "jobs", ".toml"),
    ("env", "clusters", ".toml"),
    ("templates", "templates", search_path.TEMPLATE),
)


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
def command(as_json: bool) -> None:
    """List jobs, clusters and templates: those of the project first, then the shipped ones."""
    root = search_path.current_folder()
    found = {title: _list_files(kind, suffix, root) for kind, title, suffix in KINDS}
    if as_json:
        import json

        click.echo(json.dumps(found, indent=2))
        return
    every = [entry for entries in found.values() for entry in entries]
    # One table, so that the columns of all kinds are aligned.
    lines = iter(format_table((tuple(entry.values()) for entry in every), "left", "left", "left"))
    for title, entries in found.items():
        click.echo(title)
        for _ in entries:
            click.echo(f"  {next(lines)}")


def _list_files(kind: search_path.FileKind, suffix: str, root: Path) -> list[dict[str, str]]:
    entries = []
    for name in search_path.file_names(kind, root, suffix):
        path = search_path.find_file(kind, name, root, suffix=suffix)
        shown = search_path.display_path(path, root)
        if name != "base":
            entries.append({"name": name, "description": _description(path, shown, suffix), "file": shown})
    return entries


def _description(path: Path, shown: str, suffix: str) -> str:
    """Return the description in a file. For a broken file, return the fault."""
    if suffix != ".toml":
        return path.read_text(encoding="utf-8").partition("#}")[0].removeprefix("{#").strip()
    try:
        return str(toml_documents.read_document(path, shown).data.get("description", ""))
    except HpcKitError as error:
        return error.what
