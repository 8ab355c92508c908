"""`hpc-kit completion`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from hpc_kit.cli.terminal import echo
from hpc_kit.errors import RecordError, SpecError

CLASSES = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("completion")
@click.argument("words", nargs=-1, metavar="[install] [bash|zsh|fish]")
def command(words: tuple[str, ...]) -> None:
    """Print the completion of commands, options and job names for a shell, or install it for your account.

    `install` writes one file, and for bash and zsh one line into ~/.bashrc or ~/.zshrc. Without a shell, that of
    $SHELL is used.
    """
    install = words[:1] == ("install",)
    names = words[install:] or (Path(os.environ.get("SHELL", "bash")).name,)
    if len(names) != 1 or names[0] not in CLASSES:
        raise SpecError(f"no completion for {' '.join(names)}", remedy=f"name one of {', '.join(CLASSES)}")
    [shell] = names
    from hpc_kit.cli import root

    text = CLASSES[shell](root, {}, "hpc-kit", "_HPC_KIT_COMPLETE").source()
    if not install:
        echo(text)
        return
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    file = (
        config / "fish" / "completions" / "hpc-kit.fish" if shell == "fish" else data / "hpc_kit" / f"complete.{shell}"
    )
    line = f"[ -f {file} ] && source {file}"
    start = home / f".{shell}rc"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        if shell != "fish" and line not in (start.read_text() if start.is_file() else "").splitlines():
            with start.open("a") as rc:
                rc.write(f"{line}\n")
    except OSError as error:
        raise RecordError(
            f"cannot write {error.filename}", found=error.strerror, remedy="hpc-kit completion > FILE"
        ) from error
    echo(f"written: {file}" + ("" if shell == "fish" else f", and a line in {start}"))
    echo("open a new shell to use it")
