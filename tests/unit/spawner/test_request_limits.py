"""Requests of one user at the hub are limited; those of others and of services go on."""

from types import SimpleNamespace

import pytest
from jupyterhub.handlers import BaseHandler
from tornado.testing import AsyncHTTPTestCase
from tornado.web import Application, HTTPError

from carme.config import HubSettings
from carme_spawner.request_limits import RequestLimits


def handler_of(name, kind="user"):
    return SimpleNamespace(current_user=SimpleNamespace(name=name, kind=kind))


def test_requests_in_progress_of_one_user():
    limits = RequestLimits(HubSettings(requests_at_once=4))
    ann = [handler_of("ann") for _ in range(5)]
    for handler in ann[:4]:
        limits.begin(handler)
    with pytest.raises(HTTPError, match="you already have 4 requests in progress") as caught:
        limits.begin(ann[4])
    assert caught.value.status_code == 429
    assert caught.value.headers == {"Retry-After": "5"}
    limits.begin(handler_of("ben"))
    limits.end(ann[0])
    limits.end(ann[4])  # was refused, and takes nobody's place away
    limits.begin(ann[4])
    with pytest.raises(HTTPError):
        limits.begin(handler_of("ann"))


def test_requests_a_minute_of_one_user():
    limits = RequestLimits(HubSettings(requests_per_minute=60, requests_at_once=1000))
    for _ in range(30):
        limits.begin(handler_of("ann"))
    with pytest.raises(HTTPError, match="more than 60 requests a minute") as caught:
        limits.begin(handler_of("ann"))
    assert caught.value.status_code == 429
    assert caught.value.headers["Retry-After"] == "1"
    limits.begin(handler_of("ben"))
    for _ in range(100):
        limits.begin(handler_of("prometheus", "service"))
        limits.begin(SimpleNamespace(current_user=None))


def test_every_handler_of_the_hub_counts_its_requests(monkeypatch):
    """Through Tornado: a request gives its place back, also if it fails."""
    user = SimpleNamespace(name="ann", kind="user")

    async def prepare(handler):
        handler._jupyterhub_user, handler.expanded_scopes = user, set()

    monkeypatch.setattr(BaseHandler, "prepare", prepare)
    monkeypatch.setattr(BaseHandler, "on_finish", BaseHandler.on_finish)
    monkeypatch.setattr(BaseHandler, "current_user", user)
    limits = RequestLimits(HubSettings(requests_at_once=4))
    limits.guard()
    in_progress = []

    class Page(BaseHandler):
        def set_default_headers(self):
            pass

        def write_error(self, status_code, **kwargs):
            self.write({"status": status_code, **getattr(kwargs["exc_info"][1], "headers", {})})

        def finish(self, *arguments):  # JupyterHub's own rolls its database back
            return super(BaseHandler, self).finish(*arguments)

        def get(self):
            in_progress.append(limits.at_once._held["ann"])
            if self.get_query_argument("fail", ""):
                raise RuntimeError
            self.write("fine")

    class Requests(AsyncHTTPTestCase):
        def get_app(self):
            return Application([("/", Page)])

        def runTest(self):
            for path in ("/", "/?fail=1"):
                self.fetch(path)
            assert in_progress == [1, 1]
            assert not limits.at_once._held
            tickets = [limits.at_once.enter("ann") for _ in range(4)]
            refused = self.fetch("/")
            assert (refused.code, b"Retry-After" in refused.body) == (429, True)
            for ticket in tickets:
                ticket.leave()
            assert self.fetch("/").code == 200

    result = Requests().run()
    assert result.wasSuccessful(), [*result.failures, *result.errors]
