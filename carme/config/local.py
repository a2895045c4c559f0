"""The section of the one-machine cluster."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from carme.config.section import NodeName, Port, Section, UnixName


class LocalGpus(Section):
    """The GPUs of a node of the one-machine cluster."""

    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")] = "virtual-a100"
    """Slurm's GRES type; `virtual-` in front says that nothing computes here."""
    count: Annotated[int, Field(ge=0, le=16)] = 4


class LocalNode(Section):
    """A node of the one-machine cluster: one slurmd of its own."""

    name: NodeName
    cpus: Annotated[int, Field(ge=1, le=1024)] = 8
    """May be more than the machine has: Slurm then schedules what is declared."""
    memory_mb: Annotated[int, Field(ge=256)] = 8000
    gpus: LocalGpus | None = None


class LocalPartition(Section):
    """A partition of the one-machine cluster."""

    name: NodeName
    nodes: Annotated[tuple[NodeName, ...], Field(min_length=1)]
    max_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 8
    default: bool = False


class LocalPorts(Section):
    """Loopback ports of the one-machine cluster, away from the services' usual ones on purpose."""

    slurmctld: Port = 16817
    slurmdbd: Port = 16819
    slurmd_first: Port = 16830
    """One port a node from here on."""
    mariadb: Port = 16806
    prometheus: Port = 16890
    alertmanager: Port | None = None
    """Unset: three above Prometheus', as their usual ports are."""
    exporter_first: Port = 16850
    """One port a node from here on."""
    service: Port = 16880

    @property
    def alertmanager_or_default(self) -> int:
        return self.alertmanager or self.prometheus + 3


class LocalSettings(Section):
    """The whole cluster on one machine (`carme up`); not used elsewhere."""

    dir: Path = Path("/var/lib/carme-local")
    """Everything it writes lies below this folder."""
    view_user: UnixName = "carme-view"
    """Runs carme-view and slurmrestd; a Slurm operator, so that it sees all jobs."""
    exporter_user: UnixName = "carme-exporter"
    """Runs the exporters; its group may read which job holds which GPU."""
    service_user: UnixName = "carme-service"
    """Runs the prediction service."""
    first_job_id: Annotated[int, Field(ge=1, le=60_000_000)] = 1
    """Two clusters on a machine share the jobs' cgroups: give them different numbers."""
    users: tuple[UnixName, ...] = ("alice", "bob")
    """Made with random passwords; gone after `down --purge`."""
    admins: tuple[UnixName, ...] = ("ada",)
    """Made likewise, and JupyterHub admins."""
    ports: LocalPorts = LocalPorts()
    nodes: Annotated[tuple[LocalNode, ...], Field(min_length=1)] = (
        LocalNode(name="gpu01", gpus=LocalGpus(type="virtual-a100", count=4)),
        LocalNode(name="gpu02", gpus=LocalGpus(type="virtual-t4", count=4)),
        LocalNode(name="cpu01"),
    )
    partitions: Annotated[tuple[LocalPartition, ...], Field(min_length=1)] = (
        LocalPartition(name="gpu", nodes=("gpu01", "gpu02"), max_hours=8, default=True),
        LocalPartition(name="cpu", nodes=("cpu01",), max_hours=24),
    )
