"""`hpc-kit list`."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_kit.cli.output import print_wrapped
from hpc_kit.cli.terminal import echo
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

        echo(json.dumps(found, indent=2))
        return
    in_project = search_path.shipped_folder("jobs").parent != root
    # A few long names would move all descriptions to the right.
    width = max(len(entry["name"]) for entries in found.values() for entry in entries if len(entry["name"]) <= 24)
    for title, entries in found.items():
        echo(title)
        for entry in entries:
            # Shipped files are found by their name. A file of the project is printed with its path.
            own = f"({entry['file']})" if in_project and entry["file"] and (root / entry["file"]).is_file() else ""
            text = " ".join(filter(None, (entry["description"], own)))
            print_wrapped(f"  {entry['name']:<{width}}  {text}", indent=width + 2)


def _list_files(kind: search_path.FileKind, suffix: str, root: Path) -> list[dict[str, str]]:
    entries = []
    for name in search_path.file_names(kind, root, suffix):
        if name == "base":
            continue
        try:
            path = search_path.find_file(kind, name, root, suffix=suffix)
            shown = search_path.display_path(path, root)
            entries.append({"name": name, "description": _description(path, shown, suffix), "file": shown})
        except (HpcKitError, OSError, UnicodeDecodeError) as error:
            # A broken link, or a private file of another user: the list continues.
            entries.append({"name": name, "description": f"cannot be read: {_unreadable_reason(error)}", "file": ""})
    return entries


def _unreadable_reason(error: Exception) -> str:
    if isinstance(error, HpcKitError):
        return error.what
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _description(path: Path, shown: str, suffix: str) -> str:
    """Return the description in a file. For a broken file, return the fault."""
    if suffix != ".toml":
        # A template begins with a comment of Jinja.
        return path.read_text(encoding="utf-8").partition("#}")[0].removeprefix("{#").strip()
    try:
        return str(toml_documents.read_document(path, shown).data.get("description", ""))
    except HpcKitError as error:
        return error.what
