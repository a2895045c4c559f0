"""A head and two nodes, bare, then deployed once for all tests of this folder."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "ansible"
CACHE = Path(os.environ.get("CARME_CACHE") or "/var/cache/carme") / "machines"
HUB_URL = "https://hub.carme.test"
PASSWORDS = {"alice": "alice-knows-this", "ada": "ada-knows-that"}
RUNNING = ExitStack()
DURATIONS: list[tuple[str, float]] = []
SSH_ARGUMENTS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"


def playbook(inventory: Path, name: str, *arguments: str, seconds: float = 1500) -> str:
    """The output of ansible-playbook; fails the test when a task failed."""
    result = run_playbook(inventory, name, *arguments, seconds=seconds)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    return result.stdout


def run_playbook(
    inventory: Path, name: str, *arguments: str, seconds: float = 1500
) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).with_name("ansible-playbook")
    scratch = inventory.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "TMPDIR": str(scratch),
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCALHOST_WARNING": "False",
    }
    return subprocess.run(
        [str(program), "-i", str(inventory), str(PLAYBOOKS / name), *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment,
        cwd=PLAYBOOKS,
    )


def recap(output: str) -> dict[str, dict[str, int]]:
    """`{host: {ok: 3, changed: 0, …}}` from the end of a run."""
    lines = output.rpartition("PLAY RECAP")[2].splitlines()
    counts = {}
    for line in lines:
        if match := re.match(r"(\S+)\s+: (ok=.*)", line):
            pairs = (word.split("=") for word in match[2].split())
            counts[match[1]] = {key: int(value) for key, value in pairs}
    return counts


def changes(output: str) -> dict[str, set[str]]:
    """The tasks that changed something, or would, by host."""
    tasks: dict[str, set[str]] = {}
    for text in re.split(r"^(?:TASK|RUNNING HANDLER) \[", output, flags=re.MULTILINE)[1:]:
        for host in re.findall(r"^changed: \[([^]\s]+)", text, re.MULTILINE):
            tasks.setdefault(host, set()).add(text.partition("]")[0])
    return tasks


@dataclass
class Site:
    """The deployed hosts and their inventory."""

    machines: Any
    folder: Path
    packages: dict[str, Path]
    first: str = ""
    """Output of the first run."""
    nodes: list[str] = field(default_factory=lambda: ["node1", "node2"])

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.yml"

    def host(self, name: str) -> Any:
        return self.machines.hosts[name]

    def add_head(self) -> None:
        """Add a bare head that has the images built on this machine before."""
        images = CACHE.parent / "images"
        self.machines.add("front", (f"{images}:/var/cache/carme/images:ro",))

    def write_inventory(self) -> None:
        """Write an admin's inventory, with the settings that only these machines need."""
        hosts = self.machines.hosts
        node = {"slurm_cpus": 2, "slurm_memory_mb": 3000}
        variables = {
            "ansible_user": "admin",
            "ansible_ssh_private_key_file": str(self.machines.key),
            "ansible_ssh_common_args": SSH_ARGUMENTS,
            "common_cluster_name": "nspawn",
            "common_users": [
                {
                    "name": name,
                    "uid": 3001 + index,
                    "account": "research",
                    "admin": name == "ada",
                    "password": _hash(password),
                }
                for index, (name, password) in enumerate(PASSWORDS.items())
            ],
            **{f"{name}_package_file": str(path) for name, path in self.packages.items()},
            "jupyterhub_url": HUB_URL,
            "prometheus_scrape_seconds": 5,
            "slurm_qos": [
                {
                    "name": "normal",
                    "priority": 10,
                    "max_wall": "1-00:00:00",
                    "max_tres_per_user": "cpu=8",
                },
                {"name": "short", "priority": 100, "max_wall": "01:00:00"},
            ],
            # The machines share a kernel with v1 controllers, and its cgroups with other clusters.
            "slurm_cgroup_plugin": "cgroup/v1",
            "slurm_first_job_id": 770001,
            "carme_settings": {
                "exporter": {"unrecorded_jobs": False},
                "session": {"gpu_flag": ""},
            },
            # NFS needs the kernel, and this kernel has neither server nor client: a folder that
            # all machines see replaces the file server.
            "shared_storage_mounts": [
                {"what": f"/srv/shared/{name}", "where": where, "type": "none", "options": "bind"}
                for name, where in (("home", "/home"), ("images", "/srv/carme/images"))
            ],
        }
        compute = {
            name: {"ansible_host": hosts[name].address, **node}
            | ({"slurm_gpus": {"type": "a100", "count": 2}} if name == "node2" else {})
            for name in self.nodes
        }
        groups = {
            "head": {"hosts": {"front": {"ansible_host": hosts["front"].address}}},
            "compute": {"hosts": compute},
        }
        tree = {"all": {"vars": variables, "children": {"carme": {"children": groups}}}}
        self.inventory.write_text(yaml.safe_dump(tree))

    def play(self, name: str, *arguments: str) -> str:
        """The output of the playbook; its duration is printed after all tests."""
        started = time.monotonic()
        output = playbook(self.inventory, name, *arguments)
        DURATIONS.append((" ".join((name, *arguments)), time.monotonic() - started))
        return output

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that Prometheus has now, queried on the head as an admin."""
        front = self.host("front")
        login = front.run("cat", "/etc/carme/prometheus-login").strip()
        url = f"http://{login}@127.0.0.1:9090"
        output = front.run("promtool", "query", "instant", "--format=json", url, expression)
        rows: list[dict[str, Any]] = json.loads(output)
        return rows


def _hash(password: str) -> str:
    argv = ["openssl", "passwd", "-6", "-salt", "carmetests", password]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How long each playbook took."""
    for name, seconds in DURATIONS:
        terminalreporter.write_line(f"{seconds:6.0f} s  {name}")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Remove the hosts after the last test that uses them; a session fixture would keep them."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        RUNNING.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Three bare hosts, and the playbook run on them once."""
    from support import debs
    from support.machines import machines

    machine_set = RUNNING.enter_context(machines(CACHE))
    folder = tmp_path_factory.mktemp("site")
    shared = machine_set.folder / "shared"
    for name in ("home", "images"):
        (shared / name).mkdir(parents=True)
    machine_set.binds = (f"{shared}:/srv/shared",)
    packages = {"apptainer": debs.pack_apptainer(folder), "grafana": debs.pack_grafana(folder)}
    deployed = Site(machine_set, folder, packages)
    debs.build_base_image()
    deployed.add_head()
    for name in deployed.nodes:
        machine_set.add(name)
    deployed.write_inventory()
    deployed.first = deployed.play("site.yml")
    return deployed


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the hosts, also if the tests are interrupted."""
    RUNNING.close()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["durations"] = DURATIONS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Pass a worker's durations to the process that prints the summary."""
    DURATIONS.extend(getattr(node, "workeroutput", {}).get("durations", ()))
