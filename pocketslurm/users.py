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
    user, group = str(uid), str(gid)
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(gid).gr_name
    return Owner(user, uid, group, gid)


def user_exists(name: str) -> bool:
    """Return whether a user of that name or number exists."""
    try:
        pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        return False
    return True
