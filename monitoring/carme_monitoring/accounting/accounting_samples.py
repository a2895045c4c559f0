"""The samples of the accounting: jobs, energy, waste, traffic, users."""

from carme_monitoring.accounting.counters import NODE_FIGURES, USE_FIGURES, JobTotals
from carme_monitoring.accounting.job_table import NodeJob
from carme_monitoring.accounting.node_accounting import NodeAccounting
from carme_monitoring.energy.ledger import CONSUMERS
from carme_monitoring.gpus import GpuReading
from carme_monitoring.metrics import JOB, OWNER, LabelValues, Samples, metric_group
from carme_monitoring.sampler import GpuActivity

JOBS = metric_group(
    "Jobs on the node",
    ("job_info", "info", "jobid node user account partition",
     "A job on this node; the only series with user and account. Join on (jobid, node)."),
    ("job_start_timestamp_seconds", "gauge", JOB, "When its prolog ran."),
    ("job_end_timestamp_seconds", "gauge", JOB, "When its epilog ran."),
    ("job_cpus", "gauge", JOB, "CPUs requested on this node."),
)  # fmt: skip

JOB_GPUS = metric_group(
    "GPUs and traffic of jobs",
    ("job_gpu_held", "gauge", "jobid node gpu uuid", "1 for a GPU it holds, busy or idle."),
    ("job_gpu_utilisation_ratio", "gauge", "jobid node gpu uuid",
     "Utilisation of a GPU it holds, mean since the last collection."),
    ("job_gpu_memory_used_bytes", "gauge", "jobid node gpu uuid",
     "Memory that its processes use on a GPU."),
    ("job_network_bytes_total", "counter", "jobid node direction method",
     "Its traffic; method `exclusive` is exact, `share` an estimate by CPU time."),
)  # fmt: skip

CONFLICTS = metric_group(
    "GPU allocations",
    ("gpu_holder_conflicts_total", "counter", "reason",
     "Times a GPU allocation record disagreed with processes, device cgroup or another record."),
)  # fmt: skip

ENERGY = metric_group(
    "Energy",
    ("job_energy_joules_total", "counter", "jobid node component",
     "Energy charged to the job: gpu, cpu, dram and rest (fans, losses) of the node."),
    ("job_energy_estimated_joules_total", "counter", JOB,
     "The part of it that was estimated, because no counter was read at the right moment."),
    ("job_energy_uncertainty_ratio", "gauge", JOB,
     "Relative standard uncertainty, from sources and sampling."),
    ("job_emissions_grams_total", "counter", JOB, "CO2 equivalent, by the factor in force."),
    ("job_cost_total", "counter", "jobid node currency", "Cost, by the price in force."),
    ("node_emissions_grams_total", "counter", "consumer", "CO2 equivalent, by consumer."),
    ("node_cost_total", "counter", "consumer currency", "Cost of the energy, by consumer."),
    ("node_energy_joules_total", "counter", "consumer component",
     "Energy of the node by consumer: jobs, unallocated, system."),
    ("node_metered_joules_total", "counter", "",
     "Energy that the sources read; equals the sum of node_energy_joules_total plus the carry."),
    ("node_energy_carry_joules", "gauge", "",
     "Metered and not yet charged; below zero while counters run ahead of a lagging meter."),
    ("energy_source_info", "info", "component source scope",
     "Where a component's energy comes from; scope says whether it is GPU or node energy."),
    ("energy_rejected_total", "counter", "source", "Readings rejected as implausible."),
    ("energy_resets_total", "counter", "source", "Counters that began again from zero."),
)  # fmt: skip

WASTE = metric_group(
    "Waste",
    ("job_gpu_held_seconds_total", "counter", JOB, "GPU-seconds held."),
    ("job_gpu_idle_seconds_total", "counter", JOB, "GPU-seconds held while idle."),
    ("job_gpu_idle_joules_total", "counter", JOB, "GPU energy while held and idle."),
    ("job_gpu_utilised_seconds_total", "counter", JOB,
     "GPU-seconds held times utilisation."),
    ("job_cpu_asked_seconds_total", "counter", JOB, "CPU-seconds requested."),
    ("job_cpu_idle_seconds_total", "counter", JOB, "CPU-seconds requested and not used."),
    ("job_memory_untouched_bytes", "gauge", JOB, "Memory requested and never used."),
    ("node_gpu_held_seconds_total", "counter", "", "GPU-seconds held, all jobs."),
    ("node_gpu_idle_seconds_total", "counter", "", "GPU-seconds held while idle, all jobs."),
    ("node_gpu_utilised_seconds_total", "counter", "",
     "GPU-seconds held times utilisation, all jobs."),
    ("node_gpu_idle_joules_total", "counter", "",
     "GPU energy while held and idle, all jobs."),
    ("node_cpu_asked_seconds_total", "counter", "", "CPU-seconds requested, all jobs."),
    ("node_cpu_idle_seconds_total", "counter", "",
     "CPU-seconds requested and not used, all jobs."),
)  # fmt: skip

OWNERS = metric_group(
    "Owners",
    ("owner_energy_joules_total", "counter", f"{OWNER} component", "Energy of their jobs."),
    ("owner_emissions_grams_total", "counter", OWNER, "CO2 equivalent of their jobs."),
    ("owner_cost_total", "counter", f"{OWNER} currency", "Cost of their jobs."),
    ("owner_gpu_held_seconds_total", "counter", OWNER, "GPU-seconds held."),
    ("owner_gpu_idle_seconds_total", "counter", OWNER, "GPU-seconds held while idle."),
    ("owner_gpu_utilised_seconds_total", "counter", OWNER,
     "GPU-seconds held times utilisation."),
    ("owner_gpu_idle_joules_total", "counter", OWNER, "GPU energy while held and idle."),
    ("owner_cpu_asked_seconds_total", "counter", OWNER, "CPU-seconds requested."),
    ("owner_cpu_idle_seconds_total", "counter", OWNER,
     "CPU-seconds requested and not used."),
)  # fmt: skip
METRICS = (*JOBS, *JOB_GPUS, *CONFLICTS, *ENERGY, *WASTE, *OWNERS)


def joules(uj: int) -> float:
    """Joules to the millijoule: what a GPU's counter resolves."""
    return uj // 1000 / 1000


def add_accounting_samples(
    out: Samples, node: str, accounting: NodeAccounting, activity: dict[str, GpuActivity]
) -> None:
    """Everything that was charged and counted; `activity` of each GPU since the last collection."""
    for jobid, job in accounting.state.table.jobs.items():
        key = (str(jobid), node)
        out.add("carme_job_info", (*key, job.user, job.account, job.partition), 1)
        out.add("carme_job_start_timestamp_seconds", key, round(job.start_time, 3))
        if job.end_time is not None:
            out.add("carme_job_end_timestamp_seconds", key, round(job.end_time, 3))
        out.add("carme_job_cpus", key, job.cpus or None)
        _add_counter(out, key, accounting, accounting.state.job_counters.of(jobid))
        use = accounting.uses.get(jobid)
        if use and use.memory_limit_bytes and use.memory_peak_bytes is not None:
            untouched = max(0, use.memory_limit_bytes - use.memory_peak_bytes)
            out.add("carme_job_memory_untouched_bytes", key, untouched)
        if job.end_ns is None:
            _add_held_gpus(out, key, accounting, job, activity)
    _add_node(out, accounting)
    _add_energy(out, node, accounting)
    accounting.state.user_counters.add_samples(out, accounting.state.previous.at_ns)
    for labels, count in accounting.crosscheck.conflicts.values.items():
        out.add("carme_gpu_holder_conflicts_total", labels, count)


def _add_counter(
    out: Samples, key: LabelValues, accounting: NodeAccounting, counter: JobTotals
) -> None:
    for figure in USE_FIGURES:
        out.add(f"carme_job_{figure}_total", key, round(getattr(counter, figure), 3))
    for name, amount in counter.network.items():
        method, _, direction = name.partition("/")
        out.add("carme_job_network_bytes_total", (*key, direction, method), amount)
    if accounting.factors.grams_per_kwh is not None:
        out.add("carme_job_emissions_grams_total", key, round(counter.emissions_grams, 6))
    if accounting.factors.price_per_kwh is not None:
        currency = accounting.config.currency
        out.add("carme_job_cost_total", (*key, currency), round(counter.cost, 9))


def _add_held_gpus(
    out: Samples,
    key: LabelValues,
    accounting: NodeAccounting,
    job: NodeJob,
    activity: dict[str, GpuActivity],
) -> None:
    by_uuid: dict[str, GpuReading] = {gpu.uuid: gpu for gpu in accounting.gpus.gpus}
    slots = accounting.slots
    for slot in (slots[index] for index in job.gpus if index < len(slots)):
        gpu = by_uuid.get(slot.gpu)
        index = str(gpu.index) if gpu else ""
        out.add("carme_job_gpu_held", (*key, index, slot.name), 1)
        if gpu and slot.share == 1:
            gpu_activity = activity.get(gpu.uuid)
            mean = gpu_activity.utilisation if gpu_activity else None
            ratio = gpu.utilisation if mean is None else round(mean, 4)
            out.add("carme_job_gpu_utilisation_ratio", (*key, index, gpu.uuid), ratio)
            memory = gpu.memory_used_bytes
            out.add("carme_job_gpu_memory_used_bytes", (*key, index, gpu.uuid), memory)


def _add_node(out: Samples, accounting: NodeAccounting) -> None:
    counters, factors = accounting.state.job_counters, accounting.factors
    out.add("carme_node_gpu_held_seconds_total", (), round(counters.node_gpu_held_seconds, 3))
    out.add("carme_node_gpu_idle_seconds_total", (), round(counters.node_gpu_idle_seconds, 3))
    for name in NODE_FIGURES:
        value = round(accounting.state.user_counters.node.get((name,), 0.0), 3)
        out.add(f"carme_node_{name}_total", (), value)
    for consumer, counter in counters.consumers.items():
        if factors.grams_per_kwh is not None:
            grams = round(counter.emissions_grams, 6)
            out.add("carme_node_emissions_grams_total", (consumer,), grams)
        if factors.price_per_kwh is not None:
            key = (consumer, accounting.config.currency)
            out.add("carme_node_cost_total", key, round(counter.cost, 9))


def _add_energy(out: Samples, node: str, accounting: NodeAccounting) -> None:
    """The ledger, per job and for the node."""
    energy = accounting.state.energy
    ledger, sources = energy.ledger, _sources(accounting)
    for jobid, parts in ledger.accounts.items():
        key = (str(jobid), node)
        for component, uj in parts.items():
            out.add("carme_job_energy_joules_total", (*key, component), joules(uj))
        estimated = joules(ledger.estimated.get(jobid, 0))
        out.add("carme_job_energy_estimated_joules_total", key, estimated)
        uncertainty = round(energy.uncertainty(jobid), 4)
        out.add("carme_job_energy_uncertainty_ratio", key, uncertainty)
    # Zero from the start: increase() does not see the first value of a counter.
    components = {component for _, component in ledger.totals} | sources.keys()
    for consumer in CONSUMERS:
        for component in sorted(components):
            uj = ledger.totals.get((consumer, component), 0)
            out.add("carme_node_energy_joules_total", (consumer, component), joules(uj))
    out.add("carme_node_metered_joules_total", (), joules(ledger.metered))
    out.add("carme_node_energy_carry_joules", (), round(ledger.carry / 1e6, 3))
    for source, count in energy.rejected.items():
        out.add("carme_energy_rejected_total", (source,), count)
    for source, count in energy.resets.items():
        out.add("carme_energy_resets_total", (source,), count)
    for component, source in sources.items():
        scope = "gpu" if component == "gpu" else "node"
        out.add("carme_energy_source_info", (component, source, scope), 1)


def _sources(accounting: NodeAccounting) -> dict[str, str]:
    """Where each component's energy comes from."""
    sources = {}
    for name in (*accounting.state.energy.counters, *accounting.state.energy.gauges):
        kind = name.partition(":")[0]
        if kind == "gpu":
            sources["gpu"] = "nvml_counter"
        elif kind == "gpu-gauge":
            sources.setdefault("gpu", "nvml_power")
        elif kind == "rapl":
            sources["cpu"] = "rapl"
        elif kind.startswith("meter"):
            sources["rest"] = accounting.meter_source
    return sources
