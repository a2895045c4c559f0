"""The whole cluster at one moment."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from carme.slurm.gres import total_gpus
from carme.slurm.models import Job, Node, Partition, Reservation, SlurmModel


class QueueLoad(SlurmModel):
    """How busy a partition is, without the users."""

    running: int = 0
    waiting: int = 0
    gpus_waiting: int = 0


class Snapshot(SlurmModel):
    """The whole cluster at one moment."""

    taken_at: float
    """When the jobs were read."""
    nodes_taken_at: float | None = None
    """When the nodes were read; None: with the jobs."""
    slurm_version: str = ""
    controller: Literal["up", "away"] = "up"
    error: str = ""
    """Why a newer reading failed, while the controller is away."""
    complete: bool = True
    """False: `jobs` has only the reader's own, and `load` counts those of others."""
    partitions: tuple[Partition, ...] = ()
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    load: Mapping[str, QueueLoad] = {}

    @property
    def oldest_taken_at(self) -> float:
        """When the older of jobs and nodes was read."""
        return min(self.taken_at, self.nodes_taken_at or self.taken_at)

    def age_seconds(self, now: float) -> float:
        """How old the older of jobs and nodes is at the Unix time `now`."""
        return max(0.0, now - self.oldest_taken_at)

    def jobs_age_seconds(self, now: float) -> float:
        """How old the jobs are at the Unix time `now`."""
        return max(0.0, now - self.taken_at)

    def partition(self, name: str = "") -> Partition | None:
        """The partition `name`, or the default one."""
        matching = (p for p in self.partitions if (p.name == name if name else p.default))
        return next(matching, None)

    def job(self, job_id: int) -> Job | None:
        """The job with this id, if it is in the queue."""
        return next((job for job in self.jobs if job.id == job_id), None)

    def nodes_in(self, partition: str) -> tuple[Node, ...]:
        """The nodes of a partition; those of all partitions for an empty name."""
        return tuple(n for n in self.nodes if not partition or partition in n.partitions)

    def gpus_free(self, partition: str = "") -> dict[str, int]:
        """Free GPUs per type, on all nodes together."""
        return total_gpus(node.gpus_free for node in self.nodes_in(partition))

    def gpus_total(self, partition: str = "") -> dict[str, int]:
        """GPUs per type, closed nodes included."""
        return total_gpus(node.gpus for node in self.nodes_in(partition))

    def largest_free_block(self, partition: str = "") -> dict[str, int]:
        """Per type, the most free GPUs on one node: what a one-node job can get at once."""
        best: dict[str, int] = {}
        for node in self.nodes_in(partition):
            for kind, count in node.gpus_free.items():
                best[kind] = max(best.get(kind, 0), count)
        return best

    def queue_position(self, job_id: int) -> int | None:
        """1 for the waiting job that is next in its partition; None if it does not wait."""
        job = self.job(job_id)
        if not job or not job.state.waiting:
            return None
        ahead = sum(
            (other.priority or 0, -other.id) > (job.priority or 0, -job.id)
            for other in self.jobs
            if other.state.waiting and other.partition == job.partition and other.id != job.id
        )
        return ahead + 1

    def visible_to(self, user: str, uid: int) -> "Snapshot":
        """The cluster with this user's own jobs, and without the names of other users."""
        hidden = {partition.name for partition in self.partitions if partition.hidden}
        private: dict[str, tuple[str, ...]] = {"accounts": (), "groups": ()}
        return self.model_copy(
            update={
                "complete": False,
                "partitions": tuple(p for p in self.partitions if not p.hidden),
                "jobs": tuple(job for job in self.jobs if job.is_owned_by(user, uid)),
                "reservations": tuple(
                    r.model_copy(update={"users": (user,) if user in r.users else (), **private})
                    for r in self.reservations
                ),
                "load": {name: load for name, load in self.load.items() if name not in hidden},
            }
        )


def queue_load(jobs: Iterable[Job]) -> dict[str, QueueLoad]:
    """Running and waiting jobs per partition; a job in several partitions counts in each."""
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for job in jobs:
        for partition in job.partition.split(","):
            if job.state.waiting:
                waiting[partition] += 1
                gpus[partition] += job.gpu_count
            elif job.state.active:
                running[partition] += 1
    return {
        name: QueueLoad(running=running[name], waiting=waiting[name], gpus_waiting=gpus[name])
        for name in sorted({*running, *waiting})
    }
