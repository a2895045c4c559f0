"""Unix users: their groups, and the user at the other end of a socket."""

import grp
import os
import pwd
import socket
import struct


def groups_of(user: str) -> dict[str, int]:
    """The user's groups with their group ids; none for an unknown user."""
    try:
        ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return {}
    groups = {}
    for number in ids:
        try:
            groups[grp.getgrgid(number).gr_name] = number
        except KeyError:
            continue  # a group without a name on this host
    return groups


_UCRED = "iII"  # pid_t, uid_t, gid_t


def peer_uid(connection: socket.socket) -> int:
    """The uid of the process at the time it connected; -1 if the kernel does not tell."""
    size = struct.calcsize(_UCRED)
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError:
        return -1
    return int(struct.unpack(_UCRED, raw)[1])
