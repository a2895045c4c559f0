"""Reading Slurm through pyslurm's object API (25.11), where it is installed and fits the release.

pyslurm's attributes are put under slurmrestd's names, so that one parser reads both.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from carme.slurm import parse
from carme.slurm.command_client import CommandClient, sorted_jobs
from carme.slurm.command_runner import SlurmCommandRunner, read_failure
from carme.slurm.models import Job, Node, Partition, Reservation

T = TypeVar("T")


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


# slurmrestd's name: pyslurm's attribute. Memory is MiB and limits are minutes in both.
NODE = {
    **_same("name", "state", "reason", "address", "partitions", "real_memory"),
    "features": "available_features",
    "cpus": "total_cpus",
    "alloc_cpus": "allocated_cpus",
    "alloc_memory": "allocated_memory",
    "version": "slurm_version",
}
PARTITION = {
    **_same("name", "state", "nodes", "total_nodes", "total_cpus", "priority_tier", "qos"),
    **_same("default_memory_per_cpu", "default_memory_per_node", "allowed_accounts"),
    **_same("denied_accounts", "allowed_groups", "allowed_qos", "denied_qos"),
    "max_time_limit": "max_time",
    "default_time_limit": "default_time",
    "min nodes per job": "min_nodes",
    "maximum_nodes_per_job": "max_nodes",
    "maximum_cpus_per_node": "max_cpus_per_node",
    "maximum_memory_per_cpu": "max_memory_per_cpu",
    "maximum_memory_per_node": "max_memory_per_node",
}
PARTITION_FLAGS = {"default": "is_default", "hidden": "is_hidden"}
JOB = {
    **_same("name", "user_name", "user_id", "account", "qos", "partition", "state_reason", "cpus"),
    **_same("array_task_id", "memory_per_node", "memory_per_cpu", "submit_time", "eligible_time"),
    **_same("start_time", "end_time", "time_limit", "priority", "comment"),
    "job_id": "id",
    "array_job_id": "array_id",
    "array_task_string": "array_tasks_waiting",
    "job_state": "state",
    "nodes": "allocated_nodes",
    "node_count": "num_nodes",
    "tasks": "ntasks",
    "resv_name": "reservation",
    "features": "constraints",
    "current_working_directory": "working_directory",
    "restart_cnt": "requeue_count",
}
RESERVATION = {
    **_same("name", "start_time", "end_time", "node_count", "partition"),
    **_same("users", "accounts", "groups"),
    "node_list": "nodes",
}
# Slurm's names of flags that pyslurm spells out.
_FLAG = {
    "MAINTENANCE": "MAINT",
    "SPECIFIC_NODES": "SPEC_NODES",
    "IGNORE_RUNNING_JOBS": "IGNORE_JOBS",
    "PARTITION_NODES_ONLY": "PART_NODES",
}


class PyslurmClient(CommandClient):
    """A SlurmClient on pyslurm; history, expected starts and rights come from the commands."""

    def __init__(
        self, run: SlurmCommandRunner, module: Any, release: str, retry_seconds: float
    ) -> None:
        super().__init__(run, retry_seconds)
        self._pyslurm = module
        self._version = release

    def partitions(self) -> tuple[Partition, ...]:
        """`Partitions.load()`."""
        payload = [partition_payload(item) for item in self._load(self._pyslurm.Partitions)]
        return parse.parse_json_partitions({"partitions": payload})

    def nodes(self) -> tuple[Node, ...]:
        """`Nodes.load()`."""
        payload = [node_payload(item) for item in self._load(self._pyslurm.Nodes)]
        return parse.parse_json_nodes({"nodes": payload})

    def jobs(self) -> tuple[Job, ...]:
        """`Jobs.load()`."""
        payload = [job_payload(item) for item in self._load(self._pyslurm.Jobs)]
        return sorted_jobs(parse.parse_json_jobs({"jobs": payload}))

    def reservations(self) -> tuple[Reservation, ...]:
        """`Reservations.load()`."""
        payload = [reservation_payload(item) for item in self._load(self._pyslurm.Reservations)]
        return parse.parse_json_reservations({"reservations": payload})

    def _load(self, collection: Any) -> list[Any]:
        return self._call(lambda: list(collection.load().values()))

    def _call(self, call: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return call()
            except self._pyslurm.RPCError as error:
                raise read_failure(str(error), "pyslurm") from error

        return self._retried(attempt)


def unusable(release: str, installed_version: Callable[[str], str] = version) -> str:
    """Why pyslurm cannot read this release of Slurm; empty if it can."""
    try:
        pyslurm_release = installed_version("pyslurm")
    except PackageNotFoundError:
        return "pyslurm is not installed"
    if pyslurm_release.split(".")[:2] != release.split(".")[:2]:
        return f"pyslurm {pyslurm_release} is not for Slurm {release}"
    return ""


def load_module(conf: Path | None) -> Any:
    """The module pyslurm. libslurm reads slurm.conf while it loads, so the path is set before."""
    if conf:
        os.environ["SLURM_CONF"] = str(conf)
    return importlib.import_module("pyslurm")


def node_payload(node: Any) -> dict[str, Any]:
    """A pyslurm.Node as slurmrestd would have it."""
    payload = _payload(node, NODE)
    payload["gres"] = _gres(getattr(node, "configured_gres", None))
    # Without the totals that repeat typed entries (`gpu` beside `gpu:a100`).
    used = getattr(node, "allocated_gres", None) or {}
    typed = {name.partition(":")[0] for name in used if ":" in name}
    payload["gres_used"] = _gres({name: n for name, n in used.items() if name not in typed})
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


def _payload(loaded: Any, table: Mapping[str, str]) -> dict[str, Any]:
    # The parser takes None for attributes that another release of pyslurm lacks.
    return {key: getattr(loaded, name, None) for key, name in table.items()}


def _gres(gres: Mapping[str, Any] | None) -> str:
    """`{"gpu:a100": 2}` or `{"gpu:a100": {"count": 2, "indexes": "0-1"}}` as GRES text."""
    parts = []
    for name, value in (gres or {}).items():
        if isinstance(value, Mapping):
            parts.append(f"{name}:{value.get('count', 0)}(IDX:{value.get('indexes', 'N/A')})")
        else:
            parts.append(f"{name}:{value}")
    return ",".join(parts)
