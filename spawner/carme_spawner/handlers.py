"""The hub's endpoints: a session reports its port; the form asks what is free."""

import asyncio
import json
import time
from typing import Any

from jupyterhub.apihandlers import APIHandler
from jupyterhub.apihandlers.users import UserServerAPIHandler
from tornado import web

from carme.config import Config
from carme.errors import CarmeError, InputError
from carme.slurm.models import Choice
from carme.slurm.snapshot import Snapshot
from carme_spawner import availability, options, user_limits
from carme_spawner.cluster_state import ClusterState, cluster_state_for
from carme_spawner.failure import SessionFailure
from carme_spawner.session_handler import SessionHandler, spawner_of

MIN_PORT, MAX_PORT = 1024, 65535
_FRESH_SECONDS = 5
"""How old the panel's figures may be; the view refreshes once for all who look."""
_overviews = availability.AvailabilityPanel()


_AT_ONCE_SECONDS = 5
_CLOSED = "All nodes for it are down, drained or reserved before it would end."


class PortHandler(APIHandler):
    """`POST /hub/api/carme/port` with the session's own token and `{"port": N}`."""

    @web.authenticated
    async def post(self) -> None:
        """Take the port of the session whose token this is."""
        spawner_of(self).port_reported(parse_port(self.request.body))
        self.set_status(204)


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
            snapshot = await cluster_state_for(self._config).recent(_FRESH_SECONDS)
        except CarmeError as error:
            raise web.HTTPError(503, error.message) from None
        self.write(_overviews.of(snapshot, time.time()))


class OutlookHandler(ClusterHandler):
    """`GET /hub/api/carme/outlook?partition=…&gpus=…`: when this choice would start."""

    @web.authenticated
    async def get(self) -> None:
        """Now; or when Slurm expects it, and what smaller choice would start now."""
        raw = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        raw.pop("_xsrf", None)
        choice, found = options.parse({name: value for name, value in raw.items() if value})
        if choice is None:
            self.set_status(400)
            self.write(_refusal(400, options.summary(found), found))
            return
        watch = cluster_state_for(self._config)
        try:
            snapshot, person = await asyncio.gather(
                watch.recent(_FRESH_SECONDS), watch.person(self.current_user.name)
            )
        except CarmeError as error:
            raise web.HTTPError(503, error.message) from None
        now, most = time.time(), self._config.session.max_nodes
        if impossible := user_limits.limits(choice, snapshot, person, now, most):
            refused = {"refused": options.summary(impossible), "errors": options.listed(impossible)}
            self.write({"starts_now": False, **refused})
            return
        short = user_limits.shortages(choice, snapshot, person)
        held = user_limits.held(short)
        if not held and availability.starts_now(choice, snapshot, now):
            self.write({"starts_now": True})
            return
        room = user_limits.reduced(choice, short)
        answer: dict[str, Any] = {
            "starts_now": False,
            "held": held,
            "smaller": availability.smaller(room, snapshot, now) if room else None,
        }
        if not held:
            answer |= await self._expected(watch, choice, snapshot, now)
        self.write(answer)

    async def _expected(
        self, watch: ClusterState, choice: options.Options, snapshot: Snapshot, now: float
    ) -> dict[str, Any]:
        """When Slurm, or the reservation, would let it start; nothing if nobody says."""
        plan = availability.reservation(choice, snapshot)
        if plan and (plan.starts_at or 0) > now:
            return {"expected_at": plan.starts_at}
        if availability.closed(choice, snapshot, now):
            return {"held": _CLOSED}
        try:
            starts_at = (await watch.expected_start(asked(choice))).starts_at
        except TimeoutError:
            return {"again": True}  # Slurm still thinks; the form does not wait for it
        except InputError as error:
            return {"refused": error.message}
        except CarmeError as error:
            # Slurm is asked at most six times a minute for everybody: no answer is no failure.
            self.log.debug("No expected start: %s", error)
            return {}
        # Slurm knows more than the snapshot: of a reservation of half a node, for instance.
        at_once = starts_at <= now + _AT_ONCE_SECONDS
        return {"starts_now": True} if at_once else {"expected_at": starts_at}


def asked(choice: options.Options) -> Choice:
    """The choice as the view understands it."""
    return Choice(
        partition=choice.partition,
        nodes=choice.nodes,
        cpus=choice.cpus,
        memory_bytes=choice.memory_gb * options.GIB,
        gpus=choice.gpus,
        gpu_type=choice.gpu_type,
        limit_seconds=choice.seconds,
        account=choice.account,
        qos=choice.qos,
        reservation=choice.reservation,
    )


class ServerHandler(UserServerAPIHandler):
    """JupyterHub's own start and stop of servers, with wrong options as a list of errors."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """JupyterHub's JSON; for a 400 with `errors`, one for each field that is wrong."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        if status_code != 400 or not isinstance(error, web.HTTPError):
            super().write_error(status_code, **kwargs)
            return
        if isinstance(error, SessionFailure):
            message, found = error.message, dict(error.problems)
        else:
            message, found = error.get_message() or error.reason or "Bad Request", {}
        self.set_header("Content-Type", "application/json")
        self.clear_header("Content-Length")
        self.write(_refusal(status_code, message, found or {"": message}))


def _refusal(status: int, message: str, found: options.Problems) -> dict[str, Any]:
    return {"status": status, "message": message, "errors": options.listed(found)}


def with_error_lists(served: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """JupyterHub's handlers, with ours where servers are started."""
    return [
        (path, ServerHandler if handler is UserServerAPIHandler else handler, *rest)
        for path, handler, *rest in served
    ]


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
        (r"/api/carme/session", SessionHandler, {"config": config}),
        (r"/api/carme/warnings", WarningsHandler),
        (r"/api/carme/cluster", ClusterHandler, {"config": config}),
        (r"/api/carme/outlook", OutlookHandler, {"config": config}),
    ]
