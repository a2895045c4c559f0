"""The spawner: a session is a Slurm job, submitted as the user and watched through `carme-view`."""

import asyncio
import hashlib
import hmac
import json
import pwd
import sys
import time
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import batchspawner
from jupyterhub.apihandlers import default_handlers
from jupyterhub.spawner import SpawnException
from sqlalchemy.orm import object_session
from traitlets import Any as AnyTrait
from traitlets import Instance, Integer, default

from carme.config import Config, config_path, load
from carme.errors import CarmeError
from carme.images import Catalogue, load_catalogue
from carme.slurm.helper_client import HelperClient
from carme.slurm.helper_models import LOG_FILE
from carme.slurm.models import Job, Snapshot
from carme.units import format_duration
from carme_spawner import form, options, words
from carme_spawner.script import job_script
from carme_spawner.watch import watch_for

# batchspawner's own endpoint sets whatever attribute a request names, a command prefix among them,
# and importing it is enough to have it served.
default_handlers[:] = [entry for entry in default_handlers if "batchspawner" not in entry[0]]

_LOOK_SECONDS = 1.0
_POLL_AGE_SECONDS = 30
"""Sessions that run are looked at in what `carme-view` has anyway."""
_UNSEEN_SECONDS = 15
"""A job that Slurm took but does not list yet is not gone."""


class CarmeSpawner(batchspawner.BatchSpawnerBase):
    """Sessions in containers on a Slurm cluster."""

    carme = Instance(Config, help="The configuration that carme.toml holds").tag(config=True)
    # Waiting in the queue has its own limit, and so has starting: see `_until_up`. The hub's single
    # limit over both stays out of the way.
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
        self._choice: options.Options | None = None
        self._values: dict[str, Any] = {}
        self._problems: options.Problems = {}
        self._token_hash = ""
        self._address = ""
        self._reported = asyncio.Event()
        self._submitted_at = 0.0
        self._changed = asyncio.Condition()
        self._said = {"progress": 5, "message": "Asking Slurm"}

    # --- what the user asks for -----------------------------------------------------------------

    async def _catalogue(self) -> Catalogue:
        return await asyncio.to_thread(load_catalogue, self.carme.images.folder)

    async def _snapshot(self, max_age: float = 5) -> Snapshot | None:
        try:
            return await watch_for(self.carme).snapshot(max_age)
        except CarmeError as error:
            self.log.warning("No view of Slurm: %s", error)
            return None

    async def _render_form(self) -> str:
        snapshot, catalogue = await self._snapshot(), await self._catalogue()
        values = options.defaults(self.carme.session, snapshot, catalogue)
        last = {k: v for k, v in (self.user_options or {}).items() if k in values}
        found, self._problems = self._problems, {}
        kept, self._values = self._values, {}
        return form.render(snapshot, catalogue, {**values, **last, **kept}, found)

    def _parse_form(self, data: dict[str, list[str]]) -> dict[str, Any]:
        """Raw options of the form; kept for showing it again if the cluster refuses them."""
        self._values = form.parse(data)
        return self._values

    async def _apply(self, raw: dict[str, Any]) -> None:
        """Check options, wherever they come from; a wrong one is a 400 that names its field."""
        snapshot, catalogue = await self._snapshot(), await self._catalogue()
        if snapshot is None:
            raise SpawnException(
                "Slurm cannot be reached at the moment. Try again in a minute.",
                reason="unavailable",
                status_code=503,
            )
        base = options.defaults(self.carme.session, snapshot, catalogue)
        choice, found = options.parse({**base, **raw})
        if choice:
            found = options.problems(choice, snapshot, catalogue)
        if found:
            self._problems = found
            raise SpawnException(options.summary(found), reason="input")
        self._choice, self._values = choice, {}

    # --- submitting -----------------------------------------------------------------------------

    @property
    def _helper(self) -> HelperClient:
        return HelperClient(Path(sys.prefix) / "bin/carme-helper", config_path())

    @property
    def session_name(self) -> str:
        """The folder of this session below ~/.carme/sessions."""
        return self.name or "default"

    async def start(self) -> str:
        """Submit the job and wait until its server listens; the server's address."""
        if self._choice is None:
            await self._apply(self.user_options)
        self._forget()
        self._token_hash = _hash(self.api_token)
        script, secret = await self._job()
        try:
            submitted = await self._helper.submit(
                self.user.name,
                self.session_name,
                script,
                {
                    LOG_FILE: "",  # an earlier session's log must not be taken for this one's
                    "session.json": secret,
                    "launcher.py": files("carme_spawner").joinpath("launcher.py").read_text(),
                },
            )
        except CarmeError as error:
            raise SpawnException(str(error), reason=error.reason) from error
        self.job_id, self._submitted_at = str(submitted.job_id), time.time()
        # Saved at once: a hub that ends now must find the job again.
        self._save_state()
        self.log.info("%s: submitted job %s", self._log_name, self.job_id)
        return await self._until_up()

    async def _job(self) -> tuple[str, str]:
        """The job script, and what only the user may read."""
        choice = self._choice
        if choice is None:
            raise RuntimeError("a session is submitted only after its options were checked")
        catalogue = await self._catalogue()
        folder = Path(pwd.getpwnam(self.user.name).pw_dir) / ".carme/sessions" / self.session_name
        script = job_script(
            session=self.session_name,
            partition=choice.partition,
            cpus=choice.cpus,
            memory_mb=choice.memory_gb * 1024,
            seconds=choice.seconds,
            gpus=choice.gpus,
            gpu_type=choice.gpu_type,
            image=catalogue.path(catalogue.find(choice.image)),
            apptainer=self.carme.images.apptainer or Path("apptainer"),
            gpu_flag=f"--{self.carme.session.gpu_flag}" if self.carme.session.gpu_flag else "",
            binds=self.carme.session.binds,
            folder=folder,
        )
        environment = {**self.carme.session.environment, **self.get_env()}
        secret = {
            "environment": environment,
            "hub_api_url": environment["JUPYTERHUB_API_URL"],
            "base_url": self.server.base_url,
            "command": ["jupyterhub-singleuser", *self.get_args()],
        }
        return script, json.dumps(secret)

    # --- watching -------------------------------------------------------------------------------

    async def _until_up(self) -> str:
        """Wait in the queue, then for the server; its reason and log if it dies before that."""
        settings = self.carme.session
        running_since: float | None = None
        while not self._reported.is_set() or not self._address:
            job = await self._look()
            now = time.time()
            if job is not None and (job.state.ended or job.state.ending):
                raise await self._failure(words.ended(job.state))
            if job is not None and job.state.waiting:
                running_since = None
                if now - self._submitted_at > settings.wait_hours * 3600:
                    limit = format_duration(settings.wait_hours * 3600)
                    raise SpawnException(f"The session waited for {limit} in vain.", reason="wait")
            elif job is not None:
                running_since = running_since or now
                if now - running_since > settings.start_seconds:
                    limit = format_duration(settings.start_seconds)
                    raise await self._failure(f"The server did not start within {limit}.")
            await self._tell(job)
            try:
                await asyncio.wait_for(self._reported.wait(), _LOOK_SECONDS)
            except TimeoutError:
                continue
            if not self._address:
                await self._look()
        self.ip = self._address
        await self._say(90, "The server is up")
        return f"http://{self._address}:{self.port}"

    async def _look(self, max_age: float = _LOOK_SECONDS) -> Job | None:
        """The job as Slurm sees it now; None while that is not known."""
        snapshot = await self._snapshot(max_age)
        if snapshot is None or snapshot.controller == "away":
            return None
        job = snapshot.job(int(self.job_id))
        if job is None:
            return await self._ended_job(snapshot)
        if job.state.active and job.nodes:
            node = next((n for n in snapshot.nodes if n.name == job.nodes[0]), None)
            self._address = (node.address if node else "") or job.nodes[0]
        return job

    async def _ended_job(self, snapshot: Snapshot) -> Job | None:
        """A job that the queue does not list: asked for by its number, then taken as gone."""
        if snapshot.taken_at < self._submitted_at + _UNSEEN_SECONDS:
            return None
        return Job(id=int(self.job_id), state=words.JobState.COMPLETED)

    async def _failure(self, message: str) -> SpawnException:
        try:
            tail = await self._helper.tail_log(self.user.name, self.session_name, lines=15)
        except CarmeError as error:
            self.log.warning("%s: no log: %s", self._log_name, error)
            tail = ""
        if tail.strip():
            message += f"\nThe end of its log:\n{tail.strip()}"
        return SpawnException(message, reason="ended", status_code=500)

    async def poll(self) -> int | None:
        """None while the job is there or nobody knows; 1 when it is gone."""
        if not self.job_id:
            return 0
        # At its own start the hub takes "running" for "answers soon", and cancels what does not. So
        # a session that still waits, or has not said its port, gets its answer when it has.
        if self._check_pending and not self._reported.is_set():
            try:
                await self._until_up()
            except SpawnException as error:
                self.log.warning("%s: %s", self._log_name, error)
                return 1
        job = await self._look(_POLL_AGE_SECONDS)
        if job is None or not (job.state.ended or job.state.ending):
            return None
        self.log.info("%s: %s", self._log_name, words.ended(job.state))
        return 1

    async def get_url(self) -> str:
        """Where the hub finds the server, from what the session reported."""
        return f"http://{self._address}:{self.port}"

    async def stop(self, now: bool = False) -> None:
        """Cancel the job and wait until it is gone; fine if it is gone already."""
        if not self.job_id:
            return
        try:
            await self._helper.cancel(self.user.name, int(self.job_id))
        except CarmeError as error:
            self.log.error("%s: job %s: %s", self._log_name, self.job_id, error)
            return
        end = time.monotonic() + (0 if now else 30)
        while time.monotonic() < end:
            job = await self._look()
            if job is not None and (job.state.ended or job.state.ending):
                return
            await asyncio.sleep(0.3)

    # --- the port, and what is kept -------------------------------------------------------------

    def owns_token(self, token: str) -> bool:
        """Whether `token` is the one that this session was started with."""
        return bool(self._token_hash) and hmac.compare_digest(_hash(token), self._token_hash)

    def port_reported(self, port: int) -> None:
        """The session's server listens on `port` of its node."""
        self.port = port
        self._reported.set()
        self._save_state()

    def _save_state(self) -> None:
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        if session is not None:
            session.commit()

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self.job_id:
            state |= {
                "token_hash": self._token_hash,
                "submitted_at": self._submitted_at,
                "address": self._address,
                "port": self.port if self._reported.is_set() else 0,
            }
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._token_hash = state.get("token_hash", "")
        self._submitted_at = state.get("submitted_at", 0.0)
        self._address = state.get("address", "")
        if state.get("port"):
            self.port = state["port"]
            self._reported.set()

    def clear_state(self) -> None:
        super().clear_state()
        self._forget()

    def _forget(self) -> None:
        self._token_hash, self._address = "", ""
        self._reported.clear()
        self.port = 0

    # --- progress -------------------------------------------------------------------------------

    async def _tell(self, job: Job | None) -> None:
        if job is None:
            await self._say(10, "Slurm has the job")
        elif job.state.waiting:
            snapshot = await self._snapshot()
            place = snapshot.queue_position(job.id) if snapshot else None
            where = f", number {place} in the queue of {job.partition}" if place else ""
            await self._say(20, f"Job {job.id} is {words.waiting(job)}{where}")
        else:
            await self._say(
                60, f"Job {job.id} runs on {', '.join(job.nodes)}; the container starts"
            )

    async def _say(self, progress: int, message: str) -> None:
        event = {"progress": progress, "message": message}
        if event != self._said:
            async with self._changed:
                self._said = event
                self._changed.notify_all()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """A line whenever something changed."""
        last: dict[str, Any] = {}
        while True:
            if self._said != last:
                last = self._said
                yield last
            async with self._changed:
                if self._said == last:
                    await self._changed.wait()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
