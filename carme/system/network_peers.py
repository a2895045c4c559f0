"""The other end of a TCP connection: its address, and on this machine its Unix user."""

import ipaddress
import socket
import struct

# linux/sock_diag.h, linux/inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ANY_STATE = _NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_PORTS = struct.Struct(">HH")
_INTERFACE_AND_COOKIE = struct.Struct("=III")
_STATE_OFFSET = _HEADER.size + 1
_ESTABLISHED = 1
_UID = struct.Struct("=I")
_UID_OFFSET = _HEADER.size + 4 + 48 + 12
_ANSWER_BYTES = 4096
UNKNOWN = "unknown"


def peer_name(connection: socket.socket) -> str:
    """Who is at the other end, as a key for limits: all users of this machine have the address
    127.0.0.1, so there it is the user; elsewhere it is the address, and of IPv6 the network."""
    try:
        host = str(connection.getpeername()[0])
        if ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            uid = loopback_uid(connection)
            return host if uid is None else user_key(uid)
    except (OSError, ValueError, IndexError):
        return UNKNOWN
    return address_key(host)


def user_key(uid: int) -> str:
    """The key of a Unix user of this machine."""
    return f"uid {uid}"


def address_key(host: str) -> str:
    """The key of an address: of IPv6 its network, because one host may have all addresses of it."""
    try:
        address = ipaddress.ip_address(host.strip().partition("%")[0])
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def loopback_uid(connection: socket.socket) -> int | None:
    """The uid that owns the other end of a connection within this machine; None if the other end is
    closed, because the kernel then tells 0, or if the kernel does not answer. Asks for this one
    socket: /proc/net/tcp lists all, also those of past connections."""
    family = connection.family
    try:
        here, there = connection.getsockname(), connection.getpeername()
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE)
        request += _PORTS.pack(there[1], here[1])
        for end in (there, here):
            request += socket.inet_pton(family, end[0]).ljust(16, b"\0")
        request += _INTERFACE_AND_COOKIE.pack(0, _NO_COOKIE, _NO_COOKIE)
        size = _HEADER.size + len(request)
        header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.send(header + request)
            answer = kernel.recv(_ANSWER_BYTES)
        if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
            return None  # an error, such as: there is no such socket
        if answer[_STATE_OFFSET] != _ESTABLISHED:
            return None
        return int(_UID.unpack_from(answer, _UID_OFFSET)[0])
    except (OSError, struct.error):
        return None
