"""The names of NVIDIA's dcgm-exporter, as its default counters have them."""

from carme_monitoring.metrics import Kind, Metric
from carme_monitoring.samples import LabelValues, Samples

_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname",
           "DCGM_FI_DRIVER_VERSION", "hpc_job")  # fmt: skip


def _metric(name: str, kind: Kind, text: str) -> Metric:
    return Metric(f"DCGM_FI_DEV_{name}", kind, _LABELS, text, "dcgm")


TABLE = (
    _metric("SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
    _metric("MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."),
    _metric("GPU_TEMP", "gauge", "GPU temperature (in C)."),
    _metric("POWER_USAGE", "gauge", "Power draw (in W)."),
    _metric("TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy since boot (in mJ)."),
    _metric("GPU_UTIL", "gauge", "GPU utilization (in %)."),
    _metric("MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    _metric("XID_ERRORS", "gauge", "Value of the last XID error encountered."),
    _metric("FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    _metric("FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    _metric("FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB)."),
)
_VALUES = {
    "GPU_TEMP": ("carme_gpu_temperature_celsius", 1.0),
    "POWER_USAGE": ("carme_gpu_power_watts", 1.0),
    "TOTAL_ENERGY_CONSUMPTION": ("carme_gpu_energy_joules_total", 1000.0),
    "GPU_UTIL": ("carme_gpu_utilisation_ratio", 100.0),
    "MEM_COPY_UTIL": ("carme_gpu_memory_utilisation_ratio", 100.0),
    "FB_USED": ("carme_gpu_memory_used_bytes", 2.0**-20),
    "FB_RESERVED": ("carme_gpu_memory_reserved_bytes", 2.0**-20),
}


def add(out: Samples, host: str) -> None:
    """Carme's GPU samples under DCGM's names."""
    holders: dict[str, set[str]] = {}
    for labels in out.families.get("carme_job_gpu_held", {}):
        holders.setdefault(labels[3], set()).add(labels[0])
    for info in list(out.families.get("carme_gpu_info", {})):
        index, uuid, name, minor, _, bus, driver, _ = info
        jobs = ",".join(sorted(holders.get(uuid, ())))
        key: LabelValues = (index, uuid, bus, f"nvidia{minor}", name, host, driver, jobs)
        for ours, (source, factor) in _VALUES.items():
            value = out.value(source, index, uuid)
            if value is not None:
                out.add(f"DCGM_FI_DEV_{ours}", key, round(value * factor, 3))
        for ours, clock in (("SM_CLOCK", "sm"), ("MEM_CLOCK", "memory")):
            value = out.value("carme_gpu_clock_hertz", index, uuid, clock)
            if value is not None:
                out.add(f"DCGM_FI_DEV_{ours}", key, round(value / 1e6))
        parts = [
            out.value(f"carme_gpu_memory_{part}_bytes", index, uuid)
            for part in ("total", "used", "reserved")
        ]
        if parts[0] is not None and parts[1] is not None:
            free = (parts[0] - parts[1] - (parts[2] or 0)) / 2**20
            out.add("DCGM_FI_DEV_FB_FREE", key, round(free, 3))
        xids = [
            labels[2]
            for labels in out.families.get("carme_gpu_xid_errors_total", {})
            if labels[1] == uuid
        ]
        out.add("DCGM_FI_DEV_XID_ERRORS", key, int(xids[-1]) if xids else 0)
