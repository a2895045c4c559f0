"""How much hub and spawner add to a session, and whether fifty people can start at once.

`./dev bench spawn [--json]` brings up a cluster of its own (two nodes that declare more cores than
the machine has, fifty users). *Bare* is the same image and the same single-user server, started by
plain `sbatch` as the same user, from the call to its first answer. *Carme* is from the request to
the hub to the server's first answer through the proxy. Both take turns: a busy moment hits both.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from carme.config import Config, parse
from carme.local.cluster import LocalCluster
from support.cluster import Cluster, wait_for
from support.hub import User, session_url

CONCURRENT = 50
FIRST_PORT = 19200
REPEATS = 9
PATIENCE_SECONDS = 900
CHOICE = {"partition": "bench", "gpus": 0, "cpus": 1, "memory_gb": 1, "hours": 1, "image": "base"}
READS = re.compile(r"_INFO|REQUEST_PING|_BUILD|_STATE$|ACCT_GATHER|JOB_READY|_SHARE")
"""Slurm's names for calls that only read; sdiag's own question is left out."""


def config(concurrent: int) -> Config:
    """A cluster beside any other: its own folder, ports and users."""
    nodes = [{"name": f"bench0{n}", "cpus": 64, "memory_mb": 64000} for n in (1, 2)]
    return parse(
        {
            "cluster": {"name": "carmebench"},
            # Fifty on two cores take minutes, bare as well; that is not what is measured here.
            "session": {"start_seconds": 900},
            "hub": {
                "user": "cb-hub",
                "users_group": "cb-users",
                "admins_group": "cb-admins",
                "url": "http://127.0.0.1:19000",
                "api_port": 19081,
                "proxy_port": 19001,
            },
            "local": {
                "dir": "/var/lib/carme-bench",
                "view_user": "cb-view",
                "exporter_user": "cb-exporter",
                "service_user": "cb-service",
                "first_job_id": 9_000_000,
                "users": [f"cb-{n:02}" for n in range(concurrent)],
                "admins": ["cb-ada"],
                "ports": {
                    "slurmctld": 19817,
                    "slurmdbd": 19819,
                    "slurmd_first": 19830,
                    "mariadb": 19806,
                    "prometheus": 19890,
                    "exporter_first": 19850,
                    "service": 19880,
                },
                "nodes": nodes,
                "partitions": [
                    {"name": "bench", "nodes": [n["name"] for n in nodes], "default": True}
                ],
            },
        },
        "bench",
    )


class Bench:
    """The two ways to a server, for any user of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._url = cluster.config.hub.url
        self._admin = User(cluster, cluster.admin)
        self._admin.login()
        self._token = self._new_token(cluster.admin)
        self._session: dict[str, Any] = {}
        self._image = ""

    def _new_token(self, name: str) -> str:
        answer = self._admin.api("POST", f"/users/{name}/tokens", json={"note": "bench"})
        answer.raise_for_status()
        return str(answer.json()["token"])

    def prepare(self) -> None:
        """Homes, users in the hub, and one session of each kind so that files are in memory."""
        users = self.cluster.users
        for name in users:
            self.cluster.run(["/usr/sbin/mkhomedir_helper", name, "0077"], check=True)
        self._hub("POST", "/users", json={"usernames": list(users)}).raise_for_status()
        self.carme(users[0])
        folder = Path(f"/home/{users[0]}/.carme/sessions/default")
        self._session = json.loads((folder / "session.json").read_text())
        [job] = self.cluster.jobs(users[0])
        script = self.cluster.run(["scontrol", "write", "batch_script", job["id"], "-"]).stdout
        image = re.search(r"^image=(\S+)$", script, re.MULTILINE)
        if not image:
            raise SystemExit("bench: the job script names no image")
        self._image = image[1]
        self.end(users[:1])
        for name in users:
            self.ready_bare(name)
        self.bare(users[0])
        self.end(users[:1])

    # --- through the hub --------------------------------------------------------------------------

    def _hub(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        headers = {"Authorization": f"token {self._token}"}
        url = f"{self._url}/hub/api{path}"
        return requests.request(method, url, headers=headers, timeout=PATIENCE_SECONDS, **kwargs)

    def carme(self, user: str) -> float:
        """Seconds until a session of Carme answers, followed as the hub's page follows it."""
        started = time.monotonic()
        answer = self._hub("POST", f"/users/{user}/server", json=CHOICE)
        if answer.status_code == 202:
            answer = self._hub("GET", f"/users/{user}/server/progress", stream=True)
            last = {}
            for line in answer.iter_lines():
                if line.startswith(b"data:"):
                    last = json.loads(line[5:])
                    if last.get("ready") or last.get("failed"):
                        break
            if not last.get("ready"):
                raise SystemExit(f"bench: the session of {user} did not start: {last}")
        elif answer.status_code != 201:
            raise SystemExit(f"bench: the hub says {answer.status_code}: {answer.text}")
        self._until_answered(f"{session_url(self.cluster.config, user)}/api")
        return time.monotonic() - started

    # --- by plain sbatch --------------------------------------------------------------------------

    def ready_bare(self, user: str) -> None:
        """Write what a bare start needs; the spawner's own work for that is part of its time."""
        port, base = self._port(user), f"/user/{user}/"
        environment = {
            **{
                name: value.replace(f"/user/{self.cluster.users[0]}/", base)
                for name, value in self._session["environment"].items()
            },
            "JUPYTERHUB_API_TOKEN": self._new_token(user),
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}{base}",
            "JUPYTERHUB_USER": user,
        }
        lines = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        self._environment_file(user).write_text("\n".join(lines) + "\n")
        self._environment_file(user).chmod(0o644)

    def _port(self, user: str) -> int:
        """One for each user, below those that the kernel gives to anybody."""
        return FIRST_PORT + self.cluster.users.index(user)

    @staticmethod
    def _environment_file(user: str) -> Path:
        return Path(f"/home/{user}/bare.env")

    def bare(self, user: str) -> float:
        """Seconds until the same server answers, started without hub and spawner."""
        port, file = self._port(user), self._environment_file(user)
        program = self.cluster.config.images.apptainer
        command = shlex.join(self._session["command"])
        script = "#!/bin/bash\n" + (
            f"cd; {program} --quiet exec --cleanenv --env-file {file} {self._image} {command}\n"
        )
        resources = ["-p", "bench", "-c", "1", "--mem=1024M", "-t", "60"]
        argv = ["sbatch", "--parsable", "--export=NIL", "-D", f"/home/{user}", "-o", "bare.log"]
        started = time.monotonic()
        done = self.cluster.run_as(
            user, [*argv, *resources], input=script, timeout=PATIENCE_SECONDS
        )
        if done.returncode:
            raise SystemExit(f"bench: sbatch: {done.stderr}")
        wait_for(lambda: _listens(port), PATIENCE_SECONDS, f"the bare server of {user}")
        self._until_answered(f"http://127.0.0.1:{port}/user/{user}/api")
        return time.monotonic() - started

    def _until_answered(self, url: str) -> None:
        def answers() -> bool:
            try:
                return requests.get(url, timeout=60).status_code == 200
            except requests.ConnectionError:
                return False

        wait_for(answers, PATIENCE_SECONDS, f"an answer of {url}")

    # --- both -------------------------------------------------------------------------------------

    def end(self, users: Iterable[str]) -> None:
        """No session and no job of these users is left."""
        users = list(users)
        servers = {name: self._hub("GET", f"/users/{name}").json()["servers"] for name in users}
        for name, running in servers.items():
            if running:
                self._hub("DELETE", f"/users/{name}/server")
        for name in users:
            self.cluster.run(["scancel", "-u", name])
        for name in users:
            wait_for(
                lambda name=name: (  # type: ignore[misc]
                    not self.cluster.run(["squeue", "-h", "-u", name]).stdout
                    and not self._hub("GET", f"/users/{name}").json()["servers"]
                ),
                120,
                f"the end of the session of {name}",
            )

    def reading_calls(self) -> int:
        """Reading calls that slurmctld counted since the last reset."""
        output = self.cluster.run(["sdiag"]).stdout
        by_type = output.split("by message type")[-1].split("by user")[0]
        counts = re.findall(r"^\s*(\w+)\s*\(\s*\d+\) count:(\d+)", by_type, re.MULTILINE)
        print_progress(f"  {dict(counts)}")
        return sum(int(n) for name, n in counts if READS.search(name) and "STATS" not in name)

    def all_at_once(self, start: Callable[[str], float]) -> list[float]:
        """Seconds for each of all users, who start in the same moment."""
        with ThreadPoolExecutor(len(self.cluster.users)) as pool:
            return list(pool.map(start, self.cluster.users))


def _listens(port: int) -> bool:
    """Whether somebody listens there, from the kernel's table: that costs the server nothing."""
    table = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(row[3] == "0A" and int(row[1][-4:], 16) == port for row in map(str.split, table))


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def measure(bench: Bench, repeats: int) -> dict[str, Any]:
    bench.prepare()
    users = bench.cluster.users
    bare, carme = [], []
    for number in range(repeats):
        user = [users[number % len(users)]]
        bare.append(bench.bare(user[0]))
        bench.end(user)
        carme.append(bench.carme(user[0]))
        bench.end(user)
        print_progress(f"  one at a time: bare {bare[-1]:.2f} s, carme {carme[-1]:.2f} s")
    print_progress(f"{len(users)} at once, bare")
    bare_many = bench.all_at_once(bench.bare)
    bench.end(bench.cluster.users)
    print_progress(f"{len(users)} at once, carme")
    bench.cluster.run(["sdiag", "--reset"])
    started = time.monotonic()
    carme_many = bench.all_at_once(bench.carme)
    minutes = (time.monotonic() - started) / 60
    calls = bench.reading_calls() / minutes
    ready = sum(bool(bench.cluster.jobs(name)) for name in bench.cluster.users)
    bench.end(bench.cluster.users)
    bare_seconds, carme_seconds = statistics.median(bare), statistics.median(carme)
    return {
        "bare_seconds": round(bare_seconds, 2),
        "carme_seconds": round(carme_seconds, 2),
        # Pair by pair: what else the machine did at that time is in both.
        "overhead_seconds": round(
            statistics.median(c - b for b, c in zip(bare, carme, strict=True)), 2
        ),
        "concurrent": len(users),
        "all_started": ready == len(carme_many) == len(users),
        "p95_seconds": round(p95(carme_many), 2),
        "bare_p95_seconds": round(p95(bare_many), 2),
        "read_calls_per_minute": round(calls, 1),
    }


def main() -> None:
    """Measure, and print one JSON line or a small table."""
    parser = argparse.ArgumentParser(prog="./dev bench spawn", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line for programs")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="starts one at a time")
    parser.add_argument("--concurrent", type=int, default=CONCURRENT, help="starts at once")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench: the one-machine cluster needs root")
    local = LocalCluster(config(options.concurrent))
    local.purge(print_progress)
    try:
        local.up(print_progress)
        figures = measure(Bench(Cluster(local)), options.repeats)
    finally:
        local.purge(print_progress)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
