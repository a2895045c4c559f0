"""The daemon as a process: hook, hand-over, faults, kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carme.errors import UnavailableError
from carme.local import vgpu
from carme.local.vgpu.commands import ask
from carme.node import gpu_allocations, hook, hook_interface

CONFIG = """
[[local.nodes]]
name = "t01"
gpus = {type = "virtual-t4", count = 2}
[[local.nodes]]
name = "c01"
[[local.partitions]]
name = "gpu"
nodes = ["t01"]
"""


class Running:
    """A daemon of the test's own."""

    def __init__(self, root: Path) -> None:
        self.state, self.run, self.config = root / "state", root / "run", root / "carme.toml"
        self.config.write_text(CONFIG)
        (self.run / "jobs").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        command = vgpu.daemon_command(self.state, self.run, self.config)
        self.process = subprocess.Popen(command)
        for _ in range(200):
            try:
                ask(self.run, {"health": True})
            except UnavailableError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the daemon does not answer")

    def hook(self, event: str, jobid: int, gpus: str, **env: str) -> float:
        began = time.monotonic()
        script = self.run / f"{event}.sh"
        script.write_text(hook_interface.script(event, self.run))  # type: ignore[arg-type]
        script.chmod(0o755)
        variables = {"SLURM_JOB_ID": str(jobid), "SLURM_JOB_GPUS": gpus, "SLURMD_NODENAME": "t01"}
        done = subprocess.run([script], env={**variables, **env}, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        return time.monotonic() - began

    def holders(self) -> list[int | None]:
        spans: Any = ask(self.run, {"record": True})["open"]
        return [span["jobid"] for span in spans]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    daemon = Running(tmp_path)
    yield daemon
    daemon.process.kill()
    daemon.process.wait()


def test_prolog_and_epilog_hand_over_at_once(running: Running) -> None:
    assert running.hook("prolog", 12, "1") < 3
    assert running.holders() == [None, 12]
    running.hook("epilog", 12, "1")
    assert running.holders() == [None, None]
    ended: Any = ask(running.run, {"record": "t01"})["ended"]
    (span,) = [span for span in ended if span["jobid"] == 12]
    record = json.loads((running.run / "jobs/t01.12.0.json").read_text())
    lasted = (record["end"]["boot_ns"] - record["start"]["boot_ns"]) / 1e9
    assert span["until"] - span["since"] == pytest.approx(lasted, abs=0.1)
    assert span["joules"] == pytest.approx(10 * lasted, rel=0.5)
    assert oct((running.run / "jobs/t01.12.0.json").stat().st_mode)[-3:] == "640"


def test_kill_9_loses_nothing(running: Running) -> None:
    running.hook("prolog", 3, "0-1")
    before: Any = ask(running.run, {"record": True})["open"]
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    time.sleep(0.3)
    running.start()
    after: Any = ask(running.run, {"record": True})["open"]
    for old, new in zip(before, after, strict=True):
        assert (new["jobid"], new["span"]) == (3, old["span"])
        assert new["joules"] - old["joules"] == pytest.approx(
            10 * (new["until"] - old["until"]), rel=0.2
        )


def test_commands(running: Running) -> None:
    base = [sys.executable, "-m", "carme.local.vgpu.commands"]
    where = ["--run", str(running.run)]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*base, words[0], *where, *words[1:]]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert call("health").stdout == "t01=2\n"
    assert call("fault", "t01", "0", "*", "gpu-is-lost").stdout == "done\n"
    assert call("fault", "t01", "0", "*").stdout == "done\n"
    assert call("xid", "t01", "1", "79").stdout == "done\n"
    wrong = call("xid", "t01", "7", "79")
    assert (wrong.returncode, wrong.stderr) == (1, "carme-vgpu: no such GPU\n")
    assert json.loads(call("record", "t01").stdout)["open"]
    running.process.terminate()
    assert running.process.wait(10) == 0
    assert call("health").returncode == 1


@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_ID": "x"}, {"SLURM_JOB_ID": "9"}])
def test_the_hook_cannot_fail(tmp_path: Path, env: dict[str, str]) -> None:
    """No job, no number, a folder that cannot be made, a listener that never answers."""
    run = tmp_path / "run"
    server = hook_interface.listener(run, "10-deaf")
    (run / "jobs").write_text("a file where the folder should be")
    began = time.monotonic()
    command = [sys.executable, "-I", "-S", hook.__file__, "prolog", str(run)]
    done = subprocess.run(command, env=env, check=False, capture_output=True)
    server.close()
    assert done.returncode == 0
    assert time.monotonic() - began < hook.LIMIT_SECONDS + 1


def test_the_hook_reads_counters_when_no_exporter_does(running: Running, library: Path) -> None:
    running.hook("prolog", 4, "0", **vgpu.job_environment(library, running.state))
    (holding,) = gpu_allocations.read(running.run, "t01")[0]
    assert holding.start_reading
    assert set(holding.start_reading.nvml_mj) == {
        card.uuid for card in vgpu.cards(_nodes(running.config))["t01"]
    }


def test_the_hook_reads_processors_where_there_is_no_nvml() -> None:
    code = """
import json
from carme.node import hook
def missing():
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")
hook.nvml_energy_mj = missing
hook.rapl_uj = lambda: {"intel-rapl:0": 5}
print(json.dumps(hook.reading()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    taken = gpu_allocations.CounterReading.model_validate_json(done.stdout)
    assert (taken.nvml_mj, taken.rapl_uj) == ({}, {"intel-rapl:0": 5})


def test_old_records_are_swept(tmp_path: Path) -> None:
    env = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "t01"}
    for jobid, event in (("1", "epilog"), ("2", "prolog")):
        hook.update(event, str(tmp_path), {**env, "SLURM_JOB_ID": jobid})
    for path in (tmp_path / "jobs").iterdir():
        os.utime(path, (1, 1))
    hook.sweep(str(tmp_path))
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["t01.2.0.json"]


@pytest.mark.parametrize(
    ("text", "indices"),
    [("0,1", [0, 1]), ("0-2,5", [0, 1, 2, 5]), ("", []), (None, []), ("GPU-1a", []), ("x,3", [3])],
)
def test_gpu_indices(text: str | None, indices: list[int]) -> None:
    assert hook.gpu_indices(text) == indices


def _nodes(path: Path) -> Any:
    from carme.config import load

    return load(path).local.nodes
