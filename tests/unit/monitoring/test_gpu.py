"""The NVML collector on the real nvidia-ml-py: values, and an error in every single call."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carme.local import vgpu

PRELUDE = """
import json, sys
from pathlib import Path
from carme.config import LocalGpus, LocalNode
from carme.local import vgpu
from carme.local.vgpu.node import VirtualNode
from carme_monitoring.nvml import NvmlGpus
from carme_monitoring.collector import CollectorContext
from carme_monitoring.collectors.gpu import GpuEnergyCollector, add_gpu_samples
from carme_monitoring.metrics import Samples, LabelledCounter
root = Path(sys.argv[1])
cards = vgpu.cards([LocalNode(name="n1", gpus=LocalGpus(type="virtual-a100", count=2))])["n1"]
node = VirtualNode(cards, root, root)
errors = LabelledCounter()
gpus = NvmlGpus(errors)
def collect():
    found, out = gpus.read(), Samples()
    energy = GpuEnergyCollector(CollectorContext(gpus=gpus))
    add_gpu_samples(out, found)
    energy.add_samples(out, energy.read())
    return found, out
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vgpu.build_library(tmp_path_factory.mktemp("cache"))


def run(code: str, library: Path, folder: Path) -> Any:
    env = {**os.environ, **vgpu.environment(library, folder, "n1")}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(folder)],
        env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_value_arrives(library: Path, tmp_path: Path) -> None:
    families = run("""
found, out = collect()
print(json.dumps({name: list(f.values()) for name, f in out.families.items()}))
""", library, tmp_path)  # fmt: skip
    assert families["carme_gpu_memory_total_bytes"] == [40 * 2**30] * 2
    assert families["carme_gpu_power_watts"] == [52.0, 52.0]
    assert families["carme_gpu_power_limit_watts"] == [400.0, 400.0]
    assert len(families["carme_gpu_clock_hertz"]) == 8
    assert families["carme_gpu_nvlink_bytes_total"] == [0] * 4
    for name in ("utilisation_ratio", "energy_joules_total", "temperature_celsius", "info",
                 "ecc_errors_total", "throttle_active", "pcie_bytes_per_second"):  # fmt: skip
        assert f"carme_gpu_{name}" in families


def test_an_error_in_any_call_leaves_everything_else(library: Path, tmp_path: Path) -> None:
    """Each call fails in turn, with three errors; then all calls of a card, then at the start."""
    rows = run("""
calls = ["UtilizationRates", "TotalEnergyConsumption", "MemoryInfo_v2", "MemoryInfo", "PowerUsage",
  "EnforcedPowerLimit", "Temperature", "ClockInfo", "CurrentClocksThrottleReasons",
  "TotalEccErrors", "PcieThroughput", "FieldValues", "ComputeRunningProcesses_v3", "MigMode",
  "ProcessUtilization", "Index", "UUID", "Name", "MinorNumber", "PciInfo_v3"]
rows = []
whole = len(collect()[1])
for call in calls:
    for code in (3, 15, 999):
        name = f"nvmlDeviceGet{call}"
        node.set_fault(0, name, code)
        before = sum(errors.values.values())
        found, out = collect()
        gpus.energy_counters(), gpus.sample()
        rows.append([call, code, len(found), len(out), sum(errors.values.values()) - before])
        node.set_fault(0, name, None)
node.set_fault(0, "*", 15)
found, out = collect()
lost = [gpu.lost for gpu in found]
gpus = NvmlGpus(errors)
again = [gpu.uuid for gpu in gpus.read()]
node.set_fault(0, "*", None)
gpus = NvmlGpus(errors)
print(json.dumps({"whole": whole, "rows": rows, "lost": lost, "again": again,
                  "back": len(collect()[1])}))
""", library, tmp_path)  # fmt: skip
    quiet = {"Name", "UUID", "MinorNumber", "PciInfo_v3", "MigMode", "ProcessUtilization",
             "MemoryInfo_v2", "MemoryInfo"}  # fmt: skip
    for call, code, gpus, series, counted in rows["rows"]:
        assert gpus == 2, call
        assert series > rows["whole"] // 2, call
        if call not in quiet and not (call == "Index" and code != 15):
            assert counted > 0, (call, code)
    assert rows["lost"] == [True, False]
    assert len(rows["again"]) == 1  # lost before it was seen: there is no name for it
    assert rows["back"] == rows["whole"]


def test_gpus_are_listed_once_whoever_starts(library: Path, tmp_path: Path) -> None:
    """The driver wakes up slowly: the sampler begins while the first one still waits for it."""
    listed = run("""
import threading, time
from carme_monitoring import nvml as gpu
ask = gpu.pynvml.nvmlDeviceGetHandleByIndex
def slowly(index):
    time.sleep(0.1)
    return ask(index)
gpu.pynvml.nvmlDeviceGetHandleByIndex = slowly
found = []
threads = [threading.Thread(target=lambda: found.append(len(gpus.sample()))) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"read": len(gpus.read()), "sampled": found}))
""", library, tmp_path)  # fmt: skip
    assert listed == {"read": 2, "sampled": [2, 2, 2, 2]}


def test_slices_stay_while_the_card_does_not_tell(library: Path, tmp_path: Path) -> None:
    """One failing call must not make a whole card of slices, which would move every index."""
    seen = run("""
from types import SimpleNamespace
from carme_monitoring import nvml as gpu
nvml, there, broken = gpu.pynvml, [0, 1, 2], set()
def call(name, answer):
    def asked(handle, *args):
        if name in broken: raise nvml.NVMLError(nvml.NVML_ERROR_UNKNOWN)
        return answer(*args)
    setattr(nvml, name, asked)
def part(index):
    if index not in there: raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)
    return f"part {index}"
call("nvmlDeviceGetMigMode", lambda: (1, 1))
call("nvmlDeviceGetMaxMigDeviceCount", lambda: 7)
call("nvmlDeviceGetMigDeviceHandleByIndex", part)
call("nvmlDeviceGetAttributes", lambda: SimpleNamespace(gpuInstanceSliceCount=2))
uuid, memory = nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetMemoryInfo
nvml.nvmlDeviceGetUUID = lambda h: h if isinstance(h, str) else uuid(h)
nvml.nvmlDeviceGetMemoryInfo = lambda h, **k: None if isinstance(h, str) else memory(h, **k)
def look():
    return [[found.mig, *(one.uuid for one in found.slices)] for found in gpus.read()]
rows = [look()]
for name in ("MigMode", "MaxMigDeviceCount", "MigDeviceHandleByIndex"):
    broken = {f"nvmlDeviceGet{name}"}
    rows.append(look())
broken, there = set(), [1]
print(json.dumps([rows, look()]))
""", library, tmp_path)  # fmt: skip
    whole = [[True, "part 0", "part 1", "part 2"]] * 2
    assert seen == [[whole] * 4, [[True, "part 1"]] * 2]


def test_xids_are_counted(library: Path, tmp_path: Path) -> None:
    counted = run("""
import time
gpus.watch_xids()
time.sleep(0.3)
for xid in (79, 79, 31):
    node.raise_xid(1, xid)
    time.sleep(0.2)
print(json.dumps([[xid, count] for (_, xid), count in gpus.xids.items()]))
""", library, tmp_path)  # fmt: skip
    assert counted == [[79, 2], [31, 1]]


@pytest.mark.parametrize("has_library", [True, False])
def test_a_broken_driver_is_an_error_and_no_library_a_node_without_gpus(
    library: Path, has_library: bool
) -> None:
    code = """
from carme.errors import UnavailableError
from carme_monitoring.nvml import NvmlGpus
from carme_monitoring.metrics import LabelledCounter
gpus = NvmlGpus(LabelledCounter())
try: print(gpus.read(), gpus.energy_counters(), gpus.sample())
except UnavailableError as error: print(error)
"""
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    env |= {"LD_LIBRARY_PATH": str(library)} if has_library else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == ("NVML: Driver Not Loaded\n" if has_library else "[] [] {}\n")
