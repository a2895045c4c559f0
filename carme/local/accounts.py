"""Accounts of the one-machine cluster: Unix users and groups, Slurm's accounting database."""

import grp
import json
import pwd
import secrets as random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from carme.config.services import LOOPBACK
from carme.errors import ConfigError
from carme.local.layout import Layout, Secrets
from carme.local.render import SLURM_DB
from carme.system.files import write
from carme.system.programs import run


@dataclass(frozen=True)
class CreatedAccounts:
    """Users and groups that this cluster created on the machine."""

    users: dict[str, str]
    """Users with their passwords; those of services have none."""
    groups: tuple[str, ...]


def _record(layout: Layout) -> Path:
    return layout.secrets / "accounts.json"


def created(layout: Layout) -> CreatedAccounts:
    """The users and groups that `ensure` created."""
    try:
        data = json.loads(_record(layout).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return CreatedAccounts({}, ())
    return CreatedAccounts(data["users"], tuple(data["groups"]))


def ensure(layout: Layout) -> CreatedAccounts:
    """Create all users and groups of the cluster; each is recorded before it is created."""
    hub, local = layout.config.hub, layout.config.local
    before = created(layout)
    users, groups = dict(before.users), list(before.groups)

    def record() -> None:
        write(_record(layout), json.dumps({"users": users, "groups": groups}), mode=0o600)

    for group in (hub.users_group, hub.admins_group):
        if not _exists(grp.getgrnam, group):
            groups.append(group)
            record()
            run(["groupadd", "--system", group])
    for service in (hub.user, local.view_user, local.exporter_user, local.service_user):
        if not _exists(pwd.getpwnam, service):
            users[service] = ""
            record()
            home = str(layout.hub_dir if service == hub.user else layout.run)
            argv = ["useradd", "--system", "--user-group", "--home-dir", home]
            run([*argv, "--shell", "/usr/sbin/nologin", service])
    # PAM checks passwords against /etc/shadow, which this group may read.
    run(["usermod", "--append", "--groups", "shadow", hub.user])
    for person in (*local.users, *local.admins):
        memberships = hub.users_group
        if person in local.admins:
            memberships += f",{hub.admins_group}"
        if _exists(pwd.getpwnam, person):
            if person not in before.users:
                raise ConfigError(
                    f"the user {person} exists on this machine and was not created by Carme",
                    "choose other names in carme.toml: local.users, local.admins",
                )
            continue
        users[person] = random.token_urlsafe(9)
        record()
        argv = ["useradd", "--no-create-home", "--user-group", "--shell", "/bin/bash"]
        run([*argv, "--groups", memberships, person])
        run(["chpasswd"], stdin=f"{person}:{users[person]}\n")
    return CreatedAccounts(users, tuple(groups))


def remove(layout: Layout) -> list[str]:
    """Remove every user (with home) and group that `ensure` created; returns their names."""
    accounts = created(layout)
    for user in accounts.users:
        if _exists(pwd.getpwnam, user):
            home = pwd.getpwnam(user).pw_dir
            # The homes of services are in the folder of the cluster, which is removed later.
            options = ["--remove"] if home.startswith("/home/") else []
            run(["userdel", "--force", *options, user])
    for group in accounts.groups:
        if _exists(grp.getgrnam, group):
            run(["groupdel", group])
    return [*accounts.users, *accounts.groups]


def _exists(lookup: Callable[[str], object], name: str) -> bool:
    try:
        lookup(name)
    except KeyError:
        return False
    return True


ACCOUNT = "research"
QOS = {
    "normal": ("Priority=10", "MaxTRESPerUser=gres/gpu=6"),
    "short": ("Priority=100", "MaxWall=01:00:00", "MaxTRESPerUser=gres/gpu=2"),
}
"""Two, so that users can choose: `short` starts earlier and allows less."""


def make_database_files(layout: Layout) -> bool:
    """Create MariaDB's system tables; True if they did not exist."""
    data = layout.state / "mariadb"
    if (data / "mysql").is_dir():
        return False
    argv = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=mysql"]
    argv += ["--skip-test-db", "--auth-root-authentication-method=socket"]
    run(argv, timeout_seconds=120, log=layout.log / "install.log")
    return True


def make_database(layout: Layout, secrets: Secrets) -> None:
    """Create slurmdbd's database and its user, who may use no other database."""
    user = f"'slurm'@'{LOOPBACK}'"
    statements = f"""
        CREATE DATABASE IF NOT EXISTS {SLURM_DB};
        CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{secrets.mariadb_password}';
        GRANT ALL ON {SLURM_DB}.* TO {user};
    """
    run(["mariadb", "--no-defaults", "-S", layout.mariadb_socket], stdin=statements)


def make_associations(layout: Layout) -> bool:
    """Create cluster, QoS, account and users in slurmdbd; True if something was added.

    Runs before slurmctld starts, so that slurmctld knows all users from the start.
    """
    local, name = layout.config.local, layout.config.cluster.name
    changed = False
    if name not in _listed(layout, "cluster", "cluster"):
        _sacctmgr(layout, "-i", "add", "cluster", name)
        changed = True
    for qos in QOS.keys() - _listed(layout, "qos", "name"):
        _sacctmgr(layout, "-i", "add", "qos", qos)
        changed = True
    if ACCOUNT not in _listed(layout, "account", "account"):
        settings = [f"cluster={name}", "Fairshare=100", f"Description={ACCOUNT}"]
        _sacctmgr(layout, "-i", "add", "account", ACCOUNT, *settings)
        changed = True
    existing = _listed(layout, "user", "user")
    levels = dict.fromkeys((*local.users, *local.admins), "None") | {local.view_user: "Operator"}
    for user, level in levels.items():
        if user not in existing:
            settings = [f"account={ACCOUNT}", f"cluster={name}", "Fairshare=1"]
            settings += [f"qos={','.join(QOS)}", "defaultqos=normal", f"AdminLevel={level}"]
            _sacctmgr(layout, "-i", "add", "user", user, *settings)
            changed = True
    return changed


def set_limits(layout: Layout) -> None:
    """Set the limits of each QoS; slurmctld must have registered its GPUs with slurmdbd before."""
    for qos, limits in QOS.items():
        _sacctmgr(layout, "-i", "modify", "qos", qos, "set", *limits)


def _sacctmgr(layout: Layout, *arguments: str) -> str:
    return run(
        ["sacctmgr", *arguments],
        added_env={"SLURM_CONF": str(layout.slurm_conf)},
        timeout_seconds=30,
    )


def _listed(layout: Layout, entity: str, column: str) -> set[str]:
    return set(_sacctmgr(layout, "-nP", "show", entity, f"format={column}").split())
