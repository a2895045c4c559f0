"""The pipeline: each source is read once and guarded, and state is restored whole or not at all."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import carme_monitoring.pipeline
from carme_monitoring.accounting.accounting_samples import add_accounting_samples
from carme_monitoring.accounting.exporter_state import ExporterState, PreviousReading
from carme_monitoring.collector import Collector
from carme_monitoring.collectors import host, make_collectors, network, power
from carme_monitoring.collectors.gpu import BurstCollector, GpuCollector
from carme_monitoring.collectors.jobs import AllocationCollector
from carme_monitoring.metrics import Samples, metric_group
from carme_monitoring.pipeline import TABLE
from carme_monitoring.sampler import GpuActivity, GpuSampler

from .conftest import TreeGpus, World, joules

SOURCES = {"gpu": (TreeGpus, "energy_counters"), "rapl": (power, "read_rapl"),
           "power": (power, "hwmon"), "host": (host, "read_host"),
           "network": (network, "read")}  # fmt: skip


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each source was read."""
    counts: Counter[str] = Counter()

    def counted(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return read(*args)

        return call

    for name, (module, function) in SOURCES.items():
        monkeypatch.setattr(module, function, counted(name, getattr(module, function)))
    return counts


def test_a_collection_reads_every_source_once(world: World, reads: Counter[str]) -> None:
    exporter = world.exporter()
    world.wait(5)
    world.end(102, end_reading={"time_ns": 0, "boot_ns": world.now_ns, "rapl_uj": {"x": 1}})
    exporter.collect()
    assert reads == dict.fromkeys(SOURCES, 1)


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_fails_takes_nothing_else_with_it(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = world.exporter()
    exporter.collect()
    world.wait(10)
    monkeypatch.setattr(*SOURCES[name], lambda *_: 1 // 0)
    samples = exporter.collect()
    success = samples.families["carme_collector_success"]
    assert {labels[0] for labels, value in success.items() if not value} == {name}
    assert "carme_gpu_power_watts" in samples.families


@pytest.mark.parametrize("broken", [("read",), ("energy_counters",), ("read", "energy_counters")])
def test_gpus_that_fail_are_a_failure_without_a_sampler_too(
    world: World, broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `carme-exporter --once`, which samples nothing."""
    for name in broken:
        monkeypatch.setattr(world.gpus, name, lambda: 1 // 0)
    samples = world.exporter().collect()
    assert samples.value("carme_collector_success", "gpu") == 0
    assert world.guards.errors()["gpu"].startswith("ZeroDivisionError")


@pytest.mark.parametrize("kind", [host.HostCollector, GpuCollector])
def test_samples_that_cannot_be_made_are_a_failure_of_their_collector_alone(
    world: World, kind: type[Collector[Any]]
) -> None:
    """A GPU collector that fails shows the last reading, of which no samples can be made either."""
    make = kind.add_samples

    def add_samples(self: Collector[Any], out: Samples, reading: Any) -> None:
        make(self, out, reading)
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "add_samples", add_samples)
        samples = world.exporter().collect()
    success = samples.families["carme_collector_success"]
    assert {labels[0] for labels, value in success.items() if not value} == {kind.name}
    assert not {metric.name for metric in kind.metrics} & samples.families.keys()
    assert ("102", "n1", "ben", "chem", "gpu") in samples.families["carme_job_info"]
    assert world.guards.errors() == {kind.name: "ZeroDivisionError: "}
    assert world.exporter().collect().value("carme_collector_success", kind.name) == 1


def test_what_is_published_is_what_was_charged(world: World) -> None:
    """The wrap and the reset of a RAPL counter follow one rule in the metric and in the ledger."""
    path = "sys/class/powercap/intel-rapl:0/energy_uj"
    world.write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "262143328850\n")
    world.write(path, "200000000000\n")
    exporter = world.exporter()
    exporter.collect()
    for value, expected in (
        (1_000_000, 1.0),  # 200 kJ → 1 J in 15 s: no processor draws 62 kJ in that time
        (31_000_000, 31.0),
        (262_143_000_000, 31.0),  # as absurd, and waited for
        (32_000_000, 32.0),
    ):
        world.wait(15)
        world.write(path, f"{value}\n")
        samples = exporter.collect()
        published = samples.value("carme_rapl_energy_joules_total", "intel-rapl:0", "package-0")
        charged = samples.families["carme_node_energy_joules_total"]
        assert published == pytest.approx(expected)
        assert sum(v for (_, part), v in charged.items() if part == "cpu") == pytest.approx(
            expected, abs=0.01
        )
    assert samples.value("carme_energy_resets_total", "rapl:intel-rapl:0") == 1


def test_the_published_energy_of_a_gpu_is_the_one_that_was_charged(world: World) -> None:
    """Its counter runs on between any two reads."""
    exporter = world.exporter()
    first = exporter.collect().value("carme_gpu_energy_joules_total", "0", "GPU-aaaa") or 0
    for name in ("read", "energy_counters"):
        read = getattr(world.gpus, name)

        def running_on(read: Callable[[], Any] = read) -> Any:
            world.gpus.burn("GPU-aaaa", 7)
            return read()

        setattr(world.gpus, name, running_on)
    world.wait(15)
    samples = exporter.collect()
    gained = (samples.value("carme_gpu_energy_joules_total", "0", "GPU-aaaa") or 0) - first
    assert gained == joules(samples, 101)["gpu"] > 0


def test_samples_are_of_the_reading(world: World) -> None:
    """What sources and accounts say later changes nothing, nor does making samples of them."""
    world.write("run/jobs/n1.900.0.json", "{")
    exporter = world.exporter()
    exporter.collect()
    records = AllocationCollector(world.context())
    reading, out = records.read(), Samples()
    (world.root / "run/jobs/n1.900.0.json").unlink()
    records.read()
    records.add_samples(out, reading)
    assert out.value("carme_jobs_broken_records") == 2  # one is broken in the tree
    sampler = GpuSampler(dict, lambda: (0, 0))
    sampler.follow({7: ["A"]})
    sampler.step()
    bursts = BurstCollector(replace(world.context(), sampler=sampler))
    seen = bursts.read()
    sampler.follow({})
    bursts.add_samples(out, seen)
    assert out.value("carme_job_burst_amount", "7", "n1", "gpu") == 0
    answers = [Samples(), Samples()]
    for answer in answers:
        activity = {"GPU-bbbb": GpuActivity(10, 5, 2.5)}
        add_accounting_samples(answer, "n1", exporter.accounting, activity)
    assert answers[0].families == answers[1].families
    assert answers[0].value("carme_job_gpu_utilisation_ratio", "102", "n1", "1", "GPU-bbbb") == 0.25


def test_power_that_was_not_read_is_not_charged_as_measured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU without an energy counter is charged by its power, when that is read."""
    world.gpus.energy = {}
    exporter = world.exporter()
    exporter.collect()
    world.wait(15)
    measured = joules(exporter.collect(), 101)["gpu"]
    with monkeypatch.context() as patch:
        patch.setattr(TreeGpus, "read", lambda _: 1 // 0)
        for _ in range(8):
            world.wait(15)
            samples = exporter.collect()
            assert joules(samples, 101)["gpu"] == measured
    world.wait(15)
    samples = exporter.collect()
    charged = joules(samples, 101)["gpu"]
    assert charged == pytest.approx(10 * measured)
    estimated = samples.value("carme_job_energy_estimated_joules_total", "101", "n1")
    assert estimated == pytest.approx(charged - measured)


@pytest.mark.parametrize("key", ["energy", "table", "job_counters", "user_counters", "previous",
                                 "collectors"])  # fmt: skip
def test_a_damaged_part_of_the_state_restores_nothing(world: World, key: str) -> None:
    exporter = world.exporter()
    exporter.collect()
    path = world.root / "state/n1.json"
    content = json.loads(path.read_text())
    assert key in content
    path.write_text(json.dumps({**content, key: 5}))
    new = ExporterState.new(exporter.context.config)
    assert world.exporter().accounting.state.save() == new.save()


def test_the_state_of_the_previous_version_is_read(world: World) -> None:
    """An update of the exporter loses no joule."""
    shutil.copy(Path(__file__).with_name("state-v2.json"), world.root / "state/n1.json")
    old = json.loads((world.root / "state/n1.json").read_text())
    accountant = old["accountant"]
    state = world.exporter().accounting.state
    ledger = state.energy.ledger
    assert {str(jobid): parts for jobid, parts in ledger.accounts.items()} == (
        accountant["ledger"]["accounts"]
    )
    assert [[*key, uj] for key, uj in ledger.totals.items()] == accountant["ledger"]["totals"]
    assert ledger.metered == sum(ledger.totals.values()) + ledger.carry == 6_500_000_000
    assert state.energy.counters["gpu:GPU-aaaa"].value_uj == 8_000_000_000
    assert state.energy.gauges["meter-gauge"].watts == 700
    assert state.energy.zone_totals == accountant["zone_totals"]
    assert [vars(job) | {"gpus": list(job.gpus)} for job in state.table.jobs.values()] == old[
        "jobs"
    ]
    assert state.job_counters.node_gpu_held_seconds == old["tallies"]["held"] > 0
    assert (
        state.job_counters.of(101).emissions_grams
        == (old["tallies"]["jobs"]["101"]["emissions_grams"])
    )
    assert [[list(figure), value] for figure, value in state.user_counters.node.items()] == (
        old["owners"]["node"]
    )
    owned = [(list(owner), list(figure), total.value, total.since_ns, total.last_ns)
             for owner, totals in state.user_counters.totals.items()
             for figure, total in totals.items()]  # fmt: skip
    assert [list(row) for row in owned] == old["owners"]["totals"]
    assert state.previous.at_ns == old["before"]["at_ns"]
    world.now_ns = 220 * 10**9
    world.gpus.energy["GPU-aaaa"] = 8_500_000
    assert joules(world.exporter().collect(), 101)["gpu"] == 3500
    assert json.loads((world.root / "state/n1.json").read_text())["version"] == 3


def test_jobs_leave_nothing_behind_after_a_reboot(world: World) -> None:
    exporter = world.exporter()
    exporter.collect()
    world.wait(15)
    exporter.collect()
    assert exporter.accounting.state.energy.held_seconds
    world.write("proc/sys/kernel/random/boot_id", "99999999-0000-0000-0000-000000000000\n")
    state = world.exporter().accounting.state
    assert state.energy.held_seconds == state.table.jobs == state.job_counters.jobs == {}
    assert state.previous == PreviousReading()


class RestartCollector(Collector[int]):
    """Counts the collections, over restarts of the exporter."""

    name = "restarts"
    metrics: ClassVar = metric_group("Node", ("node_collections_total", "counter", "", "Times."))
    count = 0

    def read(self) -> int:
        self.count += 1
        return self.count

    def add_samples(self, out: Samples, reading: int) -> None:
        out.add("carme_node_collections_total", (), reading)

    def save(self) -> int:
        return self.count

    def restore(self, saved: int) -> None:
        self.count = int(saved)


def test_a_further_collector_is_read_published_and_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        carme_monitoring.pipeline,
        "make_collectors",
        lambda mode, context: [*make_collectors(mode, context), RestartCollector(context)],
    )
    exporter = world.exporter()
    exporter.collect()  # saves what the collectors had read before
    assert exporter.collect().value("carme_node_collections_total") == 2
    assert world.exporter().collect().value("carme_node_collections_total") == 3
    world.write("proc/sys/kernel/random/boot_id", "99999999-0000-0000-0000-000000000000\n")
    samples = world.exporter().collect()
    assert samples.value("carme_node_collections_total") == 1
    assert samples.value("carme_collector_success", "restarts") == 1


WITH_A_FURTHER_COLLECTOR = """
import sys
import carme_monitoring.collectors
carme_monitoring.collectors.__path__.append(sys.argv.pop(1))
from carme_monitoring.commands import main
main()
"""


def test_the_collector_of_contributing_works(world: World, tmp_path: Path) -> None:
    """One file in the package of collectors, as it stands there, is read and published."""
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    folder, config = tmp_path / "collectors", tmp_path / "carme.toml"
    folder.mkdir()
    (folder / "entropy.py").write_text(code)
    config.write_text("")

    def once() -> str:
        command = [
            sys.executable,
            "-c",
            WITH_A_FURTHER_COLLECTOR,
            folder,
            "--once",
            "--node",
            "n1",
            "--config",
            config,
            "--run",
            tmp_path,
            "--proc-root",
            world.root / "proc",
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    answer = once()
    assert 'carme_collector_success{collector="entropy"} 0\n' in answer
    assert "carme_node_entropy_bits" not in answer
    world.write("proc/sys/kernel/random/entropy_avail", "256\n")
    answer = once()
    assert "# HELP carme_node_entropy_bits Entropy in the kernel's pool.\n" in answer
    assert "\ncarme_node_entropy_bits 256\n" in answer
    assert 'carme_collector_success{collector="entropy"} 1\n' in answer


def test_every_family_is_declared_once(world: World) -> None:
    names = [metric.name for metric in TABLE]
    assert len(names) == len(set(names))
    collectors = make_collectors("node", world.context())
    assert {collector.name for collector in collectors} >= {
        "gpu", "rapl", "power", "cgroup", "host", "network", "jobs", "disk",
    }  # fmt: skip
