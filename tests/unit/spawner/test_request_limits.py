"""Requests of one user at the hub are limited; those of others and of services go on."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from jupyterhub.apihandlers.users import SpawnProgressAPIHandler
from jupyterhub.handlers import BaseHandler
from tornado.iostream import IOStream
from tornado.testing import AsyncHTTPTestCase
from tornado.web import Application, HTTPError

from carme.config import HubSettings
from carme_spawner.handlers import ProgressHandler
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


class Spawner:
    """A session that waits until `up` is set."""

    _log_name = "ann"
    progress_ready_hook = None

    def __init__(self):
        self._spawn_pending, self.ready = True, False
        self._spawn_future = asyncio.get_running_loop().create_future()

    async def _generate_progress(self):
        while True:
            yield {"progress": 10, "message": "waits"}
            await asyncio.sleep(0.01)

    def up(self):
        self.ready = True
        if not self._spawn_future.done():
            self._spawn_future.set_result(None)


@pytest.mark.parametrize(
    ("progress", "client_stays"),
    [(SpawnProgressAPIHandler, True), (ProgressHandler, True), (ProgressHandler, False)],
)
def test_a_stream_of_events_gives_its_place_back(monkeypatch, progress, client_stays):
    """JupyterHub's handler overrides `on_finish`, and does not see that its client is gone."""
    user = SimpleNamespace(name="ann", kind="user", url="/user/ann/", spawners={})

    async def prepare(handler):
        handler._jupyterhub_user, handler.expanded_scopes = user, set()

    monkeypatch.setattr(BaseHandler, "prepare", prepare)
    monkeypatch.setattr(BaseHandler, "current_user", user)
    limits = RequestLimits(HubSettings(requests_at_once=4))
    limits.guard()

    class Events(progress):
        set_default_headers = check_xsrf_cookie = lambda self: None
        finish = lambda self, *arguments: super(BaseHandler, self).finish(*arguments)  # noqa: E731

        async def get(self):
            await progress.get.__wrapped__(self, "ann")

        def find_user(self, name):
            return user

    async def until(is_true):
        async with asyncio.timeout(10):
            while not is_true():
                await asyncio.sleep(0.01)

    class Requests(AsyncHTTPTestCase):
        def get_app(self):
            return Application([("/", Events)])

        def runTest(self):
            self.io_loop.run_sync(self.listen)

        async def listen(self):
            user.spawners[""] = spawner = Spawner()
            try:
                await self.watch(spawner)
            finally:
                spawner.up()  # ends the handler, if a test fails

        async def watch(self, spawner):
            client = await self.connect()
            await client.read_until(b"waits")
            assert limits.at_once._held["ann"] == 1
            if not client_stays:
                client.close()
                await until(lambda: not limits.at_once._held)
                return
            await asyncio.sleep(0.1)
            spawner.up()
            text = (await client.read_until_close()).decode()
            await until(lambda: not limits.at_once._held)
            events = [json.loads(part) for part in text.split("data: ")[1:] if "{" in part]
            assert events[-1]["ready"]
            if progress is ProgressHandler:
                assert len(events) == 1, "an event is sent once"

        async def connect(self):
            import socket

            stream = IOStream(socket.socket())
            await stream.connect(("127.0.0.1", self.get_http_port()))
            await stream.write(b"GET / HTTP/1.0\r\n\r\n")
            return stream

    result = Requests().run()
    assert result.wasSuccessful(), [*result.failures, *result.errors]
