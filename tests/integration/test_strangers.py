"""People without credentials on the cluster's network: they keep nobody out, and cost little."""

import json
import time

import pytest
import requests

from support import strangers
from support.cluster import wait_for
from support.exporter import Exporter


@pytest.fixture(scope="module")
def exporter(cluster):
    return Exporter(cluster, next(node.name for node in cluster.config.local.nodes if node.gpus))


@pytest.fixture(scope="module")
def service(cluster):
    """The port and the address of the service."""
    config = cluster.config
    address = f"http://127.0.0.1:{config.service.port}{config.hub.base_url}services/carme"
    wait_for(lambda: cluster.is_healthy("service"), 60, "the service answers")
    return config.service.port, address


def is_scraped(cluster, exporter):
    """Whether Prometheus could read the exporter the last time."""
    secrets = json.loads((cluster.dir / "etc/secrets/secrets.json").read_text())
    url = f"http://127.0.0.1:{cluster.config.local.ports.prometheus}/api/v1/targets"
    login = ("carme", secrets["prometheus_password"])
    targets = requests.get(url, auth=login, timeout=10).json()["data"]["activeTargets"]
    return all(t["health"] == "up" for t in targets if t["labels"]["instance"] == exporter.node)


def timed(call):
    began = time.monotonic()
    answer = call()
    return answer, time.monotonic() - began


@pytest.mark.parametrize("data", [b"", strangers.HALF_A_HEAD])
def test_idle_connections_do_not_shut_the_service(service, data):
    port, address = service
    with strangers.open_connections(port, 510, data):
        answer, seconds = timed(lambda: requests.get(f"{address}/healthz", timeout=30))
        print(f"healthz beside 510 connections: {answer.status_code} in {seconds * 1e3:.1f} ms")
        assert answer.status_code == 200


def test_a_body_waits_until_its_sender_is_known(service):
    port, address = service
    path = address.partition(str(port))[2]
    head = f"POST {path}/api/v1/workloads/onnx HTTP/1.1\r\nHost: x\r\n"
    head += "Content-Length: 60000000\r\n\r\n"
    with strangers.open_connections(port, 1, head.encode()) as [client]:
        line, seconds = timed(lambda: strangers.first_line(client))
        print(f"a stranger's body of 60 MB: {line!r} in {seconds * 1e3:.1f} ms, none of it sent")
        assert " 401 " in line


@pytest.mark.parametrize("data", [b"", strangers.HALF_A_HEAD])
def test_slow_connections_do_not_shut_an_exporter(cluster, exporter, data):
    port = int(exporter.url.rpartition(":")[2].partition("/")[0])
    with strangers.open_connections(port, 100, data):
        answer, seconds = timed(exporter.scrape)
        print(f"scrape beside 100 slow connections: {answer.status_code} in {seconds * 1e3:.1f} ms")
        assert answer.status_code == 200
        time.sleep(2 * cluster.config.prometheus.scrape_seconds)
        assert is_scraped(cluster, exporter)


def test_wrong_passwords_cost_little_and_keep_nobody_out(cluster, exporter):
    pid = cluster.pid(exporter.part)
    with strangers.WrongPasswords(exporter.url, "prometheus") as guesses:
        share = strangers.cpu_share(pid, 5)
        answer, seconds = timed(exporter.scrape)
    print(
        f"wrong passwords: {guesses.statuses}, {share:.2f} of a core;"
        f" a scrape takes {seconds * 1e3:.1f} ms"
    )
    assert answer.status_code == 200
    assert is_scraped(cluster, exporter)


def test_wrong_passwords_at_prometheus_keep_nobody_out(cluster):
    secrets = json.loads((cluster.dir / "etc/secrets/secrets.json").read_text())
    url = f"http://127.0.0.1:{cluster.config.local.ports.prometheus}/-/ready"
    login = ("carme", secrets["prometheus_password"])
    pid = cluster.pid("prometheus")
    with strangers.WrongPasswords(url, "carme") as guesses:
        share = strangers.cpu_share(pid, 5)
        answer, seconds = timed(lambda: requests.get(url, auth=login, timeout=10))
    print(
        f"wrong passwords at Prometheus: {guesses.statuses}, {share:.2f} of a core;"
        f" a right one takes {seconds * 1e3:.1f} ms"
    )
    assert answer.status_code == 200
