"""Who asks: the user's name as Slurm shows it."""

from __future__ import annotations

import os


def user_name() -> str:
    """The name of this process's user; a number that has no name, as in some containers, is its own name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
