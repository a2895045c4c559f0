"""Samples of what the exporter has worked out: energy, waste, traffic, bursts per job."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from carme_monitoring.collectors.cgroup import JobUse
from carme_monitoring.energy.ledger import CONSUMERS
from carme_monitoring.energy.shares import GpuSlot
from carme_monitoring.gpus import GpuReading
from carme_monitoring.sampler import GpuActivity
from carme_monitoring.samples import Samples

if TYPE_CHECKING:
    from carme_monitoring.node import Gpus, NodeExporter

_NODE_FIGURES = (
    "gpu_utilised_seconds",
    "gpu_idle_joules",
    "cpu_asked_seconds",
    "cpu_idle_seconds",
)
_OWNER_FIGURES = ("gpu_held_seconds", "gpu_idle_seconds", *_NODE_FIGURES)


def joules(uj: int) -> float:
    """Joules to the millijoule: what a GPU's counter resolves."""
    return uj // 1000 / 1000


def add_energy_samples(out: Samples, exporter: "NodeExporter") -> None:
    """The ledger, per job and for the node."""
    ledger, node = exporter.accountant.ledger, exporter.node
    for jobid, parts in ledger.accounts.items():
        key = (str(jobid), node)
        for component, uj in parts.items():
            out.add("carme_job_energy_joules_total", (*key, component), joules(uj))
        estimated = joules(ledger.estimated.get(jobid, 0))
        out.add("carme_job_energy_estimated_joules_total", key, estimated)
        uncertainty = round(exporter.accountant.uncertainty(jobid), 4)
        out.add("carme_job_energy_uncertainty_ratio", key, uncertainty)
    # Zero from the start: increase() does not see the first value of a counter.
    components = {component for _, component in ledger.totals} | _sources(exporter).keys()
    for who in CONSUMERS:
        for component in sorted(components):
            uj = ledger.totals.get((who, component), 0)
            out.add("carme_node_energy_joules_total", (who, component), joules(uj))
    out.add("carme_node_metered_joules_total", (), joules(ledger.metered))
    out.add("carme_node_energy_carry_joules", (), round(ledger.carry / 1e6, 3))
    for source, count in exporter.accountant.rejected.items():
        out.add("carme_energy_rejected_total", (source,), count)
    for source, count in exporter.accountant.resets.items():
        out.add("carme_energy_resets_total", (source,), count)
    for component, source in _sources(exporter).items():
        scope = "gpu" if component == "gpu" else "node"
        out.add("carme_energy_source_info", (component, source, scope), 1)


def add_job_samples(
    out: Samples,
    exporter: "NodeExporter",
    gpus: Sequence[GpuReading],
    slots: Sequence[GpuSlot],
    uses: Mapping[int, JobUse],
    seen: Mapping[str, GpuActivity],
) -> None:
    """Waste, traffic, GPU use and bursts of every job."""
    node, factors = exporter.node, exporter.factors()
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for jobid, entry in exporter.table.entries.items():
        key, tally = (str(jobid), node), exporter.tallies.of(jobid)
        out.add("carme_job_gpu_held_seconds_total", key, round(tally.gpu_held_seconds, 3))
        out.add("carme_job_gpu_idle_seconds_total", key, round(tally.gpu_idle_seconds, 3))
        out.add("carme_job_gpu_idle_joules_total", key, round(tally.gpu_idle_joules, 3))
        out.add("carme_job_gpu_utilised_seconds_total", key, round(tally.gpu_utilised_seconds, 3))
        out.add("carme_job_cpu_asked_seconds_total", key, round(tally.cpu_asked_seconds, 3))
        out.add("carme_job_cpu_idle_seconds_total", key, round(tally.cpu_idle_seconds, 3))
        for name, amount in tally.network.items():
            method, _, direction = name.partition("/")
            out.add("carme_job_network_bytes_total", (*key, direction, method), amount)
        if factors.grams_per_kwh is not None:
            out.add("carme_job_emissions_grams_total", key, round(tally.emissions_grams, 6))
        if factors.price_per_kwh is not None:
            currency = exporter.config.currency
            out.add("carme_job_cost_total", (*key, currency), round(tally.cost, 9))
        use = uses.get(jobid)
        if use and use.memory_limit_bytes and use.memory_peak_bytes is not None:
            untouched = max(0, use.memory_limit_bytes - use.memory_peak_bytes)
            out.add("carme_job_memory_untouched_bytes", key, untouched)
        if entry.end_ns is not None:
            continue
        for slot in (slots[index] for index in entry.gpus if index < len(slots)):
            gpu = by_uuid.get(slot.gpu)
            if gpu and slot.share == 1:
                _add_held_gpu(out, (*key, str(gpu.index), gpu.uuid), gpu, seen.get(gpu.uuid))
    out.add("carme_node_gpu_held_seconds_total", (),
            round(exporter.tallies.node_gpu_held_seconds, 3))  # fmt: skip
    out.add("carme_node_gpu_idle_seconds_total", (),
            round(exporter.tallies.node_gpu_idle_seconds, 3))  # fmt: skip
    for name in _NODE_FIGURES:
        value = round(exporter.owners.node.get((name,), 0.0), 3)
        out.add(f"carme_node_{name}_total", (), value)
    _add_node_costs(out, exporter)
    if exporter.sampler:
        for jobid, figures in exporter.sampler.figures().items():
            for signal, found in figures.items():
                burst_key = (str(jobid), node, signal)
                out.add("carme_job_burst_duration_seconds", burst_key, found.burst_seconds)
                out.add("carme_job_burst_pause_seconds", burst_key, found.idle_seconds)
                out.add("carme_job_burst_amount", burst_key, found.burst_amount)


def job_figures(
    exporter: "NodeExporter",
) -> Iterator[tuple[int, tuple[str, str, str], dict[tuple[str, ...], float]]]:
    """Every job with its owner and what grows, for the owners' counters."""
    accounts, factors = exporter.accountant.ledger.accounts, exporter.factors()
    for jobid, entry in exporter.table.entries.items():
        tally = exporter.tallies.of(jobid)
        figures: dict[tuple[str, ...], float] = {
            ("energy_joules", component): uj / 1e6
            for component, uj in accounts.get(jobid, {}).items()
        }
        figures |= {(name,): getattr(tally, name) for name in _OWNER_FIGURES}
        if factors.grams_per_kwh is not None:
            figures["emissions_grams",] = tally.emissions_grams
        if factors.price_per_kwh is not None:
            figures["cost", exporter.config.currency] = tally.cost
        yield jobid, (entry.user, entry.account, entry.partition), figures


def _add_node_costs(out: Samples, exporter: "NodeExporter") -> None:
    factors, currency = exporter.factors(), exporter.config.currency
    for consumer, tally in exporter.tallies.consumers.items():
        if factors.grams_per_kwh is not None:
            grams = round(tally.emissions_grams, 6)
            out.add("carme_node_emissions_grams_total", (consumer,), grams)
        if factors.price_per_kwh is not None:
            out.add("carme_node_cost_total", (consumer, currency), round(tally.cost, 9))


def add_xid_samples(out: Samples, gpus: Sequence[GpuReading], source: "Gpus | None") -> None:
    """Driver errors by GPU and number."""
    index_of = {gpu.uuid: str(gpu.index) for gpu in gpus}
    for (uuid, xid), count in (source.xids if source else {}).items():
        out.add("carme_gpu_xid_errors_total", (index_of.get(uuid, ""), uuid, str(xid)), count)


def _add_held_gpu(
    out: Samples, key: tuple[str, ...], gpu: GpuReading, seen: GpuActivity | None
) -> None:
    mean = seen.utilisation if seen else None
    value = gpu.utilisation if mean is None else round(mean, 4)
    out.add("carme_job_gpu_utilisation_ratio", key, value)
    out.add("carme_job_gpu_memory_used_bytes", key, gpu.memory_used_bytes)


def _sources(exporter: "NodeExporter") -> dict[str, str]:
    found = {}
    for name in exporter.accountant.source_names():
        kind = name.partition(":")[0]
        if kind == "gpu":
            found["gpu"] = "nvml_counter"
        elif kind == "gpu-gauge":
            found.setdefault("gpu", "nvml_power")
        elif kind == "rapl":
            found["cpu"] = "rapl"
        elif kind.startswith("meter"):
            found["rest"] = exporter.meter_source()
    return found
