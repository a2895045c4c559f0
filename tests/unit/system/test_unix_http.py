"""HTTP over a unix socket, against a server that sends whatever bytes a test says."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carme.errors import UnavailableError
from carme.system.unix_http import HttpResponse, request


def _whole_request(connection: socket.socket) -> bytes:
    """Headers and body, which may arrive one after the other."""
    received = connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    missing = int(length[1]) - len(body) if length else 0
    while missing > 0:
        more = connection.recv(65536)
        received += more
        missing = missing - len(more) if more else 0
    return received


class RawServer:
    """Answers every connection with `reply` and notes what it was sent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reply = b""
        self.received = b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                self.received = _whole_request(connection)
                connection.sendall(self.reply)

    def get(self, reply: bytes) -> HttpResponse:
        self.reply = reply
        return request(self.path, "GET", "/", timeout_seconds=5)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawServer]:
    server = RawServer(tmp_path_factory.mktemp("http") / "raw.sock")
    yield server
    server.close()


def test_request(server: RawServer) -> None:
    server.reply = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: "x"\r\n\r\n{}'
    query, headers = {"a": "b c"}, {"If-None-Match": '"e"'}
    response = request(
        server.path, "POST", "/x", query=query, body={"k": 1}, headers=headers, timeout_seconds=5
    )
    assert (response.status, response.json(), response.headers["etag"]) == (200, {}, '"x"')
    assert server.received.startswith(b"POST /x?a=b+c HTTP/1.1\r\n")
    assert b'If-None-Match: "e"\r\n' in server.received
    assert server.received.endswith(b'\r\n\r\n{"k": 1}')
    assert b"Content-Length: 8\r\n" in server.received


def test_what_comes_after_the_body_is_not_part_of_it(server: RawServer) -> None:
    # slurmrestd 22.05 writes a header after the body.
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}Connection: Close\r\n"
    assert server.get(raw).body == b"{}"


def test_chunked_response(server: RawServer) -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert server.get(raw).body == b"abcde"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc",
    ],
)
def test_responses_that_are_cut_short(server: RawServer, raw: bytes) -> None:
    with pytest.raises(UnavailableError):
        server.get(raw).json()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(raw=st.binary(max_size=100))
def test_any_bytes(server: RawServer, raw: bytes) -> None:
    for reply in (raw, b"HTTP/1.1 " + raw, b"HTTP/1.1 200 OK\r\n" + raw):
        with suppress(UnavailableError):
            server.get(reply)


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no\.sock: No such file.*is it running"):
        request(tmp_path / "no.sock", "GET", "/", timeout_seconds=5, hint="is it running?")


def test_a_slow_response_ends_at_the_limit(tmp_path: Path) -> None:
    """The limit is for the whole response, not for each part of it."""
    path, stop = tmp_path / "slow.sock", threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not stop.wait(0.1):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(UnavailableError, match="in time"):
            request(path, "GET", "/", timeout_seconds=0.5)
        stop.set()
        thread.join(10)
