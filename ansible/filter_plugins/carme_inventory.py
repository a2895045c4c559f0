"""Problems of an inventory as sentences: `hosts | carme_problems(groups, roles_folder)`.

Each check takes the hosts' variables and yields sentences that name the variable, the problem and
the solution. The only I/O is reading the roles' defaults and the inventory of services.
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
ADDRESS = re.compile(r"[0-9.]+|[0-9a-f:]*:[0-9a-f:]*")
WALL = re.compile(r"(\d+-)?\d{1,2}:\d{2}:\d{2}")
Hosts = dict[str, dict[str, Any]]


class Inventory:
    """The hosts' variables, with the roles' constant defaults for missing ones."""

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
        """Users that run services; other users cannot have these names."""
        users = {row["user"] for row in self.services if row.get("unit")}
        keys = {"hub.user": self.get("jupyterhub_user"), "service.user": "carme-service"}
        return {str(keys.get(user, user)) for user in users}

    @property
    def port_variables(self) -> list[str]:
        """The variables of the head's ports, which must all differ."""
        return [name for row in self.services for name in row.get("ansible_port_variables", ())]

    @property
    def nodes(self) -> list[str]:
        return self.groups.get("compute", [])

    def get(self, name: str, host: str = "") -> Any:
        """The value for `host` (default: the head); None if it is a Jinja template."""
        variables = self.hosts.get(host or self.head, {})
        value = variables.get(name, self.defaults.get(name))
        return None if isinstance(value, str) and "{{" in value else value


def _groups(inventory: Inventory) -> Iterator[str]:
    heads = inventory.groups.get("head", [])
    if len(heads) != 1:
        names = ", ".join(heads) or "none"
        yield f"group head: exactly one host is the head, not {len(heads)} ({names})"
    if not inventory.nodes:
        yield "group compute: no node; name at least one (the head itself is possible)"
    outside = sorted({*heads, *inventory.nodes} - {*inventory.groups.get("carme", [])})
    if outside:
        yield (
            f"group carme: must contain the groups head and compute; {', '.join(outside)} "
            "is not in it"
        )


def _hosts(inventory: Inventory) -> Iterator[str]:
    addresses: dict[str, str] = {}
    shorts: dict[str, str] = {}
    for host in inventory.groups.get("carme", []):
        if not HOST.fullmatch(host):
            yield f"host {host}: Slurm and DNS take letters a-z, digits and - in a name"
        if host in inventory.groups:
            yield f"host {host}: a group has the same name; rename the host"
        short = host.split(".")[0]
        if short in shorts:
            yield f"host {host}: {shorts[short]} has the same short name, which is Slurm's name"
        shorts.setdefault(short, host)
        address = str(inventory.hosts.get(host, {}).get("ansible_host", host))
        if address in addresses:
            yield f"host {host}: ansible_host {address} is the one of {addresses[address]}, too"
        addresses.setdefault(address, host)
        if address.startswith("127.") or address == "localhost":
            yield f"host {host}: ansible_host {address} is loopback; other hosts cannot reach it"


def _typos(inventory: Inventory) -> Iterator[str]:
    """A variable with a role's prefix that no role has is a typing error."""
    reported = set()
    for host in inventory.groups.get("carme", []):
        for name in inventory.hosts.get(host, {}):
            role = next((r for r in inventory.roles if str(name).startswith(f"{r}_")), None)
            if role and name not in inventory.defaults and name not in reported:
                reported.add(name)
                others = sorted(n for n in inventory.defaults if n.startswith(f"{role}_"))
                yield f"{name}: the role {role} has no such variable; it has {', '.join(others)}"


def _cluster(inventory: Inventory) -> Iterator[str]:
    name = inventory.get("common_cluster_name")
    if name is not None and not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", str(name)):
        yield f"common_cluster_name: {name!r} is no name: a-z, then a-z, 0-9, _ or -, up to 32"
    for variable in ("images_folder", "common_secrets_folder", "carme_folder", "slurm_tmp_folder"):
        path = inventory.get(variable)
        if path is not None and not str(path).startswith("/"):
            yield f"{variable}: {path!r} must be an absolute path"


def _users(inventory: Inventory) -> Iterator[str]:
    users = inventory.get("common_users")
    if users is None:
        return
    if not isinstance(users, list) or not all(isinstance(user, dict) for user in users):
        yield "common_users: must be a list of entries such as {name: alice, uid: 3001}"
        return
    accounts = inventory.get("slurm_accounts") or []
    for user in users:
        name, uid = str(user.get("name", "")), user.get("uid")
        where = f"common_users: {name or user}"
        if not NAME.fullmatch(name):
            yield f"{where}: name must be a Unix name: a-z first, then a-z, 0-9, _ or -"
        if name in inventory.system_names:
            yield f"{where}: this name belongs to the system; choose another"
        if not isinstance(uid, int):
            yield f"{where}: uid is missing; it must be the same number on every host"
        elif not 1000 <= uid <= 60000:
            yield f"{where}: uid {uid} is the system's; users have 1000 to 60000"
        if "password" in user and not str(user["password"]).startswith(("$", "!", "*")):
            yield f"{where}: password must be a hash, as mkpasswd -m yescrypt makes it"
        if user.get("account") and user["account"] not in accounts:
            names = ", ".join(accounts)
            yield f"{where}: account {user['account']!r} is not in slurm_accounts ({names})"
    for key in ("name", "uid"):
        for value, count in Counter(str(user.get(key)) for user in users if key in user).items():
            if count > 1:
                yield f"common_users: the {key} {value} is there {count} times"


def _nodes(inventory: Inventory) -> Iterator[str]:
    for host in inventory.nodes:
        for variable, unit in (("slurm_cpus", "processors"), ("slurm_memory_mb", "megabytes")):
            value = inventory.get(variable, host)
            if value is not None and (not str(value).isdigit() or int(value) < 1):
                yield f"{variable} of {host}: {value!r} must be a whole number of {unit}"
        gpus = inventory.get("slurm_gpus", host)
        if not gpus:
            continue
        if not isinstance(gpus, dict) or {*gpus} != {"type", "count"}:
            yield f"slurm_gpus of {host}: must look like {{type: a100, count: 4}}"
        elif not GPU_TYPE.fullmatch(str(gpus["type"])):
            yield f"slurm_gpus of {host}: type {gpus['type']!r} must be a-z, 0-9, _, . or -"
        elif not isinstance(gpus["count"], int) or gpus["count"] < 1:
            yield f"slurm_gpus of {host}: count {gpus['count']!r} must be a whole number from 1"


def _partitions(inventory: Inventory) -> Iterator[str]:
    partitions = inventory.get("slurm_partitions")
    if not isinstance(partitions, list) or not partitions:
        yield "slurm_partitions: at least one, such as {name: main, nodes: all, default: true}"
        return
    shorts = {host.split(".")[0] for host in inventory.nodes}
    for partition in partitions:
        name = partition.get("name", "?")
        nodes = partition.get("nodes", "all")
        if nodes != "all":
            unknown = sorted({*nodes} - shorts) if isinstance(nodes, list) else [str(nodes)]
            if unknown:
                yield (
                    f"slurm_partitions: {name} names nodes that are not in group compute: "
                    f"{', '.join(unknown)}"
                )
        hours = partition.get("max_hours", 24)
        if not isinstance(hours, int | float) or hours <= 0:
            yield f"slurm_partitions: {name}: max_hours {hours!r} must be a number above 0"
    defaults = [partition.get("name") for partition in partitions if partition.get("default")]
    if len(defaults) != 1:
        yield f"slurm_partitions: exactly one has default: true, not {len(defaults)}"
    for name, count in Counter(partition.get("name") for partition in partitions).items():
        if count > 1:
            yield f"slurm_partitions: the name {name} is there {count} times"


def _qos(inventory: Inventory) -> Iterator[str]:
    all_qos = inventory.get("slurm_qos")
    if not all_qos:
        yield "slurm_qos: at least one, such as {name: normal, priority: 10}"
        return
    for qos in all_qos:
        wall = qos.get("max_wall")
        if wall and not WALL.fullmatch(str(wall)):
            yield (
                f"slurm_qos: {qos.get('name')}: max_wall {wall!r} must be "
                "[days-]hours:minutes:seconds, in quotes"
            )
        if not isinstance(qos.get("priority", 0), int):
            yield f"slurm_qos: {qos.get('name')}: priority must be a whole number"
    detect = inventory.get("slurm_gres_detect")
    if detect not in ("files", "nvml"):
        yield f"slurm_gres_detect: {detect!r} must be files or nvml"
    plugin = inventory.get("slurm_cgroup_plugin")
    if plugin not in ("autodetect", "cgroup/v1", "cgroup/v2"):
        yield f"slurm_cgroup_plugin: {plugin!r} must be autodetect, cgroup/v1 or cgroup/v2"


def _hub(inventory: Inventory) -> Iterator[str]:
    url = inventory.get("jupyterhub_url") or f"https://{inventory.head}"
    parts = urlsplit(str(url))
    host, sessions = parts.hostname or "", inventory.get("jupyterhub_session_host")
    if parts.scheme not in ("http", "https") or not host:
        yield f"jupyterhub_url: {url!r} must look like https://hub.example.org"
    if sessions is None and ADDRESS.fullmatch(host):
        yield (
            f"jupyterhub_session_host: sessions cannot have names below the address {host}; "
            "set it to a host name, or to '' to let sessions share the hub's"
        )
    elif sessions and sessions in (host, f"*.{host.partition('.')[2]}"):
        yield (
            f"jupyterhub_session_host: {sessions} includes the hub's own host name; "
            f"sessions need others, such as *.{host}"
        )
    certificate, key = (
        inventory.get("jupyterhub_certificate"),
        inventory.get("jupyterhub_certificate_key"),
    )
    if bool(certificate) != bool(key):
        yield "jupyterhub_certificate and jupyterhub_certificate_key: set both or none"
    for variable in (
        *("jupyterhub_certificate", "jupyterhub_certificate_key"),
        *("apptainer_package_file", "carme_constraints", "munge_key_file"),
        "grafana_package_file",
    ):
        path = inventory.get(variable)
        if path and not Path(str(path)).is_file():
            yield f"{variable}: there is no file {path} on this machine"
    if inventory.get("jupyterhub_user") == "root":
        yield "jupyterhub_user: the hub never runs as root; leave it at carme"
    ports = {name: inventory.get(name) for name in inventory.port_variables}
    for port, count in Counter(str(value) for value in ports.values()).items():
        names = sorted(name for name, value in ports.items() if str(value) == port)
        if count > 1:
            yield f"{' and '.join(names)}: the same port {port}"
        if not port.isdigit() or not 1 <= int(port) <= 65535:
            yield f"{names[0]}: {port} is no port"


def _monitoring(inventory: Inventory) -> Iterator[str]:
    mail = [
        inventory.get(f"alertmanager_{name}") for name in ("email_to", "email_from", "smtp_host")
    ]
    if mail[0] and not all(mail):
        yield "alertmanager_email_to: needs alertmanager_email_from and alertmanager_smtp_host"
    host = inventory.get("alertmanager_smtp_host")
    if host and not re.fullmatch(r"[^\s:]+:\d+", str(host)):
        yield f"alertmanager_smtp_host: {host!r} must be host:port"
    for variable, least, most in (
        ("prometheus_scrape_seconds", 1, 60),
        ("prometheus_evaluation_seconds", 1, 60),
        ("prometheus_retention_days", 1, 3660),
        ("prometheus_retention_gb", 0, 10**6),
        ("service_processes", 1, 64),
    ):
        value = inventory.get(variable)
        if value is not None and not (isinstance(value, int) and least <= value <= most):
            yield f"{variable}: {value!r} must be a whole number from {least} to {most}"
    scrape = inventory.get("prometheus_scrape_seconds")
    if isinstance(scrape, int) and 1 <= scrape <= 60 and 60 % scrape:
        yield f"prometheus_scrape_seconds: {scrape} must divide a minute, as 5, 15 and 30 do"


def _storage(inventory: Inventory) -> Iterator[str]:
    for host in inventory.groups.get("carme", []):
        for mount in inventory.get("shared_storage_mounts", host) or []:
            if not isinstance(mount, dict) or not {"what", "where", "type"} <= {*mount}:
                yield f"shared_storage_mounts of {host}: {mount} needs what, where and type"
            elif not str(mount["where"]).startswith("/"):
                where = mount["where"]
                yield f"shared_storage_mounts of {host}: where {where!r} must be an absolute path"


def _secrets(inventory: Inventory) -> Iterator[str]:
    for name in sorted(name for name in inventory.defaults if name.startswith("common_secret_")):
        value = inventory.get(name)
        # Without the value, because this message is printed.
        if value and not re.fullmatch(r"[A-Za-z0-9_-]{16,128}", str(value)):
            yield f"{name}: must be 16 to 128 letters, digits, _ or -"
    key = inventory.get("munge_key")
    if key and not 32 <= len(str(key)) <= 1024:
        yield f"munge_key: {len(str(key))} characters; Munge takes 32 to 1024: openssl rand -hex 64"


def problems(hosts: Hosts, groups: dict[str, list[str]], roles: str) -> list[str]:
    """One sentence for each problem of the inventory."""
    inventory = Inventory(hosts, groups, Path(roles))
    if group_problems := list(_groups(inventory)):
        return group_problems  # the other checks need a head and nodes
    checks = (
        _hosts,
        _typos,
        _cluster,
        _users,
        _nodes,
        _partitions,
        _qos,
        _hub,
        _monitoring,
        _storage,
        _secrets,
    )
    return [problem for check in checks for problem in check(inventory)]


class FilterModule:
    """The filters of this plugin, for Ansible."""

    def filters(self) -> dict[str, Any]:
        return {"carme_problems": problems}
