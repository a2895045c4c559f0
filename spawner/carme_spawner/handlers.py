"""The hub's endpoints: for the session (port), for the form (cluster, outlook), for more time."""

import asyncio
import json
import time
from typing import Any

from carme.requests.problems import Problems, listed
from jupyterhub.apihandlers import APIHandler
from jupyterhub.apihandlers.users import UserServerAPIHandler
from tornado import web

from carme.errors import CarmeError, InputError
from carme.requests import placement
from carme_spawner import options
from carme_spawner.cluster_state import ClusterState
from carme_spawner.context import HubContext
from carme_spawner.failure import SessionFailure, http_status
from carme_spawner.prediction_service import AdviceHandler
from carme_spawner.session_handler import SessionHandler, spawner_of

MIN_PORT, MAX_PORT = 1024, 65535
_FRESH_SECONDS = 5
"""The age at which the panel's figures are read again, once for all users."""


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
    """`GET /hub/api/carme/cluster`: what is free, for every user who is logged in."""

    def initialize(self, context: HubContext) -> None:
        super().initialize()
        self._context = context

    @web.authenticated
    async def get(self) -> None:
        """The panel's figures; 503 with a reason while the view is away."""
        try:
            snapshot = await self._context.cluster_state.recent(_FRESH_SECONDS)
        except CarmeError as error:
            raise web.HTTPError(503, error.message) from None
        self.write(self._context.availability.of(snapshot, time.time()))


class OutlookHandler(ClusterHandler):
    """`GET /hub/api/carme/outlook?partition=…&gpus=…`: when this request would start."""

    @web.authenticated
    async def get(self) -> None:
        """Now; or when Slurm expects it, and what smaller request would start now."""
        raw = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        raw.pop("_xsrf", None)
        request, problems = options.parse({name: value for name, value in raw.items() if value})
        if request is None:
            self.set_status(400)
            self.write(_refusal(400, options.summary(problems), problems))
            return
        state = self._context.cluster_state
        try:
            snapshot, user = await asyncio.gather(
                state.recent(_FRESH_SECONDS), state.person(self.current_user.name)
            )
        except CarmeError as error:
            raise web.HTTPError(503, error.message) from None
        max_nodes = self._context.config.session.max_nodes
        outlook = placement.outlook(request, snapshot, user, time.time(), max_nodes)
        if outlook.problems:
            text = options.summary(outlook.problems)
            self.write({"starts_now": False, "refused": text, "errors": listed(outlook.problems)})
        elif outlook.starts_now:
            self.write({"starts_now": True})
        else:
            answer = {"starts_now": False, "held": outlook.held, "smaller": outlook.smaller}
            if outlook.starts_at:
                answer["expected_at"] = outlook.starts_at
            elif outlook.is_open:
                answer |= await self._expected(state, request)
            self.write(answer)

    async def _expected(
        self, state: ClusterState, request: options.SessionOptions
    ) -> dict[str, Any]:
        """When Slurm would start it; empty if Slurm does not say."""
        try:
            starts_at = (await state.expected_start(request.resources())).starts_at
        except TimeoutError:
            return {"again": True}  # Slurm has not answered yet; the form asks again
        except InputError as error:
            return {"refused": error.message}
        except CarmeError as error:
            # Slurm is asked at most six times a minute for everybody: no answer is no failure.
            self.log.debug("No expected start: %s", error)
            return {}
        if placement.is_at_once(starts_at, time.time()):
            return {"starts_now": True}
        return {"expected_at": starts_at}


class ServerHandler(UserServerAPIHandler):
    """JupyterHub's own start and stop of sessions, with wrong options as a list of errors."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """JupyterHub's JSON; for a 400 with `errors`, one for each field that is wrong."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        if status_code != 400 or not isinstance(error, web.HTTPError):
            super().write_error(status_code, **kwargs)
            return
        if isinstance(error, SessionFailure):
            message, problems = error.message, dict(error.problems)
        else:
            message, problems = error.get_message() or error.reason or "Bad Request", {}
        self.set_header("Content-Type", "application/json")
        self.clear_header("Content-Length")
        self.write(_refusal(status_code, message, problems or {"": message}))


def _refusal(status: int, message: str, problems: Problems) -> dict[str, Any]:
    return {"status": status, "message": message, "errors": listed(problems)}


def replace_handlers(handlers: list[tuple[Any, ...]]) -> None:
    """Change JupyterHub's list of handlers: ServerHandler for UserServerAPIHandler, and without
    batchspawner's.

    Importing batchspawner adds an endpoint that sets any attribute that a request names, a command
    prefix among them.
    """
    handlers[:] = [
        (path, ServerHandler if handler is UserServerAPIHandler else handler, *rest)
        for path, handler, *rest in handlers
        if "batchspawner" not in path
    ]


class ExtendHandler(APIHandler):
    """`POST /hub/api/carme/extend` with `{"server": NAME, "minutes": N}`: more time."""

    @web.authenticated
    async def post(self) -> None:
        """Extend a running session of the user."""
        name, minutes = parse_extension(self.request.body)
        spawner = getattr(self.current_user, "spawners", {}).get(name)
        if spawner is None or not spawner.ready:
            raise web.HTTPError(404, "you have no such session running")
        try:
            ends_at = await spawner.extend(60 * minutes)
        except CarmeError as error:
            raise web.HTTPError(http_status(error), str(error)) from None
        self.write({"ends_at": ends_at})


class WarningsHandler(APIHandler):
    """`GET /hub/api/carme/warnings`: the warnings of the user's sessions by name."""

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


def handlers(context: HubContext) -> list[tuple[Any, ...]]:
    """The handlers for JupyterHub's extra_handlers."""
    shared = {"context": context}
    return [
        (r"/api/carme/port", PortHandler),
        (r"/api/carme/extend", ExtendHandler),
        (r"/api/carme/session", SessionHandler, {"config": context.config}),
        (r"/api/carme/warnings", WarningsHandler),
        (r"/api/carme/cluster", ClusterHandler, shared),
        (r"/api/carme/outlook", OutlookHandler, shared),
        (r"/api/carme/advice", AdviceHandler, {"service": context.prediction_service}),
    ]
