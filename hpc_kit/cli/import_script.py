"""`hpc-kit import`."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_kit.cli.options import FILE, JSON_OPTION
from hpc_kit.cli.output import print_line, print_wrapped, short_path
from hpc_kit.cli.terminal import echo
from hpc_kit.errors import HpcKitError, SpecError, explain_file_errors
from hpc_kit.slurm.units import format_count
from hpc_kit.spec import search_path

if TYPE_CHECKING:
    from hpc_kit.check.job_import import ImportNote
    from hpc_kit.spec.job import Job


@click.command("import")
@click.argument("script", type=FILE)
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Write the job file: jobs/NAME.toml [default: print it]."
)
@JSON_OPTION
def command(script: Path, output: Path | None, as_json: bool) -> int:
    """Convert a hand-written batch script to a job file.

    Directives become [resources], constant exports [env], the launch line command and [launch], and other lines before
    it setup. The command names each line that a job file has no place for.

    Exit status 1 if the job needs a change before it can be rendered.
    """
    from hpc_kit.check.job_import import ImportNote, import_script
    from hpc_kit.spec import toml_documents

    _refuse_other_files(script)
    if output is not None:
        toml_documents.check_new(output, "-o")
    with explain_file_errors(SpecError, f"cannot read {script}", "write the path of a batch script"):
        # A comment in another encoding does not stop the import.
        text = script.read_bytes().decode("utf-8-sig", errors="replace")
    if "\0" in text:
        raise SpecError(
            f"'{script}' is no text", found="NUL bytes, as in a program or in UTF-16", remedy="name a batch script"
        )
    name = re.sub(r"[^\w.+-]+", "_", (output or script).stem) or "job"
    job, notes = import_script(text, name, script.name)
    obstacle = _find_obstacle(job)
    if obstacle is not None:
        what = obstacle.what + (f" ({obstacle.found})" if obstacle.found else "")
        notes = (*notes, ImportNote(None, f"before it can be rendered: {what}; {obstacle.remedy}"))
    named = _fold(notes)
    if output is not None:
        toml_documents.save_job(job, output, "-o", header=_header(script, named))
    if as_json:
        import msgspec

        echo(json.dumps({"job": msgspec.to_builtins(job), "notes": [note._asdict() for note in notes]}, indent=1))
        return int(obstacle is not None)
    if output is None:
        echo(_header(script, named) + toml_documents.format_job(job), nl=False)
    for note in named:
        place = f"{script}:{note.line}" if note.line else str(script)
        print_wrapped(f"note    {place}: {note.text}", indent=8, err=True)
    if output is not None:
        print_line("written", short_path(output))
        shown = output.stem if output.parent.name == "jobs" else str(output)
        print_line("next", f"hpc-kit render {shown}")
    return int(obstacle is not None)


def _refuse_other_files(script: Path) -> None:
    """Refuse a program and a job file, which are read as commands of a shell otherwise."""
    if script.suffix == ".py" and search_path.is_program(str(script), search_path.current_folder()):
        raise SpecError(
            f"'{script}' is a program, and no batch script",
            remedy="write its job file: "
            + shlex.join(
                ["hpc-kit", "render", "-j", "4x2", "--save", f"jobs/{script.stem}.toml", "--", "python", str(script)]
            ),
        )
    if script.suffix == ".toml":
        raise SpecError(
            f"'{script}' is a job file, and no batch script",
            remedy=f"print the script of the job: {shlex.join(['hpc-kit', 'render', str(script)])}",
        )


def _fold(notes: tuple[ImportNote, ...]) -> list[ImportNote]:
    """Return one note for each text, with the number of further lines that it applies to."""
    count = Counter(note.text for note in notes)
    first = {note.text: note for note in reversed(notes)}
    return [
        note._replace(text=f"{note.text} (also {format_count(count[note.text] - 1, 'later line')})")
        if count[note.text] > 1
        else note
        for note in dict.fromkeys(first[note.text] for note in notes)
    ]


def _header(script: Path, notes: Sequence[ImportNote]) -> str:
    lines = [f"Imported from {script} by hpc-kit import."]
    lines += [f"{f'Line {note.line}' if note.line else 'Note'}: {note.text}" for note in notes]
    # A note that contains line breaks must stay in its comment.
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def _find_obstacle(job: Job) -> HpcKitError | None:
    """Return the error with which the job cannot be rendered for a cluster of which nothing is known."""
    from hpc_kit.spec.cluster import Cluster
    from hpc_kit.spec.load import load
    from hpc_kit.spec.resolve import resolve

    try:
        resolve(load(job, Cluster(name="any", python="python")))
    except HpcKitError as error:
        return error
    return None
