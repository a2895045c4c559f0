"""The names of vpenso's prometheus-slurm-exporter; also what slurm-exporter dashboards ask for."""

from collections.abc import Iterator

from carme_monitoring.metrics import Metric
from carme_monitoring.samples import Samples

_NODE_STATES = {
    "alloc": ("allocated",),
    "comp": ("completing",),
    "down": ("down", "not_responding"),
    "drain": ("drained", "draining"),
    "err": ("error",),
    "fail": ("fail",),
    "idle": ("idle",),
    "maint": ("maintenance",),
    "mix": ("mixed",),
    "resv": ("reserved",),
}
_JOB_STATES = ("pending", "running", "suspended", "cancelled", "completing", "completed",
               "configuring", "failed", "timeout", "preempted", "node_fail")  # fmt: skip
_CYCLES = {
    "slurm_scheduler_last_cycle": ("main", "last"),
    "slurm_scheduler_mean_cycle": ("main", "mean"),
    "slurm_scheduler_backfill_last_cycle": ("backfill", "last"),
    "slurm_scheduler_backfill_mean_cycle": ("backfill", "mean"),
}


def _table() -> Iterator[Metric]:
    def gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
        return Metric(name, "gauge", labels, text, "slurm-exporter")

    for state in ("alloc", "idle", "other", "total"):
        yield gauge(f"slurm_cpus_{state}", (), f"CPUs: {state}.")
    for state in ("alloc", "idle", "other", "total", "utilization"):
        yield gauge(f"slurm_gpus_{state}", (), f"GPUs: {state}.")
    for state in _NODE_STATES:
        yield gauge(f"slurm_nodes_{state}", (), f"Nodes: {state}.")
    for state in _JOB_STATES:
        yield gauge(f"slurm_queue_{state}", (), f"Jobs in the cluster: {state}.")
    yield gauge("slurm_queue_pending_dependency", (), "Pending jobs because of dependency.")
    for state in ("allocated", "idle", "other", "total"):
        yield gauge(f"slurm_partition_cpus_{state}", ("partition",), f"CPUs: {state}.")
    yield gauge("slurm_partition_jobs_pending", ("partition",), "Pending jobs.")
    for group in ("account", "user"):
        for state in ("pending", "running", "suspended"):
            yield gauge(f"slurm_{group}_jobs_{state}", (group,), f"Jobs: {state}.")
        yield gauge(f"slurm_{group}_cpus_running", (group,), "CPUs of running jobs.")
    yield gauge("slurm_scheduler_threads", (), "Scheduler threads.")
    yield gauge("slurm_scheduler_queue_size", (), "Scheduler agent queue.")
    yield gauge("slurm_scheduler_dbd_queue_size", (), "Queue for the accounting database.")
    for name in _CYCLES:
        yield gauge(name, (), "Scheduler cycle time (in microseconds).")


TABLE = tuple(_table())


def add(out: Samples) -> None:
    """Carme's cluster samples under these names."""
    _add_capacity(out)
    jobs = dict(out.families.get("carme_slurm_jobs", {}))
    for state in _JOB_STATES:
        count = sum(value for labels, value in jobs.items() if labels[3] == state)
        out.add(f"slurm_queue_{state}", (), count)
    pending = out.families.get("carme_slurm_pending_jobs", {})
    waiting = sum(value for labels, value in pending.items() if labels[1] == "Dependency")
    out.add("slurm_queue_pending_dependency", (), waiting)
    cpus = out.families.get("carme_slurm_job_cpus", {})
    for (partition, account, user, state), count in jobs.items():
        if state == "pending":
            out.increase("slurm_partition_jobs_pending", (partition,), count)
        if state in ("pending", "running", "suspended"):
            out.increase(f"slurm_account_jobs_{state}", (account,), count)
            out.increase(f"slurm_user_jobs_{state}", (user,), count)
        if state == "running":
            used = cpus.get((partition, account, user, state), 0)
            out.increase("slurm_account_cpus_running", (account,), used)
            out.increase("slurm_user_cpus_running", (user,), used)
    for name, (scheduler, statistic) in _CYCLES.items():
        seconds = out.value("carme_slurm_scheduler_cycle_seconds", scheduler, statistic)
        out.add(name, (), None if seconds is None else round(seconds * 1e6))
    for ours, source in (("threads", "threads"), ("queue_size", "agent_queue"),
                         ("dbd_queue_size", "dbd_queue")):  # fmt: skip
        out.add(f"slurm_scheduler_{ours}", (), out.value(f"carme_slurm_scheduler_{source}"))


def _add_capacity(out: Samples) -> None:
    if "carme_slurm_up" not in out.families:
        return
    for name, states in _NODE_STATES.items():
        nodes = out.families.get("carme_slurm_cluster_nodes", {})
        out.add(f"slurm_nodes_{name}", (), sum(nodes.get((state,), 0) for state in states))
    everything = out.families.get("carme_slurm_cluster_cpus", {})
    for name, state in (("alloc", "allocated"), ("idle", "idle"), ("other", "other")):
        out.add(f"slurm_cpus_{name}", (), everything.get((state,), 0))
    out.add("slurm_cpus_total", (), sum(everything.values()))
    gpus: dict[str, float] = {}
    for (_, state), count in out.families.get("carme_slurm_gpus", {}).items():
        gpus[state] = gpus.get(state, 0) + count
    total = sum(gpus.values())
    out.add("slurm_gpus_alloc", (), gpus.get("allocated", 0))
    out.add("slurm_gpus_idle", (), gpus.get("free", 0))
    out.add("slurm_gpus_other", (), gpus.get("unavailable", 0))
    out.add("slurm_gpus_total", (), total)
    used = gpus.get("allocated", 0) / total if total else 0
    out.add("slurm_gpus_utilization", (), round(used, 4))
    for (partition, state), count in out.families.get("carme_slurm_cpus", {}).items():
        out.add(f"slurm_partition_cpus_{state}", (partition,), count)
        out.increase("slurm_partition_cpus_total", (partition,), count)
