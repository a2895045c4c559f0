"""The names of treydock's cgroup_exporter, for Slurm jobs."""

from collections.abc import Mapping

from carme_monitoring.metrics import Metric
from carme_monitoring.samples import Samples

_VALUES = (
    ("cgroup_cpus", "carme_job_cpus", "Number of CPUs in the cgroup."),
    ("cgroup_memory_rss_bytes", "carme_job_memory_used_bytes", "Memory RSS used in bytes."),
    ("cgroup_memory_total_bytes", "carme_job_memory_limit_bytes", "Memory total given to cgroup."),
)
TABLE = (
    *(Metric(name, "gauge", ("cgroup",), text, "cgroup") for name, _, text in _VALUES),
    Metric("cgroup_cpu_user_seconds", "gauge", ("cgroup",), "CPU user seconds.", "cgroup"),
    Metric("cgroup_cpu_system_seconds", "gauge", ("cgroup",), "CPU system seconds.", "cgroup"),
    Metric("cgroup_cpu_total_seconds", "gauge", ("cgroup",), "CPU total seconds.", "cgroup"),
    Metric("cgroup_uid", "gauge", ("jobid",), "Uid number of the user running this job.", "cgroup"),
    Metric("cgroup_info", "info", ("cgroup", "username", "uid", "jobid"),
           "User slice information.", "cgroup"),
)  # fmt: skip


def add(out: Samples, uid_of: Mapping[str, int]) -> None:
    """Carme's job samples under these names."""
    for jobid, node, user, *_ in list(out.families.get("carme_job_info", {})):
        uid = uid_of.get(jobid, -1)
        name = f"/slurm/uid_{uid}/job_{jobid}"
        out.add("cgroup_info", (name, user, str(uid), jobid), 1)
        out.add("cgroup_uid", (jobid,), uid)
        for ours, source, _ in _VALUES:
            out.add(ours, (name,), out.value(source, jobid, node))
        times = [
            out.value("carme_job_cpu_seconds_total", jobid, node, mode)
            for mode in ("user", "system", "all")
        ]
        out.add("cgroup_cpu_user_seconds", (name,), times[0])
        out.add("cgroup_cpu_system_seconds", (name,), times[1])
        if any(time is not None for time in times):
            total = sum(time for time in times if time is not None)
            out.add("cgroup_cpu_total_seconds", (name,), total)
