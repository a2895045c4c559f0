"""What a browser waits for the live half of the form on a cluster of 1,000 nodes and 5,000 jobs.

The hub is a real one, asked over HTTP with a logged-in user's cookies; the view is a real one in
its own process and on its own socket. Slurm alone is made up: it takes as long to read as a real
controller of that size does, and something has changed at each reading.
"""

import argparse
import json
import multiprocessing
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from carme.slurm.models import Job, Node, Partition
from carme.slurm.rights import Association, JobLimits, Qos, Rights
from carme.slurm.states import JobState, NodeState
from support.ports import free_port
from support.slurm_memory import Cluster, RunningView, config

NODES, JOBS = 1000, 5000
LIMIT_MS = 200
LOADS = 8
PAUSE_SECONDS = 5.2
"""The page asks every five seconds; figures older than that are read again."""
READ_SECONDS = 0.4
GIB = 2**30
USER = "ann"
PARTITIONS = ("gpu", "long", "debug", "cpu")

HUB = """
import secrets
from jupyterhub.proxy import Proxy
import carme_spawner
from carme.config import load

class NoProxy(Proxy):
    routes = {{}}
    async def start(self):
        pass
    stop = start
    async def add_route(self, spec, target, data):
        self.routes[spec] = {{"routespec": spec, "target": target, "data": data}}
    async def delete_route(self, spec):
        self.routes.pop(spec, None)
    async def get_all_routes(self):
        return dict(self.routes)

carme_spawner.configure(c)
c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{port}"
"""


class Large(Cluster):
    """A thousand nodes of two kinds in four partitions, five thousand jobs, ten accounts."""

    def __init__(self, read_seconds: float) -> None:
        super().__init__()
        self._read_seconds = read_seconds
        self._reads = 0
        self._nodes = tuple(_node(number) for number in range(NODES))
        self._jobs = [_job(number) for number in range(1, JOBS + 1)]
        self.known_rights = _rights()

    def partitions(self) -> tuple[Partition, ...]:
        names = {name: tuple(n.name for n in self._nodes if name in n.partitions)
                 for name in PARTITIONS}  # fmt: skip
        return tuple(
            Partition(name=name, default=name == "gpu", nodes=nodes, max_seconds=86400,
                      gpus={} if name == "cpu" else {"a100": 4})
            for name, nodes in names.items()
        )  # fmt: skip

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def jobs(self) -> tuple[Job, ...]:
        time.sleep(self._read_seconds)
        self._reads += 1
        self._jobs[0] = self._jobs[0].model_copy(update={"priority": self._reads})
        return tuple(self._jobs)


def _node(number: int) -> Node:
    cpu = number % 5 == 0
    return Node(
        name=f"n{number:04}",
        state=NodeState.DOWN if number % 97 == 0 else NodeState.MIXED,
        partitions=("cpu",) if cpu else ("gpu", "long") + (("debug",) if number < 50 else ()),
        cpus=128,
        cpus_used=number % 128,
        memory_bytes=512 * GIB,
        memory_used_bytes=(number % 500) * GIB,
        gpus={} if cpu else {"a100" if number % 2 else "h100": 8},
        gpus_used={} if cpu else {"a100" if number % 2 else "h100": number % 9},
        features=("fast", "big"),
        address=f"10.0.{number // 250}.{number % 250}",
    )


def _job(number: int) -> Job:
    waits = number % 3 == 0
    return Job(
        id=number,
        name=f"train-{number}",
        user=f"user{number % 200}",
        uid=10_000 + number % 200,
        account=f"lab{number % 10}",
        qos="normal" if number % 2 else "short",
        partition=PARTITIONS[number % 4],
        state=JobState.PENDING if waits else JobState.RUNNING,
        reason="Priority" if waits else "None",
        nodes=() if waits else (f"n{number % NODES:04}",),
        node_count=1,
        cpus=8,
        memory_bytes=32 * GIB,
        gpus={"a100": 1},
        submitted_at=1_700_000_000 + number,
        started_at=None if waits else 1_700_000_100 + number,
        limit_seconds=86400,
        priority=number,
        work_dir=f"/home/user{number % 200}/work/{number}",
    )


def _rights() -> Rights:
    people = [*(f"user{number}" for number in range(200)), USER]
    labs = [f"lab{number}" for number in range(10)]
    limits = JobLimits(group={"gres/gpu": 4000, "cpu": 100_000}, group_jobs=100_000)
    return Rights(
        enforced=("associations", "limits", "qos"),
        associations=(
            Association(account="root"),
            *(Association(account=lab, parent="root", limits=limits) for lab in labs),
            *(
                Association(account=lab, user=user, qos=("normal", "short"), default_qos="normal")
                for user in people
                for lab in labs[:3]
            ),
        ),
        qos=tuple(
            Qos(name=name, limits=JobLimits(per_user={"gres/gpu": 64}, max_jobs=500))
            for name in ("normal", "short")
        ),
        default_accounts=dict.fromkeys(people, "lab0"),
    )


def _serve(folder: str, read_seconds: float) -> None:
    """The view's process: until it is told to end."""
    with RunningView(Large(read_seconds), config(Path(folder))):
        signal.sigwait({signal.SIGTERM})


@contextmanager
def served(folder: Path, read_seconds: float = READ_SECONDS) -> Iterator[None]:
    """A view of the large cluster on `folder/view.sock`, in a process of its own."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(str(folder), read_seconds))
    process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        _wait((folder / "view.sock").exists, "the view listens")
        yield
    finally:
        process.terminate()
        process.join(20)


@contextmanager
def hub(folder: Path) -> Iterator[requests.Session]:
    """A hub on that view, and a browser that is logged in to it."""
    port, password = free_port(), secrets.token_hex(8)
    (folder / "carme.toml").write_text(
        f'[view]\nsocket = "{folder}/view.sock"\n[images]\nfolder = "{folder}/images"\n'
        f'[hub]\nurl = "http://127.0.0.1:{port}"\ndatabase = "sqlite:///{folder}/hub.sqlite"\n'
    )
    (folder / "hub.py").write_text(HUB.format(port=port, password=password))
    log = (folder / "hub.log").open("wb")
    program = [Path(sys.executable).with_name("jupyterhub"), "--config", folder / "hub.py"]
    env = {**os.environ, "CARME_CONFIG": str(folder / "carme.toml")}
    process = subprocess.Popen(program, cwd=folder, env=env, stdout=log, stderr=log)
    base = f"http://127.0.0.1:{port}/hub"
    web = requests.Session()
    web.trust_env = False
    try:
        try:
            _wait(lambda: process.poll() or _answers(web, f"{base}/login"), "the hub answers")
            if process.poll():
                raise SystemExit("bench: the hub ended")
        except SystemExit:
            print((folder / "hub.log").read_text()[-3000:], file=sys.stderr)
            raise
        data = {"username": USER, "password": password, "_xsrf": web.cookies.get("_xsrf")}
        web.post(f"{base}/login", data=data, timeout=60, allow_redirects=False)
        xsrf = next(c.value for c in web.cookies if c.name == "_xsrf" and c.path == "/hub/")
        web.headers.update({"X-XSRFToken": xsrf or "", "Referer": f"{base}/home"})
        web.base = f"{base}/api/carme"  # type: ignore[attr-defined]
        yield web
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


CHOICE = {"partition": "gpu", "gpus": 8, "cpus": 64, "memory_gb": 500, "hours": 2, "image": "base"}


def load(web: Any, number: int) -> tuple[float, float]:
    """Milliseconds for the two answers that a page needs; `number` varies the request."""
    milliseconds = []
    for path, query in (("cluster", {}), ("outlook", {**CHOICE, "cpus": 64 + number % 60})):
        started = time.perf_counter()
        answer = web.get(f"{web.base}/{path}", params=query, timeout=60)
        milliseconds.append(1000 * (time.perf_counter() - started))
        if answer.status_code != 200:
            raise SystemExit(f"bench: {path}: {answer.status_code} {answer.text[:300]}")
        content = answer.json()
        if path == "cluster" and sum(p["nodes_total"] for p in content["partitions"]) < NODES:
            raise SystemExit("bench: the answer does not hold the whole cluster")
    return milliseconds[0], milliseconds[1]


def measure(loads: int = LOADS, pause_seconds: float = PAUSE_SECONDS) -> dict[str, float]:
    """`form_data_1000_nodes_ms` and its parts: medians over `loads` of one page."""
    with tempfile.TemporaryDirectory(prefix="carme-form-", dir="/var/tmp") as name:
        folder = Path(name)
        with served(folder), hub(folder) as web:
            first_ms = sum(load(web, 0))
            pairs = []
            for number in range(1, loads + 1):
                time.sleep(pause_seconds)
                pairs.append(load(web, number))
    totals = [sum(pair) for pair in pairs]
    return {
        "form_data_1000_nodes_ms": round(statistics.median(totals), 1),
        "form_data_best_ms": round(min(totals), 1),
        "form_data_worst_ms": round(max(totals), 1),
        "form_data_first_ms": round(first_ms, 1),
        "cluster_ms": round(statistics.median(pair[0] for pair in pairs), 1),
        "outlook_ms": round(statistics.median(pair[1] for pair in pairs), 1),
    }


def _answers(web: requests.Session, url: str) -> bool:
    try:
        return web.get(url, timeout=10).status_code == 200
    except requests.RequestException:
        return False


def _wait(check: Any, event: str) -> None:
    end = time.monotonic() + 120
    while not check():
        if time.monotonic() > end:
            raise SystemExit(f"bench: not within 120 s: {event}")
        time.sleep(0.1)


def main() -> None:
    """Measure, and print one JSON line or a small table."""
    parser = argparse.ArgumentParser(prog="./dev bench form_data", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line for programs")
    as_json = parser.parse_args().json
    figures = measure()
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28}{value:8.1f} ms" + (f"   (limit {LIMIT_MS})" if "1000" in name else ""))


if __name__ == "__main__":
    main()
