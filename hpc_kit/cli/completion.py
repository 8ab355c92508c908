"""`hpc-kit completion`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from hpc_kit.cli.terminal import echo
from hpc_kit.errors import RecordError, SpecError
from hpc_kit.spec.search_path import similar_name

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
        wrong = next((word for word in names if word not in CLASSES), names[-1])
        listed = f"name one of {', '.join(CLASSES)}"
        # Without a word, $SHELL names an unknown shell.
        remedy = similar_name(wrong, ["install", *CLASSES], listed) if words[install:] else listed
        raise SpecError(f"no completion for {' '.join(names)}", remedy=remedy)
    [shell] = names
    from hpc_kit.cli import root

    text = _without_blank_after_equals(CLASSES[shell](root, {}, "hpc-kit", "_HPC_KIT_COMPLETE").source())
    if shell == "zsh":
        # An account without a configuration of zsh has no completion at all. zsh expects #compdef in the first line.
        start = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }"
        text = text.lstrip().replace("\n", f"\n{start}\n", 1)
    if not install:
        echo(text)
        return
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    file = (
        config / "fish" / "completions" / "hpc-kit.fish" if shell == "fish" else data / "hpc_kit" / f"complete.{shell}"
    )
    start_file = home / f".{shell}rc"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        # fish reads all files of its folder by itself.
        if shell != "fish":
            _add_line(start_file, f"[ -f {shlex.quote(str(file))} ] && source {shlex.quote(str(file))}")
    except OSError as error:
        raise RecordError(
            f"cannot write {error.filename or file}", found=error.strerror, remedy=f"hpc-kit completion {shell} > FILE"
        ) from error
    echo(f"written: {file}" + ("" if shell == "fish" else f", and a line in {start_file}"))
    echo("open a new shell to use it")


def _without_blank_after_equals(text: str) -> str:
    """Return click's script so that bash and zsh add no blank after `--set resources.nodes=`. fish adds none."""
    is_key = "*[=.]"
    text = text.replace(
        "    return 0\n", f"    [[ ${{COMPREPLY-}} == {is_key} ]] && compopt -o nospace\n    return 0\n"
    )
    zsh = "compadd -U -V unsorted -a completions"
    without = zsh.replace("compadd", "compadd -S ''")
    return text.replace(zsh, f"[[ $completions[1] == {is_key} ]] && {without} || {zsh}")


def _add_line(path: Path, line: str) -> None:
    """Add a line to the end of a file, unless the file contains it."""
    text = path.read_text() if path.is_file() else ""
    if line not in text.splitlines():
        with path.open("a") as file:
            # The last line of the file may have no end.
            file.write(f"{line}\n" if not text or text.endswith("\n") else f"\n{line}\n")
