"""The epilog tells the hub of a session's end, and never fails or delays a job by it."""

import socket
import threading
from typing import Any

import pytest

from carme.node import hook

NUMBER = "5d" * 16


@pytest.mark.parametrize(
    ("comment", "number"),
    [
        (f"carme-submission={NUMBER}", NUMBER),
        (f"carme-image=base-1.0.sif,carme-submission={NUMBER}", NUMBER),
        ("", ""),
        ("carme-submission=5d", ""),
        (f"carme-submission={NUMBER}0", ""),
        ("carme-submission=" + "5D" * 16, ""),
        ("carme-submission=x\r\nHost: elsewhere", ""),
    ],
)
def test_the_number_of_a_submission(comment: str, number: str) -> None:
    assert hook.submission(comment) == number


def test_the_hub_hears_of_the_end_of_a_session() -> None:
    requests = []

    def answer() -> None:
        client, _ = server.accept()
        with client:
            requests.append(client.recv(4096))
            client.sendall(b"HTTP/1.0 204 No Content\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        hub = f"127.0.0.1:{server.getsockname()[1]}/base/hub/api"
        hook.tell_hub(hub, {"submission": NUMBER})
        thread.join()
    [request] = requests
    lines = request.split(b"\r\n")
    assert lines[0] == b"POST /base/hub/api/carme/ended HTTP/1.0"
    assert f"Authorization: session {NUMBER}".encode() in lines


@pytest.mark.parametrize("record", [{}, {"submission": ""}])
def test_the_hub_does_not_hear_of_other_jobs(record: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hook.tell_hub(f"127.0.0.1:{server.getsockname()[1]}/hub/api", record)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "hub", ["", "127.0.0.1:1/hub/api", "nonsense", "127.0.0.1:x/hub", "[::1]:1/"]
)
def test_a_hub_that_is_away_is_no_error(hub: str) -> None:
    hook.tell_hub(hub, {"submission": NUMBER})
