"""Names of users and groups."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from typing import NamedTuple


class Owner(NamedTuple):
    """A user and the group that files belong to."""

    user: str
    uid: int
    group: str
    gid: int


def current_user() -> Owner:
    """Return the owner of this process. A number without a name, as in some containers, is used as the name."""
    uid, gid = os.getuid(), os.getgid()
    group = str(gid)
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(gid).gr_name
    return Owner(user_name(uid), uid, group, gid)


def user_name(uid: int) -> str:
    """Return the name of a user, or the number if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_exists(name: str) -> bool:
    """Return whether a user of that name or number exists."""
    try:
        pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        return False
    return True
