"""Who is at the other end of a unix socket, as the kernel says."""

import socket
import struct


def peer_uid(client: socket.socket) -> int:
    """The user id of the process that connected; -1 when it cannot be told."""
    try:
        raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return -1
    return int(struct.unpack("3i", raw)[1])
