"""Writes the folder with the commands: shell scripts that start this interpreter with this package."""

from __future__ import annotations

import os
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pocketslurm.commands import COMMANDS, UNSUPPORTED
from pocketslurm.errors import StateError
from pocketslurm.settings import STATE_VARIABLE

if TYPE_CHECKING:
    from types import ModuleType

MARKER = ".pocketslurm"
"""An empty file in the folder with the commands. Programs recognize the folder by it."""

# Isolated and without `site`: the commands need the standard library and this package only, start in half the time,
# and ignore the PYTHONPATH of a job.
_SCRIPT = """#!/bin/sh
{state_name}={state}
export {state_name}
exec {python} -I -S -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); \
from pocketslurm.__main__ import main; main()' {root} {command} "$@"
"""

# Scripts compare the output of `hostname` with the nodes of their job.
_HOSTNAME = """#!/bin/sh
if [ -n "${SLURMD_NODENAME-}" ] && [ $# -lt 2 ]; then
    case ${1-} in
    "" | -s | --short | -f | --fqdn | --long) echo "$SLURMD_NODENAME" && exit ;;
    -i | --ip-address | -I | --all-ip-addresses)
        case $SLURMD_NODENAME in *[!0-9.]*) ;; *) echo "$SLURMD_NODENAME" && exit ;; esac ;;
    esac
fi
exec {program} "$@"
"""

LOGIN = "login.sh"
ORIGINAL = "HPC_KIT_SLURM_BASH_ENV"
# bash reads this file as BASH_ENV before a script, after the profiles of a login shell. Most profiles replace PATH,
# also when the script sources them later; therefore the trap. Its own trace (`set -x`) goes to /dev/null.
_LOGIN = """unset BASH_ENV
if [ -n "${{{original}-}}" ]; then
    export BASH_ENV=${original}
    unset {original}
    if eval "[ -r \\"$BASH_ENV\\" ]"; then eval ". \\"$BASH_ENV\\""; fi
fi
case ":${{PATH-}}:" in *:{folder}:*) ;; *) PATH={folder}:${{PATH-}} ;; esac
trap '{{ case ":${{PATH-}}:" in *:{quoted}:*) ;; *) PATH={quoted}:${{PATH-}} ;; esac; }} 2>/dev/null' RETURN
"""


def set_bash_env(directory: Path, environ: dict[str, str]) -> None:
    """Set BASH_ENV so that the commands stay on PATH in a bash script that reads profiles."""
    path = directory / LOGIN
    folder = shlex.quote(str(directory / "bin"))
    text = os.fsencode(_LOGIN.format(folder=folder, quoted=folder.replace("'", "'\\''"), original=ORIGINAL))
    if not path.exists() or path.read_bytes() != text:
        replace_file(path, text)
    if "BASH_ENV" in environ:
        environ[ORIGINAL] = environ["BASH_ENV"]
    environ["BASH_ENV"] = str(path)


def commands_folder(directory: Path) -> Path:
    """Return the folder `bin` of a state directory; write it if it is missing."""
    folder = directory / "bin"
    return folder if (folder / MARKER).exists() else write_commands(directory)


def write_commands(directory: Path) -> Path:
    """Write or update the folder `bin` of a state directory, each file atomically, and return it."""
    folder = directory / "bin"
    folder.mkdir(mode=0o700, exist_ok=True)  # fails if the state directory was deleted
    texts = {command: script(directory, command) for command in (*COMMANDS, *UNSUPPORTED)}
    texts |= {"hostname": _hostname(folder), MARKER: ""}
    for command, text in texts.items():
        path, data = folder / command, os.fsencode(text)
        if not path.exists() or path.read_bytes() != data:
            replace_file(path, data, mode=0o755)
    return folder


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file atomically: commands that run meanwhile read the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.chmod(mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)  # on a full disk


def _hostname(folder: Path) -> str:
    """Return a script `hostname`: it prints the node inside a job, and calls the machine's command elsewhere."""
    folders = [each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(each) != folder]
    import shutil  # with its archives, it makes the start of each command longer

    program = shutil.which("hostname", path=os.pathsep.join(folders))
    return _HOSTNAME.replace("{program}", shlex.quote(program) if program else "uname -n")


def script(directory: Path, command: str) -> str:
    """Return the script of one command."""
    return _SCRIPT.format(
        state_name=STATE_VARIABLE,
        state=shlex.quote(str(directory)),
        python=shlex.quote(sys.executable),
        root=shlex.quote(str(Path(__file__).parents[1])),
        command=command,
    )


def load_module(name: str) -> ModuleType:
    """Import a module of this package, by its name below `pocketslurm`.

    Raises:
        StateError: The code cannot be imported, as during a checkout or an installation.
    """
    try:
        return import_module(f"pocketslurm.{name}")
    except Exception as error:
        raise StateError(
            f"the code of the embedded Slurm ({name.rpartition('.')[2]}) cannot be loaded",
            found=f"{type(error).__name__}: {error}",
            remedy=f"if {Path(__file__).parent} is just being changed, wait until that is done and try again",
        ) from error
