"""The real GPUs of this machine, as NVML of the system sees them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

_PROBE = """
import json, pynvml
pynvml.nvmlInit()
found = []
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    found.append([pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetUUID(device),
                  pynvml.nvmlDeviceGetMinorNumber(device)])
print(json.dumps(found))
"""


@dataclass(frozen=True)
class RealGpu:
    """A GPU that computes."""

    name: str
    uuid: str
    minor: int


def detect_real_gpus(seconds: float = 20) -> list[RealGpu]:
    """The machine's GPUs; empty without a driver, without nvidia-ml-py, or when NVML hangs.

    Asked in a process of its own: NVML cannot be unloaded, a broken driver can hang or crash its
    caller, and a library path that leads to virtual GPUs must not count.
    """
    hidden = {"LD_LIBRARY_PATH", "CARME_VGPU_STATE", "CARME_VGPU_DIR"}
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=clean, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        rows = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []
    return [RealGpu(name, uuid, minor) for name, uuid, minor in rows if "Virtual" not in name]
