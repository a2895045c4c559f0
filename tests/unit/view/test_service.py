"""The view on a real socket, over a cluster that lives in memory."""

import asyncio
import contextlib
import json
import pwd
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carme.errors import (
    BusyError,
    ConfigError,
    DeniedError,
    InputError,
    MissingError,
    UnavailableError,
)
from carme.fair_use import RateLimiter
from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import Job, Node
from carme.slurm.snapshot import Snapshot
from carme.system import unix_http
from carme.view import server
from carme.view.client import AsyncViewClient, SnapshotSubscription, ViewClient
from carme.view.poller import Poller
from carme.view.server import HttpRequest
from carme.view.service import resource_request
from support.slurm_memory import ALICE, NODE, Cluster, RunningView, config


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[RunningView]:
    with RunningView(Cluster(), config(tmp_path, readers=("hub",))) as serving:
        yield serving


def ask(
    serving: RunningView,
    uid: int,
    path: str,
    method: str = "GET",
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """The answer to a request of another user, whom this process cannot be."""
    raw = json.dumps(body).encode()
    path, _, query = path.partition("?")
    pairs = dict(pair.split("=") for pair in query.split("&") if pair)
    request = HttpRequest(method, path, pairs, headers or {}, raw, uid)
    return serving.call(lambda: serving.view.answer(request))


def test_own_user_sees_everything(serving: RunningView) -> None:
    seen = ViewClient(serving.path).refresh(5)
    assert (seen.complete, [job.id for job in seen.jobs]) == (True, [1, 2])
    assert seen.load["gpu"].running == 2


def test_others_see_only_their_own(serving: RunningView) -> None:
    ViewClient(serving.path).refresh(5)
    seen = Snapshot.model_validate_json(ask(serving, 70001, "/snapshot").body)
    assert (seen.complete, [job.id for job in seen.jobs]) == (False, [1])
    assert seen.nodes == (NODE,)
    assert seen.load["gpu"].running == 2
    assert json.loads(ask(serving, 70001, "/jobs/1").body)["id"] == 1
    for path in ("/jobs/2", "/jobs/3"):
        with pytest.raises(MissingError, match="no job"):
            ask(serving, 70001, path)
    with pytest.raises(DeniedError):
        ask(serving, 70001, "/expected-start?partition=gpu")


def test_unchanged_data_is_not_sent_again(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    first = client.refresh(5)
    second = client.refresh(0)
    assert second.taken_at > first.taken_at
    assert second.jobs is first.jobs, "the same objects: nothing was sent or parsed"
    serving.cluster.queue = (ALICE,)
    assert [job.id for job in client.refresh(0, jobs_only=True).jobs] == [1]


def test_the_next_snapshot_is_waited_for(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    first = client.refresh(5)
    reads = len(serving.cluster.asked)
    started = time.monotonic()
    same = client.snapshot(wait_seconds=0.5)
    assert (same.taken_at, time.monotonic() - started >= 0.5) == (first.taken_at, True)
    assert len(serving.cluster.asked) == reads, "waiting makes nobody read Slurm"

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.snapshot, 20)
        time.sleep(0.2)
        ask(serving, 0, "/refresh", "POST")
        newer = waiting.result(5)
        assert newer.taken_at > first.taken_at
        assert newer.jobs is first.jobs, "only the time was sent"
        waiting = pool.submit(client.snapshot, 20)
        time.sleep(0.2)
        serving.cluster.away = True
        with pytest.raises(UnavailableError):
            ask(serving, 0, "/refresh", "POST")
        assert waiting.result(5).controller == "away", "that Slurm is away is news, too"
    with pytest.raises(InputError, match="wait is not a number"):
        ask(serving, 0, "/snapshot?wait=long")


def test_a_subscription_has_what_the_view_has(serving: RunningView, tmp_path: Path) -> None:
    client = ViewClient(serving.path)
    first = client.refresh(5)
    subscription = SnapshotSubscription(ViewClient(serving.path))
    assert subscription.snapshot().jobs == first.jobs
    serving.cluster.queue = (ALICE,)
    before = serving.view._requests
    assert client.refresh(0).taken_at > first.taken_at
    until(lambda: len(subscription.snapshot().jobs) == 1)
    assert subscription.snapshot().taken_at == client.newest.taken_at
    for _ in range(50):
        subscription.snapshot()
    assert serving.view._requests - before <= 4, "reading a subscription sends no request"


def test_a_subscription_outlives_a_restart_of_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme.view.client._RETRY_SECONDS", 0.1)
    settings = config(tmp_path)
    subscription = SnapshotSubscription(ViewClient(settings.view.socket))
    with pytest.raises(UnavailableError, match="is carme-view running"):
        subscription.snapshot()
    with RunningView(Cluster(), settings) as serving:
        until(lambda: bool(serving.view.poller.snapshot))
        until(lambda: subscription._failure is None)
        first = subscription.snapshot()
    until(lambda: subscription._failure is not None)
    assert subscription.snapshot() is first, "the last one, for it may be a restart"
    with RunningView(Cluster(), settings):
        until(lambda: subscription.snapshot().taken_at > first.taken_at)
    until(lambda: subscription._failure is not None)
    monkeypatch.setattr("carme.view.client.LOST_SECONDS", 0)
    with pytest.raises(UnavailableError, match="is carme-view running"):
        subscription.snapshot()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.02)


def test_many_refreshes_share_one_read(serving: RunningView) -> None:
    ViewClient(serving.path).refresh(5)
    before = serving.cluster.asked.count("jobs")

    async def many() -> float:
        client = AsyncViewClient(serving.path)
        started = time.monotonic()
        for _ in range(3):
            await asyncio.gather(*(client.refresh(0, jobs_only=True) for _ in range(15)))
        return time.monotonic() - started

    seconds = asyncio.run(many())
    assert serving.cluster.asked.count("jobs") - before == 3
    assert seconds >= 1.9, "not more than one a second"
    assert serving.cluster.asked.count("partitions") == 1, "what seldom changes is not read anew"


def test_a_recent_reading_is_good_enough(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    client.refresh(5)
    before = list(serving.cluster.asked)
    client.refresh(60)
    ask(serving, 70001, "/refresh?max_age_seconds=0", "POST")
    assert serving.cluster.asked == before


def test_the_age_is_that_of_the_oldest_part(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    first = client.refresh(5)
    nodes_reads = serving.cluster.asked.count("nodes")
    newer_jobs = client.refresh(0, jobs_only=True)
    assert newer_jobs.taken_at > first.taken_at
    assert newer_jobs.nodes_taken_at == first.taken_at
    assert newer_jobs.age_seconds(first.taken_at + 60) == 60
    assert newer_jobs.jobs_age_seconds(newer_jobs.taken_at + 60) == 60
    assert serving.cluster.asked.count("nodes") == nodes_reads
    newer = client.refresh(0)
    assert newer.nodes is first.nodes, "only the times were sent"
    assert newer.nodes_taken_at == newer.taken_at > newer_jobs.taken_at
    assert serving.cluster.asked.count("nodes") == nodes_reads + 1


def test_the_controller_goes_and_comes_back(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    good = client.refresh(5)
    serving.cluster.away = True
    with pytest.raises(UnavailableError, match="away"):
        client.refresh(0)
    seen = client.snapshot()
    assert (seen.controller, seen.error) == ("away", "the controller is away")
    assert (seen.jobs, seen.taken_at) == (good.jobs, good.taken_at)
    health = json.loads(ask(serving, 0, "/healthz").body)
    assert health["ok"] is False
    serving.cluster.away = False
    back = client.refresh(0, jobs_only=True)
    assert (back.controller, back.error) == ("up", "")
    assert json.loads(ask(serving, 0, "/healthz").body)["ok"] is True


def test_extend(serving: RunningView) -> None:
    reply = ask(serving, 70001, "/extend", "POST", {"job_id": 1, "seconds": 600})
    assert Job.model_validate_json(reply.body).limit_seconds == 4200
    assert serving.cluster.extended == [(1, 4200)]
    for uid, body, kind in (
        (70002, {"job_id": 1, "seconds": 600}, MissingError),
        (0, {"job_id": 1, "seconds": 600}, MissingError),  # root is an operator by itself
        (70001, {"job_id": 9, "seconds": 600}, MissingError),
        (70001, {"job_id": 1, "seconds": 10**6}, DeniedError),
        (70001, {"job_id": "1; x"}, InputError),
        (70001, [], InputError),
    ):
        with pytest.raises(kind):
            ask(serving, uid, "/extend", "POST", body)
    assert len(serving.cluster.extended) == 1


def test_a_body_that_is_nested_too_deeply_is_no_json() -> None:
    for body in (b"[" * 60_000, b'{"a":' * 10_000):
        with pytest.raises(InputError, match="not JSON"):
            HttpRequest("POST", "/extend", {}, {}, body, 1000).json()


def test_expected_start(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    assert client.expected_start(ResourceRequest(partition="gpu", gpus=1)).starts_at == 5
    with pytest.raises(InputError, match="invalid partition"):
        client.expected_start(ResourceRequest(partition="nope"))
    with pytest.raises(InputError):
        ask(serving, 0, "/expected-start?partition=a%20b;c")
    with pytest.raises(InputError, match="memory: "):
        ask(serving, 0, "/expected-start?partition=gpu&memory=3")


def test_the_fields_of_an_expected_start() -> None:
    query = {"partition": "gpu", "memory_gb": "3", "hours": "2", "account": ""}
    request = ResourceRequest(partition="gpu", memory_gb=3, hours=2)
    assert resource_request(query) == request
    earlier = {"partition": "gpu", "memory_bytes": str(2 * 2**30 + 1), "limit_seconds": "7200"}
    assert resource_request(earlier) == request
    for name, value in (("memory_bytes", "inf"), ("limit_seconds", "nan"), ("hours", "long")):
        with pytest.raises(InputError):
            resource_request({"partition": "gpu", name: value})


def test_the_reference_lists_the_fields_of_an_expected_start() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs/reference/view.md").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("| `GET /expected-start")]
    for name in ResourceRequest.model_fields:
        assert f"`{name}`" in line


def test_rights(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    assert client.rights("alice").account_names() == ("lab",)
    assert asyncio.run(AsyncViewClient(serving.path).rights("bob", 0)).default_account == "lab"
    assert serving.cluster.asked.count("rights") == 1
    serving.view._names._answers.update({70001: "alice", 70002: "bob"})
    own = json.loads(ask(serving, 70001, "/rights").body)
    assert own["user"] == "alice"
    with pytest.raises(DeniedError):
        ask(serving, 70002, "/rights?user=alice")
    with pytest.raises(DeniedError):  # a uid without a name
        ask(serving, 70003, "/rights")
    with pytest.raises(InputError):
        ask(serving, 0, "/rights?user=alice&max_age_seconds=soon")


def test_a_reused_uid_gets_its_new_name(
    serving: RunningView, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {70001: "alice"}
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=names[uid]))
    assert json.loads(ask(serving, 70001, "/rights").body)["user"] == "alice"
    names[70001] = "bob"
    assert json.loads(ask(serving, 70001, "/rights").body)["user"] == "alice"
    serving.view._names._answers.expire(time.monotonic() + 301)
    assert json.loads(ask(serving, 70001, "/rights").body)["user"] == "bob"


def test_more_time_ends_with_the_qos(serving: RunningView) -> None:
    short = ALICE.model_copy(update={"account": "lab", "qos": "short"})
    serving.cluster.queue = (short,)
    ask(serving, 0, "/refresh", "POST")
    serving.view._names._answers[70001] = "alice"
    with pytest.raises(DeniedError, match="QoS short allows 1 h"):
        ask(serving, 70001, "/extend", "POST", {"job_id": 1, "seconds": 600})
    assert serving.cluster.extended == []


def test_history(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    now = int(time.time())
    assert [job.id for job in client.history(now - 3600)] == [1, 2]
    assert [job.id for job in client.history(now - 3600)] == [1, 2]
    assert serving.cluster.asked.count("history") == 1
    with pytest.raises(InputError, match="32 days"):
        client.history(now - 86400 * 40)
    with pytest.raises(DeniedError):  # a uid without a name owns nothing
        ask(serving, 70001, f"/history?since={now - 3600}")
    serving.view._names._answers[70001] = "alice"
    seen = json.loads(ask(serving, 70001, f"/history?since={now - 3600}").body)
    assert [job["user"] for job in seen["jobs"]] == ["alice"]
    with pytest.raises(InputError):
        ask(serving, 0, "/history?since=yesterday")


def test_unknown_paths_and_bad_requests(serving: RunningView) -> None:
    with pytest.raises(MissingError):
        ask(serving, 0, "/etc/passwd")
    with pytest.raises(InputError):
        ask(serving, 0, "/extend")
    for raw in (
        b"garbage\r\n\r\n",
        b"POST /extend HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST /extend HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + b" " * 70_000,
        b"POST /extend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + 5 * (b"4000\r\n" + b" " * 0x4000 + b"\r\n"),
        b"GET /snapshot HTTP/1.1\r\nHost: x\r\nLong: " + b"x" * 20_000,
        b"GET /snapshot HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HEAD /none HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"\0" * 40_000,
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(serving.path))
            connection.sendall(raw)
            assert b"400 Bad Request" in connection.recv(1000)
    assert ViewClient(serving.path).counters()["errors"] == 0


def test_the_socket(serving: RunningView, tmp_path: Path) -> None:
    assert stat.S_IMODE(serving.path.stat().st_mode) == 0o666
    with (
        pytest.raises(ConfigError, match="another carme-view"),
        RunningView(Cluster(), serving.settings),
    ):
        pass


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(settings.view.socket))
    with pytest.raises(UnavailableError, match="is carme-view running"):
        ViewClient(settings.view.socket).snapshot()
    with RunningView(Cluster(), settings) as serving:
        assert ViewClient(serving.path).refresh(5).jobs
    assert not settings.view.socket.exists()


def test_silence_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(UnavailableError, match="in time"):
            ViewClient(path, timeout_seconds=0.2).snapshot()
        with pytest.raises(UnavailableError, match="in time"):
            asyncio.run(AsyncViewClient(path, timeout_seconds=0.2).rights("alice"))


def test_a_bug_in_reading_does_not_end_the_poller() -> None:
    class Buggy(Cluster):
        def nodes(self) -> tuple[Node, ...]:
            raise ZeroDivisionError

    async def run() -> None:
        poller = Poller(Buggy(), 600)
        task = asyncio.create_task(poller.run())
        with pytest.raises(UnavailableError, match="ZeroDivisionError"):
            await poller.fresh(0, 5)
        assert not task.done()
        task.cancel()

    asyncio.run(run())


def test_slow_clients_do_not_hold_up_others(serving: RunningView) -> None:
    ViewClient(serving.path).refresh(5)
    slow = [socket.socket(socket.AF_UNIX) for _ in range(64)]
    for connection in slow:
        connection.connect(str(serving.path))
    try:
        with pytest.raises(BusyError, match="64 connections in progress"):
            ViewClient(serving.path).snapshot()
    finally:
        for connection in slow:
            connection.close()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            assert ViewClient(serving.path).snapshot()
            return
        except UnavailableError:
            time.sleep(0.05)
    pytest.fail("the places were not given back")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The users of the cluster in memory have names."""
    names = {0: "root", 70001: "alice", 70002: "bob"}
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=names[uid]))


def test_a_reader_asks_for_a_user(serving: RunningView, named: None) -> None:
    """The limits apply to the named user, if a reader names one, and to no one else."""

    def expected_start(user: str, gpus: int, uid: int = 0) -> None:
        path = f"/expected-start?partition=gpu&gpus={gpus}"
        ask(serving, uid, path, headers={"carme-user": user})

    for gpus in range(4):
        expected_start("alice", gpus)
    with pytest.raises(BusyError, match="asked for you 4 times"):
        expected_start("alice", 5)
    expected_start("bob", 6)
    gate = serving.view._history_cache.gate
    tickets = [gate.enter("alice") for _ in range(9)]
    try:
        for uid, headers in ((0, {"carme-user": "alice"}), (70001, {"carme-user": "bob"})):
            with pytest.raises(BusyError, match="9 questions about past jobs"):
                ask(serving, uid, "/history?since=1&until=2", headers=headers)
        for uid, headers in ((0, {}), (0, {"carme-user": "bob"}), (70002, {"carme-user": "alice"})):
            assert ask(serving, uid, "/history?since=1&until=2", headers=headers).status == 200
    finally:
        for ticket in tickets:
            ticket.leave()
    assert json.loads(ask(serving, 0, "/counters").body)["refusals"] >= 2


def test_requests_of_one_user_are_limited(tmp_path: Path) -> None:
    with RunningView(Cluster(), config(tmp_path, requests_per_minute=10)) as serving:
        ViewClient(serving.path).refresh(5)
        for _ in range(5):
            ask(serving, 70001, "/snapshot")
        with pytest.raises(BusyError, match="more than 10 requests a minute"):
            ask(serving, 70001, "/snapshot")
        ask(serving, 70002, "/snapshot")
        for _ in range(20):
            ask(serving, 0, "/snapshot")


def test_a_refusal_at_the_socket_says_when_to_come_again(serving: RunningView) -> None:
    serving.call(lambda: serving.view.poller.fresh(5, 10))
    tickets = [serving.view._history_cache.gate.enter("root") for _ in range(9)]
    response = unix_http.request(
        serving.path, "GET", "/history", query={"since": 1, "until": 2}, timeout_seconds=10
    )
    assert (response.status, response.headers["Retry-After"]) == (429, "5")
    assert response.json()["error"]["reason"] == "busy"
    for ticket in tickets:
        ticket.leave()


def test_extensions_of_users_take_turns(serving: RunningView, named: None) -> None:
    gate = serving.view._extensions
    tickets = [gate.enter("alice") for _ in range(5)]
    with pytest.raises(BusyError, match="5 extensions in progress"):
        ask(serving, 70001, "/extend", "POST", {"job_id": 1, "seconds": 600})
    with ThreadPoolExecutor(1) as pool:
        body = {"job_id": 2, "seconds": 600}
        bob = pool.submit(ask, serving, 70002, "/extend", "POST", body)
        while "bob" not in gate._queues and not bob.done():
            time.sleep(0.01)
        tickets[0].leave()
        tickets[1].leave()
        assert json.loads(bob.result(10).body)["limit_seconds"] == 4200
        assert "alice" in gate._queues, "others of hers still wait"
    for ticket in tickets:
        ticket.leave()


def test_connections_that_are_only_refused_have_a_limit_too(
    serving: RunningView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a file descriptor until its request is read."""
    monkeypatch.setattr(server, "_REFUSED_REQUEST_SECONDS", 1000)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(129)]
    try:
        for client in clients:
            client.connect(str(serving.path))
            client.settimeout(10)
        with contextlib.suppress(ConnectionError):
            assert clients[-1].recv(1) == b"", "closed without an answer"
        clients[64].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert clients[64].recv(12) == b"HTTP/1.1 429"
    finally:
        for client in clients:
            client.close()


def test_the_rate_of_requests_is_checked_before_a_name_is_looked_up(
    serving: RunningView, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []

    def slow(uid: int) -> None:
        looked_up.append((uid, threading.current_thread().name))
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", slow)
    monkeypatch.setattr(serving.view, "_rates", RateLimiter(10, lambda: 0.0))
    for _ in range(5):
        ask(serving, 70001, "/healthz")
    serving.view._names._empty.clear()
    with pytest.raises(BusyError, match="more than 10 requests a minute"):
        ask(serving, 70001, "/healthz")
    [(uid, thread)] = looked_up
    assert uid == 70001, "and an unknown name is known to be unknown for a while"
    assert thread.startswith("users"), "the poller does not wait for the directory service"


def test_groups_are_looked_up_once(serving: RunningView, named: None, monkeypatch: Any) -> None:
    looked_up = []

    def groups(user: str) -> dict[str, int]:
        looked_up.append(user)
        return {"users": 100}

    monkeypatch.setattr(serving.view._groups, "_look_up", groups)
    ViewClient(serving.path).refresh(5)
    for _ in range(3):
        with pytest.raises(InputError, match="not the number of a job"):
            ask(serving, 70001, "/reports/x")
    assert looked_up == ["alice"]


def test_all_refusals_are_counted(serving: RunningView, named: None) -> None:
    def refused() -> int:
        return int(json.loads(ask(serving, 0, "/counters").body)["refusals"])

    assert refused() == 0
    for gpus in range(5):
        with contextlib.suppress(BusyError):
            path = f"/expected-start?partition=gpu&gpus={gpus}"
            ask(serving, 0, path, headers={"carme-user": "alice"})
    assert refused() == 1, "four a minute"
    serving.view.connections.refused += 1
    assert refused() == 2
