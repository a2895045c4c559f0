"""nvidia-ml-py, unchanged, on the library that stands in for NVML."""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from carme.local import vgpu

from .conftest import World

Nvml = Callable[..., Any]


def test_cards_are_found_by_index_uuid_and_bus(world: World, nvml: Nvml) -> None:
    node = world.node()
    out = nvml("""
out = [nvmlDeviceGetCount(), nvmlDeviceGetName(device()), nvmlDeviceGetSerial(device(1))]
for i in range(2):
    d = device(i)
    uuid, bus = nvmlDeviceGetUUID(d), nvmlDeviceGetPciInfo(d).busId
    out.append([uuid, bus, nvmlDeviceGetMinorNumber(d),
        nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(uuid)),
        nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(bus))])
""")
    assert out[:3] == [2, "Virtual T4", "VIRTUAL000001"]
    cards = node.cards
    assert out[3:] == [[c.uuid, c.bus_id, c.minor, c.index, c.index] for c in cards]


def test_every_value_the_exporter_asks_for(world: World, nvml: Nvml) -> None:
    world.gres = "virtual-a100"
    world.start(7, [0, 1], pid=os.getpid())
    node = world.node()
    world.pass_seconds(1)
    node.tick()
    world.pass_seconds(1)
    world.burn(7, 1.0)
    node.tick()
    out = nvml("""
d = device()
memory, memory2 = nvmlDeviceGetMemoryInfo(d), nvmlDeviceGetMemoryInfo(d, version=nvmlMemory_v2)
u = nvmlDeviceGetUtilizationRates(d)
p = nvmlDeviceGetComputeRunningProcesses(d)
out = {
 "driver": nvmlSystemGetDriverVersion(), "nvml": nvmlSystemGetNVMLVersion(),
 "memory": [memory.total, memory.used, memory.free, memory2.used + memory2.reserved, memory2.free],
 "util": [u.gpu, u.memory], "power": nvmlDeviceGetPowerUsage(d),
 "limit": [nvmlDeviceGetPowerManagementLimit(d), nvmlDeviceGetEnforcedPowerLimit(d),
           *nvmlDeviceGetPowerManagementLimitConstraints(d)],
 "energy": nvmlDeviceGetTotalEnergyConsumption(d),
 "temperature": nvmlDeviceGetTemperature(d, NVML_TEMPERATURE_GPU),
 "clocks": [nvmlDeviceGetClockInfo(d, c) for c in range(4)],
 "throttle": nvmlDeviceGetCurrentClocksThrottleReasons(d),
 "ecc": [nvmlDeviceGetTotalEccErrors(d, e, c) for e in (0, 1) for c in (0, 1)],
 "mig": nvmlDeviceGetMigMode(d), "link": nvmlDeviceGetNvLinkState(d, 11),
 "pcie": [nvmlDeviceGetPcieThroughput(d, c) for c in (0, 1)],
 "fields": [[f.nvmlReturn, f.value.ullVal] for f in nvmlDeviceGetFieldValues(
     d, [NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 1])],
 "processes": [[x.pid, x.usedGpuMemory] for x in p],
 "samples": [[s.pid, s.smUtil] for s in nvmlDeviceGetProcessUtilization(d, 0)],
 "name": nvmlSystemGetProcessName(p[0].pid),
}
""")
    assert "virtual" in out["driver"]
    assert "virtual" in out["nvml"]
    total, used, free, used2, free2 = out["memory"]
    assert (total, used + free) == (40 * 2**30, total)
    assert (used, free) == (used2, free2)
    assert out["util"][0] == 50  # one core's work on two cards
    card = node.cards[0]
    assert out["power"] == card.model.power_mw(0.5)
    assert out["limit"] == [400_000, 400_000, 100_000, 400_000]
    assert out["energy"] == card.model.power_mw(0) + card.model.power_mw(0.5)
    assert 30 < out["temperature"] < 80
    assert out["clocks"][1] == 1410
    assert out["throttle"] == 0
    assert out["ecc"] == [0, 0, 0, 0]
    assert (out["mig"], out["link"]) == ([0, 0], 1)
    assert out["pcie"][1] > out["pcie"][0] > 0
    assert out["fields"][0] == [0, out["energy"]]
    assert out["fields"][1][1] > 0
    assert out["fields"][2][0] == 3
    assert out["processes"][0][0] == os.getpid()
    assert out["processes"][0][1] > 2**20
    assert out["samples"][0] == [os.getpid(), 50]
    assert out["name"]


@pytest.mark.parametrize(
    ("call", "code", "python", "error"),
    [
        ("nvmlDeviceGetPowerUsage", 3, "nvmlDeviceGetPowerUsage(device())", 3),
        ("*", 15, "nvmlDeviceGetHandleByIndex(0)", 15),
        ("nvmlDeviceGetUtilizationRates", 15, "nvmlDeviceGetUtilizationRates(device())", 15),
    ],
)
def test_errors_on_demand(
    world: World, nvml: Nvml, call: str, code: int, python: str, error: int
) -> None:
    node = world.node()
    attempt = f"try: {python}\nexcept NVMLError as e: out = [e.value, str(e)]"
    assert nvml(attempt) is None
    node.set_fault(0, call, code)
    assert nvml(attempt)[0] == error
    assert nvml("out = nvmlDeviceGetPowerUsage(device(1))") > 0  # the other card works
    node.set_fault(0, call, None)
    assert nvml(attempt) is None


def test_calls_that_no_card_knows_are_reported_as_such(world: World, nvml: Nvml) -> None:
    world.node()
    out = nvml("""
out = []
for call in (lambda: nvmlDeviceGetFanSpeed(device()), lambda: nvmlDeviceGetMigMode(device()),
             lambda: nvmlDeviceGetNvLinkState(device(), 0), lambda: nvmlDeviceGetBrand(device()),
             lambda: nvmlDeviceGetHandleByIndex(9), lambda: nvmlDeviceGetHandleByUUID("GPU-0")):
    try: call(); out.append(0)
    except NVMLError as error: out.append(error.value)
""")
    assert out == [3, 3, 3, 13, 2, 6]


def test_without_a_state_file_there_is_no_driver(nvml: Nvml, world: World) -> None:
    with pytest.raises(AssertionError, match="Driver Not Loaded"):
        nvml("", CARME_VGPU_STATE=str(world.root / "none.state"))


def test_inside_a_job_slurm_names_the_node(world: World, nvml: Nvml) -> None:
    world.node()
    settings = {"CARME_VGPU_DIR": str(world.root / "state"), "SLURMD_NODENAME": "gpu01"}
    assert nvml("out = nvmlDeviceGetCount()", **settings) == 2


def test_xid_events_arrive(world: World, nvml: Nvml) -> None:
    node = world.node()
    raised = threading.Timer(1.0, node.raise_xid, (1, 79))
    raised.start()
    out = nvml("""
events, out = nvmlEventSetCreate(), []
for i in range(2): nvmlDeviceRegisterEvents(device(i), nvmlEventTypeXidCriticalError, events)
try: nvmlEventSetWait(events, 20)
except NVMLError as error: out.append(error.value)
event = nvmlEventSetWait(events, 10000)
out += [event.eventData, nvmlDeviceGetIndex(event.device)]
""")
    raised.join()
    assert out == [10, 79, 1]  # first a timeout, then the event of the second card


def test_the_library_is_built_once(library: Any) -> None:
    made = (library / "libnvidia-ml.so.1").stat().st_mtime_ns
    assert vgpu.build_library(library.parent) == library
    assert (library / "libnvidia-ml.so.1").stat().st_mtime_ns == made


def test_no_real_gpu_is_an_empty_list(
    monkeypatch: pytest.MonkeyPatch, world: World, library: Any
) -> None:
    """Also when the caller itself sees virtual ones."""
    world.node()
    for name, value in vgpu.environment(library, world.root / "state", "gpu01").items():
        monkeypatch.setenv(name, value)
    assert vgpu.detect_real_gpus() == []
