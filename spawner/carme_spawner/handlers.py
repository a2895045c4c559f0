"""The hub's endpoints: for sessions, for the spawn form, and JupyterHub's own with our errors."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from jupyterhub.apihandlers import APIHandler
from jupyterhub.apihandlers.users import SpawnProgressAPIHandler, UserServerAPIHandler
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado import web
from tornado.httpclient import HTTPClientError

from carme.errors import BusyError, CarmeError, InputError
from carme.requests import placement
from carme.requests.resource_request import (
    ADVICE_SECONDS,
    AdviceRequest,
    Problems,
    ResourceRequest,
)
from carme.slurm.models import ExpectedStart
from carme.validation import explain_first
from carme_spawner.context import HubContext
from carme_spawner.form import STATIC_FOLDERS
from carme_spawner.messages import SessionFailure, http_error
from carme_spawner.options import SessionOptions


class RequestBody(BaseModel):
    """A JSON body; unknown keys and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PortReport(RequestBody):
    """The port on which a session listens."""

    port: Annotated[int, Field(ge=1024, le=65535)]


class TimeExtension(RequestBody):
    """More time for a session, up to thirty days; the default session's name is empty."""

    server: str
    minutes: Annotated[int, Field(ge=1, le=43200)]


Body = TypeVar("Body", bound=RequestBody)


def parse_body(model: type[Body], body: bytes) -> Body:
    """The request in a JSON body; a 400 that names the wrong key if it is none."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        # On one line: it may contain a key of the body, and the hub logs it.
        text = " ".join(explain_first(error, root="body").split())
        raise web.HTTPError(400, text[:500]) from None


def spawner_of(handler: Any) -> Any:
    """The spawner of the session whose own token the request carries; 403 without one."""
    token = handler.get_auth_token()
    spawners = getattr(handler.current_user, "spawners", {})
    for spawner in spawners.values() if token else ():
        if getattr(spawner, "owns_token", None) and spawner.owns_token(token):
            return spawner
    raise web.HTTPError(403, "this token does not belong to a session")


def require_scope(handler: Any, scope: str, server: str | None = None) -> None:
    """403 unless token or cookie have `scope` for this session of the user (None: for all)."""
    user = handler.current_user
    resource = f"user={user.name}" if server is None else f"server={user.name}/{server}"
    if not handler.has_scope(f"{scope}!{resource}"):
        raise web.HTTPError(403, f"this token lacks the scope {scope}!{resource}")


class PortHandler(APIHandler):
    """`POST /hub/api/carme/port` with the session's own token and `{"port": N}`."""

    @web.authenticated
    async def post(self) -> None:
        """Take the port of the session whose token this is."""
        spawner_of(self).port_reported(parse_body(PortReport, self.request.body).port)
        self.set_status(204)


class EndedHandler(APIHandler):
    """`POST /hub/api/carme/ended` from the epilog of a session's job, with its submission number.

    It proves nothing and changes nothing: the hub only looks at Slurm earlier than it would.
    """

    async def post(self) -> None:
        """Look at the session's job now; nobody learns whether there is such a session."""
        submission = self.request.headers.get("Authorization", "").removeprefix("session ")
        for user in self.users.values():
            for spawner in user.spawners.values():
                if submission and getattr(spawner, "submission", "") == submission:
                    spawner.look_now()
        self.set_status(204)


class ExtendHandler(APIHandler):
    """`POST /hub/api/carme/extend` with `{"server": NAME, "minutes": N}`: more time."""

    @web.authenticated
    async def post(self) -> None:
        """Extend a running session of the user."""
        extension = parse_body(TimeExtension, self.request.body)
        spawner = getattr(self.current_user, "spawners", {}).get(extension.server)
        if spawner is None or not spawner.ready:
            raise web.HTTPError(404, "you have no such session running")
        token = self.get_auth_token()
        # A session's own token has no right to start or end sessions, but may extend its own.
        if not token or not spawner.owns_token(token):
            require_scope(self, "servers", extension.server)
        try:
            ends_at = await spawner.extend(60 * extension.minutes)
        except CarmeError as error:
            raise http_error(error) from None
        self.write({"ends_at": ends_at})


class WarningsHandler(APIHandler):
    """`GET /hub/api/carme/warnings`: the warnings of the user's sessions by name."""

    @web.authenticated
    async def get(self) -> None:
        """Only sessions with a warning; the default session's name is empty."""
        require_scope(self, "read:servers")
        spawners = getattr(self.current_user, "spawners", {})
        self.write({name: s.warning for name, s in spawners.items() if s.ready and s.warning})


class ContextHandler(APIHandler):
    """A handler with the hub's context."""

    def initialize(self, context: HubContext) -> None:
        super().initialize()
        self._context = context

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the user's turn to ask the view or the service; a 429 above their limit."""
        try:
            async with self._context.questions.async_turn(self.current_user.name):
                yield
        except BusyError as error:
            raise http_error(error) from None


class SessionHandler(ContextHandler):
    """`GET /hub/api/carme/session`: a session reads its end and warning with its own token."""

    @web.authenticated
    async def get(self) -> None:
        """The job as the hub saw it last, seconds ago; Slurm is not asked."""
        spawner, config = spawner_of(self), self._context.config
        job = spawner.job
        self.write(
            {
                "job_id": job.id if job else None,
                "ends_at": job.ends_at if job else None,
                "warn_seconds": round(60 * config.session.warn_minutes),
                "may_extend": config.view.extend_max_hours > 0,
                "warning": spawner.warning,
            }
        )


class ClusterHandler(ContextHandler):
    """`GET /hub/api/carme/cluster`: what is free, for every user who is logged in."""

    @web.authenticated
    async def get(self) -> None:
        """The panel's figures; 503 with a reason while the view is away."""
        try:
            snapshot = await self._context.cluster_state.latest_snapshot()
        except CarmeError as error:
            raise web.HTTPError(503, error.message) from None
        self.write(self._context.availability.of(snapshot, time.time()))


class OutlookHandler(ContextHandler):
    """`GET /hub/api/carme/outlook?partition=…&gpus=…`: when this request would start."""

    @web.authenticated
    async def get(self) -> None:
        """Now; or when Slurm expects it, and what smaller request would start now."""
        require_scope(self, "servers")
        async with self._turn():
            await self._answer()

    async def _answer(self) -> None:
        request, problems = ResourceRequest.parse(_query(self, ResourceRequest))
        if request is None:
            self.set_status(400)
            text = ResourceRequest.summary(problems)
            self.write({"status": 400, "message": text, "errors": _errors(problems)})
            return
        state = self._context.cluster_state
        try:
            snapshot, user = await asyncio.gather(
                state.latest_snapshot(), state.slurm_user(self.current_user.name)
            )
        except CarmeError as error:
            raise web.HTTPError(503, error.message) from None
        now, max_nodes = time.time(), self._context.config.session.max_nodes
        outlook = placement.outlook(request, snapshot, user, now, max_nodes)
        answer: dict[str, Any] = {}
        if outlook.needs_slurm_estimate:
            try:
                expected = await self._expected_start(request)
                outlook = placement.with_expected_start(outlook, expected, now)
            except TimeoutError:
                answer["again"] = True  # Slurm has not answered yet; the form asks again
        answer["starts_now"] = outlook.starts_now
        if problems := outlook.problems:
            answer |= {"refused": ResourceRequest.summary(problems), "errors": _errors(problems)}
        elif not outlook.starts_now:
            answer |= {"held": outlook.wait_reason, "smaller": outlook.smaller}
            if outlook.starts_at:
                answer["expected_at"] = outlook.starts_at
        self.write(answer)

    async def _expected_start(self, request: ResourceRequest) -> ExpectedStart | InputError | None:
        """Slurm's answer; None without one, TimeoutError if it comes later."""
        try:
            state = self._context.cluster_state
            return await state.expected_start(request, self.current_user.name)
        except InputError as error:
            return error
        except CarmeError as error:
            # Slurm is asked a few times a minute for each user: no answer is no failure.
            self.log.debug("No expected start: %s", error)
            return None


class AdviceHandler(ContextHandler):
    """`GET /hub/api/carme/advice?partition=…&workload=…`: the service's advice on a request."""

    @web.authenticated
    async def get(self) -> None:
        """The advice; 503 within a second while the service is away or slow."""
        user = self.current_user
        if getattr(user, "kind", "user") != "user":
            raise web.HTTPError(403, "advice is for users")
        require_scope(self, "servers")
        service = self._context.prediction_service
        request = _query(self, AdviceRequest)
        try:
            async with self._turn():
                answer = await service.post(user.name, "advice", request, ADVICE_SECONDS)
            self.write(answer)
        except (HTTPClientError, OSError, ValueError) as error:
            response = getattr(error, "response", None)
            status, body = (response.code, response.body) if response else (503, b"")
            if status in (401, 403):
                # The hub's token, not the user's.
                self.log.error("The prediction service refuses the hub's token: %s", error)
                raise web.HTTPError(502, "no advice: the hub may not ask the service") from None
            if status == 429:
                raise http_error(BusyError(_problem_text(body))) from None
            if 400 <= status < 500:
                raise web.HTTPError(400, _problem_text(body)) from None
            raise web.HTTPError(503, "no advice now: the prediction service is away") from None


def _query(handler: APIHandler, model: type[ResourceRequest]) -> dict[str, str]:
    """The query's values without empty ones, and without those that only a session has."""
    others = {"_xsrf", *SessionOptions.model_fields} - model.model_fields.keys()
    names = handler.request.query_arguments.keys() - others
    values = {name: handler.get_query_argument(name) for name in names}
    return {name: value for name, value in values.items() if value}


def _problem_text(body: bytes) -> str:
    """The text in the service's description of a problem."""
    try:
        problem = json.loads(body)
        return f"{problem['detail']} ({problem['hint']})" if problem["hint"] else problem["detail"]
    except (ValueError, KeyError, TypeError):
        return "the prediction service does not accept this request"


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
        errors = _errors(problems or {"": message})
        self.write({"status": status_code, "message": message, "errors": errors})


class ProgressHandler(SpawnProgressAPIHandler):
    """JupyterHub's events of a starting session; it ends soon after its client is gone.

    JupyterHub's own goes on until the session is up, which may wait in the queue for days.
    """

    def initialize(self) -> None:
        super().initialize()
        self._last_event: dict[str, Any] = {}
        self._client_is_gone = False

    def on_connection_close(self) -> None:
        """Have the next event end the handler."""
        super().on_connection_close()
        self._client_is_gone = True

    async def send_event(self, event: dict[str, Any]) -> None:
        """Send an event that is not the last one again."""
        if self._client_is_gone:
            raise web.Finish
        if event != self._last_event:
            self._last_event = event
            await super().send_event(event)


def _errors(problems: Problems) -> list[dict[str, str]]:
    return [{"field": name, "message": text} for name, text in problems.items()]


_REPLACEMENTS = {
    UserServerAPIHandler: ServerHandler,
    SpawnProgressAPIHandler: ProgressHandler,
}


def replace_handlers(handlers: list[tuple[Any, ...]]) -> None:
    """Change JupyterHub's list of handlers: two of them to those of this module, and without
    batchspawner's.

    Importing batchspawner adds an endpoint that sets any attribute that a request names, a command
    prefix among them.
    """
    handlers[:] = [
        (path, _REPLACEMENTS.get(handler, handler), *rest)
        for path, handler, *rest in handlers
        if "batchspawner" not in path
    ]


def handlers(context: HubContext) -> list[tuple[Any, ...]]:
    """The handlers for JupyterHub's extra_handlers."""
    with_context = {
        "session": SessionHandler,
        "cluster": ClusterHandler,
        "outlook": OutlookHandler,
        "advice": AdviceHandler,
    }
    return [
        (r"/api/carme/port", PortHandler),
        (r"/api/carme/ended", EndedHandler),
        (r"/api/carme/extend", ExtendHandler),
        (r"/api/carme/warnings", WarningsHandler),
        *((f"/api/carme/{name}", h, {"context": context}) for name, h in with_context.items()),
        # Scripts and styles: nobody needs to be logged in for these.
        *(
            (rf"/static-{folder}/([a-z_]+\.(?:js|css))", web.StaticFileHandler, {"path": str(root)})
            for folder, root in STATIC_FOLDERS.items()
        ),
    ]
