"""A Slurm in memory and a view that serves it, for tests of the view's clients."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from carme.config import Config, ViewSettings
from carme.errors import CarmeError, InputError, UnavailableError
from carme.slurm.client import SlurmClient
from carme.slurm.models import (
    ExpectedStart,
    HistoryJob,
    Job,
    Node,
    Partition,
    Reservation,
)
from carme.slurm.rights import Association, JobLimits, Qos, Rights
from carme.slurm.states import JobState, NodeState
from carme.view.server import UnixServer
from carme.view.service import ViewService

ALICE = Job(
    id=1,
    user="alice",
    uid=70001,
    name="mine",
    partition="gpu",
    state=JobState.RUNNING,
    nodes=("gpu01",),
    gpus={"a100": 1},
    limit_seconds=3600,
    started_at=1000,
)
BOB = ALICE.model_copy(update={"id": 2, "user": "bob", "uid": 70002, "name": "thesis"})
RIGHTS = Rights(
    enforced=("associations", "limits", "qos"),
    associations=(
        Association(account="root"),
        Association(account="lab", parent="root"),
        Association(account="lab", user="alice", qos=("normal", "short"), default_qos="normal"),
        Association(account="lab", user="bob", qos=("normal",)),
    ),
    qos=(Qos(name="normal"), Qos(name="short", limits=JobLimits(max_seconds=3600))),
    default_accounts={"alice": "lab", "bob": "lab"},
)
NODE = Node(name="gpu01", state=NodeState.MIXED, partitions=("gpu",), cpus=8, cpus_used=2)


class Cluster(SlurmClient):
    """A Slurm in memory that records requests and can be unavailable."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.queue = (ALICE, BOB)
        self.away = False
        self.extended: list[tuple[int, int]] = []
        self.known_rights = RIGHTS

    def _ask(self, request: str) -> None:
        self.asked.append(request)
        if self.away:
            raise UnavailableError("the controller is away")

    def version(self) -> str:
        return "22.05.8"

    def partitions(self) -> tuple[Partition, ...]:
        self._ask("partitions")
        return (Partition(name="gpu", default=True, max_seconds=8 * 3600),)

    def nodes(self) -> tuple[Node, ...]:
        self._ask("nodes")
        return (NODE,)

    def jobs(self) -> tuple[Job, ...]:
        self._ask("jobs")
        return self.queue

    def reservations(self) -> tuple[Reservation, ...]:
        self._ask("reservations")
        return ()

    def history(
        self, since: int, until: int | None = None, users: Sequence[str] = ()
    ) -> tuple[HistoryJob, ...]:
        self._ask("history")
        jobs = HistoryJob(id=1, user="alice"), HistoryJob(id=2, user="bob")
        return tuple(job for job in jobs if not users or job.user in users)

    def expected_start(self, sbatch_options: Sequence[str]) -> ExpectedStart:
        self._ask("test-only")
        options = dict(option.partition("=")[::2] for option in sbatch_options)
        if options["--partition"] == "nope":
            raise InputError("invalid partition")
        return ExpectedStart(starts_at=5, partition=options["--partition"])

    def rights(self) -> Rights:
        self._ask("rights")
        return self.known_rights

    def extend(self, job: Job, limit_seconds: int) -> None:
        self.extended.append((job.id, limit_seconds))
        changed = job.model_copy(update={"limit_seconds": limit_seconds})
        self.queue = tuple(changed if j.id == job.id else j for j in self.queue)


def config(tmp_path: Path, **view: Any) -> Config:
    return Config(view=ViewSettings(socket=tmp_path / "view.sock", poll_seconds=600, **view))


class RunningView:
    """A view in its own thread."""

    def __init__(self, cluster: Cluster, settings: Config) -> None:
        self.cluster = cluster
        self.settings = settings
        self.path = settings.view.socket
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        writer: Any = self.cluster
        self.view = ViewService(self.settings, self.cluster, writer)
        server = UnixServer(self.path, self.view.answer)
        try:
            await server.start()
        except CarmeError as error:
            self._started.set_exception(error)
            return
        polling = asyncio.create_task(self.view.poller.run())
        self._started.set_result(None)
        await self._stop.wait()
        polling.cancel()
        await server.stop()

    def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """The result of the coroutine, run in the view's event loop."""

        async def run() -> Any:
            return await function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def __enter__(self) -> "RunningView":
        self._thread.start()
        try:
            self._started.result(10)
        except CarmeError:
            self._thread.join(10)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
