"""Reports over the view's socket: of one's own jobs, of all for readers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carme.config import PrometheusSettings
from carme.errors import DeniedError, InputError, MissingError, UnavailableError
from carme.system.users import groups_of
from carme.view.client import ViewClient
from carme.view.server import HttpRequest
from support.slurm_memory import Cluster, RunningView, config


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[RunningView]:
    """A view whose Prometheus is away: nothing listens on port 9."""
    away = PrometheusSettings(url="http://127.0.0.1:9", login_file=None)
    settings = config(tmp_path, readers=("hub",)).model_copy(update={"prometheus": away})
    with RunningView(Cluster(), settings) as serving:
        # Alice's uid is nobody's on this machine.
        serving.view._names._answers[70001] = "alice"
        yield serving


def ask(serving: RunningView, uid: int, path: str, **query: str) -> Any:
    request = HttpRequest("GET", path, query, {}, b"", uid)
    return json.loads(serving.call(lambda: serving.view.answer(request)).body)


def test_ones_own_and_nobody_elses(serving: RunningView) -> None:
    ViewClient(serving.path).refresh(5)
    report = ask(serving, 70001, "/reports/1")
    assert (report["id"], report["user"]) == (1, "alice")
    assert "Prometheus does not answer" in report["problem"]
    messages = []
    for number in (2, 99):
        with pytest.raises(MissingError, match=f"no job {number} of the last month") as error:
            ask(serving, 70001, f"/reports/{number}")
        messages.append(str(error.value).replace(str(number), "N"))
    assert messages[0] == messages[1], "a job of somebody else is as one that is not there"
    listed = ask(serving, 70001, "/reports", since="1700000000", until="1700000100")
    assert {job["user"] for job in listed["jobs"]} == {"alice"}


def test_readers_see_all(serving: RunningView) -> None:
    client = ViewClient(serving.path)
    client.refresh(5)
    assert client.report(2).user == "bob"
    listed = client.reports(since=1700000000, until=1700000100, user="")
    assert {job.id for job in listed.jobs} == {1, 2}


def test_bad_questions(serving: RunningView) -> None:
    ViewClient(serving.path).refresh(5)
    with pytest.raises(InputError, match="not the number of a job"):
        ask(serving, 70001, '/reports/1"} or up')
    with pytest.raises(InputError, match="since"):
        ask(serving, 70001, "/reports")
    with pytest.raises(DeniedError):
        ask(serving, 4242424, "/reports/1")
    with pytest.raises(DeniedError):
        ask(serving, 70001, "/idle", jobs="1", seconds="60")
    for query in ({"jobs": "1;2", "seconds": "60"}, {"jobs": "1", "seconds": "0"}, {"jobs": "1"}):
        with pytest.raises(InputError):
            ask(serving, 0, "/idle", **query)
    with pytest.raises(UnavailableError):
        ask(serving, 0, "/idle", jobs="1", seconds="60")


def test_groups() -> None:
    assert groups_of("root")["root"] == 0
    assert groups_of("no-such-user") == {}
