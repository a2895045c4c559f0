"""Clients without credentials, which keep connections open or send what nobody asked for."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator

import psutil
import requests

HALF_A_HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "


@contextlib.contextmanager
def open_connections(
    port: int, count: int, data: bytes = b"", receive_bytes: int = 0
) -> Iterator[list[socket.socket]]:
    """`count` connections that send `data` and then nothing; they read no answer.

    `receive_bytes` is the size of their receive buffer: with a small one, a longer answer waits in
    the server.
    """
    connections: list[socket.socket] = []
    try:
        for _ in range(count):
            client = socket.socket()
            if receive_bytes:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            client.settimeout(10)
            # A server that accepts no more lets the queue of the kernel fill up: that is a finding
            # for the request that follows, not for this client.
            with contextlib.suppress(OSError):
                client.connect(("127.0.0.1", port))
                client.sendall(data)
            connections.append(client)
        yield connections
    finally:
        for client in connections:
            client.close()


def first_line(client: socket.socket, seconds: float = 10) -> str:
    """The first line of the answer; empty if the server closed the connection."""
    client.settimeout(seconds)
    data = b""
    with contextlib.suppress(ConnectionError):
        while b"\r\n" not in data and (part := client.recv(4096)):
            data += part
    return data.partition(b"\r\n")[0].decode()


def drip(client: socket.socket, data: bytes, pause_seconds: float, seconds: float) -> bool:
    """Send `data` again and again; whether the server ended the connection within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            client.sendall(data)
        except OSError:
            return True
        time.sleep(pause_seconds)
    return False


class WrongPasswords:
    """Threads that ask with a new wrong password each time, until the context ends."""

    def __init__(self, url: str, user: str, threads: int = 6) -> None:
        self.url, self.user = url, user
        self.statuses: dict[int, int] = {}
        """How often each status was the answer."""
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._threads = [
            threading.Thread(target=self._guess, args=(number,)) for number in range(threads)
        ]

    def __enter__(self) -> "WrongPasswords":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guess(self, number: int) -> None:
        with requests.Session() as session:
            for count in itertools.count():
                if self._stop.is_set():
                    return
                login = (self.user, f"{number}-{count}")
                with contextlib.suppress(requests.RequestException):
                    status = session.get(self.url, auth=login, timeout=10).status_code
                    with self._lock:
                        self.statuses[status] = self.statuses.get(status, 0) + 1


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def cpu_share(pid: int, seconds: float) -> float:
    """Processor time of a process over `seconds` from now, as a share of one core."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)
