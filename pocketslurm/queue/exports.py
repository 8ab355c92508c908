"""The environment that a job is submitted with: --export, --export-file, --get-user-env."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketslurm.errors import Refused
from pocketslurm.settings import FIRST_ID_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def chosen(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """What of the submitter's environment goes along, and what --export adds to it.

    Raises:
        Refused: The file of --export-file cannot be read.
    """
    environ = {name: value for name, value in environ.items() if name != FIRST_ID_VARIABLE}
    export = options.get("export", "ALL")
    found = _from_file(options["export-file"]) if options.get("export-file") else {}
    if export.upper() == "ALL":
        own = {} if "export-file" in options else dict(environ)
        return {**(_login_environ() if "get-user-env" in options else {}), **found, **own}
    found = {**_login_environ(), **found}
    if export.upper() != "NONE":
        for word in words(export):
            name, equals, value = word.partition("=")
            if word.upper() == "ALL":
                found.update(environ)
            elif equals:
                found[name] = value
            elif name in environ:
                found[name] = environ[name]
    found.update({name: value for name, value in environ.items() if name.startswith("SLURM_")})
    return found


def encode(environ: Mapping[str, str]) -> bytes:
    """As a process has it: `NAME=value`, each with a NUL behind it."""
    return b"".join(f"{name}={value}\0".encode(errors="surrogateescape") for name, value in environ.items())


def decode(stored: bytes) -> dict[str, str]:
    """What `encode` wrote."""
    pairs = (pair.decode(errors="surrogateescape").partition("=") for pair in stored.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}


def words(text: str) -> Iterator[str]:
    """The parts between commas; quotes keep a comma, and are taken away."""
    word, quote = "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
            word += letter if quote else ""
        elif letter in "'\"":
            quote = letter
        elif letter == ",":
            yield word
            word = ""
        else:
            word += letter
    yield word


def _from_file(name: str) -> dict[str, str]:
    try:
        # A number is a file that is already open.
        with open(int(name) if name.isdigit() else name, "rb") as file:  # noqa: PTH123
            content = file.read()
    except OSError:
        raise Refused(f"error: Could not open user environment file {name}") from None
    return decode(content if b"\0" in content else content.replace(b"\n", b"\0"))


def _login_environ() -> dict[str, str]:
    """What a fresh login has, without the time that one takes."""
    import os
    import pwd

    user = pwd.getpwuid(os.getuid())
    root = "/usr/local/sbin:/usr/sbin:/sbin:" if user.pw_uid == 0 else ""
    return {
        "HOME": user.pw_dir,
        "LOGNAME": user.pw_name,
        "USER": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        "PATH": f"{root}/usr/local/bin:/usr/bin:/bin",
    }
