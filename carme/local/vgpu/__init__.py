"""Virtual GPUs for a machine that has none.

A library that stands in for NVML (nvml.c) reads cards from a state file. One daemon maintains the
files of all nodes and lets each card follow the job that holds it. Virtual GPUs compute nothing.
"""

import ctypes
import hashlib
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from carme.errors import MissingError, UnavailableError
from carme.local.vgpu.cards import Card, cards
from carme.local.vgpu.state import GpuState
from carme.system.gpus import RealGpu, detect_real_gpus
from carme.system.programs import execute

__all__ = [
    "Card",
    "RealGpu",
    "build_library",
    "cards",
    "daemon_command",
    "detect_real_gpus",
    "environment",
    "health_command",
    "job_environment",
]

NAME = "libnvidia-ml.so.1"
_SOURCES = ("cards.h", "nvml.c")
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
          "-fvisibility=hidden", "-pthread", f"-Wl,-soname,{NAME}",
          f"-DCARME_GPU_SIZE={ctypes.sizeof(GpuState)}")  # fmt: skip
_COMMAND = [sys.executable, "-m", "carme.local.vgpu.commands"]


def environment(library: Path, state: Path, node: str) -> dict[str, str]:
    """Variables that show a node's cards to the exporter, or to any process outside a job."""
    return {"LD_LIBRARY_PATH": str(library), "CARME_VGPU_STATE": str(state / f"{node}.state")}


def job_environment(library: Path, state: Path) -> dict[str, str]:
    """Variables for prolog, epilog and jobs, where Slurm sets SLURMD_NODENAME."""
    return {"LD_LIBRARY_PATH": str(library), "CARME_VGPU_DIR": str(state)}


def daemon_command(state: Path, run: Path, config: Path | None = None) -> list[str]:
    """The command of the daemon, which stays in the foreground until SIGTERM."""
    options = ["--config", str(config)] if config else []
    return [*_COMMAND, "run", "--state", str(state), "--run", str(run), *options]


def health_command(run: Path) -> list[str]:
    """The command that exits with 0 if the daemon answers."""
    return [*_COMMAND, "health", "--run", str(run)]


def build_library(cache: Path, compiler: str = "cc") -> Path:
    """The folder of the library, for LD_LIBRARY_PATH; compiles the library if it is missing.

    The folder's name is a hash of sources and flags, so a new version never overwrites a library
    that a running process has mapped.
    """
    texts = {name: files(__package__).joinpath(name).read_bytes() for name in _SOURCES}
    key = hashlib.sha256(b"\0".join([*texts.values(), " ".join(_FLAGS).encode()])).hexdigest()[:16]
    folder = cache / f"vgpu-{key}"
    if (folder / NAME).exists():
        return folder
    program = shutil.which(compiler)
    if not program:
        raise MissingError(
            f"virtual GPUs need a C compiler, and {compiler} is not installed",
            "apt-get install gcc libc6-dev",
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".vgpu-") as scratch:
        work = Path(scratch)
        for name, text in texts.items():
            (work / name).write_bytes(text)
        command = [program, *_FLAGS, "-o", str(work / NAME), str(work / "nvml.c")]
        result = execute(command, timeout_seconds=120)
        if result.returncode:
            message = f"{program} could not compile nvml.c: {result.stderr.strip()[:500]}"
            raise UnavailableError(message)
        (work / NAME).chmod(0o755)
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)  # users' jobs load the library, whatever the umask is
        (work / NAME).replace(folder / NAME)
    return folder
