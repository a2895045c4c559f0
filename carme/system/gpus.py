"""The real GPUs of this machine, as NVML of the system sees them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from carme.errors import UnavailableError

_PROBE = """
import json, pynvml
pynvml.nvmlInit()
found = []
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    slices = 0
    try:
        for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, place)
            slices += 1
    except pynvml.NVMLError:
        pass
    found.append([pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetUUID(device),
                  pynvml.nvmlDeviceGetMinorNumber(device), slices])
print(json.dumps(found))
"""


@dataclass(frozen=True)
class RealGpu:
    """A GPU that computes."""

    name: str
    uuid: str
    minor: int
    slices: int = 0
    """MIG slices, which Slurm then hands out instead of the whole GPU."""


def read_gpus(environment: Mapping[str, str], seconds: float = 20) -> list[RealGpu]:
    """What NVML shows to a process with `environment`; UnavailableError says why it does not.

    Asked in a process of its own: NVML cannot be unloaded, and a broken driver can hang or crash
    its caller.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=dict(environment), capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        rows = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError) as error:
        raise UnavailableError(f"NVML cannot be asked: {error}") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"NVML gives no answer within {seconds:g} s") from None
    if rows is None:
        last = (done.stderr.strip().splitlines() or ["it crashed"])[-1]
        raise UnavailableError(f"NVML: {last.rpartition('NVMLError_')[2]}")
    return [RealGpu(*row) for row in rows]


def detect_real_gpus(seconds: float = 20) -> list[RealGpu]:
    """The machine's GPUs; empty without a driver, without nvidia-ml-py, or when NVML hangs."""
    # A library path that leads to virtual GPUs must not count.
    hidden = {"LD_LIBRARY_PATH", "CARME_VGPU_STATE", "CARME_VGPU_DIR"}
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        found = read_gpus(clean, seconds)
    except UnavailableError:
        return []
    return [gpu for gpu in found if "Virtual" not in gpu.name]
