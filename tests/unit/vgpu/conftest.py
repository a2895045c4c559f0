"""Virtual nodes on made-up cgroup trees and clocks, and NVML as programs use it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from carme.config import LocalGpus, LocalNode
from carme.local import vgpu
from carme.local.vgpu.node import VirtualNode
from carme.node import hook

BOOT_ID = hook.boot_id()


@dataclass
class World:
    """A node `gpu01` with two cards whose clock and jobs the test moves."""

    root: Path
    now_ns: int = 1_000 * 10**9
    jobs: dict[int, int] = field(default_factory=dict)
    gres: str = "virtual-t4"

    def __post_init__(self) -> None:
        for name in ("state", "run/jobs", "cgroup/cpuacct", "proc"):
            (self.root / name).mkdir(parents=True)

    def node(self) -> VirtualNode:
        nodes = [LocalNode(name="gpu01", gpus=LocalGpus(type=self.gres, count=2))]
        return VirtualNode(
            vgpu.cards(nodes)["gpu01"],
            self.root / "state",
            self.root / "run",
            cgroup=self.root / "cgroup",
            proc=Path("/proc"),
            now_ns=lambda: self.now_ns,
            time_ns=lambda: self.now_ns + 10**18,
        )

    def start(self, jobid: int, gpus: list[int], pid: int | None = None) -> None:
        folder = self.root / f"cgroup/cpuacct/slurm_gpu01/uid_1000/job_{jobid}/step_0"
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text(f"{pid}\n" if pid else "")
        self.burn(jobid, 0)
        self.record(jobid, gpus)

    def burn(self, jobid: int, seconds: float) -> None:
        self.jobs[jobid] = self.jobs.get(jobid, 0) + round(seconds * 1e9)
        path = self.root / f"cgroup/cpuacct/slurm_gpu01/uid_1000/job_{jobid}/cpuacct.usage"
        path.write_text(f"{self.jobs[jobid]}\n")

    def record(self, jobid: int, gpus: list[int], ended: bool = False) -> None:
        moment = {"time_ns": self.now_ns, "boot_ns": self.now_ns}
        path = self.root / f"run/jobs/gpu01.{jobid}.0.json"
        known = json.loads(path.read_text()) if path.exists() else {"start": moment}
        record = {**known, "node": "gpu01", "jobid": jobid, "gpus": gpus, "boot_id": BOOT_ID}
        path.write_text(json.dumps({**record, "end": moment if ended else None}))

    def pass_seconds(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vgpu.build_library(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def nvml(library: Path, world: World) -> Callable[[str], Any]:
    """Runs a piece of Python with nvidia-ml-py in a process of its own; what it calls `out`."""

    def run(code: str, **env: str) -> Any:
        program = (
            "import json\nfrom pynvml import *\nout = None\n"
            "def device(index=0): return nvmlDeviceGetHandleByIndex(index)\n"
            f"nvmlInit()\n{code}\nprint(json.dumps(out))"
        )
        settings = env or vgpu.environment(library, world.root / "state", "gpu01")
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "LD_LIBRARY_PATH": str(library), **settings},
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
