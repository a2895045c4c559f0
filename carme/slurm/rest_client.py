"""Reading Slurm through slurmrestd on its unix socket."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from carme.config import SlurmSettings
from carme.errors import ConfigError, MissingError, UnavailableError
from carme.slurm import parse
from carme.slurm.command_client import CommandClient, sorted_jobs
from carme.slurm.command_runner import SlurmCommandRunner, read_failure
from carme.slurm.models import HistoryJob, Job, Node, Partition, Reservation
from carme.system import unix_http
from carme.system.unix_http import HttpResponse

log = logging.getLogger(__name__)

# Newest first: a slurmrestd speaks the three or so releases up to its own.
API_VERSIONS = ("v0.0.42", "v0.0.41", "v0.0.40", "v0.0.39", "v0.0.38")


class RestClient(CommandClient):
    """A SlurmClient that asks slurmrestd, and Slurm's commands for what slurmrestd does not have.

    That is expected starts (sbatch), rights (sacctmgr) and flags of partitions (scontrol).
    """

    def __init__(
        self, path: Path, run: SlurmCommandRunner, timeout_seconds: float, retry_seconds: float
    ) -> None:
        super().__init__(run, retry_seconds)
        self._path = path
        self._timeout = timeout_seconds
        self._api = ""
        self._is_without_flags = False

    @classmethod
    def of(cls, slurm: SlurmSettings) -> "RestClient":
        """The client for this configuration, which names the socket."""
        if not slurm.rest_socket:
            hint = "set it to slurmrestd's unix socket"
            raise ConfigError("slurm.backend is rest, but slurm.rest_socket is not set", hint)
        run = SlurmCommandRunner.of(slurm)
        return cls(slurm.rest_socket, run, slurm.timeout_seconds, slurm.retry_seconds)

    def version(self) -> str:
        """The release of slurmrestd, from its answers."""
        if not self._version:
            self._get("slurm", "ping")
        return self._version

    def partitions(self) -> tuple[Partition, ...]:
        """`/partitions`; where they do not say which is the default, also scontrol."""
        partitions = parse.parse_json_partitions(self._get("slurm", "partitions"))
        if any(partition.default for partition in partitions):
            return partitions
        # From v0.0.39 on, slurmrestd leaves out the flags: which are the default and hidden.
        try:
            by_name = {partition.name: partition for partition in super().partitions()}
        except (ConfigError, MissingError) as error:
            if not self._is_without_flags:
                log.warning("the default partition is unknown: %s", error)
            self._is_without_flags = True
            return partitions
        return tuple(
            partition.model_copy(update={"default": flagged.default, "hidden": flagged.hidden})
            if (flagged := by_name.get(partition.name))
            else partition
            for partition in partitions
        )

    def nodes(self) -> tuple[Node, ...]:
        """`/nodes`."""
        return parse.parse_json_nodes(self._get("slurm", "nodes"))

    def jobs(self) -> tuple[Job, ...]:
        """`/jobs`."""
        return sorted_jobs(parse.parse_json_jobs(self._get("slurm", "jobs")))

    def reservations(self) -> tuple[Reservation, ...]:
        """`/reservations`."""
        return parse.parse_json_reservations(self._get("slurm", "reservations"))

    def history(
        self, since: int, until: int | None = None, users: Sequence[str] = ()
    ) -> tuple[HistoryJob, ...]:
        """`/slurmdb/…/jobs`; filters by user here, since v0.0.38 cannot."""
        # `uts` marks Unix seconds; slurmrestd refuses bare digits.
        end = until or int(time.time())
        query: dict[str, object] = {"start_time": f"uts{since}", "end_time": f"uts{end}"}
        jobs = parse.parse_slurmdb_jobs(self._get("slurmdb", "jobs", query))
        return tuple(job for job in jobs if not users or job.user in users)

    def _get(self, plugin: str, resource: str, query: dict[str, object] | None = None) -> object:
        return self._retried(lambda: self._get_once(plugin, resource, query))

    def _get_once(self, plugin: str, resource: str, query: dict[str, object] | None) -> object:
        if not self._api:
            self._api = self._find_api()
            log.info("slurmrestd speaks %s", self._api)
        response = self._request(f"/{plugin}/{self._api}/{resource}", query)
        answer = response.json()
        self._version = parse.answer_version(answer) or self._version
        problem = parse.answer_errors(answer)
        if problem or response.status >= 400:
            raise read_failure(problem or f"status {response.status}", f"slurmrestd {resource}")
        return answer

    def _find_api(self) -> str:
        for version in API_VERSIONS:
            if self._request(f"/slurm/{version}/ping").status == 200:
                return version
        raise UnavailableError(
            f"{self._path}: slurmrestd speaks none of {', '.join(API_VERSIONS)}",
            "start it with the openapi plugins of its release, or set slurm.backend to cli",
        )

    def _request(self, address: str, query: dict[str, object] | None = None) -> HttpResponse:
        return unix_http.request(
            self._path,
            "GET",
            address,
            query=query,
            timeout_seconds=self._timeout,
            hint="is slurmrestd running?",
        )
