"""Health checks of Slurm's daemons and of what they need: Munge and MariaDB."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carme.errors import UnavailableError
from carme.slurm.states import NodeAvailability, node_availability
from carme.system.health_checks import output, unix_http_ok
from carme.system.programs import execute

_SECONDS = 3.0
_PING_SECONDS = 15.0


@dataclass(frozen=True)
class SlurmNodeState:
    """A node's state and its reason, in sinfo's words."""

    node: str
    state: str
    reason: str

    @property
    def availability(self) -> NodeAvailability:
        return node_availability(self.state)

    def __str__(self) -> str:
        reason = self.reason.strip()
        because = f" ({reason})" if reason not in ("", "none") else ""
        return f"{self.node} is {self.state}{because}"


def munge(socket: Path | None = None) -> str:
    """The daemon encodes and decodes a credential; without `socket`, the host's own daemon."""
    options = ["--socket", str(socket)] if socket else []
    credential = output(["munge", "--no-input", *options], seconds=_SECONDS)
    try:
        output(["unmunge", "--no-output", *options], stdin=credential, seconds=_SECONDS)
    except UnavailableError as error:
        hint = "is the clock right, and /etc/munge/munge.key the same on every host?"
        raise UnavailableError(error.message, hint) from None
    return "encodes and decodes credentials"


def mariadb(socket: Path | None = None) -> str:
    """The server answers a query; without `socket`, the host's own server."""
    options = ["--no-defaults", "-S", str(socket)] if socket else []
    version = output(["mariadb", *options, "-NBe", "select version()"], seconds=_SECONDS)
    return f"answers, version {version.split('-')[0].strip()}"


def slurmdbd(cluster: str, env: Mapping[str, str]) -> str:
    """The cluster is registered in accounting."""
    clusters = output(["sacctmgr", "-nP", "show", "cluster", "format=cluster"], env=env).split()
    if cluster.lower() not in clusters:
        names = ", ".join(clusters) or "none"
        raise UnavailableError(
            f"the cluster {cluster} is not registered, only: {names}",
            f"sacctmgr -i add cluster {cluster}; restart slurmctld",
        )
    return f"stores the jobs of {cluster}"


def slurmctld(env: Mapping[str, str]) -> tuple[str, ...]:
    """A controller answers a ping; returns the lines about the controllers that do not."""
    result = execute(["scontrol", "ping"], env=env, timeout_seconds=_PING_SECONDS, cwd="/")
    return controllers_down(result.stdout or result.stderr)


def controllers_down(ping: str) -> tuple[str, ...]:
    """The lines of `scontrol ping` about controllers that are down; UnavailableError if all are."""
    # With none up, scontrol adds a frame of asterisks.
    lines = [line.strip() for line in ping.splitlines() if line.strip(" *")]
    lines = [line for line in lines if " is " in line] or lines
    down = tuple(line for line in lines if not line.endswith(" UP"))
    if len(down) == len(lines):
        raise UnavailableError(lines[-1] if lines else "no answer")
    return down


def node_states(env: Mapping[str, str], node: str = "") -> list[SlurmNodeState]:
    """The state of every node, or of one, as sinfo shows it."""
    options = ["-n", node] if node else []
    text = output(["sinfo", "-h", "-N", *options, "-o", "%N|%T|%E"], env=env)
    # A node in two partitions has two lines.
    rows = {line.partition("|")[0]: line.split("|", 2) for line in text.splitlines()}
    return [SlurmNodeState(*(*row, "", "")[:3]) for row in rows.values()]


def slurmd(node: str, env: Mapping[str, str]) -> str:
    """The controller reaches the node, and the node accepts jobs."""
    states = node_states(env, node)
    if not states:
        raise UnavailableError(f"Slurm does not know the node {node}")
    if states[0].availability is not NodeAvailability.OPEN:
        raise UnavailableError(f"node {states[0]}")
    return states[0].state


def slurmrestd(path: Path) -> str:
    """slurmrestd answers on its socket."""
    return unix_http_ok(path, "/slurm/v0.0.38/ping")
