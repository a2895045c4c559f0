"""The hub's endpoints: a session reports its port; the form asks what is free."""

import json
import time
from typing import Any

from jupyterhub.apihandlers import APIHandler
from tornado import web

from carme.config import Config
from carme.errors import CarmeError, InputError
from carme.slurm.models import Choice
from carme_spawner import options, outlook
from carme_spawner.watch import watch_for

MIN_PORT, MAX_PORT = 1024, 65535
_FRESH_SECONDS = 5
"""How old the panel's figures may be; the view refreshes once for all who look."""


class PortHandler(APIHandler):
    """`POST /hub/api/carme/port` with the session's own token and `{"port": N}`."""

    @web.authenticated
    async def post(self) -> None:
        """Take the port of the session whose token this is."""
        spawner = self._spawner()
        spawner.port_reported(parse_port(self.request.body))
        self.set_status(204)

    def _spawner(self) -> Any:
        token = self.get_auth_token()
        spawners = getattr(self.current_user, "spawners", {})
        for spawner in spawners.values() if token else ():
            if getattr(spawner, "owns_token", None) and spawner.owns_token(token):
                return spawner
        raise web.HTTPError(403, "this token does not belong to a session that is starting")


def parse_port(body: bytes) -> int:
    """The port in `{"port": N}`; any other key, type or range is refused."""
    try:
        data = json.loads(body)
    except ValueError:
        raise web.HTTPError(400, "the body is not JSON") from None
    if not isinstance(data, dict) or data.keys() != {"port"}:
        raise web.HTTPError(400, "the body must be an object with the one key port")
    port = data["port"]
    if type(port) is not int or not MIN_PORT <= port <= MAX_PORT:
        raise web.HTTPError(400, f"port must be an integer from {MIN_PORT} to {MAX_PORT}")
    return port


class ClusterHandler(APIHandler):
    """`GET /hub/api/carme/cluster`: what is free, for anybody who is logged in."""

    def initialize(self, config: Config) -> None:
        super().initialize()
        self._config = config

    @web.authenticated
    async def get(self) -> None:
        """The panel's figures; 503 with a reason while nobody knows."""
        try:
            snapshot = await watch_for(self._config).snapshot(_FRESH_SECONDS)
        except CarmeError as error:
            raise web.HTTPError(503, error.message) from None
        self.write(outlook.overview(snapshot, time.time()))


class OutlookHandler(ClusterHandler):
    """`GET /hub/api/carme/outlook?partition=…&gpus=…`: when this choice would start."""

    @web.authenticated
    async def get(self) -> None:
        """Now; or when Slurm expects it, and what smaller choice would start now."""
        raw = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        raw.pop("_xsrf", None)
        choice, found = options.parse({name: value for name, value in raw.items() if value})
        if choice is None:
            raise web.HTTPError(400, options.summary(found))
        watch = watch_for(self._config)
        try:
            snapshot = await watch.snapshot(_FRESH_SECONDS)
        except CarmeError as error:
            raise web.HTTPError(503, error.message) from None
        if impossible := options.limits(choice, snapshot):
            self.write({"starts_now": False, "refused": options.summary(impossible)})
            return
        now = time.time()
        if outlook.starts_now(choice, snapshot, now):
            self.write({"starts_now": True})
            return
        answer: dict[str, Any] = {
            "starts_now": False,
            "smaller": outlook.smaller(choice, snapshot, now),
        }
        try:
            expected = await watch.expected_start(
                Choice(
                    partition=choice.partition,
                    cpus=choice.cpus,
                    memory_bytes=choice.memory_gb * options.GIB,
                    gpus=choice.gpus,
                    gpu_type=choice.gpu_type,
                    limit_seconds=choice.seconds,
                )
            )
            answer["expected_at"] = expected.starts_at
        except InputError as error:
            answer["refused"] = error.message
        except CarmeError as error:
            # Slurm is asked at most six times a minute for everybody: no answer is no failure.
            self.log.debug("No expected start: %s", error)
        self.write(answer)


class ExtendHandler(APIHandler):
    """`POST /hub/api/carme/extend` with `{"server": NAME, "minutes": N}`: more time."""

    @web.authenticated
    async def post(self) -> None:
        """Ask for more time for a running session of one's own."""
        name, minutes = parse_extension(self.request.body)
        spawner = getattr(self.current_user, "spawners", {}).get(name)
        if spawner is None or not spawner.ready:
            raise web.HTTPError(404, "you have no such session running")
        try:
            ends_at = await spawner.extend(60 * minutes)
        except CarmeError as error:
            raise web.HTTPError(400, str(error)) from None
        self.write({"ends_at": ends_at})


class WarningsHandler(APIHandler):
    """`GET /hub/api/carme/warnings`: what the user's sessions should know, by their names."""

    @web.authenticated
    async def get(self) -> None:
        """Only sessions with a warning; the default session's name is empty."""
        spawners = getattr(self.current_user, "spawners", {})
        self.write({name: s.warning for name, s in spawners.items() if s.ready and s.warning})


def parse_extension(body: bytes) -> tuple[str, int]:
    """Name and minutes in the body; from one minute to thirty days."""
    try:
        data = json.loads(body)
    except ValueError:
        raise web.HTTPError(400, "the body is not JSON") from None
    if not isinstance(data, dict) or data.keys() != {"server", "minutes"}:
        raise web.HTTPError(400, "the body must have the keys server and minutes")
    name, minutes = data["server"], data["minutes"]
    if not isinstance(name, str) or type(minutes) is not int or not 1 <= minutes <= 43200:
        raise web.HTTPError(400, "server must be a name, minutes a number from 1 to 43200")
    return name, minutes


def handlers(config: Config) -> list[tuple[Any, ...]]:
    """All of them, for JupyterHub's extra_handlers."""
    return [
        (r"/api/carme/port", PortHandler),
        (r"/api/carme/extend", ExtendHandler),
        (r"/api/carme/warnings", WarningsHandler),
        (r"/api/carme/cluster", ClusterHandler, {"config": config}),
        (r"/api/carme/outlook", OutlookHandler, {"config": config}),
    ]
