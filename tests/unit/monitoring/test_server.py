"""Serving: credentials, TLS, forms, and that a scrape never waits for hardware."""

import base64
import gzip
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carme.errors import ConfigError
from carme_monitoring import webconfig
from carme_monitoring.metrics import Samples
from carme_monitoring.pipeline import TABLE
from carme_monitoring.server import MetricsPage, MetricsServer
from carme_monitoring.webconfig import Users, WebConfig

HASH = webconfig.bcrypt.hashpw(b"secret", webconfig.bcrypt.gensalt(4)).decode()


@pytest.fixture
def page() -> MetricsPage:
    page, samples = MetricsPage(TABLE, 1000), Samples()
    samples.add("carme_node_cpus", (), 8)
    page.publish(samples)
    return page


@pytest.fixture
def serve(page: MetricsPage) -> Iterator[Callable[..., str]]:
    servers: list[MetricsServer] = []

    def start(**content: Any) -> str:
        web = WebConfig.model_validate(content) if content else None
        server = MetricsServer("127.0.0.1", 0, page, web)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        scheme = "https" if "tls_server_config" in content else "http"
        return f"{scheme}://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def get(url: str, login: str = "", context: Any = None, **headers: str) -> Any:
    if login:
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib.request.urlopen(
        urllib.request.Request(url, headers=names), timeout=5, context=context
    )


def status(*args: Any, **kwargs: Any) -> int:
    try:
        with get(*args, **kwargs) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_everything_asks_for_credentials(serve: Callable[..., str]) -> None:
    url = serve(basic_auth_users={"prom": HASH})
    for path in ("/metrics", "/", "/-/healthy", "/nothing"):
        assert status(url + path) == 401
        assert status(url + path, "prom:wrong") == 401
        assert status(url + path, "nobody:secret") == 401
    assert status(url + "/metrics", "prom:secret") == 200
    assert status(url + "/-/healthy", "prom:secret") == 200
    assert status(url + "/nothing", "prom:secret") == 404
    assert status(url + "/metrics", Authorization="Basic !!!") == 401
    assert status(url + "/metrics", Authorization="Bearer x") == 401


def test_the_right_password_is_remembered_and_a_wrong_one_costs_the_same() -> None:
    slow = webconfig.bcrypt.hashpw(b"secret", webconfig.bcrypt.gensalt(10)).decode()
    users = Users({"prom": slow})
    assert users.is_right("prom", "secret")
    began = time.perf_counter()
    for _ in range(100):
        assert users.is_right("prom", "secret")
    assert time.perf_counter() - began < 0.02
    assert not users.is_right("prom", "x" * 500)
    assert not users.is_right("prom:secret", "")


def test_forms(serve: Callable[..., str]) -> None:
    url = serve() + "/metrics"
    with get(url) as answer:
        plain = answer.read()
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"carme_node_cpus 8\n" in plain
    with get(url, Accept_Encoding="gzip, deflate") as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        packed = gzip.decompress(answer.read())
        assert packed.rpartition(b" ")[0] == plain.rpartition(b" ")[0]  # the clock went on
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    with get(url, Accept=accept) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.read().endswith(b"# EOF\n")
    request = urllib.request.Request(url, method="HEAD")
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.read() == b""
        assert int(answer.headers["Content-Length"]) == len(plain)


def test_tls(serve: Callable[..., str], tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem",
         "-out", tmp_path / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    file = tmp_path / "web.yml"
    file.write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n")
    loaded = webconfig.load(file)
    url = serve(**loaded.model_dump(exclude_none=True))
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    assert status(url + "/metrics", context=context) == 200
    with pytest.raises(OSError):
        status(url.replace("https", "http") + "/metrics")


def test_a_silent_client_holds_up_nobody(serve: Callable[..., str]) -> None:
    import socket

    url = serve()
    port = int(url.rsplit(":", 1)[1])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
    began = time.monotonic()
    assert status(url + "/metrics") == 200
    assert time.monotonic() - began < 1
    for client in silent:
        client.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("basic_auth_users: {x: plain}", "basic_auth_users.x"),
        ("no_such_key: 1", "no_such_key"),
        ("tls_server_config: {cert_file: a}", "tls_server_config.key_file"),
        ("{", "cannot be read"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "web.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        webconfig.load(path)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="carme-exporter web-config"):
        webconfig.load(tmp_path / "none.yml")


def test_a_made_file_lets_its_user_in(tmp_path: Path) -> None:
    path = tmp_path / "etc/web.yml"
    password = webconfig.write(path, "prom")
    assert oct(path.stat().st_mode)[-3:] == "640"
    assert password not in path.read_text()
    assert Users(webconfig.load(path).basic_auth_users).is_right("prom", password)


@pytest.mark.parametrize("openmetrics", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_the_clock_is_that_of_the_answer(
    page: MetricsPage, openmetrics: bool, compressed: bool
) -> None:
    """The rest is made once a collection; a clock of then would look like one that is behind."""

    def text() -> str:
        body = page.get(openmetrics, compressed)
        return (gzip.decompress(body) if compressed else body).decode()

    def shown(text: str) -> float:
        return float(text.partition("\ncarme_exporter_time_seconds ")[2].split()[0])

    first = text()
    time.sleep(0.02)
    second, now = text(), time.time()
    assert shown(second) - shown(first) > 0.01
    assert abs(now - shown(second)) < 1
    assert second.endswith("# EOF\n") == openmetrics
    assert second.count("# EOF") == openmetrics


def test_a_connection_without_a_thread_gives_its_place_back(
    page: MetricsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with MetricsServer("127.0.0.1", 0, page, None) as server, socket.socket() as connection:
        slots = server._thread_slots._value
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(RuntimeError):
                server.process_request(connection, ("127.0.0.1", 1))
        assert server._thread_slots._value == slots
        assert len(server.table) == len(server._tracked) == 0
