"""The real GPUs of this machine, read from NVML."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from carme.errors import CarmeError, UnavailableError
from carme.system.programs import execute

_PROBE = """
import json, pynvml
pynvml.nvmlInit()
rows = []
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    slices = 0
    try:
        for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, place)
            slices += 1
    except pynvml.NVMLError:
        pass
    rows.append([pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetUUID(device),
                 pynvml.nvmlDeviceGetMinorNumber(device), slices])
print(json.dumps(rows))
"""


@dataclass(frozen=True)
class RealGpu:
    """A physical GPU."""

    name: str
    uuid: str
    minor: int
    slices: int = 0
    """MIG slices, which Slurm allocates instead of the whole GPU."""


def read_gpus(environment: Mapping[str, str], seconds: float = 20) -> list[RealGpu]:
    """The GPUs that NVML shows to a process with `environment`; UnavailableError if it fails.

    NVML runs in a separate process: it cannot be unloaded, and a broken driver can hang or crash
    the caller.
    """
    try:
        result = execute([sys.executable, "-c", _PROBE], env=environment, timeout_seconds=seconds)
    except CarmeError:
        raise UnavailableError(f"NVML gives no answer within {seconds:g} s") from None
    if result.returncode:
        raise UnavailableError(f"NVML: {result.last_line.rpartition('NVMLError_')[2]}")
    try:
        return [RealGpu(*row) for row in json.loads(result.stdout)]
    except ValueError as error:
        raise UnavailableError(f"NVML cannot be read: {error}") from None


def detect_real_gpus(seconds: float = 20) -> list[RealGpu]:
    """The machine's GPUs; none without a driver, without nvidia-ml-py, or if NVML hangs."""
    # The stand-in library for virtual GPUs must not be found.
    hidden = {"LD_LIBRARY_PATH", "CARME_VGPU_STATE", "CARME_VGPU_DIR"}
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        gpus = read_gpus(clean, seconds)
    except UnavailableError:
        return []
    return [gpu for gpu in gpus if "Virtual" not in gpu.name]
