"""Every metric, once: name, type, labels, help. The reference in the docs is made from this."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "info", "histogram"]
_UNITS = ("joules", "seconds", "bytes", "watts", "celsius", "hertz", "ratio", "grams")


@dataclass(frozen=True)
class Metric:
    """A metric family. Units are base units and stand at the end of the name."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    group: str = ""

    @property
    def unit(self) -> str:
        stem = self.name.removesuffix("_total")
        return next((unit for unit in _UNITS if stem.endswith(f"_{unit}")), "")

    @property
    def is_per_job(self) -> bool:
        return "jobid" in self.labels

    @property
    def form(self) -> str:
        """How values are written. Jobs' joules and seconds are to the thousandth, which is what
        their sources resolve, and which is written twice as fast as the shortest exact form."""
        return "%.3f" if self.is_per_job and self.unit in ("joules", "seconds") else "%r"


def _group(title: str, *metrics: tuple[str, Kind, str, str]) -> Iterator[Metric]:
    for name, kind, labels, text in metrics:
        yield Metric(f"carme_{name}", kind, tuple(labels.split()), text, title)


_JOB = "jobid node"
_GPU = "gpu uuid"
_OWNER = "user account partition"

TABLE: tuple[Metric, ...] = (
    *_group(
        "Exporter",
        ("exporter_info", "info", "version mode node", "The exporter itself; always 1."),
        ("exporter_series", "gauge", "", "Series in the last answer."),
        ("exporter_series_limit", "gauge", "", "Series that an answer may have at most."),
        ("exporter_rolled_up_jobs", "gauge", "", "Jobs that share the series with jobid `other`."),
        ("exporter_rolled_up_total", "counter", "", "Series folded into `other` since the start."),
        ("exporter_collection_seconds", "gauge", "", "Time the last collection took."),
        ("exporter_collected_timestamp_seconds", "gauge", "", "When it was collected."),
        ("exporter_state_failures_total", "counter", "", "State files that could not be written."),
        ("collector_success", "gauge", "collector", "1 when the collector's last run worked."),
        ("collector_duration_seconds", "gauge", "collector", "Time of the collector's last run."),
        ("collector_failures_total", "counter", "collector reason", "Runs that failed, and why."),
        ("collector_value_errors_total", "counter", "collector value",
         "Single values left out because the source had none or nonsense."),
    ),
    *_group(
        "GPU",
        ("gpu_info", "info", "gpu uuid name minor slurm_index bus_id driver virtual",
         "A GPU: NVML's index, minor number and Slurm's index are three different things."),
        ("gpu_lost", "gauge", _GPU, "1 while the GPU does not answer."),
        ("gpu_utilisation_ratio", "gauge", _GPU, "Time with a kernel running, 0 to 1."),
        ("gpu_memory_utilisation_ratio", "gauge", _GPU, "Time with memory being read or written."),
        ("gpu_memory_total_bytes", "gauge", _GPU, "Memory of the card."),
        ("gpu_memory_used_bytes", "gauge", _GPU, "Memory in use by processes."),
        ("gpu_memory_reserved_bytes", "gauge", _GPU, "Memory kept by driver and firmware."),
        ("gpu_power_watts", "gauge", _GPU, "Power of the whole card, also when it is sliced."),
        ("gpu_power_limit_watts", "gauge", _GPU, "Enforced limit."),
        ("gpu_energy_joules_total", "counter", _GPU, "Energy by the card's own counter."),
        ("gpu_temperature_celsius", "gauge", _GPU, "Temperature of the chip."),
        ("gpu_clock_hertz", "gauge", "gpu uuid clock", "Clocks: graphics, sm, memory, video."),
        ("gpu_throttle_active", "gauge", "gpu uuid reason", "1 while this reason slows the card."),
        ("gpu_ecc_errors_total", "counter", "gpu uuid kind", "Memory errors over its lifetime."),
        ("gpu_xid_errors_total", "counter", "gpu uuid xid", "Driver errors since the start."),
        ("gpu_pcie_bytes_per_second", "gauge", "gpu uuid direction", "Traffic on the bus."),
        ("gpu_nvlink_bytes_total", "counter", "gpu uuid direction", "Traffic to other GPUs."),
        ("gpu_processes", "gauge", _GPU, "Processes that compute on it."),
        ("gpu_mig_enabled", "gauge", _GPU, "1 when the card is sliced."),
        ("gpu_mig_share_ratio", "gauge", "gpu uuid mig", "The slice's part of the card."),
        ("gpu_mig_memory_total_bytes", "gauge", "gpu uuid mig", "Memory of the slice."),
        ("gpu_mig_memory_used_bytes", "gauge", "gpu uuid mig", "Memory of the slice in use."),
    ),
    *_group(
        "Power",
        ("rapl_energy_joules_total", "counter", "zone name",
         "Energy of processor packages and memory, wrap-around undone, since the start."),
        ("node_power_watts", "gauge", "source", "What the source says the whole node draws."),
        ("power_source_info", "info", "source", "The source of node power in use; always 1."),
    ),
    *_group(
        "Node",
        ("node_cpus", "gauge", "", "Processors of the node."),
        ("node_cpu_seconds_total", "counter", "mode", "Processor time by mode."),
        ("node_memory_total_bytes", "gauge", "", "Memory of the node."),
        ("node_memory_available_bytes", "gauge", "", "Memory that new work could have."),
        ("node_load_ratio", "gauge", "", "Runnable processes over a minute per processor."),
        ("node_boot_timestamp_seconds", "gauge", "", "When the node booted."),
        ("disk_size_bytes", "gauge", "mountpoint", "Size of a local file system."),
        ("disk_free_bytes", "gauge", "mountpoint", "What users may still write there."),
        ("disk_files_free_ratio", "gauge", "mountpoint", "Part of its files (inodes) still free."),
        ("network_bytes_total", "counter", "device direction",
         "Traffic of an interface; bonds, VLANs and bridges are in those they are made of."),
        ("network_errors_total", "counter", "device direction", "Errors of an interface."),
        ("infiniband_bytes_total", "counter", "device port direction", "Data of a port."),
        ("infiniband_packets_total", "counter", "device port direction", "Packets of a port."),
        ("infiniband_errors_total", "counter", "device port kind", "Errors of a port."),
        ("infiniband_rate_bytes_per_second", "gauge", "device port", "Speed of the link."),
        ("infiniband_active", "gauge", "device port", "1 while the link is up."),
    ),
    *_group(
        "Jobs on the node",
        ("job_info", "info", "jobid node user account partition",
         "A job on this node; the only series with user and account. Join on (jobid, node)."),
        ("job_start_timestamp_seconds", "gauge", _JOB, "When its prolog ran."),
        ("job_end_timestamp_seconds", "gauge", _JOB, "When its epilog ran."),
        ("job_cpus", "gauge", _JOB, "Processors it asked for here."),
        ("job_cpu_seconds_total", "counter", "jobid node mode", "Processor time it used."),
        ("job_memory_used_bytes", "gauge", _JOB, "Memory of its processes."),
        ("job_memory_peak_bytes", "gauge", _JOB, "The most it ever used."),
        ("job_memory_limit_bytes", "gauge", _JOB, "Memory it asked for here."),
        ("job_oom_kills_total", "counter", _JOB, "Processes killed for want of memory."),
        ("job_io_bytes_total", "counter", "jobid node direction", "Bytes to and from disks."),
        ("job_pressure_seconds_total", "counter", "jobid node resource kind",
         "Time some or all of its processes waited for a resource (cgroup v2)."),
        ("job_processes", "gauge", _JOB, "Its processes."),
        ("job_gpu_held", "gauge", "jobid node gpu uuid", "1 for a GPU it holds, busy or idle."),
        ("job_gpu_utilisation_ratio", "gauge", "jobid node gpu uuid",
         "Utilisation of a GPU it holds, mean since the last collection."),
        ("job_gpu_memory_used_bytes", "gauge", "jobid node gpu uuid",
         "Memory that its processes use on a GPU."),
        ("job_network_bytes_total", "counter", "jobid node direction method",
         "Its traffic; method `exclusive` is exact, `share` an estimate by processor time."),
        ("jobs_broken_records", "gauge", "", "Holder records that could not be read."),
        ("gpu_holder_conflicts_total", "counter", "reason",
         "Times the holder record disagreed with processes, device cgroup or itself."),
    ),
    *_group(
        "Energy",
        ("job_energy_joules_total", "counter", "jobid node component",
         "Energy charged to the job: gpu, cpu, dram and rest (fans, losses) of the node."),
        ("job_energy_estimated_joules_total", "counter", _JOB,
         "The part of it that was divided by time instead of by a reading."),
        ("job_energy_uncertainty_ratio", "gauge", _JOB,
         "Relative standard uncertainty, from sources and sampling."),
        ("job_emissions_grams_total", "counter", _JOB, "CO2 equivalent, by the factor in force."),
        ("job_cost_total", "counter", "jobid node currency", "Cost, by the price in force."),
        ("node_emissions_grams_total", "counter", "consumer", "CO2 equivalent, by who used it."),
        ("node_cost_total", "counter", "consumer currency", "Cost of the energy, by who used it."),
        ("node_energy_joules_total", "counter", "consumer component",
         "Energy of the node by who used it: jobs, unallocated, system."),
        ("node_metered_joules_total", "counter", "",
         "What the sources read; equals the sum of node_energy_joules_total plus the carry."),
        ("node_energy_carry_joules", "gauge", "",
         "Signed: below zero while component counters run ahead of a lagging meter."),
        ("energy_source_info", "info", "component source scope",
         "Where a component's energy comes from; scope says whether it is GPU or node energy."),
        ("energy_rejected_total", "counter", "source", "Readings too absurd to count."),
        ("energy_resets_total", "counter", "source", "Counters that began again from zero."),
    ),
    *_group(
        "Waste",
        ("job_gpu_held_seconds_total", "counter", _JOB, "GPU-seconds held."),
        ("job_gpu_idle_seconds_total", "counter", _JOB, "GPU-seconds held while idle."),
        ("job_gpu_idle_joules_total", "counter", _JOB, "GPU energy while held and idle."),
        ("job_gpu_utilised_seconds_total", "counter", _JOB,
         "GPU-seconds held times utilisation."),
        ("job_cpu_asked_seconds_total", "counter", _JOB, "CPU-seconds asked for."),
        ("job_cpu_idle_seconds_total", "counter", _JOB, "CPU-seconds asked for and not used."),
        ("job_memory_untouched_bytes", "gauge", _JOB, "Memory asked for and never touched."),
        ("node_gpu_held_seconds_total", "counter", "", "GPU-seconds held, all jobs."),
        ("node_gpu_idle_seconds_total", "counter", "", "GPU-seconds held while idle, all jobs."),
        ("node_gpu_utilised_seconds_total", "counter", "",
         "GPU-seconds held times utilisation, all jobs."),
        ("node_gpu_idle_joules_total", "counter", "",
         "GPU energy while held and idle, all jobs."),
        ("node_cpu_asked_seconds_total", "counter", "", "CPU-seconds asked for, all jobs."),
        ("node_cpu_idle_seconds_total", "counter", "",
         "CPU-seconds asked for and not used, all jobs."),
    ),
    *_group(
        "Owners",
        ("owner_energy_joules_total", "counter", f"{_OWNER} component", "Energy of their jobs."),
        ("owner_emissions_grams_total", "counter", _OWNER, "CO2 equivalent of their jobs."),
        ("owner_cost_total", "counter", f"{_OWNER} currency", "Cost of their jobs."),
        ("owner_gpu_held_seconds_total", "counter", _OWNER, "GPU-seconds held."),
        ("owner_gpu_idle_seconds_total", "counter", _OWNER, "GPU-seconds held while idle."),
        ("owner_gpu_utilised_seconds_total", "counter", _OWNER,
         "GPU-seconds held times utilisation."),
        ("owner_gpu_idle_joules_total", "counter", _OWNER, "GPU energy while held and idle."),
        ("owner_cpu_asked_seconds_total", "counter", _OWNER, "CPU-seconds asked for."),
        ("owner_cpu_idle_seconds_total", "counter", _OWNER,
         "CPU-seconds asked for and not used."),
    ),
    *_group(
        "Bursts",
        ("job_burst_duration_seconds", "gauge", "jobid node signal",
         "Mean length of a burst; signals gpu, gpu_memory, send, receive."),
        ("job_burst_pause_seconds", "gauge", "jobid node signal", "Mean time between bursts."),
        ("job_burst_amount", "gauge", "jobid node signal",
         "Mean level in a burst: utilisation (0 to 1), bytes held, bytes per second."),
    ),
    *_group(
        "Cluster (controller mode)",
        ("slurm_up", "gauge", "", "1 while Slurm's controller answers."),
        ("slurm_accounting_up", "gauge", "", "1 while Slurm's accounting (slurmdbd) answers."),
        ("slurm_snapshot_age_seconds", "gauge", "", "How old the picture of the cluster is."),
        ("slurm_cluster_nodes", "gauge", "state", "Nodes by state, each once."),
        ("slurm_cluster_cpus", "gauge", "state", "Processors: allocated, idle, other; each once."),
        ("slurm_nodes", "gauge", "partition state", "Nodes by state; one may be in several."),
        ("slurm_node_closed", "gauge", "node state",
         "1 for each node that takes no jobs; nodes that do have no series."),
        ("slurm_cpus", "gauge", "partition state", "Processors: allocated, idle, other."),
        ("slurm_gpus", "gauge", "type state", "GPUs: allocated, free, unavailable."),
        ("slurm_partition_up", "gauge", "partition", "1 when jobs may start there."),
        ("slurm_jobs", "gauge", "partition account user state", "Jobs in the queue."),
        ("slurm_job_cpus", "gauge", "partition account user state", "Processors of these jobs."),
        ("slurm_job_gpus", "gauge", "partition account user state", "GPUs of these jobs."),
        ("slurm_job_ends_timestamp_seconds", "gauge", "jobid user account partition",
         "When the time limit ends a running job, in the last hour before that."),
        ("slurm_pending_jobs", "gauge", "partition reason", "Waiting jobs by Slurm's reason."),
        ("slurm_pending_oldest_seconds", "gauge", "partition", "Longest wait so far."),
        ("slurm_pending_mean_seconds", "gauge", "partition", "Mean wait so far."),
        ("slurm_started_wait_seconds", "gauge", "partition percentile",
         "Waiting times of the jobs that run now: 50, 90 and 99 percent waited no longer."),
        ("slurm_scheduler_threads", "gauge", "", "Threads of the controller at work."),
        ("slurm_scheduler_agent_queue", "gauge", "", "Messages to nodes that wait to be sent."),
        ("slurm_scheduler_dbd_queue", "gauge", "", "Records that wait for the accounting."),
        ("slurm_scheduler_cycle_seconds", "gauge", "scheduler statistic",
         "Time of a cycle of the main and the backfill scheduler: last, mean, max."),
        ("slurm_scheduler_queue_length", "gauge", "scheduler", "Jobs looked at in the last cycle."),
        ("slurm_scheduler_backfilled_jobs", "gauge", "", "Jobs backfilled since Slurm started."),
        ("view_reads_total", "counter", "", "Times that carme-view read Slurm."),
        ("view_read_errors_total", "counter", "", "Times that it could not."),
        ("view_read_seconds", "gauge", "", "Time of its last reading."),
        ("view_requests_total", "counter", "", "Questions that it answered."),
        ("view_refreshes_total", "counter", "",
         "Questions among them for a picture newer than the last one."),
    ),
)  # fmt: skip

SERVICE: tuple[Metric, ...] = tuple(
    _group(
        "Prediction service",
        ("service_requests_total", "counter", "endpoint method status", "Requests answered."),
        ("service_request_seconds", "histogram", "endpoint", "Time to answer."),
        ("service_predictions_judged", "gauge", "kind source figure within",
         "Predictions whose job ran to its end, by whether the measured figure lay within the"
         " interval."),
        ("prediction_seconds", "gauge", "jobid kind",
         "Time of one of the newest 200 jobs with a prediction; kind is predicted, low, high, and"
         " measured once it has run to its end."),
        ("prediction_joules", "gauge", "jobid kind", "The same for the energy of its GPUs."),
    )
)  # fmt: skip
"""What the prediction service exports; its own test holds it to this."""

BY_NAME = {metric.name: metric for metric in TABLE}
