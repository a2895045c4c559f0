"""Slurm's entities as frozen models, the same for every client.

Times are Unix seconds, amounts are bytes and seconds, names are expanded. GPUs are counted per
GRES type; the type of GPUs without one is the empty string.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from carme.slurm.gres import free_gpus
from carme.slurm.states import JobState, NodeState

Gpus = Mapping[str, int]

# Slurm starts no job on nodes with these flags; on RESERVED ones only jobs of the reservation.
_CLOSED = {
    "BLOCKED",
    "DRAIN",
    "FAIL",
    "INVALID_REG",
    "MAINTENANCE",
    "NOT_RESPONDING",
    "POWERING_DOWN",
    "POWER_DOWN",
    "REBOOT_ISSUED",
    "REBOOT_REQUESTED",
    "RESERVED",
}


class SlurmModel(BaseModel):
    """Frozen; ignores fields of a newer Carme, so that services can be upgraded one by one."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Partition(SlurmModel):
    """A partition: its nodes, limits and who may use it. An empty `allow_…` means everybody."""

    name: str
    state: str = "UP"
    default: bool = False
    hidden: bool = False
    nodes: tuple[str, ...] = ()
    total_nodes: int = 0
    total_cpus: int = 0
    gpus: Gpus = {}
    max_seconds: int | None = None
    """None: no limit."""
    default_seconds: int | None = None
    """None: a job without a time gets `max_seconds`."""
    min_nodes: int = 0
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    default_memory_per_cpu_bytes: int | None = None
    default_memory_per_node_bytes: int | None = None
    max_memory_per_cpu_bytes: int | None = None
    max_memory_per_node_bytes: int | None = None
    priority_tier: int = 1
    qos: str = ""
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        """Jobs may start here now."""
        return self.state == "UP"


class Node(SlurmModel):
    """A compute node and its resources in use."""

    name: str
    state: NodeState = NodeState.UNKNOWN
    flags: tuple[str, ...] = ()
    """Beside the state: DRAIN, PLANNED, MAINTENANCE, RESERVED, NOT_RESPONDING and others."""
    state_text: str = ""
    """The state as Slurm wrote it, in case `state` is UNKNOWN."""
    reason: str = ""
    address: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cpus: int = 0
    cpus_used: int = 0
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    gpus: Gpus = {}
    gpus_used: Gpus = {}
    gpu_indices_used: Mapping[str, tuple[int, ...]] = {}
    """Indices of the GPUs in use per type, if Slurm reports them."""
    slurm_version: str = ""

    @property
    def open(self) -> bool:
        """Slurm may start anybody's jobs here: not down, drained, rebooting or reserved."""
        up = self.state in (NodeState.IDLE, NodeState.MIXED, NodeState.ALLOCATED)
        return up and not _CLOSED & set(self.flags)

    @property
    def cpus_free(self) -> int:
        """CPUs that a job could take now; none on a closed node."""
        return max(0, self.cpus - self.cpus_used) if self.open else 0

    @property
    def memory_free_bytes(self) -> int:
        """Memory that a job could take now; none on a closed node."""
        return max(0, self.memory_bytes - self.memory_used_bytes) if self.open else 0

    @property
    def gpus_free(self) -> dict[str, int]:
        """GPUs per type that a job could take now; a node whose CPUs are all taken has none."""
        if not self.cpus_free:
            return dict.fromkeys(self.gpus, 0)
        return free_gpus(self.gpus, self.gpus_used)


class SlurmJob(SlurmModel):
    """The fields of a job that the queue and the accounting database share."""

    id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    name: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    partition: str = ""
    state: JobState = JobState.UNKNOWN
    state_text: str = ""
    reason: str = ""
    """Slurm's reason why it waits: Priority, Resources, QOSMaxGRESPerUser …"""
    nodes: tuple[str, ...] = ()
    node_count: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    gpus: Gpus = {}
    submitted_at: int | None = None
    eligible_at: int | None = None
    started_at: int | None = None
    limit_seconds: int | None = None
    """None: no limit."""
    exit_code: int | None = None
    exit_signal: int | None = None
    work_dir: str = ""


class Job(SlurmJob):
    """A job in the queue, or one that ended within Slurm's MinJobAge."""

    array_tasks: str = ""
    """The tasks that wait, such as `2-9%4`; one Job stands for all of them."""
    uid: int | None = None
    gpu_indices: Mapping[str, tuple[int, ...]] = {}
    """Node to Slurm's GPU indices there, if Slurm reports them."""
    ends_at: int | None = None
    """When it ended, or when its time limit ends it."""
    expected_start_at: int | None = None
    """Slurm's estimate for a waiting job."""
    priority: int | None = None
    dependency: str = ""
    reservation: str = ""
    features: str = ""
    comment: str = ""
    restarts: int = 0

    @property
    def label(self) -> str:
        """The job's number as squeue writes it: `12`, `5_1` or `5_[2-4%1]`."""
        if self.array_job_id and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return f"{self.array_job_id}_[{self.array_tasks}]" if self.array_tasks else str(self.id)

    @property
    def gpu_count(self) -> int:
        """All its GPUs, of any type."""
        return sum(self.gpus.values())

    def is_owned_by(self, user: str, uid: int) -> bool:
        """The job is this user's: by uid where Slurm gives it, since names can be reused."""
        return self.uid == uid if self.uid is not None else bool(user) and self.user == user


class Reservation(SlurmModel):
    """Nodes set aside for a time, for people or for maintenance."""

    name: str
    starts_at: int | None = None
    ends_at: int | None = None
    nodes: tuple[str, ...] = ()
    node_count: int = 0
    partition: str = ""
    flags: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def maintenance(self) -> bool:
        """No job runs during it."""
        return "MAINT" in self.flags


class HistoryJob(SlurmJob):
    """A job in the accounting database, together with its steps."""

    ended_at: int | None = None
    elapsed_seconds: int = 0
    cpu_seconds: float | None = None
    """CPU time used by all its steps."""
    max_rss_bytes: int | None = None
    """The most memory that one task of one step used."""


class History(SlurmModel):
    """Jobs of the accounting database in a span of time."""

    jobs: tuple[HistoryJob, ...] = ()


class ExpectedStart(SlurmModel):
    """Slurm's answer to `sbatch --test-only`: an estimate that changes with the queue."""

    starts_at: int
    nodes: tuple[str, ...] = ()
    partition: str = ""
    asked_at: float = 0
