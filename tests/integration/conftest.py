"""A private cluster for the tests: its own folder, ports and users, whatever else runs here."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme.config import Config, load
from carme.local import accounts
from carme.local.cluster import LocalCluster

CONFIG = Path(__file__).with_name("carme.toml")


class Cluster:
    """What tests need of the running cluster."""

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
        return accounts.made(self.local.layout).users[user]

    def run(self, argv: list[str], **kwargs: object) -> "subprocess.CompletedProcess[str]":
        """The command as root, in the cluster's environment."""
        return subprocess.run(
            [str(word) for word in argv],
            **{"env": self.env, "capture_output": True, "text": True, "timeout": 60, **kwargs},  # type: ignore[call-overload]
        )

    def run_as(self, user: str, argv: list[str], **kwargs: object) -> "subprocess.CompletedProcess[str]":
        """The command as a Unix user with all of the user's groups."""
        keep = "SLURM_CONF,CARME_CONFIG,PATH"
        prefix = ["runuser", "-u", user, "--whitelist-environment", keep, "--"]
        return self.run([*prefix, *argv], **{"cwd": "/", **kwargs})

    def stop(self, part: str) -> None:
        self.local.supervisor.stop_part(part)

    def start(self, part: str) -> None:
        self.local.supervisor.start_part(part)

    def pid(self, part: str) -> int:
        return self.local.supervisor.processes()[part].pid


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The whole cluster, from nothing to nothing: brought up once for all tests and purged."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("the one-machine cluster needs root on Debian")
    local = LocalCluster(load(CONFIG))
    local.purge(print)
    try:
        local.up(print)
        yield Cluster(local)
    finally:
        local.purge(print)
