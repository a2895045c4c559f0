"""How long a whole snapshot takes, and how often an idle view asks Slurm.

`./dev bench slurm [--json]` starts a slurmctld of its own, with a munge, ports and folder of its
own: once with 3 nodes, once with 1,000. Nothing else on the machine is touched.
"""

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from carme.config import Config, SlurmSettings, ViewSettings
from carme.errors import UnavailableError
from carme.slurm.client import connect, read_snapshot
from carme.view.client import ViewClient
from support.ports import free_port

NODES = 1000
SMALL = 3
JOBS = 300
REPEATS = 9
IDLE_SECONDS = 60
LIMIT_MS = 500
LIMIT_CALLS = 12

CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CommunicationParameters=NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
AccountingStorageType=accounting_storage/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
# There is no slurmd behind the nodes: they are only there to be read.
SlurmdTimeout=0
ReturnToService=2
NodeName=node[0001-{nodes:04}] NodeAddr=127.0.0.1 Port=1 CPUs=64 RealMemory=512000 \
Gres=gpu:a100:4,gpu:h100:4 Feature=fast,ib State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=2-0 State=UP
PartitionName=long Nodes=ALL MaxTime=7-0 State=UP
"""


class Controller:
    """A private munge and slurmctld, gone with their folder at the end."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.folder = Path(tempfile.mkdtemp(prefix="carme-bench-slurm-"))
        self.conf = self.folder / "slurm.conf"
        self.slurm = SlurmSettings(conf=self.conf, retry_seconds=30)
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Controller":
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True)
        settings = {"host": socket.gethostname(), "port": free_port(), "folder": self.folder}
        settings |= {"user": user.stdout.strip(), "nodes": self.nodes}
        self.conf.write_text(CONF.format(**settings))
        kinds = ["gpu:a100", "gpu:h100"]
        lines = [f"Name=gpu Type={kind.split(':')[1]} Count=4" for kind in kinds]
        (self.folder / "gres.conf").write_text("\n".join(lines) + "\n")
        self._start(
            "munged",
            "--foreground",
            "--force",
            *(f"--{name}={self.folder}/{file}" for name, file in _MUNGE_FILES.items()),
        )
        _wait(lambda: (self.folder / "munge.sock").exists(), "munged listens")
        self._start("slurmctld", "-D")
        _wait(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld answers")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *argv: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """A command of Slurm's against this controller."""
        return subprocess.run(
            argv, env=self.environment, input=stdin, capture_output=True, text=True, check=False
        )

    def fill(self, jobs: int) -> None:
        """Submit jobs that wait: for GPUs of all kinds, as arrays, on hold."""
        kinds = (["--gpus=2"], ["--gres=gpu:a100:1"], ["--gpus-per-node=h100:4", "-N2"], ["--hold"])
        for number in range(jobs):
            options = kinds[number % len(kinds)]
            done = self.run("sbatch", "--mem=4G", "-t", "60", *options, stdin="#!/bin/sh\n:\n")
            if done.returncode:
                raise SystemExit(f"bench: sbatch: {done.stderr.strip()}")

    def calls(self) -> int:
        """Calls that slurmctld counted since the last reset, without those of sdiag."""
        output = self.run("sdiag").stdout
        by_type = output.split("by message type")[-1].split("by user")[0]
        counts = re.findall(r"^\s*(\w+)\s*\(\s*\d+\) count:(\d+)", by_type, re.MULTILINE)
        return sum(int(count) for name, count in counts if name != "REQUEST_STATS_INFO")

    def _start(self, *argv: str) -> None:
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            argv, env=self.environment, stdin=null, stdout=null, stderr=null, cwd="/"
        )
        self._processes.append(process)


_MUNGE_FILES = {
    "socket": "munge.sock",
    "key-file": "munge.key",
    "pid-file": "munge.pid",
    "log-file": "munge.log",
    "seed-file": "munge.seed",
}


def measure_snapshot(controller: Controller) -> float:
    """Milliseconds for a whole snapshot: the median of several."""
    client = connect(controller.slurm)
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        cluster = read_snapshot(client)
        seconds.append(time.perf_counter() - started)
        if len(cluster.nodes) != controller.nodes:
            raise SystemExit(f"bench: {len(cluster.nodes)} nodes read, not {controller.nodes}")
    return statistics.median(seconds) * 1000


def measure_idle_calls(controller: Controller) -> float:
    """Calls a minute that a carme-view makes while nobody asks it anything."""
    settings = Config(
        slurm=controller.slurm, view=ViewSettings(socket=controller.folder / "view.sock")
    )
    path = controller.folder / "carme.toml"
    path.write_text(
        f'[slurm]\nconf = "{controller.conf}"\n[view]\nsocket = "{settings.view.socket}"\n'
    )
    program = Path(sys.executable).with_name("carme-view")
    log = (controller.folder / "view.log").open("wb")
    view = subprocess.Popen([program, "--config", path], stdout=log, stderr=log, cwd="/")
    try:
        _wait(lambda: _answers(settings.view), "carme-view answers")
        time.sleep(5)  # so that no poll falls on the minute's edges
        controller.run("sdiag", "--reset")
        time.sleep(IDLE_SECONDS)
        return controller.calls() * 60 / IDLE_SECONDS
    finally:
        view.terminate()
        view.wait(20)
        log.close()


def _answers(view: ViewSettings) -> bool:
    try:
        return len(ViewClient.of(view).snapshot().nodes) > 0
    except UnavailableError:
        return False


def _wait(check: Callable[[], bool], event: str) -> None:
    end = time.monotonic() + 60
    while not check():
        if time.monotonic() > end:
            raise SystemExit(f"bench: not within 60 s: {event}")
        time.sleep(0.1)


def main() -> None:
    """Measure, and print one JSON line or a small table."""
    parser = argparse.ArgumentParser(prog="./dev bench slurm", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line for programs")
    as_json = parser.parse_args().json
    missing = [name for name in ("munged", "slurmctld", "sdiag") if not shutil.which(name)]
    if missing:
        raise SystemExit(f"bench: no {', '.join(missing)}; install slurm-wlm and munge")
    with Controller(SMALL) as controller:
        small = measure_snapshot(controller)
    with Controller(NODES) as controller:
        controller.fill(JOBS)
        large = measure_snapshot(controller)
        calls = measure_idle_calls(controller)
    if as_json:
        result = {
            "snapshot_ms": round(small, 1),
            "snapshot_per_1000_nodes_ms": round(large, 1),
            "idle_calls_per_minute": round(calls, 1),
        }
        print(json.dumps(result))
        return
    print(f"snapshot of {SMALL} nodes                    {small:8.1f} ms")
    print(f"snapshot of {NODES} nodes, {JOBS} jobs       {large:8.1f} ms   (limit {LIMIT_MS})")
    print(f"calls of an idle view                  {calls:8.1f} /min (limit {LIMIT_CALLS})")


if __name__ == "__main__":
    main()
