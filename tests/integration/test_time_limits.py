"""Time left, more time, several sessions, and the message after the end."""

import json
import time

import pytest

from support.cluster import wait_for
from support.hub import User

SMALL = {"partition": "cpu", "gpus": 0, "cpus": 1, "memory_gb": 1, "hours": 0.5}


@pytest.fixture
def ann(cluster):
    person = User.fresh(cluster, cluster.users[0])
    yield person
    person.stop()


def ends_at(cluster, name):
    [job] = cluster.jobs(name)
    return cluster.run(["squeue", "-h", "-j", job["id"], "-o", "%l"]).stdout.strip()


def test_more_time_within_the_limits(cluster, ann):
    ann.start(**SMALL)
    assert ends_at(cluster, ann.name) == "30:00"
    body = {"server": "", "minutes": 60}
    response = ann.api("POST", "/carme/extend", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["ends_at"] > time.time() + 3600
    assert ends_at(cluster, ann.name) == "1:30:00"
    page = ann.web.get(f"{ann.url}/hub/home", timeout=20).text
    assert f'data-carme-ends="{response.json()["ends_at"]}"' in page

    refused = ann.api("POST", "/carme/extend", json={"server": "", "minutes": 60 * 24 * 2})
    assert refused.status_code == 400
    assert "allows 1 d in all" in refused.json()["message"]
    assert ends_at(cluster, ann.name) == "1:30:00"


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"server": "", "minutes": 0},
        {"server": "", "minutes": "60"},
        {"server": 1, "minutes": 5},
    ],
)
def test_a_wrong_wish_for_time_is_refused(cluster, body):
    ada = User(cluster, cluster.admin)
    ada.login()
    assert ada.api("POST", "/carme/extend", data=json.dumps(body)).status_code == 400


def test_a_session_that_does_not_run_cannot_be_extended(cluster):
    ada = User(cluster, cluster.admin)
    ada.login()
    response = ada.api("POST", "/carme/extend", json={"server": "", "minutes": 5})
    assert response.status_code == 404


def test_a_second_session(cluster, ann):
    name = "second"
    response = ann.api("POST", f"/users/{ann.name}/servers/{name}", json=SMALL)
    assert response.status_code in (201, 202), response.text

    def ready():
        return ann.api("GET", f"/users/{ann.name}").json()["servers"].get(name, {}).get("ready")

    wait_for(ready, 60, "the second session")
    ann.api("DELETE", f"/users/{ann.name}/servers/{name}")
    wait_for(lambda: not cluster.jobs(ann.name), 40, "its end")


def test_the_home_page_says_that_the_time_limit_was_reached(cluster, ann):
    ann.start(**{**SMALL, "hours": 1 / 60})
    wait_for(lambda: not ann.state(), 150, "the session's end")
    page = ann.web.get(f"{ann.url}/hub/home", timeout=20).text
    assert "The session reached its time limit." in page
