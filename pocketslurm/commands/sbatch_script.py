"""The text of a batch script: where sbatch finds it, and what it must look like."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pocketslurm.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_kit.slurm.getopt import ParsedOptions


def script_of(given: ParsedOptions, words: list[str], environ: Mapping[str, str]) -> tuple[bytes, str]:
    """The text of the batch script, and its path as `scontrol show job` tells it."""
    if given.has("wrap"):
        if words:
            raise Refused("error: Script arguments not permitted with --wrap option")
        text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{given.get('wrap')}\n"
        return text.encode(errors="surrogateescape"), ""
    if not words:
        script, command = sys.stdin.buffer.read(), ""
    else:
        command = _find(words[0], environ)
        try:
            with open(command, "rb") as file:  # noqa: PTH123
                script = file.read()
        except IsADirectoryError:
            script = b""
        except OSError:
            raise Refused(f"error: Unable to open file {words[0]}") from None
    _check_script(script)
    return script, command


def _find(name: str, environ: Mapping[str, str]) -> str:
    """A script in the current folder, else one along PATH."""
    folders = [""] if "/" in name else ["", *environ.get("PATH", "").split(os.pathsep)]
    for folder in folders:
        path = os.path.join(folder, name)  # noqa: PTH118
        if os.path.isfile(path) and os.access(path, os.R_OK):  # noqa: PTH113
            return os.path.abspath(path)  # noqa: PTH100
    return name


def _check_script(script: bytes) -> None:
    if not script:
        raise Refused("error: Batch script is empty!")
    if not script.strip():
        raise Refused("error: Batch script contains only whitespace!")
    if not script.startswith(b"#!"):
        raise Refused(
            "error: This does not look like a batch script.  The first",
            "error: line must start with #! followed by the path to an interpreter.",
            "error: For instance: #!/bin/sh",
        )
    if b"\0" in script:
        raise Refused(
            "error: The Slurm controller does not allow scripts that", "error: contain a NULL character '\\0'."
        )
    if b"\r\n" in script:
        raise Refused(
            "error: Batch script contains DOS line breaks (\\r\\n)",
            "error: instead of expected UNIX line breaks (\\n).",
        )
