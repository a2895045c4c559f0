"""Queries of the kind that dashboards for other exporters have, to check the profiles with.

After the dashboards for dcgm-exporter, for the Slurm exporter of vpenso, for nvidia_gpu_exporter's
predecessor and for cgroup_exporter. Names, labels and units are theirs.
"""

from carme_monitoring.dashboards.model import Dashboard, PanelRow, Variable, lines, stat

_TEXT = "As in dashboards made for that exporter."
_GPU = 'instance=~"$instance"'


DCGM = Dashboard(
    "dcgm",
    "dcgm-exporter",
    _TEXT,
    (
        PanelRow(
            "GPUs",
            (
                lines("Temperature", _TEXT, (f"DCGM_FI_DEV_GPU_TEMP{{{_GPU}}}", "GPU {{gpu}}")),
                stat("Mean temperature", f"avg(DCGM_FI_DEV_GPU_TEMP{{{_GPU}}})", _TEXT),
                lines("Power", _TEXT, (f"DCGM_FI_DEV_POWER_USAGE{{{_GPU}}}", "GPU {{gpu}}")),
                stat("Total power", f"sum(DCGM_FI_DEV_POWER_USAGE{{{_GPU}}})", _TEXT),
                lines("SM clock", _TEXT,
                      (f"DCGM_FI_DEV_SM_CLOCK{{{_GPU}}} * 1000000", "GPU {{gpu}}")),
                lines("Utilisation", _TEXT, (f"DCGM_FI_DEV_GPU_UTIL{{{_GPU}}}", "GPU {{gpu}}")),
                lines("Copy", _TEXT, (f"DCGM_FI_DEV_MEM_COPY_UTIL{{{_GPU}}}", "GPU {{gpu}}")),
                lines("Framebuffer", _TEXT,
                      (f"DCGM_FI_DEV_FB_USED{{{_GPU}}} / (DCGM_FI_DEV_FB_USED{{{_GPU}}}"
                       f" + DCGM_FI_DEV_FB_FREE{{{_GPU}}})", "{{Hostname}} {{gpu}}")),
                lines("Energy", _TEXT,
                      (f"rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_GPU}}}[5m]) / 1000",
                       "{{modelName}} {{UUID}}")),
                lines("By job", _TEXT,
                      ("avg by (hpc_job) (DCGM_FI_DEV_GPU_UTIL)", "{{hpc_job}}")),
            ),
        ),
    ),
    (Variable("instance", "Instance", "DCGM_FI_DEV_GPU_TEMP", "instance", multi=True),),
    hours=1,
)  # fmt: skip

NVIDIA_GPU = Dashboard(
    "nvidia-gpu",
    "nvidia_gpu_prometheus_exporter",
    _TEXT,
    (
        PanelRow(
            "GPUs",
            (
                stat("Devices", "sum(nvidia_gpu_num_devices)", _TEXT),
                lines("Duty cycle", _TEXT, ("nvidia_gpu_duty_cycle", "{{minor_number}}")),
                lines("Memory", _TEXT,
                      ("nvidia_gpu_memory_used_bytes / nvidia_gpu_memory_total_bytes", "{{uuid}}")),
                lines("Power", _TEXT, ("nvidia_gpu_power_usage_milliwatts / 1000", "{{name}}")),
                lines("Temperature", _TEXT,
                      ("nvidia_gpu_temperature_celsius", "{{instance}} {{minor_number}}")),
            ),
        ),
    ),
    hours=1,
)  # fmt: skip

CGROUP = Dashboard(
    "cgroup",
    "cgroup_exporter",
    _TEXT,
    (
        PanelRow(
            "Jobs",
            (
                lines("Memory of a job", _TEXT, ("cgroup_memory_rss_bytes", "{{cgroup}}")),
                lines("Memory used", _TEXT,
                      ("cgroup_memory_rss_bytes / cgroup_memory_total_bytes", "{{cgroup}}")),
                lines("CPU", _TEXT,
                      ("rate(cgroup_cpu_total_seconds[1m]) / cgroup_cpus", "{{cgroup}}")),
                lines("With the job's number", _TEXT,
                      ("cgroup_memory_rss_bytes * on (instance, cgroup) group_left (jobid)"
                       " cgroup_info", "{{jobid}}")),
            ),
        ),
    ),
    hours=1,
)  # fmt: skip

SLURM = Dashboard(
    "slurm-exporter",
    "prometheus-slurm-exporter",
    _TEXT,
    (
        PanelRow(
            "Slurm",
            (
                stat("Nodes allocated", "slurm_nodes_alloc", _TEXT),
                stat("Nodes idle", "slurm_nodes_idle", _TEXT),
                stat("Nodes down", "slurm_nodes_down + slurm_nodes_drain", _TEXT),
                stat("CPUs in use", "slurm_cpus_alloc / slurm_cpus_total", _TEXT),
                stat("GPUs in use", "slurm_gpus_alloc / slurm_gpus_total", _TEXT),
                lines("Queue", _TEXT, ("slurm_queue_running", "running"),
                      ("slurm_queue_pending", "pending"), ("slurm_queue_suspended", "suspended")),
                lines("By account", _TEXT,
                      ("slurm_account_cpus_running > 0", "{{account}}")),
                lines("By user", _TEXT, ("slurm_user_jobs_running", "{{user}}")),
                lines("Partitions", _TEXT,
                      ("slurm_partition_cpus_allocated / slurm_partition_cpus_total",
                       "{{partition}}")),
                lines("Scheduler", _TEXT, ("slurm_scheduler_threads", "threads"),
                      ("slurm_scheduler_mean_cycle / 1e6", "mean cycle"),
                      ("slurm_scheduler_backfill_mean_cycle / 1e6", "backfill")),
            ),
        ),
    ),
    hours=1,
)  # fmt: skip

PROFILES = {"dcgm": DCGM, "nvidia-gpu": NVIDIA_GPU, "cgroup": CGROUP, "slurm-exporter": SLURM}
