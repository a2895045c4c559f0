"""The exporter of a node, whole: its answer, its memory, and everything that can be broken."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carme import __version__
from carme_monitoring.gpus import MigSlice
from carme_monitoring.pipeline import TABLE, NodePipeline
from carme_monitoring.profiles import PROFILES, ProfileContext, tables
from carme_monitoring.render import Renderer

from .conftest import World, joules, series_of

_CHANGING = re.compile(
    r"^(carme_(?:collector_duration_seconds|exporter_collection_seconds)\S*) .*$", re.MULTILINE
)


def move_on(world: World) -> None:
    """Ten seconds in which every counter moves; RAPL wraps."""
    world.wait(10)
    world.gpus.burn("GPU-aaaa", 3000)
    world.gpus.burn("GPU-bbbb", 550)
    world.gpus.burn("GPU-cccc", 1200)
    world.write("sys/class/powercap/intel-rapl:0/energy_uj", "799671150\n")  # 800 J further
    world.write("sys/class/powercap/intel-rapl:0:0/energy_uj", "101000000\n")
    world.write("sys/class/hwmon/hwmon0/power1_average", "700000000\n")
    job = "cgroup/cpuacct/slurm_n1/uid_1001/job_101/"
    world.write(job + "cpuacct.usage", "68000000000\n")
    world.write(job + "cpuacct.stat", "user 5600\nsystem 1200\n")
    world.write(
        "cgroup/system.slice/slurmstepd.scope/job_102/cpu.stat",
        "usage_usec 21000000\nuser_usec 16000000\nsystem_usec 5000000\n",
    )
    stat = (world.root / "proc/stat").read_text()
    world.write("proc/stat", stat.replace("cpu  40000 100 8000", "cpu  42000 100 8300"))
    dev = (world.root / "proc/1/net/dev").read_text()
    world.write("proc/1/net/dev", dev.replace("eth0: 5000000", "eth0: 6000000"))


def _reading(world: World) -> dict[str, Any]:
    moment = {"time_ns": 0, "boot_ns": world.now_ns}
    return {**moment, "nvml_mj": world.gpus.energy, "rapl_uj": {"intel-rapl:0:0": 1_000_000}}


def test_the_whole_answer(world: World, golden: Callable[[str, str], None]) -> None:
    exporter = world.exporter(emissions_grams_per_kwh=400, price_per_kwh=0.25)
    exporter.collect()
    move_on(world)
    samples = exporter.collect()
    PROFILES["dcgm"].add(samples, ProfileContext("n1"))
    PROFILES["cgroup"].add(samples, ProfileContext("n1", {"101": 1001, "102": 1002, "103": 1002}))
    text = Renderer((*TABLE, *tables(["dcgm", "cgroup"]))).render(samples).decode()
    text = text.replace(f'version="{__version__}"', 'version="X"')
    golden("node.golden.txt", _CHANGING.sub(r"\1 0", text))


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_the_answer(world: World) -> None:
    text = Renderer(TABLE).render(world.exporter().collect())
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_node_balances_and_holders_pay(world: World) -> None:
    exporter = world.exporter()
    exporter.collect()
    move_on(world)
    samples = exporter.collect()
    assert joules(samples, 101)["gpu"] == 3000
    assert joules(samples, 102)["gpu"] == 550
    nodes = samples.families["carme_node_energy_joules_total"]
    assert nodes["unallocated", "gpu"] == 1200  # slices that nobody holds
    assert sum(v for (_, part), v in nodes.items() if part == "cpu") == pytest.approx(800, abs=0.01)
    assert sum(v for (_, part), v in nodes.items() if part == "dram") == pytest.approx(
        100, abs=0.01
    )
    metered = samples.value("carme_node_metered_joules_total") or 0
    assert metered == pytest.approx(6500)  # (600 W + 700 W) / 2 for 10 s
    carry = samples.value("carme_node_energy_carry_joules") or 0
    assert sum(nodes.values()) + carry == pytest.approx(metered, abs=0.01)


def test_start_and_end_are_exact_through_the_hook(world: World) -> None:
    exporter = world.exporter()
    exporter.collect()
    world.wait(3)
    world.end(102)
    exporter.settle(102)
    world.record(105, gpus=[1], user="cy")
    exporter.settle(105)
    world.gpus.burn("GPU-bbbb", 77)
    world.wait(2)
    world.end(105)
    exporter.settle(105)
    world.gpus.burn("GPU-bbbb", 1000)
    world.wait(5)
    samples = exporter.collect()
    assert joules(samples, 105)["gpu"] == 77
    assert samples.value("carme_job_energy_estimated_joules_total", "105", "n1") == 0
    assert samples.value("carme_node_energy_joules_total", "unallocated", "gpu") == 1000


def test_counters_survive_a_restart(world: World) -> None:
    exporter = world.exporter()
    exporter.collect()
    move_on(world)
    before = exporter.collect()
    world.gpus.burn("GPU-aaaa", 500)
    world.wait(60)  # nobody looked
    again = world.exporter().collect()
    assert joules(again, 101)["gpu"] == 3500
    metered = again.value("carme_node_metered_joules_total") or 0
    booked = sum(again.families["carme_node_energy_joules_total"].values())
    carry = again.value("carme_node_energy_carry_joules") or 0
    assert booked + carry == pytest.approx(metered, abs=0.01)
    for name, labels, value in series_of(before):
        metric = next(m for m in TABLE if m.name == name)
        if metric.kind == "counter" and not name.startswith(("carme_collector", "carme_exporter")):
            assert (again.value(name, *labels) or 0) >= value, name


def test_readings_of_the_hook_settle_what_happened_meanwhile(world: World) -> None:
    """No exporter ran when a job came, nor when it went."""
    world.exporter().collect()
    world.wait(5)
    world.gpus.burn("GPU-bbbb", 10)
    world.end(102, end_reading=_reading(world))
    world.wait(5)
    world.gpus.burn("GPU-bbbb", 20)
    world.record(106, gpus=[1], start_reading=_reading(world))
    world.wait(5)
    world.gpus.burn("GPU-bbbb", 400)
    world.end(106, end_reading=_reading(world))
    world.wait(5)
    world.gpus.burn("GPU-bbbb", 3)
    samples = world.exporter().collect()
    assert joules(samples, 102)["gpu"] == 10
    assert joules(samples, 106)["gpu"] == 400
    assert samples.value("carme_job_energy_estimated_joules_total", "106", "n1") == 0
    assert samples.value("carme_node_energy_joules_total", "unallocated", "gpu") == 23


def test_a_small_job_does_not_pay_for_the_node_while_no_exporter_ran(world: World) -> None:
    """The hook reads the processors' counter, not what jobs used: what they held divides it."""
    for folder in ("run/jobs", "cgroup"):
        shutil.rmtree(world.root / folder)
        (world.root / folder).mkdir()
    stat = ["cpu  40000 100 8000 500000 0 0 0 0 0 0"]
    stat += [f"cpu{number} 4000 10 800 50000 0 0 0 0 0 0" for number in range(64)]
    world.write("proc/stat", "\n".join([*stat, "btime 1700000000", ""]))
    world.write("sys/class/powercap/intel-rapl:0/energy_uj", "0\n")
    world.record(108, cpus=1)
    world.exporter().collect()
    world.wait(100)
    taken = {"boot_ns": world.now_ns, "time_ns": 0, "nvml_mj": {}}
    taken["rapl_uj"] = {"intel-rapl:0": 6_400_000_000, "intel-rapl:0:0": 101_000_000}
    world.end(108, end_reading=taken)
    world.wait(50)
    world.write("sys/class/powercap/intel-rapl:0/energy_uj", "9600000000\n")
    world.write("sys/class/powercap/intel-rapl:0:0/energy_uj", "101000000\n")
    samples = world.exporter().collect()
    assert joules(samples, 108) == {"cpu": 100}
    assert samples.value("carme_job_energy_estimated_joules_total", "108", "n1") == 100
    assert samples.value("carme_node_energy_joules_total", "unallocated", "cpu") == 9500
    booked = samples.families["carme_node_energy_joules_total"]
    assert sum(value for (_, part), value in booked.items() if part == "dram") == 100


def test_the_processors_after_a_reading_of_the_hook_are_divided_by_use(world: World) -> None:
    """A job that used one of the processors all the time has not used all in the last second."""
    world.exporter().collect()
    world.wait(99)
    world.end(
        103, end_reading={"boot_ns": world.now_ns, "time_ns": 0, "rapl_uj": {"intel-rapl:0": 0}}
    )
    world.wait(1)
    path = "cgroup/system.slice/slurmstepd.scope/job_102/cpu.stat"
    before = int((world.root / path).read_text().split()[1])
    world.write(path, f"usage_usec {before + 100_000_000}\n")
    world.write("sys/class/powercap/intel-rapl:0/energy_uj", "100000000\n")
    exporter = world.exporter()
    exporter.collect()
    held, used, cpus = 2 * 0.25, 1.0, 4  # 101 holds two and does nothing
    idle = (cpus - 3) * 0.25
    expected = 100 * used / (held + used + idle)
    assert exporter.accounting.state.energy.ledger.job(102)["cpu"] / 1e6 == pytest.approx(
        expected, rel=0.01
    )


def test_without_readings_time_divides_and_it_is_flagged(world: World) -> None:
    world.exporter().collect()
    world.wait(6)
    world.end(102)
    world.wait(4)
    world.gpus.burn("GPU-bbbb", 100)
    samples = world.exporter().collect()
    assert joules(samples, 102)["gpu"] == pytest.approx(60)
    assert samples.value("carme_job_energy_estimated_joules_total", "102", "n1") == pytest.approx(
        60
    )
    assert (samples.value("carme_job_energy_uncertainty_ratio", "102", "n1") or 0) > 0.08


def test_a_reboot_begins_anew(world: World) -> None:
    world.exporter().collect()
    world.write("proc/sys/kernel/random/boot_id", "99999999-0000-0000-0000-000000000000\n")
    world.now_ns = 5 * 10**9
    world.gpus.burn("GPU-aaaa", 10**6)
    samples = world.exporter().collect()
    assert "carme_job_energy_joules_total" not in samples.families
    assert samples.value("carme_node_metered_joules_total") == 0


def test_series_of_a_job_end_a_while_after_it(world: World) -> None:
    exporter = world.exporter()
    exporter.collect()
    world.end(101)
    shutil.rmtree(world.root / "cgroup/cpuacct/slurm_n1")
    for controller in ("memory", "cpuset", "blkio", "pids", "devices"):
        shutil.rmtree(world.root / f"cgroup/{controller}/slurm_n1")
    exporter.settle(101)
    world.wait(299)
    held = ("carme_job_gpu_held", "carme_job_memory_used_bytes")
    samples = exporter.collect()
    assert "101" in {labels[0] for labels in samples.families["carme_job_info"]}
    assert all("101" not in {k[0] for k in samples.families.get(name, {})} for name in held)
    assert samples.value("carme_job_end_timestamp_seconds", "101", "n1") == 1_700_000_200
    world.wait(2)
    samples = exporter.collect()
    for name, family in samples.families.items():
        if "jobid" in next(m for m in TABLE if m.name == name).labels:
            assert "101" not in {labels[0] for labels in family}, name


def test_a_requeued_job_goes_on_counting(world: World) -> None:
    exporter = world.exporter()
    exporter.collect()
    world.gpus.burn("GPU-bbbb", 5)
    world.wait(1)
    world.end(102)
    exporter.settle(102)
    world.wait(1)
    first = world.root / "run/jobs/n1.102.0.json"
    world.record(1020, gpus=[1])
    (world.root / "run/jobs/n1.1020.0.json").rename(world.root / "run/jobs/n1.102.1.json")
    second = world.root / "run/jobs/n1.102.1.json"
    second.write_text(second.read_text().replace('"jobid": 1020', '"jobid": 102, "restart": 1'))
    assert first.exists()
    exporter.settle(102)
    world.wait(1)
    world.gpus.burn("GPU-bbbb", 7)
    samples = exporter.collect()
    assert joules(samples, 102)["gpu"] == 12
    assert samples.value("carme_job_gpu_held", "102", "n1", "1", "GPU-bbbb") == 1


def _slot_names(exporter: NodePipeline) -> list[str]:
    exporter.collect()
    return [slot.name for slot in exporter.accounting.slots]


def test_a_card_that_is_sliced_anew_has_its_new_slices(world: World) -> None:
    """And one that is lost or missing keeps its place and slices, however the others change."""
    exporter = world.exporter()
    first = ["GPU-aaaa", "GPU-bbbb", "MIG-1", "MIG-2", "GPU-dddd"]
    assert _slot_names(exporter) == first
    a, b, c, d = world.gpus.gpus
    world.gpus.gpus = [a, replace(c, lost=True, mig=False, slices=()), d]
    assert _slot_names(exporter) == first
    info = exporter.collect().families["carme_gpu_info"]
    assert {labels[1]: labels[4] for labels in info} == {
        "GPU-aaaa": "0", "GPU-cccc": "2", "GPU-dddd": "4",
    }  # fmt: skip
    half = replace(c, slices=(MigSlice("MIG-3", 3 / 7),))
    world.gpus.gpus = [a, half, d]
    assert _slot_names(exporter) == ["GPU-aaaa", "GPU-bbbb", "MIG-3", "GPU-dddd"]
    world.gpus.gpus = [a, replace(b, uuid="GPU-new"), replace(c, mig=False, slices=()), d]
    assert _slot_names(exporter) == ["GPU-aaaa", "GPU-new", "GPU-cccc", "GPU-dddd"]


BREAKAGES: dict[str, Callable[[Path], Any]] = {
    "a truncated file": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
    "an empty file": lambda p: p.write_bytes(b""),
    "not UTF-8": lambda p: p.write_bytes(b"\xff\xfe" + p.read_bytes() + b"\x80"),
    "an absurd number": lambda p: p.write_text("9" * 40 + "\n"),
    "a negative number": lambda p: p.write_text("-5\n"),
    "gone": lambda p: p.unlink(),
    "a folder instead": lambda p: (p.unlink(), p.mkdir()),
}


@pytest.mark.parametrize("how", BREAKAGES)
def test_broken_input_breaks_nothing_else(world: World, how: str) -> None:
    """Every file of the tree, one after the other."""
    paths = [path for path in sorted(world.root.rglob("*")) if path.is_file()]
    assert len(paths) > 50
    for path in paths:
        if path.name in ("gpus.json",):
            continue
        content = path.read_bytes()
        exporter = world.exporter()
        exporter.collect()
        world.wait(10)
        BREAKAGES[how](path)
        samples = exporter.collect()
        Renderer(TABLE).render(samples)
        assert "carme_gpu_power_watts" in samples.families
        assert (
            sum(1 for value in samples.families["carme_collector_success"].values() if value == 0)
            <= 1
        )
        ledger = exporter.accounting.state.energy.ledger
        assert sum(ledger.totals.values()) + ledger.carry == ledger.metered
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)
        for saved in (world.root / "state").iterdir():
            saved.unlink()


def test_a_state_file_that_cannot_be_written_is_counted(world: World) -> None:
    exporter = world.exporter()
    shutil.rmtree(world.root / "state")
    assert exporter.collect().value("carme_exporter_state_failures_total") == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 99}'])
def test_a_damaged_state_file_means_beginning_anew(world: World, text: str) -> None:
    world.write("state/n1.json", text)
    assert world.exporter().collect().value("carme_node_metered_joules_total") == 0
