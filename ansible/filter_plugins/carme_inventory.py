"""What is wrong with an inventory, in words: `hosts | carme_problems(groups, roles_folder)`.

Pure except for reading the roles' defaults: each check takes what Ansible knows of the hosts and
gives sentences that name the variable, say what is wrong and what to do.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9-]+)*")
GPU_TYPE = re.compile(r"[a-z][a-z0-9_.-]{0,31}")
WALL = re.compile(r"(\d+-)?\d{1,2}:\d{2}:\d{2}")
Hosts = dict[str, dict[str, Any]]


class Inventory:
    """The hosts' variables over the roles' plain defaults."""

    def __init__(self, hosts: Hosts, groups: dict[str, list[str]], roles: Path) -> None:
        self.hosts, self.groups = hosts, groups
        self.defaults: dict[str, Any] = {}
        self.roles = sorted(path.name for path in roles.iterdir() if path.is_dir())
        table = roles.parent.parent / "carme/config/services.toml"
        self.services = tomllib.loads(table.read_text(encoding="utf-8"))["services"]
        for path in sorted(roles.glob("*/defaults/main.yml")):
            self.defaults |= yaml.safe_load(path.read_text(encoding="utf-8")) or {}

    @property
    def head(self) -> str:
        return self.groups.get("head", [""])[0]

    @property
    def system_names(self) -> set[str]:
        """Users that run services; people cannot have these names."""
        users = {row["user"] for row in self.services if row.get("unit")}
        # Keys of carme.toml: hub.user and service.user.
        return {"carme", "carme-service", *(user for user in users if "." not in user)}

    @property
    def port_variables(self) -> list[str]:
        """The variables of the head's ports, of which no two may be the same."""
        return [name for row in self.services for name in row.get("variables", ())]

    @property
    def nodes(self) -> list[str]:
        return self.groups.get("compute", [])

    def get(self, name: str, host: str = "") -> Any:
        """The value for `host` (the head, unless named); None where only a run can tell."""
        variables = self.hosts.get(host or self.head, {})
        value = variables.get(name, self.defaults.get(name))
        return None if isinstance(value, str) and "{{" in value else value


def _groups(it: Inventory) -> Iterator[str]:
    heads = it.groups.get("head", [])
    if len(heads) != 1:
        found = ", ".join(heads) or "none"
        yield f"group head: exactly one host is the head, not {len(heads)} ({found})"
    if not it.nodes:
        yield "group compute: no node; name at least one (the head itself is possible)"
    outside = sorted({*heads, *it.nodes} - {*it.groups.get("carme", [])})
    if outside:
        yield (
            f"group carme: must contain the groups head and compute; {', '.join(outside)} "
            "is not in it"
        )


def _hosts(it: Inventory) -> Iterator[str]:
    addresses: dict[str, str] = {}
    shorts: dict[str, str] = {}
    for host in it.groups.get("carme", []):
        if not HOST.fullmatch(host):
            yield f"host {host}: Slurm and DNS take letters a-z, digits and - in a name"
        if host in it.groups:
            yield f"host {host}: a group has the same name; rename the host"
        short = host.split(".")[0]
        if short in shorts:
            yield f"host {host}: {shorts[short]} has the same short name, which is Slurm's name"
        shorts.setdefault(short, host)
        address = str(it.hosts.get(host, {}).get("ansible_host", host))
        if address in addresses:
            yield f"host {host}: ansible_host {address} is the one of {addresses[address]}, too"
        addresses.setdefault(address, host)
        if address.startswith("127.") or address == "localhost":
            yield f"host {host}: ansible_host {address} is loopback; other hosts cannot reach it"


def _typos(it: Inventory) -> Iterator[str]:
    """A variable with a role's prefix that no role has is a typing error."""
    known = set(it.defaults)
    said = set()
    for host in it.groups.get("carme", []):
        for name in it.hosts.get(host, {}):
            role = next((r for r in it.roles if str(name).startswith(f"{r}_")), None)
            if role and name not in known and name not in said:
                said.add(name)
                near = ", ".join(sorted(k for k in known if k.startswith(f"{role}_")))
                yield f"{name}: the role {role} has no such variable; it has {near}"


def _cluster(it: Inventory) -> Iterator[str]:
    name = it.get("common_cluster_name")
    if name is not None and not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", str(name)):
        yield f"common_cluster_name: {name!r} is no name: a-z, then a-z, 0-9, _ or -, up to 32"
    for variable in ("images_folder", "common_secrets_folder", "carme_folder", "slurm_tmp_folder"):
        path = it.get(variable)
        if path is not None and not str(path).startswith("/"):
            yield f"{variable}: {path!r} must be an absolute path"


def _people(it: Inventory) -> Iterator[str]:
    people = it.get("common_users")
    if people is None:
        return
    if not isinstance(people, list) or not all(isinstance(one, dict) for one in people):
        yield "common_users: must be a list of entries such as {name: alice, uid: 3001}"
        return
    accounts = it.get("slurm_accounts") or []
    for one in people:
        name, uid = str(one.get("name", "")), one.get("uid")
        where = f"common_users: {name or one}"
        if not NAME.fullmatch(name):
            yield f"{where}: name must be a Unix name: a-z first, then a-z, 0-9, _ or -"
        if name in it.system_names:
            yield f"{where}: this name belongs to the system; choose another"
        if not isinstance(uid, int):
            yield f"{where}: uid is missing; it must be the same number on every host"
        elif not 1000 <= uid <= 60000:
            yield f"{where}: uid {uid} is the system's; people have 1000 to 60000"
        if "password" in one and not str(one["password"]).startswith(("$", "!", "*")):
            yield f"{where}: password must be a hash, as mkpasswd -m yescrypt makes it"
        if one.get("account") and one["account"] not in accounts:
            have = ", ".join(accounts)
            yield f"{where}: account {one['account']!r} is not in slurm_accounts ({have})"
    for key in ("name", "uid"):
        for value, count in Counter(str(one.get(key)) for one in people if key in one).items():
            if count > 1:
                yield f"common_users: the {key} {value} is there {count} times"


def _nodes(it: Inventory) -> Iterator[str]:
    for host in it.nodes:
        for variable, unit in (("slurm_cpus", "processors"), ("slurm_memory_mb", "megabytes")):
            value = it.get(variable, host)
            if value is not None and (not str(value).isdigit() or int(value) < 1):
                yield f"{variable} of {host}: {value!r} must be a whole number of {unit}"
        gpus = it.get("slurm_gpus", host)
        if not gpus:
            continue
        if not isinstance(gpus, dict) or {*gpus} != {"type", "count"}:
            yield f"slurm_gpus of {host}: must look like {{type: a100, count: 4}}"
        elif not GPU_TYPE.fullmatch(str(gpus["type"])):
            yield f"slurm_gpus of {host}: type {gpus['type']!r} must be a-z, 0-9, _, . or -"
        elif not isinstance(gpus["count"], int) or gpus["count"] < 1:
            yield f"slurm_gpus of {host}: count {gpus['count']!r} must be a whole number from 1"


def _partitions(it: Inventory) -> Iterator[str]:
    partitions = it.get("slurm_partitions")
    if not isinstance(partitions, list) or not partitions:
        yield "slurm_partitions: at least one, such as {name: main, nodes: all, default: true}"
        return
    shorts = {host.split(".")[0] for host in it.nodes}
    for one in partitions:
        name = one.get("name", "?")
        nodes = one.get("nodes", "all")
        if nodes != "all":
            unknown = sorted({*nodes} - shorts) if isinstance(nodes, list) else [str(nodes)]
            if unknown:
                yield (
                    f"slurm_partitions: {name} names nodes that are not in group compute: "
                    f"{', '.join(unknown)}"
                )
        hours = one.get("max_hours", 24)
        if not isinstance(hours, int | float) or hours <= 0:
            yield f"slurm_partitions: {name}: max_hours {hours!r} must be a number above 0"
    defaults = [one.get("name") for one in partitions if one.get("default")]
    if len(defaults) != 1:
        yield f"slurm_partitions: exactly one has default: true, not {len(defaults)}"
    for name, count in Counter(one.get("name") for one in partitions).items():
        if count > 1:
            yield f"slurm_partitions: the name {name} is there {count} times"


def _qos(it: Inventory) -> Iterator[str]:
    qos = it.get("slurm_qos")
    if not qos:
        yield "slurm_qos: at least one, such as {name: normal, priority: 10}"
        return
    for one in qos:
        wall = one.get("max_wall")
        if wall and not WALL.fullmatch(str(wall)):
            yield (
                f"slurm_qos: {one.get('name')}: max_wall {wall!r} must be "
                "[days-]hours:minutes:seconds, in quotes"
            )
        if not isinstance(one.get("priority", 0), int):
            yield f"slurm_qos: {one.get('name')}: priority must be a whole number"
    detect = it.get("slurm_gres_detect")
    if detect not in ("files", "nvml"):
        yield f"slurm_gres_detect: {detect!r} must be files or nvml"
    plugin = it.get("slurm_cgroup_plugin")
    if plugin not in ("autodetect", "cgroup/v1", "cgroup/v2"):
        yield f"slurm_cgroup_plugin: {plugin!r} must be autodetect, cgroup/v1 or cgroup/v2"


def _hub(it: Inventory) -> Iterator[str]:
    url = it.get("jupyterhub_url")
    if url is not None:
        parts = urlsplit(str(url))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            yield f"jupyterhub_url: {url!r} must look like https://hub.example.org"
        elif parts.path not in ("", "/"):
            yield f"jupyterhub_url: {url!r} must have no path; the hub has a name of its own"
    certificate, key = it.get("jupyterhub_certificate"), it.get("jupyterhub_certificate_key")
    if bool(certificate) != bool(key):
        yield "jupyterhub_certificate and jupyterhub_certificate_key: set both or none"
    for variable in (
        *("jupyterhub_certificate", "jupyterhub_certificate_key"),
        *("apptainer_package_file", "carme_constraints", "munge_key_file"),
        "grafana_package_file",
    ):
        path = it.get(variable)
        if path and not Path(str(path)).is_file():
            yield f"{variable}: there is no file {path} on this machine"
    if it.get("jupyterhub_user") == "root":
        yield "jupyterhub_user: the hub never runs as root; leave it at carme"
    ports = {name: it.get(name) for name in it.port_variables}
    for port, count in Counter(str(value) for value in ports.values()).items():
        names = sorted(name for name, value in ports.items() if str(value) == port)
        if count > 1:
            yield f"{' and '.join(names)}: the same port {port}"
        if not port.isdigit() or not 1 <= int(port) <= 65535:
            yield f"{names[0]}: {port} is no port"


def _monitoring(it: Inventory) -> Iterator[str]:
    mail = [it.get(f"alertmanager_{name}") for name in ("email_to", "email_from", "smtp_host")]
    if mail[0] and not all(mail):
        yield "alertmanager_email_to: needs alertmanager_email_from and alertmanager_smtp_host"
    host = it.get("alertmanager_smtp_host")
    if host and not re.fullmatch(r"[^\s:]+:\d+", str(host)):
        yield f"alertmanager_smtp_host: {host!r} must be host:port"
    for variable, least, most in (
        ("prometheus_scrape_seconds", 1, 60),
        ("prometheus_evaluation_seconds", 1, 60),
        ("prometheus_retention_days", 1, 3660),
        ("prometheus_retention_gb", 0, 10**6),
        ("service_processes", 1, 64),
    ):
        value = it.get(variable)
        if value is not None and not (isinstance(value, int) and least <= value <= most):
            yield f"{variable}: {value!r} must be a whole number from {least} to {most}"


def _storage(it: Inventory) -> Iterator[str]:
    for host in it.groups.get("carme", []):
        for one in it.get("shared_storage_mounts", host) or []:
            if not isinstance(one, dict) or not {"what", "where", "type"} <= {*one}:
                yield f"shared_storage_mounts of {host}: {one} needs what, where and type"
            elif not str(one["where"]).startswith("/"):
                where = one["where"]
                yield f"shared_storage_mounts of {host}: where {where!r} must be an absolute path"


def _secrets(it: Inventory) -> Iterator[str]:
    for name in sorted(name for name in it.defaults if name.startswith("common_secret_")):
        value = it.get(name)
        # Never the value itself: this is printed.
        if value and not re.fullmatch(r"[A-Za-z0-9_-]{16,128}", str(value)):
            yield f"{name}: must be 16 to 128 letters, digits, _ or -"
    key = it.get("munge_key")
    if key and not 32 <= len(str(key)) <= 1024:
        yield f"munge_key: {len(str(key))} characters; Munge takes 32 to 1024: openssl rand -hex 64"


def problems(hosts: Hosts, groups: dict[str, list[str]], roles: str) -> list[str]:
    """Every problem of the inventory, as one sentence each."""
    it = Inventory(hosts, groups, Path(roles))
    found = list(_groups(it))
    if found:
        return found  # the rest would only repeat it
    checks = (
        _hosts,
        _typos,
        _cluster,
        _people,
        _nodes,
        _partitions,
        _qos,
        _hub,
        _monitoring,
        _storage,
        _secrets,
    )
    return [problem for check in checks for problem in check(it)]


class FilterModule:
    """Ansible finds the filter here."""

    def filters(self) -> dict[str, Any]:
        return {"carme_problems": problems}
