"""The names of nvidia_gpu_prometheus_exporter, with the job id that jobstats adds."""

from carme_monitoring.metrics import Metric
from carme_monitoring.samples import Samples

_LABELS = ("minor_number", "uuid", "name")
_VALUES = (
    ("nvidia_gpu_duty_cycle", "carme_gpu_utilisation_ratio", 100.0, "Utilization in percent."),
    ("nvidia_gpu_memory_total_bytes", "carme_gpu_memory_total_bytes", 1.0, "Memory of the GPU."),
    ("nvidia_gpu_memory_used_bytes", "carme_gpu_memory_used_bytes", 1.0, "Memory in use."),
    ("nvidia_gpu_power_usage_milliwatts", "carme_gpu_power_watts", 1000.0, "Power usage."),
    ("nvidia_gpu_temperature_celsius", "carme_gpu_temperature_celsius", 1.0, "Temperature."),
)
TABLE = (
    Metric("nvidia_gpu_num_devices", "gauge", (), "Number of GPU devices.", "nvidia-gpu"),
    *(Metric(name, "gauge", _LABELS, text, "nvidia-gpu") for name, _, _, text in _VALUES),
    Metric(
        "nvidia_gpu_jobId", "gauge", _LABELS, "Job that holds the GPU, 0 for none.", "nvidia-gpu"
    ),
)


def add(out: Samples) -> None:
    """Carme's GPU samples under these names."""
    holder = {labels[3]: labels[0] for labels in out.families.get("carme_job_gpu_held", {})}
    gpus = list(out.families.get("carme_gpu_info", {}))
    out.add("nvidia_gpu_num_devices", (), len(gpus))
    for index, uuid, name, minor, *_ in gpus:
        key = (minor, uuid, name)
        for ours, source, factor, _ in _VALUES:
            value = out.value(source, index, uuid)
            if value is not None:
                out.add(ours, key, round(value * factor))
        job = holder.get(uuid, "")
        out.add("nvidia_gpu_jobId", key, int(job) if job.isdigit() else 0)
