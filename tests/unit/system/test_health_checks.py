"""Health checks over HTTP."""

import socket
import threading

import pytest

from carme.errors import UnavailableError
from carme.system.health_checks import get, http_ok


def answering(head):
    """The address of a server that answers once with `head`, then leaves the connection open."""
    server = socket.create_server(("127.0.0.1", 0))
    connections = []

    def answer():
        connection, _ = server.accept()
        connections.append(connection)
        connection.recv(65536)
        connection.sendall(head)

    threading.Thread(target=answer, daemon=True).start()
    return server, connections, f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_an_error_whose_body_never_comes_is_no_answer():
    server, connections, url = answering(b"HTTP/1.1 500 Oops\r\nContent-Length: 10\r\n\r\n")
    with server, pytest.raises(UnavailableError, match="no answer in time"):
        get(url, seconds=0.2)
    connections[0].close()


def test_another_status_than_200_is_an_error():
    server, connections, url = answering(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n")
    with server, pytest.raises(UnavailableError, match="answers 503"):
        http_ok(url)
    connections[0].close()
