"""A node on a checked-in tree, whose clock and counters the test moves."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import TypeAdapter

from carme.config import ExporterSettings
from carme_monitoring.collector import CollectorContext, Roots
from carme_monitoring.gpus import GpuEnergy, GpuProcess, GpuReading, MigSlice
from carme_monitoring.guard import Guards
from carme_monitoring.metrics import LabelValues, Samples
from carme_monitoring.pipeline import NodePipeline

TREE = Path(__file__).with_name("tree")
SECOND = 10**9


@pytest.fixture(autouse=True)
def _own_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil looks below one folder for all of a process: afterwards it is the real one again."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", "/proc", raising=False)


class TreeGpus:
    """GPUs from a file of the tree."""

    def __init__(self, path: Path) -> None:
        self.xids: dict[tuple[str, int], int] = {}
        rows = json.loads(path.read_text())
        self.energy = {row["uuid"]: row.pop("energy_mj") for row in rows if "energy_mj" in row}
        self.gpus = [
            GpuReading(
                **{
                    **row,
                    "throttle": frozenset(row["throttle"]) if "throttle" in row else None,
                    "slices": tuple(MigSlice(*part) for part in row.get("slices", ())),
                    "processes": tuple(GpuProcess(*part) for part in row.get("processes", ())),
                }
            )
            for row in rows
        ]

    def read(self) -> list[GpuReading]:
        return self.gpus

    def energy_counters(self) -> list[GpuEnergy]:
        return [
            GpuEnergy(gpu.index, gpu.uuid, self.energy[gpu.uuid])
            for gpu in self.gpus
            if gpu.uuid in self.energy
        ]

    def burn(self, uuid: str, joules: float) -> None:
        self.energy[uuid] = self.energy.get(uuid, 0) + round(joules * 1000)


class World:
    """The tree in a folder of its own, and exporters on it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "tree"
        shutil.copytree(TREE, self.root)
        (self.root / "state").mkdir()
        self.now_ns = 200 * SECOND
        self.gpus = TreeGpus(self.root / "gpus.json")
        self.guards = Guards()  # one for all exporters: each has threads
        self.roots = Roots(
            self.root / "proc",
            self.root / "sys",
            self.root / "cgroup",
            lambda: self.now_ns,
            lambda: 1_700_000_000 + self.now_ns / 1e9,
        )

    def context(self, **changes: Any) -> CollectorContext:
        config = ExporterSettings(run=self.root / "run", state=self.root / "state", **changes)
        errors = self.guards.value_errors
        return CollectorContext("n1", config, self.roots, errors, self.gpus)

    def exporter(self, **changes: Any) -> NodePipeline:
        return NodePipeline(self.context(**changes), self.guards)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def record(self, jobid: int, **fields: Any) -> None:
        path = self.root / f"run/jobs/n1.{jobid}.0.json"
        moment = {"time_ns": 1_700_000_000 * SECOND + self.now_ns, "boot_ns": self.now_ns}
        new = {
            "node": "n1",
            "jobid": jobid,
            "boot_id": "11111111-2222-3333-4444-555555555555",
            "start": moment,
        }
        known = json.loads(path.read_text()) if path.exists() else new
        path.write_text(json.dumps({**known, **fields}))

    def end(self, jobid: int, **fields: Any) -> None:
        moment = {"time_ns": 1_700_000_000 * SECOND + self.now_ns, "boot_ns": self.now_ns}
        self.record(jobid, end=moment, **fields)

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares text with a checked-in file; CARME_GOLDEN=write renews the file."""
    import os

    def check(name: str, text: str) -> None:
        path = Path(__file__).with_name(name)
        if os.environ.get("CARME_GOLDEN") == "write":
            path.write_text(text)
        assert text == path.read_text()

    return check


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def restarted(part: Any, is_same_boot: bool = True) -> Any:
    """A part of the exporter's state as the state file keeps it."""
    adapter = _adapter(type(part))
    kept = adapter.validate_python(json.loads(adapter.dump_json(part)))
    if not is_same_boot:
        kept.after_reboot()
    return kept


def series_of(samples: Samples) -> Iterator[tuple[str, LabelValues, float]]:
    """Every sample: name, label values, value."""
    for name, family in samples.families.items():
        for labels, value in family.items():
            yield name, labels, value


def joules(samples: Samples, jobid: int) -> dict[str, float]:
    """A job's energy by component."""
    family = samples.families.get("carme_job_energy_joules_total", {})
    return {labels[2]: value for labels, value in family.items() if labels[0] == str(jobid)}
