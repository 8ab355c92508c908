"""Names of users and groups."""

from __future__ import annotations

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

    def names(self, kind: str) -> set[str]:
        """Return the valid values of --uid or --gid."""
        return {str(self.uid), self.user} if kind == "uid" else {str(self.gid), self.group}


def current_user() -> Owner:
    """Return the owner of this process. A number without a name, as in some containers, is used as the name."""
    uid, gid = os.getuid(), os.getgid()
    return Owner(user_name(uid), uid, group_name(gid), gid)


def user_or_group_exists(kind: str, name: str) -> bool:
    """Return whether a user (`uid`) or a group (`gid`) of that name or number exists."""
    by_name, by_number = (pwd.getpwnam, pwd.getpwuid) if kind == "uid" else (grp.getgrnam, grp.getgrgid)
    try:
        by_number(int(name)) if name.isdecimal() else by_name(name)
    except KeyError:
        return False
    return True


def user_name(uid: int) -> str:
    """Return the name of a user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Return the name of a group."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
