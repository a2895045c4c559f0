"""Clients without a password: they neither shut the exporter nor use up the node's processor."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bcrypt
import pytest
import requests

from carme.system.guess_limits import GuessLimiter, TooManyGuessesError
from carme_monitoring import webconfig
from carme_monitoring.metrics import Samples
from carme_monitoring.pipeline import TABLE
from carme_monitoring.server import MetricsPage, MetricsServer
from carme_monitoring.webconfig import Users, WebConfig
from support import strangers

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
LOGIN = ("prom", "secret")


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    page, samples = MetricsPage(TABLE, 1000), Samples()
    samples.add("carme_node_cpus", (), 8)
    page.publish(samples)
    web = WebConfig.model_validate({"basic_auth_users": {"prom": HASH}})
    server = MetricsServer("127.0.0.1", 0, page, web)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def url(server: MetricsServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/metrics"


@pytest.mark.parametrize("data", [b"", strangers.HALF_A_HEAD])
def test_slow_connections_keep_nobody_out(server: MetricsServer, url: str, data: bytes) -> None:
    with requests.Session() as prometheus:
        assert prometheus.get(url, auth=LOGIN, timeout=10).status_code == 200
        with strangers.open_connections(server.server_port, 200, data):
            assert requests.get(url, auth=LOGIN, timeout=10).status_code == 200
            # A connection whose password was right stays, however many others come.
            before = connections_of(prometheus)
            assert prometheus.get(url, auth=LOGIN, timeout=10).status_code == 200
            assert connections_of(prometheus) == before
            assert len(server.table) <= 66


def connections_of(session: requests.Session) -> int:
    [pool] = session.get_adapter("http://").poolmanager.pools._container.values()
    return int(pool.num_connections)


def test_connections_that_ask_without_a_password_keep_nobody_out(
    server: MetricsServer, url: str
) -> None:
    data = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with strangers.open_connections(server.server_port, 200, data):
        assert requests.get(url, auth=LOGIN, timeout=10).status_code == 200


def test_a_slow_head_ends(server: MetricsServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a byte comes now and then."""
    monkeypatch.setattr("carme_monitoring.server._HEAD_SECONDS", 0.5)
    with strangers.open_connections(server.server_port, 1, strangers.HALF_A_HEAD) as [client]:
        assert strangers.drip(client, b"x", 0.05, 20)
    assert requests.get(url, auth=LOGIN, timeout=10).status_code == 200


def test_a_long_head_is_refused(server: MetricsServer) -> None:
    head = b"GET /metrics HTTP/1.1\r\n" + b"X-Long: " + b"x" * 1000 + b"\r\n"
    with strangers.open_connections(server.server_port, 1, head + head[23:] * 20) as [client]:
        assert " 431 " in strangers.first_line(client)


def test_a_body_is_not_the_next_request(server: MetricsServer) -> None:
    body = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with strangers.open_connections(server.server_port, 1, head + body) as [client]:
        data = b""
        while part := client.recv(65536):
            data += part
    assert data.count(b"HTTP/1.1 401") == 1


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The hash of each password that is checked."""
    hashes: list[bytes] = []
    check = bcrypt.checkpw

    def record(password: bytes, hashed: bytes) -> bool:
        hashes.append(hashed)
        return check(password, hashed)

    monkeypatch.setattr("carme_monitoring.webconfig.bcrypt.checkpw", record)
    return hashes


def slow_users(share: float) -> Users:
    slow = bcrypt.hashpw(b"secret", bcrypt.gensalt(9)).decode()
    return Users({"prom": slow}, GuessLimiter(peer_share=share, total_share=share))


def guess(users: Users, count: int, peer: Callable[[int], str]) -> int:
    """How many of `count` different wrong passwords were checked."""
    checked = 0
    for number in range(count):
        try:
            assert not users.is_right("prom", f"wrong-{number}", peer(number))
            checked += 1
        except TooManyGuessesError:
            continue
    return checked


def test_wrong_passwords_have_a_share_of_the_processor(checked: list[bytes]) -> None:
    tried = guess(slow_users(0.001), 300, lambda _: "stranger")
    assert 0 < tried == len(checked) < 300


def test_a_flood_of_wrong_passwords_keeps_no_other_peer_out() -> None:
    users = slow_users(0.001)
    guess(users, 100, lambda number: f"stranger {number % 3}")
    assert users.is_right("prom", "secret", "Prometheus")
    with pytest.raises(TooManyGuessesError):
        users.is_right("prom", "another", "stranger 1")
    # Once it was right, nobody needs to check it.
    assert users.is_right("prom", "secret", "stranger 1")


def test_a_right_password_is_not_forgotten_for_wrong_ones(checked: list[bytes]) -> None:
    users = slow_users(1e-9)
    assert users.is_right("prom", "secret", "Prometheus")
    guess(users, 500, lambda number: f"10.0.{number // 256}.{number % 256}"[:6])
    checked.clear()
    assert all(users.is_right("prom", "secret", "Prometheus") for _ in range(100))
    assert not checked


def test_an_unknown_user_takes_as_long_as_a_known_one(checked: list[bytes]) -> None:
    users = slow_users(1)
    assert not users.is_right("prom", "wrong")
    assert not users.is_right("nobody", "secret")
    assert checked[0] == checked[1]


def test_over_http_too_many_guesses_are_refused_and_the_right_password_is_not(
    server: MetricsServer, url: str
) -> None:
    server.users = slow_users(0.001)
    assert requests.get(url, auth=LOGIN, timeout=10).status_code == 200
    statuses: Any = set()
    with strangers.WrongPasswords(url, "prom") as guesses:
        deadline = time.monotonic() + 30
        while 429 not in guesses.statuses and time.monotonic() < deadline:
            statuses.add(requests.get(url, auth=LOGIN, timeout=10).status_code)
    assert statuses == {200}
    assert set(guesses.statuses) == {401, 429}
    answer = requests.get(url, auth=("prom", "one more"), timeout=10)
    assert int(answer.headers["Retry-After"]) > 0


def test_a_long_password_has_a_quick_hash(tmp_path: Any) -> None:
    path = tmp_path / "web.yml"
    password = webconfig.write(path)
    assert "$04$" in path.read_text()
    assert webconfig.is_current(path, "prometheus", password)
    # A file of an earlier release is written again.
    slow = bcrypt.hashpw(password.encode(), bcrypt.gensalt(10)).decode()
    path.write_text(f"basic_auth_users: {{prometheus: {slow}}}\n")
    assert not webconfig.is_current(path, "prometheus", password)
    webconfig.write(path, password="chosen")
    assert "$10$" in path.read_text()
    assert webconfig.is_current(path, "prometheus", "chosen")
