"""The folder with the commands: small shell scripts that start this very interpreter with this very package."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from pocketslurm.settings import STATE_VARIABLE

ABSENT = {
    "sattach": "a step's output is where its srun writes it: see StdOut of scontrol show job",
    "scrontab": "there are no cron jobs: use crontab with sbatch",
    "sdiag": "no figures of the scheduler are kept: see its log, SlurmctldLogFile of scontrol show config",
    "sprio": "priorities are the order of submission: squeue -O prioritylong shows them",
    "sreport": "there is no accounting database: accounts and qos are taken as jobs name them, and sacct shows them",
    "strigger": "there are no triggers: let a job follow by sbatch --dependency",
}
"""Commands that have nothing to work on here, and what to do instead; they need no code that may be missing."""

COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sbatch", "sbcast", "scancel", "scontrol", "sinfo", "squeue", "sshare", "sstat",
    *sorted(ABSENT), "srun",
)  # fmt: skip

# Isolated, and without the interpreter's own site: nothing but the standard library and this package is needed, and
# a start takes half the time. What a job's PYTHONPATH holds cannot get in its way.
_SCRIPT = """#!/bin/sh
{state_name}={state}
export {state_name}
exec {python} -I -S -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); \
from pocketslurm.command_line import main; main()' {root} {command} "$@"
"""

# A script asks for the host that it runs on, and compares it with the nodes of its job.
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
# What bash reads as BASH_ENV before a script, behind the profiles of a login shell. These set PATH anew on most
# systems, and so they do when the script reads them by itself; the trap's own trace (`set -x`) is thrown away.
_LOGIN = """unset BASH_ENV
if [ -n "${{{original}-}}" ]; then
    export BASH_ENV=${original}
    unset {original}
    if eval "[ -r \\"$BASH_ENV\\" ]"; then eval ". \\"$BASH_ENV\\""; fi
fi
case ":${{PATH-}}:" in *:{folder}:*) ;; *) PATH={folder}:${{PATH-}} ;; esac
trap '{{ case ":${{PATH-}}:" in *:{quoted}:*) ;; *) PATH={quoted}:${{PATH-}} ;; esac; }} 2>/dev/null' RETURN
"""


def survive_profiles(directory: Path, environ: dict[str, str]) -> None:
    """Keep the commands within reach of a bash script that reads the profiles: as a login shell, or by `source`."""
    path = directory / LOGIN
    folder = shlex.quote(str(directory / "bin"))
    text = os.fsencode(_LOGIN.format(folder=folder, quoted=folder.replace("'", "'\\''"), original=ORIGINAL))
    if not path.exists() or path.read_bytes() != text:
        new = path.with_name(f"{LOGIN}.{os.getpid()}")
        new.write_bytes(text)
        new.replace(path)
    if "BASH_ENV" in environ:
        environ[ORIGINAL] = environ["BASH_ENV"]
    environ["BASH_ENV"] = str(path)


def find(directory: Path) -> Path:
    """The folder `bin` of a state directory, made where it is missing."""
    folder = directory / "bin"
    return folder if (folder / COMMANDS[-1]).exists() else make(directory)


def make(directory: Path) -> Path:
    """The folder `bin` of a state directory, made or brought up to date; each command whole or not at all."""
    folder = directory / "bin"
    folder.mkdir(mode=0o700, exist_ok=True)  # a state directory that was taken away is not made anew
    texts = {command: script(directory, command) for command in COMMANDS} | {"hostname": _hostname(folder)}
    for command, text in texts.items():
        path, data = folder / command, os.fsencode(text)
        if not path.exists() or path.read_bytes() != data:
            new = folder / f".{command}.{os.getpid()}"
            new.write_bytes(data)
            new.chmod(0o755)
            new.replace(path)
    return folder


def _hostname(folder: Path) -> str:
    """The text of `hostname`, which inside a job is the node's, and else this machine's own command."""
    folders = [each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(each) != folder]
    program = shutil.which("hostname", path=os.pathsep.join(folders))
    return _HOSTNAME.replace("{program}", shlex.quote(program) if program else "uname -n")


def script(directory: Path, command: str) -> str:
    """The text of one command."""
    return _SCRIPT.format(
        state_name=STATE_VARIABLE,
        state=shlex.quote(str(directory)),
        python=shlex.quote(sys.executable),
        root=shlex.quote(str(Path(__file__).parents[1])),
        command=command,
    )
