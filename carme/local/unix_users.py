"""Unix users and groups of the one-machine cluster."""

import grp
import json
import pwd
import secrets as random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from carme.errors import ConfigError
from carme.local.layout import Layout
from carme.system.files import write
from carme.system.programs import run


@dataclass(frozen=True)
class CreatedUsers:
    """Users and groups that this cluster created on the machine."""

    users: dict[str, str]
    """Users with their passwords; those of services have none."""
    groups: tuple[str, ...]


def _record(layout: Layout) -> Path:
    return layout.secrets / "accounts.json"


def created(layout: Layout) -> CreatedUsers:
    """The users and groups that `ensure` created."""
    try:
        data = json.loads(_record(layout).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return CreatedUsers({}, ())
    return CreatedUsers(data["users"], tuple(data["groups"]))


def ensure(layout: Layout) -> CreatedUsers:
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
    for service in layout.service_users():
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
    return CreatedUsers(users, tuple(groups))


def remove(layout: Layout) -> list[str]:
    """Remove every user (with home) and group that `ensure` created; returns their names."""
    stored = created(layout)
    for user in stored.users:
        if _exists(pwd.getpwnam, user):
            home = pwd.getpwnam(user).pw_dir
            # The homes of services are in the folder of the cluster, which is removed later.
            options = ["--remove"] if home.startswith("/home/") else []
            run(["userdel", "--force", *options, user])
    for group in stored.groups:
        if _exists(grp.getgrnam, group):
            run(["groupdel", group])
    return [*stored.users, *stored.groups]


def _exists(lookup: Callable[[str], object], name: str) -> bool:
    try:
        lookup(name)
    except KeyError:
        return False
    return True
