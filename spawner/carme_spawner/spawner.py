"""The spawner: a session is a Slurm job, submitted as the user and watched through `carme-view`."""

import asyncio
import hashlib
import hmac
import pwd
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import batchspawner
from jupyterhub.apihandlers import default_handlers
from sqlalchemy.orm import object_session
from traitlets import Any as AnyTrait
from traitlets import Instance, Integer, default

from carme.config import Config, config_path, load
from carme.errors import CarmeError
from carme.helper.client import HelperClient
from carme.requests.problems import Problems
from carme.slurm.models import Job
from carme_spawner import form, messages
from carme_spawner.cluster_state import cluster_state_for
from carme_spawner.failure import SessionFailure
from carme_spawner.handlers import with_error_lists
from carme_spawner.idle_policy import IdlePolicy, figures_for
from carme_spawner.options import SessionOptions
from carme_spawner.prediction_service import keep_prediction
from carme_spawner.progress import Progress
from carme_spawner.request_checker import SpawnRequestChecker
from carme_spawner.session_files import idle_options, job_scripts, session_files
from carme_spawner.session_job import LOOK_SECONDS, POLL_AGE_SECONDS, SessionEnded, SessionJob

# batchspawner's own endpoint sets whatever attribute a request names, a command prefix among them,
# and importing it is enough to have it served.
default_handlers[:] = with_error_lists(
    [entry for entry in default_handlers if "batchspawner" not in entry[0]]
)

CHECKED_SECONDS = 10
"""A form that was found right is not checked again when it spawns a moment later."""


class CarmeSpawner(batchspawner.BatchSpawnerBase):
    """Sessions in containers on a Slurm cluster."""

    carme = Instance(Config, help="The configuration that carme.toml holds").tag(config=True)
    # Waiting in the queue has its own limit, and so has starting: see `SessionJob`. The hub's
    # single limit over both stays out of the way.
    start_timeout = Integer(30 * 86400).tag(config=True)
    poll_interval = Integer(10).tag(config=True)
    options_form = AnyTrait()
    options_from_form = AnyTrait()
    apply_user_options = AnyTrait()

    @default("carme")
    def _carme_default(self) -> Config:
        return load()

    @default("options_form")
    def _options_form_default(self) -> Any:
        return type(self)._render_form

    @default("options_from_form")
    def _options_from_form_default(self) -> Any:
        return self._parse_form

    @default("apply_user_options")
    def _apply_user_options_default(self) -> Any:
        return type(self)._apply

    @default("env_keep")
    def _env_keep_default(self) -> list[str]:
        return []  # the hub's environment is nobody's business

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._choice: SessionOptions | None = None
        self._values: dict[str, Any] = {}
        self._problems: Problems = {}
        self._checked: tuple[float, dict[str, Any], SessionOptions] | None = None
        self._job = self._new_job()
        self.ended_message = ""
        """What became of the last session, for its user."""
        self._care = IdlePolicy(self.carme.session)
        self._ask_token = ("", float("-inf"))
        self._kept_prediction: asyncio.Future[Any] | None = None
        self._progress = Progress()

    def _new_job(self) -> SessionJob:
        return SessionJob(self.carme, cluster_state_for(self.carme), self._helper)

    @property
    def _helper(self) -> HelperClient:
        return HelperClient(Path(sys.prefix) / "bin/carme-helper", config_path())

    # --- what the user asks for -----------------------------------------------------------------

    @property
    def _desk(self) -> SpawnRequestChecker:
        return SpawnRequestChecker(self.carme, self.user.name, self._helper)

    async def _render_form(self) -> str:
        chosen = self.user_options or self.orm_spawner.user_options or {}
        found, self._problems = self._problems, {}
        kept, self._values = self._values, {}
        return await self._desk.form(chosen, kept, found, self.ended_message)

    async def _parse_form(self, data: dict[str, list[str]]) -> dict[str, Any]:
        """Raw options of the form; kept for showing it again if the cluster refuses them.

        Checked here already: once it spawns, JupyterHub waits a second for a refusal, then shows a
        page that says "starting" instead of the form.
        """
        self._values = raw = form.parse(data)
        self._checked = None
        self._checked = (time.monotonic(), raw, await self._check(raw))
        return raw

    async def _apply(self, raw: dict[str, Any]) -> None:
        """Take options, wherever they come from; a wrong one is a 400 that names its field."""
        (at, checked, choice), self._checked = self._checked or (0.0, {}, None), None
        fresh = choice is not None and checked == raw and time.monotonic() - at < CHECKED_SECONDS
        self._choice = choice if fresh else await self._check(raw)
        self._values = {}

    async def _check(self, raw: dict[str, Any]) -> SessionOptions:
        try:
            return await self._desk.check(raw)
        except SessionFailure as refused:
            self._problems = refused.problems
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
        return self._job.last if self._job.kept.job_id else None

    @property
    def warning(self) -> str:
        """What the user of this session should know now, for the hub's pages; else empty."""
        return self._care.warning

    async def extend(self, seconds: int) -> int:
        """More time, where the site allows it; when the session now ends."""
        return await self._job.extend(self.user.name, seconds)

    def get_args(self) -> list[str]:
        """The server's options; an idle one ends by itself."""
        return [*super().get_args(), *idle_options(self.carme.session.idle_hours)]

    async def start(self) -> str:
        """Submit the job and wait until its server listens; the server's address."""
        if self._choice is None:
            await self._apply(self.user_options)
        self.ended_message = ""
        script, written = await self._script()
        known = _hash(self.api_token)
        try:
            await self._job.submit(
                self.user.name, self.session_name, script, written, known, self._in_use
            )
        except CarmeError as error:
            raise SessionFailure(str(error), reason=error.reason) from error
        # Saved at once: a hub that ends now must find the job again.
        self._save_state()
        self.log.info("%s: submitted job %s", self._log_name, self._job.kept.job_id)
        if self._choice:
            self._kept_prediction = asyncio.ensure_future(
                keep_prediction(self.carme, self.user.name, self._choice, self._job.kept.job_id)
            )
        return await self._until_up()

    async def _until_up(self) -> str:
        try:
            url = await self._job.until_up(self._progress.say)
        except SessionEnded as over:
            log = await self._job.tail(self.user.name, self.session_name)
            raise SessionFailure(
                over.message, reason=over.reason, log=log, status_code=500
            ) from None
        self._save_state()
        await self._progress.say(90, "The server is up")
        return url

    @property
    def _in_use(self) -> tuple[str, ...]:
        """Folders that are in use: only those of sessions that are over may be removed."""
        return tuple(
            spawner.session_name for spawner in self.user.spawners.values() if spawner.active
        )

    async def _script(self) -> tuple[str, dict[str, str]]:
        """The job script, and the files that it finds in its folder."""
        choice = self._choice
        if choice is None:
            raise RuntimeError("a session is submitted only after its options were checked")
        image, size_bytes, self.default_url = await self._desk.image(choice)
        project = self._desk.projects.get(choice.project)
        self.notebook_dir = str(project or "")
        script, task = job_scripts(
            self.carme,
            choice,
            session=self.session_name,
            home=Path(pwd.getpwnam(self.user.name).pw_dir),
            image=image,
            size_bytes=size_bytes,
            project=project,
        )
        environment = {**self.carme.session.environment, **self.get_env()}
        return script, session_files(environment, self.server.base_url, self.get_args(), task)

    async def poll(self) -> int | None:
        """None while the job is there or nobody knows; 1 when it is gone."""
        if not self._job.kept.job_id:
            # The hub ends only what it takes for alive, and a submission must not be left alone.
            return None if self._job.submitting else 0
        # At its own start the hub takes "running" for "answers soon", and cancels what does not. So
        # a session that still waits, or has not said its port, gets its answer when it has.
        if self._check_pending and not self._job.up:
            try:
                await self._resume()
            except SessionFailure as error:
                self.log.warning("%s: %s", self._log_name, error.log_message)
                self.ended_message = error.message
                return 1
        job = await self._job.look(POLL_AGE_SECONDS)
        if job is None or not (job.state.ended or job.state.ending):
            return 1 if await self._ended_for_idleness(job) else None
        if job.state.ending:
            await asyncio.sleep(2 * LOOK_SECONDS)  # the reason comes with the next state
            job = await self._job.look() or job
        self.ended_message = self._care.over or messages.ended(job)
        self.log.info("%s: job %s: %s", self._log_name, job.id, self.ended_message)
        return 1

    async def _ended_for_idleness(self, job: Job | None) -> bool:
        """Warn, or end, a session that does nothing with its GPUs, where the site wants that."""
        if job is None or not self.ready:
            return False
        url = f"{self._job.url}{self.server.base_url}"
        over = await self._care.look(figures_for(self.carme), job, url, self._own_token)
        if over:
            self.ended_message = self._care.over
            self.log.info("%s: job %s: %s", self._log_name, job.id, self.ended_message)
            await self.stop()
        return over

    def _own_token(self) -> str:
        """A token that opens this one session, for the hub itself; kept for an hour."""
        known, until = self._ask_token
        if time.monotonic() > until:
            scope = f"access:servers!server={self.user.name}/{self.name}"
            known = self.user.new_api_token(
                note="Carme looks whether the session is idle", expires_in=3600, scopes=[scope]
            )
            self._ask_token = (known, time.monotonic() + 3000)
        return known

    async def _resume(self) -> None:
        """Go on waiting for a session that an earlier hub submitted, as its own spawn would."""
        self.log.info("%s: job %s goes on waiting", self._log_name, self._job.kept.job_id)
        self._spawn_pending = True
        self._spawn_future = asyncio.ensure_future(self._until_up())
        try:
            await self._spawn_future
        finally:
            self._spawn_pending = False

    async def get_url(self) -> str:
        """Where the hub finds the server, from what the session reported."""
        return self._job.url

    async def stop(self, now: bool = False) -> None:
        """End the job, its server first; fine if it is gone already."""
        try:
            grace = 0 if now else self.carme.session.stop_seconds
            await self._job.end(self.user.name, grace)
        except CarmeError as error:
            self.log.error("%s: job %s: %s", self._log_name, self._job.kept.job_id, error)

    # --- what the session reports, and what is kept ---------------------------------------------

    def owns_token(self, token: str) -> bool:
        """Whether `token` is the one that this session was started with."""
        known = self._job.kept.token_hash
        return bool(known) and hmac.compare_digest(_hash(token), known)

    def port_reported(self, port: int) -> None:
        """The session's server listens on `port` of its node."""
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
        super().load_state({})
        self._job.restore(state)
        self.ended_message = state.get("ended_message", "")

    def clear_state(self) -> None:
        super().clear_state()
        self._job.restore({})
        self._job = self._new_job()
        self._care = IdlePolicy(self.carme.session)

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """A line whenever something changed."""
        async for line in self._progress.lines():
            yield line


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
