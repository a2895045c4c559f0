"""Virtual GPUs for a machine that has none.

A library that stands in for NVML (nvml.c) reads cards from a state file; one daemon keeps the
files of all nodes and lets each card follow the job that holds it. Nothing computes here.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from carme.config import LocalNode
from carme.local.vgpu.cards import Card, cards
from carme.local.vgpu.library import build_library
from carme.system.gpus import RealGpu, detect_real_gpus

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
    "minors",
]


def minors(nodes: Iterable[LocalNode]) -> dict[str, list[int]]:
    """N of every /dev/nvidiaN, by node."""
    return {name: [card.minor for card in mine] for name, mine in cards(nodes).items()}


def environment(library: Path, state: Path, node: str) -> dict[str, str]:
    """What a process needs to see the node's cards: the exporter, or anything outside a job."""
    return {"LD_LIBRARY_PATH": str(library), "CARME_VGPU_STATE": str(state / f"{node}.state")}


def job_environment(library: Path, state: Path) -> dict[str, str]:
    """The same for prolog, epilog and jobs, where Slurm names the node (SLURMD_NODENAME)."""
    return {"LD_LIBRARY_PATH": str(library), "CARME_VGPU_DIR": str(state)}


def daemon_command(state: Path, run: Path, config: Path | None = None) -> list[str]:
    """The daemon's argument list; it stays in the foreground and ends on SIGTERM."""
    chosen = ["--config", str(config)] if config else []
    return [*_command(), "run", "--state", str(state), "--run", str(run), *chosen]


def health_command(run: Path) -> list[str]:
    """Exits 0 when the daemon answers."""
    return [*_command(), "health", "--run", str(run)]


def _command() -> list[str]:
    return [sys.executable, "-m", "carme.local.vgpu"]
