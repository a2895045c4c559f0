"""Somebody to try things as: checks that concern people are made as one of them."""

import grp
import pwd

from carme.helper.program import MIN_UID


def somebody(group: str) -> str:
    """A member of the group who is a person; empty where there is none."""
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        return ""
    for name in entry.gr_mem:
        try:
            if pwd.getpwnam(name).pw_uid >= MIN_UID:
                return name
        except KeyError:
            continue  # a member whom another machine knows
    primary = (user.pw_name for user in pwd.getpwall() if user.pw_gid == entry.gr_gid)
    return next(primary, "")
