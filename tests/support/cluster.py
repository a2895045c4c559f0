"""The private cluster as tests see it."""

import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

import requests

from carme.config import Config, load, parse
from carme.local import unix_users
from carme.local.cluster import LocalCluster


def wait_for(check: Callable[[], Any], seconds: float, event: str) -> Any:
    """The result of `check` once it is true; fails with `event` after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        if value := check():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {event}")
        time.sleep(0.1)


def worker_config() -> Config:
    """The configuration of this test worker's cluster.

    CARME_TEST_CLUSTER is the number of the first worker (default 0), so that a second run can work
    beside another one.
    """
    worker = int(os.environ.get("CARME_TEST_CLUSTER", "0"))
    worker += int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    template = Template(Path(__file__).with_name("carme.toml").read_text())
    text = template.substitute(worker=worker, port=20 + worker)
    return parse(tomllib.loads(text), f"the cluster of test worker {worker}")


class Cluster:
    """A running cluster: configuration, users, and services that tests stop, start and kill."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.dir = local.layout.dir
        self.config: Config = load(self.dir / "etc/carme.toml")
        self.users = self.config.local.users
        self.admin = self.config.local.admins[0]
        self.env = {
            **os.environ,
            "SLURM_CONF": str(local.layout.slurm_conf),
            "CARME_CONFIG": str(self.dir / "etc/carme.toml"),
        }

    def password(self, user: str) -> str:
        return unix_users.created(self.local.layout).users[user]

    def run(self, argv: list[str], **kwargs: Any) -> "subprocess.CompletedProcess[str]":
        """The command as root, in the cluster's environment."""
        defaults = {"env": self.env, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run([str(word) for word in argv], **{**defaults, **kwargs})

    def run_as(
        self, user: str, argv: list[str], **kwargs: Any
    ) -> "subprocess.CompletedProcess[str]":
        """The command as a Unix user with all of the user's groups."""
        return self.run(["runuser", "-u", user, "--", *argv], **{"cwd": "/", **kwargs})

    def stop(self, service: str) -> None:
        self.local.supervisor.stop_service(service)

    def start(self, service: str) -> None:
        self.local.supervisor.start_service(service)

    @contextmanager
    def without(self, service: str, *, frozen: bool = False) -> Iterator[None]:
        """Stop the service, or suspend its process, for the duration of the context."""
        if frozen:
            pid = self.pid(service)
            os.kill(pid, signal.SIGSTOP)
        else:
            self.stop(service)
        try:
            yield
        finally:
            if frozen:
                os.kill(pid, signal.SIGCONT)
            else:
                self.start(service)

    def wait_for_routes(self) -> None:
        """Wait until the proxy knows the service: a hub that starts adds routes after its pages."""
        hub = self.config.hub
        url = f"{hub.origin}{hub.base_url}services/carme/healthz"

        def is_routed() -> bool:
            return requests.get(url, allow_redirects=False, timeout=20).status_code == 200

        wait_for(is_routed, 120, "the proxy's route to the service")

    def pid(self, service: str) -> int:
        return self.local.supervisor.processes()[service].pid

    def is_healthy(self, service: str) -> bool:
        """Whether the service runs and answers."""
        return next(line.is_healthy for line in self.local.health() if line.service.name == service)

    def jobs(self, user: str) -> list[dict[str, str]]:
        """The user's waiting and running jobs, without completing ones."""
        columns = ("id", "user", "state", "node", "gres")
        output_format = "JobID:|,UserName:|,State:|,NodeList:|,tres-per-node:|"
        output = self.run(["squeue", "-h", "-u", user, "-t", "PD,R,CF,S", "-O", output_format])
        rows = [line.split("|") for line in output.stdout.splitlines()]
        return [dict(zip(columns, (cell.strip() for cell in row), strict=False)) for row in rows]

    def gpu_indices(self, job_id: str) -> str:
        """Where the job holds which GPUs, as in `gpu01 gpu:virtual-a100:1(IDX:0)`."""
        output = self.run(["scontrol", "-d", "-o", "show", "job", job_id]).stdout
        fields = dict(word.split("=", 1) for word in output.split() if "=" in word)
        return f"{fields['Nodes']} {fields.get('GRES', '')}"
