"""The service on PostgreSQL: the same responses, migrations, and no hang during an outage."""

import os
import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from carme.service.store import Store
from support.database import Postgresql, check_upgrade
from support.service import Service

RESNET = {"workload": "resnet-50", "hardware": {"gpus": "8xV100"}}


@pytest.fixture(scope="module")
def server():
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("a PostgreSQL server of one's own needs root on Debian")
    postgresql = Postgresql()
    yield postgresql
    postgresql.close()


@pytest.fixture
def url(server):
    """The URL of an empty database."""
    name = f"t{time.monotonic_ns()}"
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.url.replace("/postgres?", f"/{name}?")


@pytest.fixture
def service(url, tmp_path):
    running = Service(tmp_path, database=url)
    yield running
    running.close()


def test_what_people_keep(service):
    stored = [
        service.ask("POST", "/predictions", body={**RESNET, "keep": True}).json for _ in range(3)
    ]
    page = service.ask("GET", "/predictions?limit=2").json
    next_page = service.ask("GET", f"/predictions?limit=2&cursor={page['next']}").json
    assert {item["id"] for item in page["items"] + next_page["items"]} == {
        item["id"] for item in stored
    }
    address = f"/predictions/{stored[0]['id']}"
    assert service.ask("GET", address).json["prediction"] == stored[0]["prediction"]
    assert service.ask("DELETE", address, who="ben").status_code == 404
    assert service.ask("DELETE", address).status_code == 204
    assert service.ask("GET", address).status_code == 404
    workload = service.ask("GET", "/workloads/resnet-50").json["workload"] | {"name": "mine"}
    assert service.ask("POST", "/workloads", body=workload).status_code == 201
    assert service.ask("GET", "/workloads/mine").json["own"]
    step = {"batch": 256, "gpus": 8, "seconds": 0.2}
    calibration = service.ask("POST", "/calibrations", body={**RESNET, "steps": [step] * 3}).json
    prediction = service.ask("POST", "/predictions", body=RESNET).json["prediction"]
    assert prediction["provenance"]["calibration"] == calibration["id"]
    assert service.ask("GET", "/coverage").json["items"] == []


def test_the_server_goes_and_comes(service, server):
    assert service.ask("GET", "/predictions").status_code == 200
    server.stop()
    begin = time.monotonic()
    response = service.ask("GET", "/predictions")
    assert response.status_code == 503
    assert "database" in response.json["detail"]
    prediction = service.ask("POST", "/predictions", body=RESNET)
    assert time.monotonic() - begin < 10  # it does not wait for a timeout
    assert "database" in prediction.json["prediction"]["notes"][-1]
    server.start()
    assert service.ask("GET", "/predictions").status_code == 200


def test_from_the_first_version_with_data(url):
    check_upgrade(Store(url))
