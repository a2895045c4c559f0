"""Builds the library that stands in for NVML."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

from carme.errors import MissingError, UnavailableError
from carme.local.vgpu.state import GpuState

NAME = "libnvidia-ml.so.1"
_SOURCES = ("cards.h", "nvml.c")
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
          "-fvisibility=hidden", "-pthread", f"-Wl,-soname,{NAME}",
          f"-DCARME_GPU_SIZE={ctypes.sizeof(GpuState)}")  # fmt: skip


def build_library(cache: Path, compiler: str = "cc") -> Path:
    """The folder (for LD_LIBRARY_PATH) with the library, compiled unless it is there already.

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
            f"virtual GPUs need a C compiler and there is no {compiler}",
            "apt-get install gcc libc6-dev",
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".vgpu-") as made:
        work = Path(made)
        for name, text in texts.items():
            (work / name).write_bytes(text)
        command = [program, *_FLAGS, "-o", str(work / NAME), str(work / "nvml.c")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise UnavailableError(
                f"{program} could not compile nvml.c: {done.stderr.strip()[:500]}"
            )
        (work / NAME).chmod(0o755)
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)  # users' jobs load it; the umask may say otherwise
        (work / NAME).replace(folder / NAME)
    return folder
