"""The real server under clients without a token, and slow ones: they keep nobody out."""

import asyncio
import contextlib
import json
import os
import threading

import pytest
import requests
from tornado.httputil import HTTPHeaders
from tornado.netutil import bind_sockets

from carme.service import context, http_server
from carme.service.http_server import ApplicationServer
from support import strangers
from support.cluster import wait_for
from support.service import API, OWN, Service

ANN = {"Authorization": "token token-ann"}
RESNET = {"workload": "resnet-50", "hardware": {"gpus": "1xV100"}}
BIG = 60_000_000
CONNECTIONS = 50
"""Instead of the 500 of a real service."""


class RunningService:
    """The application behind its real HTTP server, in a thread of its own."""

    def __init__(self, folder, **settings):
        self.service = Service(folder, **settings)
        [listener] = bind_sockets(0, "127.0.0.1")
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{API}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)))
        self._thread.start()
        self._ready.wait()

    async def _serve(self, listener):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        address = ("127.0.0.1", self.port)
        self.server = ApplicationServer(self.service.app, address, CONNECTIONS)
        self.server.add_sockets([listener])
        watching = asyncio.create_task(self.server.watch())
        self._ready.set()
        await self._stop.wait()
        watching.cancel()
        self.server.stop()
        await self.server.close_all_connections()
        self.server.threads.shutdown()

    def ask(self, path="/predictions", session=requests, **more):
        return session.get(self.url + path, headers=ANN, timeout=20, **more)

    def head(self, method, path, *lines):
        """The head of a request."""
        text = "".join(f"{line}\r\n" for line in (f"{method} {API}{path} HTTP/1.1", *lines))
        return f"{text}Host: x\r\n\r\n".encode()

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self.service.close()


@pytest.fixture
def running(tmp_path):
    running = RunningService(tmp_path)
    yield running
    running.close()


@pytest.mark.parametrize("data", [b"", strangers.HALF_A_HEAD])
def test_idle_connections_keep_nobody_out(running, data):
    with requests.Session() as known:
        assert running.ask(session=known).status_code == 200
        with strangers.open_connections(running.port, CONNECTIONS + 10, data):
            assert running.ask().status_code == 200
            assert len(running.server.table) <= CONNECTIONS
            # The connection of a client with a token stays.
            assert running.ask(session=known).status_code == 200
            [pool] = known.get_adapter("http://").poolmanager.pools._container.values()
            assert pool.num_connections == 1


def test_strangers_that_read_no_answer_keep_nobody_out(running):
    """The answer is larger than the buffers of the kernel, and needs neither thread nor memory."""
    head = b"GET /services/carme/static-plotly/plotly.min.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with strangers.open_connections(running.port, 40, head, receive_bytes=4096) as clients:
        assert all(strangers.first_line(client).endswith("200 OK") for client in clients)
        assert running.ask().status_code == 200


@pytest.mark.parametrize("length", [f"Content-Length: {BIG}", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", ["/workloads/onnx", "/predictions", "/nothing"])
@pytest.mark.parametrize("token", [None, "Authorization: token wrong"])
def test_a_stranger_is_refused_before_the_body(running, path, length, token):
    head = running.head("POST", path, length, *([token] if token else []))
    with strangers.open_connections(running.port, 1, head) as [client]:
        line = strangers.first_line(client)
        assert " 401 " in line or " 413 " in line


def test_nothing_of_a_strangers_body_is_kept(running):
    head = running.head("POST", "/workloads/onnx", f"Content-Length: {BIG}")
    with strangers.open_connections(running.port, 1, head) as [client]:
        assert " 401 " in strangers.first_line(client)
        client.settimeout(20)
        assert strangers.drip(client, b"x" * 65536, 0, 20)  # the server closes after some MB


def test_who_waits_for_100_continue_sends_nothing_in_vain(running):
    lines = (f"Content-Length: {BIG}", "Expect: 100-continue")
    with strangers.open_connections(
        running.port, 1, running.head("POST", "/workloads/onnx", *lines)
    ) as [client]:
        data = b""
        client.settimeout(20)
        while part := client.recv(65536):
            data += part
    assert data.startswith(b"HTTP/1.1 401 ")
    assert b"100" not in data.partition(b"\r\n\r\n")[2]
    head = running.head(
        "POST", "/predictions", "Authorization: token token-ann", "Expect: 100-continue",
        "Content-Type: application/json", f"Content-Length: {len(json.dumps(RESNET))}",
    )  # fmt: skip
    with strangers.open_connections(running.port, 1, head) as [client]:
        assert " 100 " in strangers.first_line(client)
        client.sendall(json.dumps(RESNET).encode())
        assert " 200 " in strangers.first_line(client)


def test_the_limit_of_a_body_depends_on_its_address(running):
    large = b"x" * 2_000_000
    answer = requests.post(f"{running.url}/predictions", large, headers=ANN, timeout=20)
    assert answer.status_code == 413
    chunked = requests.post(f"{running.url}/predictions", iter([large]), headers=ANN, timeout=20)
    assert chunked.status_code == 413
    assert chunked.headers["Content-Type"] == "application/problem+json"
    upload = requests.post(f"{running.url}/workloads/onnx", large, headers=ANN, timeout=60)
    assert upload.status_code == 422, upload.text  # read in full: not an ONNX file
    pieces = requests.post(
        f"{running.url}/workloads/onnx", iter([large[:100]] * 3), headers=ANN, timeout=60
    )
    assert pieces.status_code == 422


def test_slow_bodies_take_no_threads_and_end(running, monkeypatch):
    monkeypatch.setattr(http_server, "_BODY_SECONDS", 0.5)
    lines = ("Authorization: token token-ann", "Content-Length: 1000")
    head = running.head("POST", "/predictions", *lines) + b"{"
    with strangers.open_connections(running.port, 15, head) as clients:
        answer = requests.post(f"{running.url}/predictions", json=RESNET, headers=ANN, timeout=20)
        assert answer.status_code == 200
        assert all(strangers.first_line(client, 20) == "" for client in clients)


def test_a_slow_head_ends(running, monkeypatch):
    """Also if a byte comes now and then."""
    monkeypatch.setattr(http_server, "_HEAD_SECONDS", 0.5)
    with strangers.open_connections(running.port, 1, strangers.HALF_A_HEAD) as [client]:
        assert strangers.drip(client, b"x", 0.05, 20)


def test_a_long_head_ends(running):
    head = b"GET / HTTP/1.1\r\n" + b"X-Long: 1234567890\r\n" * 5000
    with strangers.open_connections(running.port, 1, head) as [client]:
        assert strangers.first_line(client) == ""
    assert running.ask().status_code == 200


def test_few_uploads_of_one_user_at_a_time(running):
    lines = ("Authorization: token token-ann", "Content-Length: 2000000")
    head = running.head("POST", "/workloads/onnx", *lines)
    url = f"{running.url}/workloads/onnx"
    with strangers.open_connections(running.port, 2, head):
        uploads = running.service.context.uploads
        wait_for(lambda: uploads._held["ann"] == 2, 20, "both uploads have begun")
        large = b"x" * 2_000_000
        assert requests.post(url, large, headers=ANN, timeout=20).status_code == 429
        ben = {"Authorization": "token token-ben"}
        assert requests.post(url, large, headers=ben, timeout=60).status_code == 422
    wait_for(lambda: not uploads._held, 20, "the slots are free again")
    assert requests.post(url, large, headers=ANN, timeout=60).status_code == 422


def test_answers_of_the_real_server(running):
    """A file, an answer without a body, HEAD, an error, many requests on one connection."""
    base = f"http://127.0.0.1:{running.port}/services/carme"
    with requests.Session() as session:
        session.headers.update(ANN)
        plotly = session.get(f"{base}/static-plotly/plotly.min.js", timeout=20)
        assert len(plotly.content) == int(plotly.headers["Content-Length"]) > 10**6
        again = {"If-None-Match": plotly.headers["ETag"]}
        cached = session.get(f"{base}/static-plotly/plotly.min.js", headers=again, timeout=20)
        assert (cached.status_code, cached.content) == (304, b"")
        head = session.head(f"{base}/static-plotly/plotly.min.js", timeout=20)
        assert (head.status_code, head.content) == (200, b"")
        body = {**RESNET, "keep": True}
        kept = session.post(f"{running.url}/predictions", json=body, timeout=20).json()["id"]
        gone = session.delete(f"{running.url}/predictions/{kept}", timeout=20)
        assert (gone.status_code, gone.content) == (204, b"")
        missing = session.get(f"{running.url}/predictions/{kept}", timeout=20)
        assert missing.status_code == 404
        assert missing.headers["Date"]
        assert "Server" not in missing.headers
        [pool] = session.get_adapter("http://").poolmanager.pools._container.values()
        assert pool.num_connections == 1


def test_events_arrive_while_the_task_runs(running):
    vary = {"gpus": [1, 2, 4, 8], "batch": list(range(64, 314))}
    body = {"workload": "resnet-50", "hardware": {"gpus": "8xV100"}, "vary": vary}
    task = requests.post(f"{running.url}/pareto", json=body, headers=ANN, timeout=60).json()
    events = f"{running.url}/tasks/{task['id']}/events"
    with requests.get(events, headers=ANN, stream=True, timeout=60) as stream:
        assert stream.headers["Transfer-Encoding"] == "chunked"
        assert any(line == b"event: end" for line in stream.iter_lines())
    with requests.get(events, headers=ANN, stream=True, timeout=60):
        pass  # a client that goes away gives its stream back
    wait_for(lambda: not running.service.context.streams._held, 20, "no stream is left")


def test_a_request_with_a_body_counts_once(tmp_path):
    running = RunningService(tmp_path, requests_per_minute=20)
    try:
        statuses = [
            requests.post(f"{running.url}/predictions", json=RESNET, headers=ANN, timeout=20)
            for _ in range(9)
        ]
        assert {answer.status_code for answer in statuses} == {200}
    finally:
        running.close()


def test_a_header_with_an_underscore_is_no_other_header(running):
    head = running.head("GET", "/predictions", "Carme_User: ann", "Authorization: token nobody")
    with strangers.open_connections(running.port, 1, head) as [client]:
        assert " 401 " in strangers.first_line(client)


def test_the_proxy_speaks_for_many(running):
    """Its clients are told apart; nobody else is believed about an address."""
    tracked = running.server.table.add("uid 4711", lambda: None, 10)
    headers = HTTPHeaders({"X-Forwarded-For": "10.9.9.9, 10.0.0.7"})
    assert running.server.peer(tracked, headers) == "uid 4711"
    running.server._proxies.add("uid 4711")
    assert running.server.peer(tracked, headers) == "10.0.0.7"
    network = HTTPHeaders({"X-Forwarded-For": "2001:db8::1:2"})
    assert running.server.peer(tracked, network) == "2001:db8::/64"
    assert running.server.peer(tracked, HTTPHeaders()) == "uid 4711"


@contextlib.contextmanager
def all_places(gate, waiting_user=None, waiting=0):
    """Other peers have all places at a gate for the duration of the context; calls of one user
    wait, too."""
    tickets = []
    with contextlib.suppress(Exception):
        for number in range(1000):
            ticket = gate.enter(f"other {number}")
            tickets.append(ticket)
            if not ticket.passed.done():
                break
    tickets += [gate.enter(waiting_user) for _ in range(waiting)]
    try:
        yield
    finally:
        for ticket in reversed(tickets):
            ticket.leave()


def own_peer():
    """How the server names the user of this process."""
    return f"uid {os.getuid()}"


HEALTHZ = b"GET /services/carme/healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def test_requests_of_clients_that_went_away_leave_nothing(running):
    assert running.ask().status_code == 200
    turns = running.service.context.stranger_turns
    with all_places(turns):
        for _ in range(30):
            with strangers.open_connections(running.port, 1, HEALTHZ):
                wait_for(lambda: turns._queues.get(own_peer()), 20, "the request waits")
        wait_for(lambda: own_peer() not in turns._queues, 20, "no request waits")
        assert running.server.threads._work_queue.empty()
        wait_for(lambda: not running.server.exchanges, 20, "no exchange is left")
        assert running.ask().status_code == 200, "a user with a token is not behind strangers"


def test_a_peer_with_too_many_requests_is_refused_and_others_are_not(running):
    turns = running.service.context.stranger_turns
    running.server._proxies.add(own_peer())

    def ask(client):
        return [f"X-Forwarded-For: 192.0.2.1, {client}"]

    greedy = running.head("GET", "/predictions", *ask("10.0.0.1"))
    other = running.head("GET", "/predictions", *ask("10.0.0.2"))
    body = running.head("POST", "/predictions", *ask("10.0.0.1"), "Content-Length: 2") + b"{}"
    with all_places(turns, "10.0.0.1", context._WAITING_PER_PEER):
        for data in (greedy, body):
            with strangers.open_connections(running.port, 1, data) as [client]:
                answer = b""
                client.settimeout(20)
                while part := client.recv(65536):
                    answer += part
                assert answer.startswith(b"HTTP/1.1 429 "), "and the connection is closed"
                assert b"requests without a checked token in progress" in answer
        with strangers.open_connections(running.port, 1, other):
            wait_for(lambda: "10.0.0.2" in turns._queues, 20, "the other waits for its turn")
    with strangers.open_connections(running.port, 1, greedy) as [client]:
        assert " 401 " in strangers.first_line(client)


def test_a_user_with_too_many_requests_is_refused_and_others_are_not(running):
    ben = {"Authorization": "token token-ben"}
    for headers in (ANN, ben):
        assert requests.get(f"{running.url}/predictions", headers=headers, timeout=20).ok
    turns = running.service.context.user_turns
    tickets = [turns.enter("user ann") for _ in range(24)]
    try:
        refused = running.ask()
        assert refused.status_code == 429
        assert "you already have 24 requests in progress" in refused.json()["detail"]
        assert int(refused.headers["Retry-After"]) > 0
        other = requests.get(f"{running.url}/predictions", headers=ben, timeout=20)
        assert other.status_code == 200, "half of the threads are left"
        # The hub asks for ann.
        hub = {"Authorization": f"token {OWN}", "Carme-User": "ann"}
        by_hub = requests.get(f"{running.url}/predictions", headers=hub, timeout=20)
        assert by_hub.status_code == 429
    finally:
        for ticket in reversed(tickets):
            ticket.leave()
    assert running.ask().status_code == 200


def test_requests_that_wait_make_room(running):
    """Not only those whose client is slow: complete requests of one peer lock nobody out."""
    assert running.ask().status_code == 200
    turns = running.service.context.stranger_turns
    with (
        all_places(turns),
        strangers.open_connections(running.port, CONNECTIONS, HEALTHZ),
    ):
        full = lambda: len(turns._queues.get(own_peer(), ())) == CONNECTIONS  # noqa: E731
        wait_for(full, 20, "all connections wait for their turn")
        assert running.ask().status_code == 200
        wait_for(lambda: not full(), 20, "who made room waits no longer")


def test_a_hub_that_hangs_holds_up_only_tokens_that_were_not_checked(running):
    go, hub = threading.Event(), running.service.context.hub
    assert running.ask().status_code == 200
    check = hub._user_of
    asked = []

    def hang(token):
        asked.append(token)
        assert go.wait(30)
        return check(token)

    hub._user_of = hang
    try:
        with contextlib.ExitStack() as stack:
            for number in range(30):
                head = running.head("GET", "/predictions", f"Authorization: token wrong-{number}")
                stack.enter_context(strangers.open_connections(running.port, 1, head))
            wait_for(lambda: len(asked) == context._THREADS_PER_PEER, 20, "the hub is asked")
            assert running.ask().status_code == 200
            assert len(asked) == context._THREADS_PER_PEER
    finally:
        go.set()


def test_one_user_does_not_fill_the_memory_with_bodies(running):
    assert running.ask().status_code == 200
    ben = {"Authorization": "token token-ben"}
    bodies = running.service.context.bodies
    lines = ("Authorization: token token-ann", "Content-Length: 1000")
    head = running.head("POST", "/predictions", *lines) + b"{"
    most = context._MAX_BODIES_PER_USER
    with strangers.open_connections(running.port, most, head):
        wait_for(lambda: bodies._held["ann"] == most, 20, "all are received")
        answer = requests.post(f"{running.url}/predictions", json=RESNET, headers=ANN, timeout=20)
        assert answer.status_code == 429
        assert "16 request bodies" in answer.json()["detail"]
        answer = requests.post(f"{running.url}/predictions", json=RESNET, headers=ben, timeout=20)
        assert answer.status_code == 200
    wait_for(lambda: not bodies._held, 20, "the places are free again")
    answer = requests.post(f"{running.url}/predictions", json=RESNET, headers=ANN, timeout=20)
    assert answer.status_code == 200


def test_an_upload_has_more_time_only_while_it_goes_on(running, monkeypatch):
    monkeypatch.setattr(http_server, "_BODY_STEP_BYTES", 1000)
    lines = ("Authorization: token token-ann", "Content-Length: 2000000")
    head = running.head("POST", "/workloads/onnx", *lines)

    def deadline():
        [tracked] = running.server._tracked.values()
        return tracked.deadline

    with strangers.open_connections(running.port, 1, head) as [client]:
        uploads = running.service.context.uploads
        wait_for(lambda: uploads._held["ann"], 20, "the upload has begun")
        began = deadline()
        client.sendall(b"x" * 999)
        assert deadline() == began
        client.sendall(b"x")
        wait_for(lambda: deadline() > began, 20, "a step is there")


def test_a_refused_client_is_disconnected(running, monkeypatch):
    """It has sent all of the body, so nothing is lost. No time limit does it."""
    monkeypatch.setattr(http_server, "_HEAD_SECONDS", 1000)
    monkeypatch.setattr(http_server, "_LINGER_SECONDS", 1000)
    body = json.dumps(RESNET).encode()
    lines = ("Authorization: token wrong", f"Content-Length: {len(body)}")
    head = running.head("POST", "/predictions", *lines)
    with strangers.open_connections(running.port, 1, head + body) as [client]:
        client.settimeout(20)
        data = b""
        while part := client.recv(65536):
            data += part
    assert data.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in data


def test_a_large_answer_is_sent_in_parts_and_counts_until_then(running):
    """Each part has its own time limit. The answer is larger than the buffers of the kernel."""
    tasks, gate = running.service.context.tasks, running.service.context.requests
    task = tasks.start("ann", None, [], 1.0, None)
    wait_for(lambda: task.state == "failed", 20, "the task has ended")
    task.state, task.result = "done", b'"%s"' % (b"x" * 20_000_000)
    head = running.head("GET", f"/tasks/{task.id}", "Authorization: token token-ann")

    def tracked():
        [connection] = running.server._tracked.values()
        return connection

    with strangers.open_connections(running.port, 1, head, receive_bytes=4096) as [client]:
        wait_for(lambda: gate._held["ann"] == 1, 20, "the answer is being sent")
        before = tracked().deadline
        client.settimeout(20)
        read = 0
        while read < 10_000_000:
            read += len(client.recv(1_000_000))
        assert tracked().deadline > before
        assert gate._held["ann"] == 1
    wait_for(lambda: not gate._held, 20, "the place is free again")
    whole = running.ask(f"/tasks/{task.id}")
    assert len(whole.content) == int(whole.headers["Content-Length"]) > 20_000_000
