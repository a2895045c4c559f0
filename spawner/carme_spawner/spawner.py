"""The spawner: a session is a Slurm job, submitted as the user and watched through `carme-view`."""

import asyncio
import hashlib
import hmac
import pwd
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import batchspawner
from sqlalchemy.orm import object_session
from traitlets import Any as AnyTrait
from traitlets import Instance, Integer, List, default

from carme.config import Config
from carme.errors import CarmeError, ConfigError
from carme.helper.session_folder import FOLDERS
from carme.requests.resource_request import Problems
from carme.slurm.models import Job
from carme_spawner import form, messages
from carme_spawner.cluster_state import RUNNING_MAX_AGE_SECONDS, STARTING_MAX_AGE_SECONDS
from carme_spawner.context import HubContext
from carme_spawner.idle_policy import IdlePolicy
from carme_spawner.messages import SessionFailure, http_status
from carme_spawner.options import SessionOptions
from carme_spawner.request_checker import SpawnRequestChecker
from carme_spawner.session_files import (
    SessionContainer,
    idle_options,
    job_script,
    session_files,
)
from carme_spawner.session_job import SessionJob

CHECKED_SECONDS = 10
"""A form that was accepted is not checked again if the session spawns within this time."""
EVENT_SECONDS = 0.3
"""Time between two events of a starting session."""
LOOK_SECONDS = 3
"""Time between two looks at a job that were asked for, each of which has Slurm read."""


class CarmeSpawner(batchspawner.BatchSpawnerBase):
    """Sessions in containers on a Slurm cluster."""

    context = Instance(
        HubContext, help="The objects that all spawners share, from `configure`"
    ).tag(config=True)
    # Waiting in the queue has its own limit, and so has starting: see `SessionJob`. The hub's
    # single limit over both is set so high that it never applies.
    start_timeout = Integer(30 * 86400).tag(config=True)
    poll_interval = Integer(10).tag(config=True)
    env_keep: Any = List(help="Empty: sessions do not see the hub's environment").tag(config=True)
    options_from_form = AnyTrait()

    @default("context")
    def _context_default(self) -> HubContext:
        raise ConfigError(
            "CarmeSpawner has no context", "call carme_spawner.configure(c) in jupyterhub_config.py"
        )

    @default("options_from_form")
    def _options_from_form_default(self) -> Any:
        return self._parse_form

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._options: SessionOptions | None = None
        self._refused_values: dict[str, Any] = {}
        self._problems: Problems = {}
        self._checked: tuple[float, dict[str, Any], SessionOptions] | None = None
        self._job = self._new_job()
        self.ended_message = ""
        """Why the last session ended, for its user."""
        self._idle_policy = IdlePolicy(self.carme.session)
        self._session_token = ("", float("-inf"))
        self._prediction: asyncio.Future[Any] | None = None
        self._look: asyncio.Future[None] | None = None
        self._must_look = False
        self._looked_at = float("-inf")

    def _new_job(self) -> SessionJob:
        return SessionJob(self.context, self.user.name, self.session_name)

    @property
    def carme(self) -> Config:
        """The configuration that carme.toml holds."""
        return self.context.config

    # --- options --------------------------------------------------------------------------------

    @property
    def _checker(self) -> SpawnRequestChecker:
        return SpawnRequestChecker(self.context, self.user.name)

    async def _render_form(self) -> str:
        last_options = self.user_options or self.orm_spawner.user_options or {}
        problems, self._problems = self._problems, {}
        refused, self._refused_values = self._refused_values, {}
        return await self._checker.form(last_options, refused, problems, self.ended_message)

    options_form = AnyTrait(_render_form)

    async def _parse_form(self, data: dict[str, list[str]]) -> dict[str, Any]:
        """Raw options of the form; the form shows them again if they are refused.

        They are checked here already: once a session spawns, JupyterHub waits a second for a
        refusal, then shows a page that says "starting" instead of the form.
        """
        self._refused_values = raw = form.parse(data)
        self._checked = None
        self._checked = (time.monotonic(), raw, await self._check(raw))
        return raw

    async def _apply(self, raw: dict[str, Any]) -> None:
        """Check options of the form or of REST; a wrong one is a 400 that names its field."""
        (at, checked, options), self._checked = self._checked or (0.0, {}, None), None
        is_fresh = checked == raw and time.monotonic() - at < CHECKED_SECONDS
        self._options = options if options and is_fresh else await self._check(raw)
        self._refused_values = {}

    apply_user_options = AnyTrait(_apply)

    async def _check(self, raw: dict[str, Any]) -> SessionOptions:
        try:
            return await self._checker.check(raw)
        except SessionFailure as refused:
            self._problems = dict(refused.problems)
            raise

    # --- the job --------------------------------------------------------------------------------

    @property
    def session_name(self) -> str:
        """The folder of this session below ~/.carme/sessions."""
        # The hub takes names of lower-case letters, digits and hyphens only.
        return f"named-{self.name}" if self.name else "default"

    @property
    def job(self) -> Job | None:
        """The job as it was last seen, for the hub's pages."""
        return self._job.last if self._job.saved.job_id else None

    @property
    def warning(self) -> str:
        """The warning that the hub's pages show for this session; empty without one."""
        return self._idle_policy.warning

    async def extend(self, seconds: int) -> int:
        """Extend the session, where the site allows it; returns its new end."""
        return await self._job.extend(seconds)

    def get_env(self) -> dict[str, str]:
        """The environment of the session; with `CARME_HUB_URL`, `carme jobs` works in it."""
        address = {"CARME_HUB_URL": self.carme.hub.url}
        return {**address, **self.carme.session.environment, **super().get_env()}

    def get_args(self) -> list[str]:
        """The options of jupyterhub-singleuser; an idle one ends by itself."""
        return [*super().get_args(), *idle_options(self.carme.session.idle_hours)]

    async def start(self) -> str:
        """Submit the job and wait until its session listens; returns the session's address."""
        if self._options is None:
            await self._apply(self.user_options)
        self.ended_message = ""
        await self.submit_batch_script()
        return await self._until_up()

    async def submit_batch_script(self) -> str:
        """Submit the job; returns its id. Raises SessionFailure if Slurm refuses it."""
        submission = secrets.token_hex(16)
        script, files = await self._script(submission)
        # Folders of other sessions that must not be removed.
        in_use = tuple(other.session_name for other in self.user.spawners.values() if other.active)
        try:
            await self._job.submit(script, files, _hash(self.api_token), submission, in_use)
        except CarmeError as error:
            raise SessionFailure(
                str(error), reason=error.reason, status_code=http_status(error)
            ) from error
        # Saved at once: a hub that ends now must find the job again.
        self._save_state()
        job_id = self._job.saved.job_id
        self.job_id = str(job_id)
        self.log.info("%s: submitted job %s", self._log_name, job_id)
        if self._options:
            self._prediction = asyncio.ensure_future(self._keep_prediction(self._options))
        return self.job_id

    async def _keep_prediction(self, options: SessionOptions) -> None:
        job_id = await self._job.confirmed_id()
        await self.context.prediction_service.keep_prediction(self.user.name, options, job_id)

    async def _until_up(self) -> str:
        url = await self._job.until_up()
        self._save_state()
        return url

    async def _script(self, submission: str) -> tuple[str, dict[str, str]]:
        """The job script, and the files that it finds in its folder."""
        options = self._options
        if options is None:
            raise RuntimeError("a session is submitted only after its options were checked")
        image, size_bytes, self.default_url = await self._checker.image(options)
        project = self._checker.projects.get(options.project)
        self.notebook_dir = str(project or "")
        home = Path(pwd.getpwnam(self.user.name).pw_dir)
        container = SessionContainer(
            session=self.session_name,
            submission=submission,
            image=image,
            size_bytes=size_bytes,
            folder=home.joinpath(*FOLDERS, self.session_name),
            project=project,
        )
        script = partial(job_script, self.carme, options, container)
        task = script("task.sh") if options.nodes > 1 else ""
        files = session_files(
            self.get_env(),
            self.server.base_url,
            self.get_args(),
            self.carme.session.start_seconds,
            self.context.certificates.issue(submission),
            task,
        )
        return script(), files

    async def poll(self) -> int | None:
        """None while the job exists or Slurm cannot be reached; 1 when it is gone."""
        if not self._job.saved.job_id:
            # The hub stops only sessions that poll as alive, and this job must be stopped, too.
            return None if self._job.submitting else 0
        try:
            return await self._poll_job()
        except SessionFailure as error:
            self.log.warning("%s: %s", self._log_name, error.log_message)
            self.ended_message = error.message
            return 1

    @property
    def submission(self) -> str:
        """The random number of the job's submission; empty without one."""
        return self._job.saved.submission

    def look_now(self) -> None:
        """Look whether the job is over, without waiting for the next poll."""
        if not self.ready:
            return
        self._must_look = True  # a look that is under way may have missed what the caller saw
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(self._look_now())

    async def _look_now(self) -> None:
        while self._must_look and self.ready:
            await asyncio.sleep(self._looked_at + LOOK_SECONDS - time.monotonic())
            self._must_look, self._looked_at = False, time.monotonic()
            with suppress(SessionFailure):  # the poll tells of it
                await self._job.read_job(0)  # the poll takes what is known of the last seconds
            await self.poll_and_notify()

    async def _poll_job(self) -> int | None:
        # A starting hub expects a running session to answer soon, and cancels it otherwise. So the
        # poll of a session that still waits, or has not reported its port, returns when it has.
        if self._check_pending and not self._job.up:
            await self._resume()
        job = await self._job.read_job(RUNNING_MAX_AGE_SECONDS)
        if job is None or not (job.state.ended or job.state.ending):
            return 1 if await self._ended_for_idleness(job) else None
        if job.state.ending:
            await asyncio.sleep(
                2 * STARTING_MAX_AGE_SECONDS
            )  # the reason comes with the next state
            job = await self._job.read_job() or job
        self.ended_message = self._idle_policy.end_reason or messages.ended(job)
        self.log.info("%s: job %s: %s", self._log_name, job.id, self.ended_message)
        return 1

    async def _ended_for_idleness(self, job: Job | None) -> bool:
        """Warn or end a session that does not use its GPUs; True if it was ended."""
        if job is None or not self.ready:
            return False
        url = f"{self._job.url}{self.server.base_url}"
        idleness, token = self.context.gpu_idleness, self._own_token
        must_end = await self._idle_policy.check(idleness, job, url, token)
        if must_end:
            self.ended_message = self._idle_policy.end_reason
            self.log.info("%s: job %s: %s", self._log_name, job.id, self.ended_message)
            await self.stop()
        return must_end

    def _own_token(self) -> str:
        """A token with which the hub reads this session's activity; renewed every hour."""
        token, until = self._session_token
        if time.monotonic() > until:
            scope = f"access:servers!server={self.user.name}/{self.name}"
            token = self.user.new_api_token(
                note="Carme looks whether the session is idle", expires_in=3600, scopes=[scope]
            )
            self._session_token = (token, time.monotonic() + 3000)
        return token

    async def _resume(self) -> None:
        """Wait for a session that an earlier hub submitted, as the spawn itself would."""
        self.log.info("%s: job %s goes on waiting", self._log_name, self._job.saved.job_id)
        self._spawn_pending = True
        self._spawn_future = asyncio.ensure_future(self._until_up())
        try:
            await self._spawn_future
        finally:
            self._spawn_pending = False

    async def get_url(self) -> str:
        """The session's address, from the port that it reported."""
        url = self._job.url
        # A restarted hub takes over the address and the port from here, but not the protocol.
        self.server.proto = urlsplit(url).scheme
        return url

    async def stop(self, now: bool = False) -> None:
        """End the session, then its job; no error if it is gone already."""
        try:
            grace = 0 if now else self.carme.session.stop_seconds
            await self._job.end(grace)
        except CarmeError as error:
            self.log.error("%s: job %s: %s", self._log_name, self._job.saved.job_id, error)

    # --- state ----------------------------------------------------------------------------------

    def owns_token(self, token: str) -> bool:
        """Whether `token` is the one that this session was started with."""
        token_hash = self._job.saved.token_hash
        return bool(token_hash) and hmac.compare_digest(_hash(token), token_hash)

    def port_reported(self, port: int) -> None:
        """Record that the session listens on `port` of its node."""
        self._job.report(port)
        self._save_state()

    def _save_state(self) -> None:
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {**super().get_state(), **self._job.state()}
        if self.ended_message:
            state["ended_message"] = self.ended_message
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state({"job_id": str(state.get("job_id") or "")})
        self._job.restore(state)
        self.ended_message = state.get("ended_message", "")

    def clear_state(self) -> None:
        super().clear_state()
        if self._prediction:
            self._prediction.cancel()
        self._job.restore({})
        self._job = self._new_job()
        self._idle_policy = IdlePolicy(self.carme.session)

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Events for the hub's page, without end: the hub stops listening when the session is
        up. An event is repeated until there is a new one; `ProgressHandler` sends it once."""
        while True:
            yield self._job.event
            await asyncio.sleep(EVENT_SECONDS)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
