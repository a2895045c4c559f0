"""Unix users and groups, by any way that the system knows them."""

import grp
import os
import pwd


def groups_of(user: str) -> dict[str, int]:
    """The user's groups with their numbers; none for an unknown user."""
    try:
        ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return {}
    groups = {}
    for number in ids:
        try:
            groups[grp.getgrgid(number).gr_name] = number
        except KeyError:
            continue  # a group that another machine knows
    return groups
