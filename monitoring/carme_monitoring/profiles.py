"""Further names for the same values, for dashboards that were made for other exporters.

Each profile is a table of metrics and a function that fills them in from Carme's own samples.
Names, labels and units are those of the other exporter, whatever they are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from carme_monitoring.metrics import Kind, Metric, Samples


@dataclass(frozen=True)
class ProfileContext:
    """Data that profiles need besides samples."""

    host: str = ""
    uid_of: Mapping[str, int] = field(default_factory=dict)
    """Job id → user id."""


@dataclass(frozen=True)
class MetricProfile:
    """A profile."""

    table: tuple[Metric, ...]
    add: Callable[[Samples, ProfileContext], None]


# NVIDIA's dcgm-exporter, as its default counters have them.

_DCGM_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname",
                "DCGM_FI_DRIVER_VERSION", "hpc_job")  # fmt: skip
_DCGM: tuple[tuple[str, Kind, str], ...] = (
    ("SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
    ("MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."),
    ("GPU_TEMP", "gauge", "GPU temperature (in C)."),
    ("POWER_USAGE", "gauge", "Power draw (in W)."),
    ("TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy since boot (in mJ)."),
    ("GPU_UTIL", "gauge", "GPU utilization (in %)."),
    ("MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    ("XID_ERRORS", "gauge", "Value of the last XID error encountered."),
    ("FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    ("FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    ("FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB)."),
)
_DCGM_SOURCES: Mapping[str, tuple[str, tuple[str, ...], float]] = {
    "SM_CLOCK": ("carme_gpu_clock_hertz", ("sm",), 1e-6),
    "MEM_CLOCK": ("carme_gpu_clock_hertz", ("memory",), 1e-6),
    "GPU_TEMP": ("carme_gpu_temperature_celsius", (), 1.0),
    "POWER_USAGE": ("carme_gpu_power_watts", (), 1.0),
    "TOTAL_ENERGY_CONSUMPTION": ("carme_gpu_energy_joules_total", (), 1000.0),
    "GPU_UTIL": ("carme_gpu_utilisation_ratio", (), 100.0),
    "MEM_COPY_UTIL": ("carme_gpu_memory_utilisation_ratio", (), 100.0),
    "FB_USED": ("carme_gpu_memory_used_bytes", (), 2.0**-20),
    "FB_RESERVED": ("carme_gpu_memory_reserved_bytes", (), 2.0**-20),
}
"""Name → Carme's metric, its label values beyond the GPU's, factor."""


def _add_dcgm(out: Samples, context: ProfileContext) -> None:
    holders: dict[str, set[str]] = {}
    for labels in out.families.get("carme_job_gpu_held", {}):
        holders.setdefault(labels[3], set()).add(labels[0])
    for info in list(out.families.get("carme_gpu_info", {})):
        index, uuid, name, minor, _, bus, driver, _ = info
        jobs = ",".join(sorted(holders.get(uuid, ())))
        key = (index, uuid, bus, f"nvidia{minor}", name, context.host, driver, jobs)
        for name_suffix, (source, labels, factor) in _DCGM_SOURCES.items():
            value = out.value(source, index, uuid, *labels)
            if value is not None:
                scaled = round(value * factor) if labels else round(value * factor, 3)
                out.add(f"DCGM_FI_DEV_{name_suffix}", key, scaled)
        total, used, reserved = (
            out.value(f"carme_gpu_memory_{part}_bytes", index, uuid)
            for part in ("total", "used", "reserved")
        )
        if total is not None and used is not None:
            free = (total - used - (reserved or 0)) / 2**20
            out.add("DCGM_FI_DEV_FB_FREE", key, round(free, 3))
        errors = out.families.get("carme_gpu_xid_errors_total", {})
        xids = [labels[2] for labels in errors if labels[1] == uuid]
        out.add("DCGM_FI_DEV_XID_ERRORS", key, int(xids[-1]) if xids else 0)


# nvidia_gpu_prometheus_exporter, with the job id that jobstats adds.

_NVIDIA_LABELS = ("minor_number", "uuid", "name")
_NVIDIA = (
    ("duty_cycle", "utilisation_ratio", 100.0, "Utilization in percent."),
    ("memory_total_bytes", "memory_total_bytes", 1.0, "Memory of the GPU."),
    ("memory_used_bytes", "memory_used_bytes", 1.0, "Memory in use."),
    ("power_usage_milliwatts", "power_watts", 1000.0, "Power usage."),
    ("temperature_celsius", "temperature_celsius", 1.0, "Temperature."),
)
"""Name without `nvidia_gpu_`, Carme's without `carme_gpu_`, factor, help."""


def _add_nvidia_gpu(out: Samples, _: ProfileContext) -> None:
    holder = {labels[3]: labels[0] for labels in out.families.get("carme_job_gpu_held", {})}
    gpus = list(out.families.get("carme_gpu_info", {}))
    out.add("nvidia_gpu_num_devices", (), len(gpus))
    for index, uuid, name, minor, *_rest in gpus:
        key = (minor, uuid, name)
        for name_suffix, source, factor, _text in _NVIDIA:
            value = out.value(f"carme_gpu_{source}", index, uuid)
            if value is not None:
                out.add(f"nvidia_gpu_{name_suffix}", key, round(value * factor))
        job = holder.get(uuid, "")
        out.add("nvidia_gpu_jobId", key, int(job) if job.isdigit() else 0)


# treydock's cgroup_exporter, for Slurm jobs.

_CGROUP = (
    ("cgroup_cpus", "carme_job_cpus", "Number of CPUs in the cgroup."),
    ("cgroup_memory_rss_bytes", "carme_job_memory_used_bytes", "Memory RSS used in bytes."),
    ("cgroup_memory_total_bytes", "carme_job_memory_limit_bytes", "Memory total given to cgroup."),
)


def _add_cgroup(out: Samples, context: ProfileContext) -> None:
    for jobid, node, user, *_ in list(out.families.get("carme_job_info", {})):
        uid = context.uid_of.get(jobid, -1)
        name = f"/slurm/uid_{uid}/job_{jobid}"
        out.add("cgroup_info", (name, user, str(uid), jobid), 1)
        out.add("cgroup_uid", (jobid,), uid)
        for metric, source, _text in _CGROUP:
            out.add(metric, (name,), out.value(source, jobid, node))
        times = [
            out.value("carme_job_cpu_seconds_total", jobid, node, mode)
            for mode in ("user", "system", "all")
        ]
        out.add("cgroup_cpu_user_seconds", (name,), times[0])
        out.add("cgroup_cpu_system_seconds", (name,), times[1])
        if any(time is not None for time in times):
            total = sum(time for time in times if time is not None)
            out.add("cgroup_cpu_total_seconds", (name,), total)


# vpenso's prometheus-slurm-exporter, whose names slurm-exporter dashboards ask for, too.

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
_SCHEDULER = {
    "threads": ("carme_slurm_scheduler_threads", "Scheduler threads."),
    "queue_size": ("carme_slurm_scheduler_agent_queue", "Scheduler agent queue."),
    "dbd_queue_size": ("carme_slurm_scheduler_dbd_queue", "Queue for the accounting database."),
}
_CYCLES = {
    "slurm_scheduler_last_cycle": ("main", "last"),
    "slurm_scheduler_mean_cycle": ("main", "mean"),
    "slurm_scheduler_backfill_last_cycle": ("backfill", "last"),
    "slurm_scheduler_backfill_mean_cycle": ("backfill", "mean"),
}


def _slurm_rows() -> Iterator[tuple[str, str, str]]:
    """Names, label and help."""
    yield from ((f"slurm_cpus_{s}", "", f"CPUs: {s}.") for s in ("alloc", "idle", "other", "total"))
    for state in ("alloc", "idle", "other", "total", "utilization"):
        yield f"slurm_gpus_{state}", "", f"GPUs: {state}."
    yield from ((f"slurm_nodes_{state}", "", f"Nodes: {state}.") for state in _NODE_STATES)
    yield from ((f"slurm_queue_{s}", "", f"Jobs in the cluster: {s}.") for s in _JOB_STATES)
    yield "slurm_queue_pending_dependency", "", "Pending jobs because of dependency."
    for state in ("allocated", "idle", "other", "total"):
        yield f"slurm_partition_cpus_{state}", "partition", f"CPUs: {state}."
    yield "slurm_partition_jobs_pending", "partition", "Pending jobs."
    for group in ("account", "user"):
        for state in ("pending", "running", "suspended"):
            yield f"slurm_{group}_jobs_{state}", group, f"Jobs: {state}."
        yield f"slurm_{group}_cpus_running", group, "CPUs of running jobs."
    yield from ((f"slurm_scheduler_{name}", "", text) for name, (_, text) in _SCHEDULER.items())
    yield from ((name, "", "Scheduler cycle time (in microseconds).") for name in _CYCLES)


def _add_slurm(out: Samples, _: ProfileContext) -> None:
    if "carme_slurm_up" in out.families:
        _add_slurm_capacity(out)
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
    for name, (source, _text) in _SCHEDULER.items():
        out.add(f"slurm_scheduler_{name}", (), out.value(source))


def _add_slurm_capacity(out: Samples) -> None:
    nodes = out.families.get("carme_slurm_cluster_nodes", {})
    for name, states in _NODE_STATES.items():
        out.add(f"slurm_nodes_{name}", (), sum(nodes.get((state,), 0) for state in states))
    cpus = out.families.get("carme_slurm_cluster_cpus", {})
    for name, state in (("alloc", "allocated"), ("idle", "idle"), ("other", "other")):
        out.add(f"slurm_cpus_{name}", (), cpus.get((state,), 0))
    out.add("slurm_cpus_total", (), sum(cpus.values()))
    gpus: dict[str, float] = {}
    for (_, state), count in out.families.get("carme_slurm_gpus", {}).items():
        gpus[state] = gpus.get(state, 0) + count
    total = sum(gpus.values())
    for name, state in (("alloc", "allocated"), ("idle", "free"), ("other", "unavailable")):
        out.add(f"slurm_gpus_{name}", (), gpus.get(state, 0))
    out.add("slurm_gpus_total", (), total)
    used = gpus.get("allocated", 0) / total if total else 0
    out.add("slurm_gpus_utilization", (), round(used, 4))
    for (partition, state), count in out.families.get("carme_slurm_cpus", {}).items():
        out.add(f"slurm_partition_cpus_{state}", (partition,), count)
        out.increase("slurm_partition_cpus_total", (partition,), count)


def _gauges(group: str, labels: tuple[str, ...], *rows: tuple[str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(name, "gauge", labels, text, group) for name, text in rows)


PROFILES: Mapping[str, MetricProfile] = {
    "dcgm": MetricProfile(
        tuple(
            Metric(f"DCGM_FI_DEV_{name}", kind, _DCGM_LABELS, text, "dcgm")
            for name, kind, text in _DCGM
        ),
        _add_dcgm,
    ),
    "nvidia-gpu": MetricProfile(
        (
            *_gauges("nvidia-gpu", (), ("nvidia_gpu_num_devices", "Number of GPU devices.")),
            *_gauges(
                "nvidia-gpu",
                _NVIDIA_LABELS,
                *((f"nvidia_gpu_{name}", text) for name, _, _, text in _NVIDIA),
                ("nvidia_gpu_jobId", "Job that holds the GPU, 0 for none."),
            ),
        ),
        _add_nvidia_gpu,
    ),
    "cgroup": MetricProfile(
        (
            *_gauges(
                "cgroup",
                ("cgroup",),
                *((name, text) for name, _, text in _CGROUP),
                ("cgroup_cpu_user_seconds", "CPU user seconds."),
                ("cgroup_cpu_system_seconds", "CPU system seconds."),
                ("cgroup_cpu_total_seconds", "CPU total seconds."),
            ),
            *_gauges(
                "cgroup", ("jobid",), ("cgroup_uid", "Uid number of the user running this job.")
            ),
            Metric("cgroup_info", "info", ("cgroup", "username", "uid", "jobid"),
                   "User slice information.", "cgroup"),
        ),
        _add_cgroup,
    ),
    "slurm-exporter": MetricProfile(
        tuple(
            Metric(name, "gauge", (label,) if label else (), text, "slurm-exporter")
            for name, label, text in _slurm_rows()
        ),
        _add_slurm,
    ),
}  # fmt: skip


def tables(names: Iterable[str]) -> tuple[Metric, ...]:
    """The metrics of the profiles `names`."""
    return tuple(metric for name in names for metric in PROFILES[name].table)
