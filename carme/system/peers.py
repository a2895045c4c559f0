"""Who is at the other end of a unix socket, as the kernel says."""

import socket
import struct

_UCRED = "iII"  # pid_t, uid_t, gid_t


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process that connected, at that moment; -1 if the kernel does not say."""
    size = struct.calcsize(_UCRED)
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError:
        return -1
    return int(struct.unpack(_UCRED, raw)[1])
