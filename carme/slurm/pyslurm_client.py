"""Reading Slurm through pyslurm's object API (25.11), where it is installed and fits the release.

Its attributes are put under the names that slurmrestd uses, so that one parser reads both. The
tables below are all that is known of pyslurm here.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from carme.errors import MissingError, UnavailableError
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

T = TypeVar("T")

# slurmrestd's name: pyslurm's attribute. Memory is MiB and limits are minutes in both.
NODE = {
    "name": "name",
    "state": "state",
    "reason": "reason",
    "address": "address",
    "partitions": "partitions",
    "features": "available_features",
    "cpus": "total_cpus",
    "alloc_cpus": "allocated_cpus",
    "real_memory": "real_memory",
    "alloc_memory": "allocated_memory",
    "version": "slurm_version",
}
PARTITION = {
    "name": "name",
    "state": "state",
    "nodes": "nodes",
    "total_nodes": "total_nodes",
    "total_cpus": "total_cpus",
    "max_time_limit": "max_time",
    "default_time_limit": "default_time",
    "min nodes per job": "min_nodes",
    "maximum_nodes_per_job": "max_nodes",
    "maximum_cpus_per_node": "max_cpus_per_node",
    "default_memory_per_cpu": "default_memory_per_cpu",
    "default_memory_per_node": "default_memory_per_node",
    "maximum_memory_per_cpu": "max_memory_per_cpu",
    "maximum_memory_per_node": "max_memory_per_node",
    "priority_tier": "priority_tier",
    "qos": "qos",
    "allowed_accounts": "allowed_accounts",
    "denied_accounts": "denied_accounts",
    "allowed_groups": "allowed_groups",
    "allowed_qos": "allowed_qos",
    "denied_qos": "denied_qos",
}
PARTITION_FLAGS = {"default": "is_default", "hidden": "is_hidden"}
JOB = {
    "job_id": "id",
    "array_job_id": "array_id",
    "array_task_id": "array_task_id",
    "array_task_string": "array_tasks_waiting",
    "name": "name",
    "user_name": "user_name",
    "user_id": "user_id",
    "account": "account",
    "qos": "qos",
    "partition": "partition",
    "job_state": "state",
    "state_reason": "state_reason",
    "nodes": "allocated_nodes",
    "node_count": "num_nodes",
    "cpus": "cpus",
    "tasks": "ntasks",
    "memory_per_node": "memory_per_node",
    "memory_per_cpu": "memory_per_cpu",
    "submit_time": "submit_time",
    "eligible_time": "eligible_time",
    "start_time": "start_time",
    "end_time": "end_time",
    "time_limit": "time_limit",
    "priority": "priority",
    "resv_name": "reservation",
    "features": "constraints",
    "current_working_directory": "working_directory",
    "comment": "comment",
    "restart_cnt": "requeue_count",
}
RESERVATION = {
    "name": "name",
    "start_time": "start_time",
    "end_time": "end_time",
    "node_list": "nodes",
    "node_count": "node_count",
    "partition": "partition",
    "users": "users",
    "accounts": "accounts",
    "groups": "groups",
}
# Slurm's words for flags that pyslurm names in full.
_FLAG = {
    "MAINTENANCE": "MAINT",
    "SPECIFIC_NODES": "SPEC_NODES",
    "IGNORE_RUNNING_JOBS": "IGNORE_JOBS",
    "PARTITION_NODES_ONLY": "PART_NODES",
}


class PyslurmClient:
    """A Client on pyslurm; history and expected starts still come from the commands."""

    def __init__(
        self, commands: CommandClient, module: Any, release: str, retry_seconds: float
    ) -> None:
        self._commands = commands
        self._pyslurm = module
        self._release = release
        self._retry_seconds = retry_seconds

    def version(self) -> str:
        """The release that runs."""
        return self._release

    def partitions(self) -> tuple[Partition, ...]:
        """`Partitions.load()`."""
        partitions = self._load(self._pyslurm.Partitions.load)
        return parse.parse_json_partitions(
            {"partitions": [partition_payload(p) for p in partitions]}
        )

    def nodes(self) -> tuple[Node, ...]:
        """`Nodes.load()`."""
        nodes = self._load(self._pyslurm.Nodes.load)
        return parse.parse_json_nodes({"nodes": [node_payload(node) for node in nodes]})

    def jobs(self) -> tuple[Job, ...]:
        """`Jobs.load()`."""
        loaded = self._load(self._pyslurm.Jobs.load)
        jobs = parse.parse_json_jobs({"jobs": [job_payload(job) for job in loaded]})
        return tuple(sorted(jobs, key=lambda job: job.id))

    def job(self, job_id: int) -> Job:
        """`Job.load(ID)`."""
        loaded = self._guarded(lambda: [self._pyslurm.Job.load(job_id)])
        jobs = parse.parse_json_jobs({"jobs": [job_payload(job) for job in loaded]})
        if not jobs:
            raise MissingError(f"Slurm knows no job {job_id}")
        return jobs[0]

    def reservations(self) -> tuple[Reservation, ...]:
        """`Reservations.load()`."""
        reservations = self._load(self._pyslurm.Reservations.load)
        payload = [reservation_payload(reservation) for reservation in reservations]
        return parse.parse_json_reservations({"reservations": payload})

    def history(
        self, since: int, until: int | None = None, users: Sequence[str] = ()
    ) -> tuple[HistoryJob, ...]:
        """By sacct."""
        return self._commands.history(since, until, users)

    def expected_start(self, choice: ResourceRequest) -> ExpectedStart:
        """By sbatch."""
        return self._commands.expected_start(choice)

    def rights(self) -> Rights:
        """By sacctmgr."""
        return self._commands.rights()

    def _load(self, load: Callable[[], Any]) -> list[Any]:
        return self._guarded(lambda: list(load().values()))

    def _guarded(self, call: Callable[[], T]) -> T:
        def once() -> T:
            try:
                return call()
            except self._pyslurm.RPCError as error:
                known = failure(str(error), "pyslurm")
                if known.reason == "input":
                    raise UnavailableError(f"pyslurm: {error}") from error
                raise known from error

        return with_retry(once, self._retry_seconds)


def unusable(release: str, installed: Callable[[str], str] = version) -> str:
    """Why pyslurm cannot read this release of Slurm; empty if it can."""
    try:
        found = installed("pyslurm")
    except PackageNotFoundError:
        return "pyslurm is not installed"
    if found.split(".")[:2] != release.split(".")[:2]:
        return f"pyslurm {found} is not for Slurm {release}"
    return ""


def load_module(conf: Path | None) -> Any:
    """pyslurm itself. libslurm reads slurm.conf while it is loaded, so the path is set before."""
    if conf:
        os.environ["SLURM_CONF"] = str(conf)
    return importlib.import_module("pyslurm")


def node_payload(node: Any) -> dict[str, Any]:
    """A pyslurm.Node as slurmrestd would have it."""
    payload = _payload(node, NODE)
    payload["gres"] = _gres(getattr(node, "configured_gres", None))
    payload["gres_used"] = _gres(_typed_only(getattr(node, "allocated_gres", None)))
    return payload


def partition_payload(partition: Any) -> dict[str, Any]:
    """A pyslurm.Partition as slurmrestd would have it."""
    payload = _payload(partition, PARTITION)
    flags = [flag for flag, name in PARTITION_FLAGS.items() if getattr(partition, name, False)]
    return {**payload, "flags": flags}


def job_payload(job: Any) -> dict[str, Any]:
    """A pyslurm.Job as slurmrestd would have it."""
    payload = _payload(job, JOB)
    gres = getattr(job, "gres", None) or {}
    counted = (f"gres/{name}={getattr(item, 'count', 0)}" for name, item in gres.items())
    payload["tres_req_str"] = ",".join(counted)
    layout = job.get_resource_layout_per_node() or {}
    payload["gres_detail"] = [_gres(part.get("gres")) for part in layout.values()]
    code = {"return_code": getattr(job, "exit_code", None)}
    payload["exit_code"] = {**code, "signal": {"id": getattr(job, "exit_code_signal", None)}}
    return payload


def reservation_payload(reservation: Any) -> dict[str, Any]:
    """A pyslurm.Reservation as slurmrestd would have it."""
    flags = getattr(reservation, "flags", None)
    names = [flag.name for flag in type(flags) if flag in flags] if flags is not None else []
    payload = _payload(reservation, RESERVATION)
    return {**payload, "flags": [_FLAG.get(name, name) for name in names]}


def _payload(thing: Any, table: Mapping[str, str]) -> dict[str, Any]:
    # Attributes that another release of pyslurm lacks are left out, as the parser expects.
    return {key: getattr(thing, name, None) for key, name in table.items()}


def _gres(gres: Mapping[str, Any] | None) -> str:
    """`{"gpu:a100": 2}` or `{"gpu:a100": {"count": 2, "indexes": "0-1"}}` as GRES text."""
    parts = []
    for name, value in (gres or {}).items():
        if isinstance(value, Mapping):
            parts.append(f"{name}:{value.get('count', 0)}(IDX:{value.get('indexes', 'N/A')})")
        else:
            parts.append(f"{name}:{value}")
    return ",".join(parts)


def _typed_only(gres: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entries of a TRES without the totals that repeat them (`gpu` beside `gpu:a100`)."""
    found = dict(gres or {})
    typed: Iterable[str] = {name.partition(":")[0] for name in found if ":" in name}
    return {name: value for name, value in found.items() if name not in typed}
