"""The protocol of clients that read Slurm, and the choice of one: commands, slurmrestd, pyslurm."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from carme.config import SlurmSettings
from carme.errors import ConfigError
from carme.slurm import pyslurm_client
from carme.slurm.command_client import CommandClient
from carme.slurm.command_runner import SlurmCommandRunner
from carme.slurm.models import ExpectedStart, HistoryJob, Job, Node, Partition, Reservation
from carme.slurm.rest_client import RestClient
from carme.slurm.rights import Rights
from carme.slurm.snapshot import Snapshot, queue_load

log = logging.getLogger(__name__)


class SlurmClient(Protocol):
    """Reads Slurm. Raises UnavailableError while it is away."""

    def version(self) -> str:
        """The release that runs, such as `22.05.8`."""

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions, hidden ones too if we may see them."""

    def nodes(self) -> tuple[Node, ...]:
        """All nodes with the resources in use."""

    def jobs(self) -> tuple[Job, ...]:
        """All jobs that wait, run or ended within Slurm's MinJobAge, sorted by id."""

    def reservations(self) -> tuple[Reservation, ...]:
        """All reservations, future ones too."""

    def history(
        self, since: int, until: int | None = None, users: Sequence[str] = ()
    ) -> tuple[HistoryJob, ...]:
        """Jobs of the accounting database that waited or ran in that time."""

    def expected_start(self, sbatch_options: Sequence[str]) -> ExpectedStart:
        """When a job with these options would start if this process' user submitted it now."""

    def rights(self) -> Rights:
        """Accounts, QoS and their limits, of all users."""


def read_snapshot(
    client: SlurmClient,
    last: Snapshot | None = None,
    now: Callable[[], float] = time.time,
    *,
    jobs_only: bool = False,
) -> Snapshot:
    """The whole cluster; with `last`, reads only jobs and nodes again, or jobs alone."""
    taken_at = now()
    # In parallel: this is faster, and the parts are closer to one moment.
    with ThreadPoolExecutor(4) as pool:
        jobs = pool.submit(client.jobs)
        nodes = None if last and jobs_only else pool.submit(client.nodes)
        if not last:
            partitions = pool.submit(client.partitions)
            reservations = pool.submit(client.reservations)
            last = Snapshot(
                taken_at=taken_at,
                slurm_version=client.version(),
                partitions=partitions.result(),
                reservations=reservations.result(),
            )
        queue = jobs.result()
        return Snapshot(
            taken_at=taken_at,
            nodes_taken_at=taken_at if nodes else last.nodes_taken_at,
            slurm_version=last.slurm_version,
            partitions=last.partitions,
            nodes=nodes.result() if nodes else last.nodes,
            jobs=queue,
            reservations=last.reservations,
            load=queue_load(queue),
        )


def connect(slurm: SlurmSettings) -> SlurmClient:
    """The client for `slurm.backend`."""
    if slurm.backend == "rest":
        return RestClient.of(slurm)
    commands = CommandClient.of(slurm)
    if slurm.backend == "cli":
        return commands
    release = commands.version()
    reason = pyslurm_client.unusable(release)
    if not reason:
        module = pyslurm_client.load_module(slurm.conf)
        run = SlurmCommandRunner.of(slurm)
        return pyslurm_client.PyslurmClient(run, module, release, slurm.retry_seconds)
    if slurm.backend == "pyslurm":
        raise ConfigError(f"slurm.backend is pyslurm, but {reason}", "use auto, cli or rest")
    log.info("reading Slurm by its commands: %s", reason)
    return commands
