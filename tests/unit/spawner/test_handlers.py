import asyncio
import io
import logging
from types import SimpleNamespace

import batchspawner  # noqa: F401
import pytest
from jupyterhub.apihandlers import default_handlers
from jupyterhub.apihandlers.users import SpawnProgressAPIHandler, UserServerAPIHandler
from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.web import HTTPError

from carme.config import Config
from carme.errors import BusyError, DeniedError, InputError, UnavailableError
from carme.fair_use import FairGate
from carme.requests.slurm_user import SlurmUser
from carme.slurm.models import ExpectedStart
from carme_spawner.handlers import (
    AdviceHandler,
    EndedHandler,
    ExtendHandler,
    OutlookHandler,
    PortReport,
    parse_body,
    replace_handlers,
)
from carme_spawner.messages import SessionFailure
from carme_spawner.request_checker import SpawnRequestChecker


def test_a_port_is_accepted():
    assert parse_body(PortReport, b'{"port": 40001}').port == 40001


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"40001",
        b'{"port": "40001"}',
        b'{"port": true}',
        b'{"port": 1.5}',
        b'{"port": 80}',
        b'{"port": 70000}',
        b'{"port": -1}',
        b'{"port": 40001, "exec_prefix": "id"}',
        b'{"exec_prefix": "id"}',
        b'{"ip": "10.0.0.1", "port": 40001}',
        b'{"port": null}',
        b"\xff\xfe",
    ],
)
def test_other_bodies_are_refused(body):
    with pytest.raises(HTTPError) as caught:
        parse_body(PortReport, body)
    assert caught.value.status_code == 400


def test_a_refused_body_fills_one_short_line_of_the_log():
    with pytest.raises(HTTPError) as caught:
        parse_body(PortReport, b'{"port": 40001, "a\\nb' + b"c" * 10_000 + b'": 1}')
    assert "\n" not in caught.value.log_message
    assert len(caught.value.log_message) <= 500


def test_batchspawners_endpoint_is_not_served():
    served = list(default_handlers)
    assert [entry for entry in served if "batchspawner" in entry[0]], "importing it serves it"
    replace_handlers(served)
    assert not [entry for entry in served if "batchspawner" in entry[0]]
    for replaced in (UserServerAPIHandler, SpawnProgressAPIHandler):
        assert replaced not in [entry[1] for entry in served]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnavailableError("the view is away"), 503),
        (BusyError("you already have 5 extensions in progress"), 429),
        (DeniedError("the site allows no more time"), 400),
        (InputError("too much"), 400),
    ],
)
def test_more_time_is_not_a_wrong_request_while_the_view_is_away(error, status):
    async def extend(seconds):
        raise error

    spawner = SimpleNamespace(ready=True, extend=extend)
    handler = SimpleNamespace(
        current_user=SimpleNamespace(name="ann", spawners={"": spawner}),
        get_auth_token=lambda: None,
        has_scope=lambda scope: True,
        request=SimpleNamespace(body=b'{"server": "", "minutes": 60}'),
    )
    with pytest.raises(HTTPError) as caught:
        asyncio.run(ExtendHandler.post(handler))
    assert caught.value.status_code == status
    assert error.message in caught.value.log_message
    assert hasattr(caught.value, "headers") == (status == 429)


def one_question_at_a_time():
    return FairGate("questions", 1, 1, 0)


@pytest.mark.parametrize(
    ("header", "looked"),
    [
        ("session 5d", ["ann's"]),
        ("session 5", []),
        ("session ", []),
        ("", []),
        ("token 5d", []),
    ],
)
def test_the_end_of_a_job_makes_the_hub_look_at_its_session_only(header, looked):
    looks = []

    def spawner(name, submission):
        return SimpleNamespace(submission=submission, look_now=lambda: looks.append(name))

    users = {
        1: SimpleNamespace(spawners={"": spawner("ann's", "5d"), "x": spawner("ann's second", "")}),
        2: SimpleNamespace(spawners={"": spawner("ben's", "77")}),
        3: SimpleNamespace(spawners={"": object()}),  # of another spawner class
    }
    statuses = []
    handler = SimpleNamespace(
        request=SimpleNamespace(headers={"Authorization": header} if header else {}),
        users=users,
        set_status=statuses.append,
    )
    asyncio.run(EndedHandler.post(handler))
    assert (looks, statuses) == (looked, [204])


def test_an_image_is_not_wrong_while_the_helper_is_away(snapshot, catalogue, monkeypatch):
    async def answer(value):
        return value

    async def away(user, path):
        raise UnavailableError("the helper is away")

    state = SimpleNamespace(
        fresh_snapshot=lambda age: answer(snapshot),
        slurm_user=lambda user, age=None: answer(SlurmUser(user)),
    )
    config = Config.model_validate({"images": {"own_images": True}})
    context = SimpleNamespace(
        config=config,
        helper=SimpleNamespace(check_image=away),
        cluster_state=state,
        questions=one_question_at_a_time(),
    )
    checker = SpawnRequestChecker(context, "ann")
    monkeypatch.setattr(checker, "_catalogue", lambda: answer(catalogue))
    with pytest.raises(SessionFailure) as caught:
        asyncio.run(checker.check({"own_image": "/home/ann/own.sif"}))
    assert caught.value.status_code == 503


def ask(handler, context, **query):
    """What the handler writes, with its status."""

    class Asked(handler):
        current_user = SimpleNamespace(name="ann")
        request = SimpleNamespace(query_arguments=query)
        log = logging.getLogger("test")
        status = 200

        def __init__(self):
            self._context = context

        def has_scope(self, scope):
            return True

        def get_query_argument(self, name):
            return query[name]

        def set_status(self, status):
            self.status = status

        def write(self, body):
            self.body = body

    asked = Asked()
    asyncio.run(asked.get())
    return asked.status, asked.body


def cluster_of(snapshot, expected=None):
    async def answer(value):
        if isinstance(value, Exception):
            raise value
        return value

    state = SimpleNamespace(
        latest_snapshot=lambda: answer(snapshot),
        slurm_user=lambda user: answer(SlurmUser(user)),
        expected_start=lambda request, user: answer(expected),
    )
    return SimpleNamespace(config=Config(), cluster_state=state, questions=one_question_at_a_time())


def test_nothing_starts_now_while_slurm_is_away(snapshot):
    request = {"partition": "gpu", "image": "base"}
    assert ask(OutlookHandler, cluster_of(snapshot), **request)[1]["starts_now"]
    away = snapshot.model_copy(update={"controller": "away"})
    _, outlook = ask(OutlookHandler, cluster_of(away), **request)
    assert not outlook["starts_now"]
    assert outlook["held"] == "Slurm does not answer now."


@pytest.mark.parametrize(
    ("expected", "outlook"),
    [
        (ExpectedStart(starts_at=0, nodes=()), {"starts_now": True}),
        (ExpectedStart(starts_at=2**33, nodes=()), {"expected_at": 2**33}),
        (InputError("no such account"), {"refused": "no such account"}),
        (UnavailableError("asked too often"), {"held": ""}),
        (TimeoutError(), {"again": True}),
    ],
)
def test_the_outlook_has_slurms_estimate(snapshot, expected, outlook):
    full = tuple(node.model_copy(update={"cpus_used": node.cpus}) for node in snapshot.nodes)
    context = cluster_of(snapshot.model_copy(update={"nodes": full}), expected)
    _, answer = ask(OutlookHandler, context, partition="gpu")
    assert answer | {"starts_now": False} | outlook == answer


def test_the_outlook_refuses_unknown_fields(snapshot):
    status, answer = ask(OutlookHandler, cluster_of(snapshot), partition="gpu", gpu="2")
    assert status == 400
    assert "gpu" in answer["errors"][0]["message"]


@pytest.mark.parametrize(
    ("code", "status"), [(422, 400), (404, 400), (429, 429), (401, 502), (403, 502), (503, 503)]
)
def test_the_status_of_a_failed_advice_says_whose_fault_it_is(code, status):
    async def post(user, path, body, seconds):
        request = HTTPRequest("http://127.0.0.1")
        response = HTTPResponse(request, code, buffer=io.BytesIO(b'{"detail": "no", "hint": ""}'))
        raise HTTPClientError(code, response=response)

    service = SimpleNamespace(post=post)
    context = SimpleNamespace(prediction_service=service, questions=one_question_at_a_time())
    with pytest.raises(HTTPError) as caught:
        ask(AdviceHandler, context, partition="gpu")
    assert caught.value.status_code == status


@pytest.mark.parametrize("handler", [OutlookHandler, AdviceHandler])
def test_too_many_questions_of_a_user_are_refused(snapshot, handler):
    context = cluster_of(snapshot)
    context.prediction_service = None  # is not asked
    ticket = context.questions.enter("ann")
    with pytest.raises(HTTPError) as caught:
        ask(handler, context, partition="gpu")
    assert caught.value.status_code == 429
    assert caught.value.headers["Retry-After"] == "5"
    ticket.leave()
    assert ask(OutlookHandler, context, partition="gpu")[0] == 200


def test_too_many_checks_of_a_user_are_refused(snapshot):
    context = cluster_of(snapshot)
    context.helper = None  # is not asked
    context.questions.enter("ann")
    with pytest.raises(SessionFailure, match="1 questions in progress") as caught:
        asyncio.run(SpawnRequestChecker(context, "ann").check({}))
    assert (caught.value.status_code, caught.value.reason) == (429, "busy")
    assert caught.value.headers["Retry-After"] == "5"
