"""`hpc-kit env`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hpc_kit.cli.terminal import echo
from hpc_kit.errors import SpecError, explain_file_errors


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
@click.option(
    "--environ", "file", type=click.Path(path_type=Path), metavar="FILE", help="Variables from a JSON object."
)
def command(as_json: bool, file: Path | None) -> None:
    """Print rank, world size and so on of this process, the variables they come from, and the ignored variables.

    Exit status 2 if the variables contradict each other or are incomplete.
    """
    from hpc_kit.runtime import resolve
    from hpc_kit.runtime.world import explain_world, to_json

    environ = dict(os.environ) if file is None else _read_variables(file)
    world = resolve(environ)
    if as_json:
        echo(json.dumps(to_json(world), indent=2))
    else:
        echo(explain_world(world), nl=False)


def _read_variables(file: Path) -> dict[str, str]:
    with explain_file_errors(
        SpecError, f"cannot read {file}", "name a file with a JSON object of strings", also=(ValueError,)
    ):
        data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise SpecError(f"{file} is not a flat JSON object of strings", remedy='{"SLURM_PROCID": "0", ...}')
    return data
