"""Another user on the node who listens to all that `USER` publishes with ZeroMQ over TCP.

`python3 eavesdropper.py UID` finds the ports on which that Unix user listens, subscribes at each as
a Jupyter client does, prints their number, and collects until its standard input ends. Then it
prints all that it got. Standard library only: any user could run it.
"""

import select
import socket
import sys
import time
from pathlib import Path

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
SUBSCRIBE_ALL = b"\x00\x01\x01"
DRAIN_SECONDS = 1


def listening_ports(uid: int) -> list[int]:
    """Ports of this host on which processes of the user listen."""
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    fields = [row.split() for row in rows]
    return [int(f[1].split(":")[1], 16) for f in fields if f[3] == "0A" and int(f[7]) == uid]


def subscribe(port: int) -> socket.socket:
    """A connection that gets everything which the port publishes."""
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(GREETING)
    # A server of another protocol may answer nothing or close.
    connection.settimeout(1)
    received = b""
    try:
        while len(received) < len(GREETING) and (chunk := connection.recv(64)):
            received += chunk
        connection.sendall(bytes([4, len(READY)]) + READY + SUBSCRIBE_ALL)
    except OSError:
        pass
    connection.settimeout(None)
    return connection


def main(uid: int) -> None:
    """Listen until standard input ends, then print what was published."""
    ports = listening_ports(uid)
    connections = {subscribe(port): port for port in ports}
    print(len(ports), flush=True)
    got: dict[int, bytes] = dict.fromkeys(ports, b"")
    end = float("inf")
    while time.monotonic() < end:
        watched = [*connections, *([sys.stdin] if end == float("inf") else [])]
        for source in select.select(watched, [], [], 0.1)[0]:
            if source is sys.stdin:
                end = time.monotonic() + DRAIN_SECONDS
                continue
            try:
                chunk = source.recv(65536)
            except OSError:
                chunk = b""
            got[connections[source]] += chunk
            if not chunk:
                del connections[source]
    print(b"".join(got.values()).decode("utf-8", "replace"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
