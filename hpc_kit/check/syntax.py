"""Whether bash can read a script: asked before it is queued, since bash itself reads on only as it comes there."""

from __future__ import annotations

import subprocess

from hpc_kit.errors import SpecError

SECONDS = 10.0


def check_syntax(text: str) -> None:
    """Let bash read a script without running it; a few milliseconds.

    Raises:
        SpecError: It is no valid bash; the line is shown.
    """
    # A line of `setup` may set extglob, which nobody does for a script that is only read.
    argv = ["bash", "-O", "extglob", "-n"]
    try:
        asked = subprocess.run(argv, input=text.encode(), capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if asked.returncode:
        raise SpecError(
            "the script is no valid bash",
            found=asked.stderr.decode(errors="replace").strip(),
            remedy="mend the lines of `setup`, or the template; hpc-kit render shows the script",
        )
