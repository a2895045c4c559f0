"""Reading Slurm through slurmrestd on its unix socket."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from carme.config import SlurmSettings
from carme.errors import CarmeError, ConfigError, MissingError, UnavailableError
from carme.requests.resource_request import ResourceRequest
from carme.slurm import parse
from carme.slurm.command_client import CommandClient
from carme.slurm.models import (
    ExpectedStart,
    HistoryJob,
    Job,
    Node,
    Partition,
    Reservation,
)
from carme.slurm.rights import Rights
from carme.slurm.slurm_commands import failure, with_retry
from carme.system import unix_http
from carme.system.unix_http import HttpResponse

log = logging.getLogger(__name__)
T = TypeVar("T")

# Newest first: a slurmrestd speaks the three or so releases up to its own.
API_VERSIONS = ("v0.0.42", "v0.0.41", "v0.0.40", "v0.0.39", "v0.0.38")
_INVALID_JOB_ID = 2017


class RestClient:
    """A Client that asks slurmrestd, and Slurm's commands for what slurmrestd does not know.

    That is expected starts (sbatch), rights (sacctmgr) and flags of partitions (scontrol).
    """

    def __init__(
        self,
        path: Path,
        commands: CommandClient,
        timeout_seconds: float = 10,
        retry_seconds: float = 20,
    ) -> None:
        self._path = path
        self._commands = commands
        self._timeout = timeout_seconds
        self._retry_seconds = retry_seconds
        self._api = ""
        self._version = ""
        self._is_without_flags = False

    @classmethod
    def of(cls, slurm: SlurmSettings) -> "RestClient":
        """The client for this configuration, which names the socket."""
        if not slurm.rest_socket:
            hint = "set it to slurmrestd's unix socket"
            raise ConfigError("slurm.backend is rest, but slurm.rest_socket is not set", hint)
        commands = CommandClient.of(slurm)
        return cls(slurm.rest_socket, commands, slurm.timeout_seconds, slurm.retry_seconds)

    def version(self) -> str:
        """The release of slurmrestd, as its answers say."""
        if not self._version:
            self._get("slurm", "ping")
        return self._version

    def partitions(self) -> tuple[Partition, ...]:
        """`/partitions`; where they do not say which is the default, also scontrol."""
        partitions = parse.parse_json_partitions(self._get("slurm", "partitions"))
        if any(partition.default for partition in partitions):
            return partitions
        # From v0.0.39 on, partitions come without their flags: the default one, hidden ones.
        try:
            flags = {partition.name: partition for partition in self._commands.partitions()}
        except (ConfigError, MissingError) as error:
            if not self._is_without_flags:
                log.warning("nobody says which partition is the default one: %s", error)
            self._is_without_flags = True
            return partitions
        return tuple(
            partition.model_copy(update={"default": known.default, "hidden": known.hidden})
            if (known := flags.get(partition.name))
            else partition
            for partition in partitions
        )

    def nodes(self) -> tuple[Node, ...]:
        """`/nodes`."""
        return parse.parse_json_nodes(self._get("slurm", "nodes"))

    def jobs(self) -> tuple[Job, ...]:
        """`/jobs`."""
        jobs = parse.parse_json_jobs(self._get("slurm", "jobs"))
        return tuple(sorted(jobs, key=lambda job: job.id))

    def job(self, job_id: int) -> Job:
        """`/job/ID`."""
        jobs = parse.parse_json_jobs(self._get("slurm", f"job/{job_id}"))
        for job in jobs:
            if job.id == job_id:
                return job
        raise MissingError(f"Slurm knows no job {job_id}")

    def reservations(self) -> tuple[Reservation, ...]:
        """`/reservations`."""
        return parse.parse_json_reservations(self._get("slurm", "reservations"))

    def history(
        self, since: int, until: int | None = None, users: Sequence[str] = ()
    ) -> tuple[HistoryJob, ...]:
        """`/slurmdb/…/jobs`; users are chosen here, since v0.0.38 cannot."""
        # `uts` is Slurm's mark for Unix seconds; bare digits are refused.
        end = until or int(time.time())
        query: dict[str, object] = {"start_time": f"uts{since}", "end_time": f"uts{end}"}
        jobs = parse.parse_slurmdb_jobs(self._get("slurmdb", "jobs", query))
        return tuple(job for job in jobs if not users or job.user in users)

    def expected_start(self, choice: ResourceRequest) -> ExpectedStart:
        """`sbatch --test-only`."""
        return self._commands.expected_start(choice)

    def rights(self) -> Rights:
        """By sacctmgr."""
        return self._commands.rights()

    def _get(self, plugin: str, resource: str, query: dict[str, object] | None = None) -> object:
        return self._retried(lambda: self._get_once(plugin, resource, query))

    def _retried(self, call: Callable[[], T]) -> T:
        return with_retry(call, self._retry_seconds)

    def _get_once(self, plugin: str, resource: str, query: dict[str, object] | None) -> object:
        if not self._api:
            self._api = self._find_api()
            log.info("slurmrestd speaks %s", self._api)
        reply = self._ask(f"/{plugin}/{self._api}/{resource}", query)
        answer = reply.json()
        self._version = parse.answer_version(answer) or self._version
        problem = parse.answer_errors(answer)
        if problem or reply.status >= 400:
            raise self._error(problem or f"status {reply.status}", resource)
        return answer

    def _find_api(self) -> str:
        for version in API_VERSIONS:
            if self._ask(f"/slurm/{version}/ping").status == 200:
                return version
        raise UnavailableError(
            f"{self._path}: slurmrestd speaks none of {', '.join(API_VERSIONS)}",
            "start it with the openapi plugins of its release, or set slurm.backend to cli",
        )

    def _error(self, problem: str, resource: str) -> CarmeError:
        error = failure(problem, f"slurmrestd {resource}")
        if error.reason == "input":
            # Nothing that a user typed goes in here, so it is Slurm's trouble.
            return UnavailableError(f"slurmrestd {resource}: {problem}")
        return error

    def _ask(self, address: str, query: dict[str, object] | None = None) -> HttpResponse:
        return unix_http.request(
            self._path,
            "GET",
            address,
            query=query,
            timeout_seconds=self._timeout,
            hint="is slurmrestd running?",
        )
