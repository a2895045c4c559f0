"""The client of Prometheus on answers that are not as they should be."""

import socket
import threading

import pytest

from carme.errors import UnavailableError
from carme.prometheus import PrometheusClient


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 503 Away\r\nContent-Length: 100\r\n\r\n{",
        b"",
    ],
)
def test_a_broken_answer_is_an_outage(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        client = PrometheusClient(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
            client.query("up")
        thread.join(10)
