"""Jobs on a live cluster, submitted as users and cancelled after the test."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carme.slurm.command_client import CommandClient
from carme.slurm.models import Job
from support.cluster import wait_for
from support.hub import User

# Run as the hub's user: one call of the helper's client; prints its response or error as JSON.
_HELPER_CALL = """
import asyncio, json, sys
from pathlib import Path
from carme.errors import CarmeError
from carme.helper.client import HelperClient

async def call(helper, config, verb, arguments):
    try:
        answer = await getattr(HelperClient(Path(helper), Path(config)), verb)(**arguments)
    except CarmeError as error:
        return {"error": error.reason, "message": error.message, "hint": error.hint}
    return answer.model_dump() if hasattr(answer, "model_dump") else answer

print(json.dumps(asyncio.run(call(*sys.argv[1:4], json.loads(sys.argv[4])))))
"""

# Run as any user: one call of the view's client.
_VIEW_CALL = """
import json, sys
from pathlib import Path
from carme.errors import CarmeError
from carme.view.client import ViewClient

try:
    arguments = json.loads(sys.argv[3])
    answer = getattr(ViewClient(Path(sys.argv[1])), sys.argv[2])(**arguments)
    many = isinstance(answer, tuple)
    plain = [part.model_dump(mode="json") for part in (answer if many else (answer,))]
    print(json.dumps(plain if many else plain[0]))
except CarmeError as error:
    print(json.dumps({"error": error.reason, "message": error.message}))
"""


def python_as(cluster: Any, user: str, code: str, *arguments: str) -> Any:
    """The JSON that a Python program prints when this user runs it."""
    result = cluster.run_as(user, [sys.executable, "-c", code, *arguments])
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def helper(cluster: Any, verb: str, **arguments: object) -> Any:
    """The helper's response to the hub, called through sudo."""
    program = str(Path(sys.prefix) / "bin/carme-helper")
    config = cluster.env["CARME_CONFIG"]
    argv = (program, config, verb, json.dumps(arguments))
    return python_as(cluster, cluster.config.hub.user, _HELPER_CALL, *argv)


def view(cluster: Any, user: str, verb: str, /, **arguments: object) -> Any:
    """The view's response to this user."""
    socket = str(cluster.config.view.socket)
    return python_as(cluster, user, _VIEW_CALL, socket, verb, json.dumps(arguments))


class Jobs:
    """Submits jobs as users, and cancels those that still run."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._client = CommandClient.of(cluster.config.slurm)
        self._made: list[int] = []

    def submit(self, user: str, *options: str, command: str = "sleep 600") -> int:
        """Submit a job, which sleeps by default; returns its ID."""
        base = ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/tmp", "--mem=200"]
        result = self._cluster.run_as(user, [*base, *options, "--wrap", command])
        assert result.returncode == 0, result.stderr
        self._made.append(int(result.stdout.strip()))
        return self._made[-1]

    def adopt(self, job_id: int) -> None:
        """Also cancel this job at the end."""
        self._made.append(job_id)

    def wait(self, job_id: int, ready: Callable[[Job], bool], event: str) -> Job:
        """The job once it is `ready`."""

        def check() -> Job | None:
            job = next((j for j in self._client.jobs() if j.id == job_id), None)
            return job if job and ready(job) else None

        ready_job: Job = wait_for(check, 30, f"job {job_id} {event}")
        return ready_job

    def running(self, job_id: int) -> Job:
        """The job once it runs."""
        return self.wait(job_id, lambda job: job.state.value == "RUNNING", "runs")

    def clear(self) -> None:
        """Cancel all jobs and wait until they have ended."""
        if self._made:
            self._cluster.run(["scancel", *map(str, self._made)])
            submitted = set(self._made)
            wait_for(
                lambda: (
                    not any(j.id in submitted and not j.state.ended for j in self._client.jobs())
                ),
                30,
                "the test's jobs end",
            )


def take_cpu_node(cluster: Any) -> str:
    """Submit a job of the first user with all cores of cpu01; returns its ID when it runs."""
    User(cluster, cluster.users[0]).login()  # makes the home
    argv = ["sbatch", "--parsable", "-p", "cpu", "-c", "8", "--mem=100", "-D", "/tmp"]
    script = "#!/bin/sh\nsleep 1000\n"
    job = cluster.run_as(cluster.users[0], [*argv, "-o", "/dev/null"], input=script).stdout.strip()

    def runs() -> bool:
        # The node may still be cleaning up after the previous job.
        return any(
            j["id"] == job and j["state"] == "RUNNING" for j in cluster.jobs(cluster.users[0])
        )

    wait_for(runs, 60, "the job that takes the node")
    return str(job)
