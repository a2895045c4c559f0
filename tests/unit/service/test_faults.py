"""Each part away in turn: a clear answer within two seconds, never a hang."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.service import API, SmallHub

RESNET = {"workload": "resnet-50", "hardware": {"gpus": "1xV100"}}


@pytest.fixture(autouse=True)
def quick():
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < 8  # start and stop of the fixture included


def timed(call):
    begin = time.monotonic()
    answer = call()
    assert time.monotonic() - begin < 2
    return answer


def test_the_hub_away(service):
    assert service.ask("GET", "/cluster").status_code == 200
    service.stop_hub()
    assert timed(lambda: service.ask("GET", "/cluster")).status_code == 200  # kept for a moment
    answer = timed(lambda: service.ask("GET", "/cluster", who="ben"))
    assert answer.status_code == 503
    assert "hub" in answer.json["detail"]


def test_the_hub_frozen(service, monkeypatch):
    """Nobody waits for the others' questions to the hub, either."""
    monkeypatch.setattr(SmallHub, "do_GET", lambda _: time.sleep(4))

    def ask(number):
        headers = {"Authorization": f"token stranger-{number}"}
        return timed(lambda: service.app.test_client().get(f"{API}/cluster", headers=headers))

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert {answer.status_code for answer in answers} == {503}


def test_the_view_away(service):
    service.view.close()
    (service.config.view.socket).unlink()
    for path in ("/cluster", "/jobs", "/jobs/5"):
        answer = timed(lambda path=path: service.ask("GET", path))
        assert answer.status_code == 503
        assert "carme-view" in answer.json["hint"]
    assert service.ask("POST", "/predictions", body=RESNET).status_code == 200
    notes = service.ask("GET", "/hardware").json["notes"]
    assert "not known now" in notes[0]


def test_the_database_away(service, tmp_path):
    service.context.store.engine.dispose()
    for file in tmp_path.glob("service.sqlite*"):
        file.unlink()
    (tmp_path / "service.sqlite").mkdir()
    answer = timed(lambda: service.ask("GET", "/predictions"))
    assert answer.status_code == 503
    assert "database" in answer.json["detail"]
    answer = timed(lambda: service.ask("POST", "/predictions", body=RESNET))
    assert answer.status_code == 200
    assert "database" in answer.json["prediction"]["notes"][-1]
    assert service.client.get("/services/carme/healthz").status_code == 503
