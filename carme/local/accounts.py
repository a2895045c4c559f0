"""Unix users and groups of the trial cluster: made once, remembered, and removed by a purge."""

import grp
import json
import pwd
import secrets
from dataclasses import dataclass
from pathlib import Path

from carme.errors import ConfigError
from carme.local.layout import Layout
from carme.system.files import write
from carme.system.programs import run


@dataclass(frozen=True)
class CreatedAccounts:
    """What this cluster added to the machine, by name."""

    users: dict[str, str]
    """Login users with their passwords; an empty password for those that nobody logs in as."""
    groups: tuple[str, ...]


def _record(layout: Layout) -> Path:
    return layout.secrets / "accounts.json"


def created(layout: Layout) -> CreatedAccounts:
    """What earlier starts made."""
    try:
        data = json.loads(_record(layout).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return CreatedAccounts({}, ())
    return CreatedAccounts(data["users"], tuple(data["groups"]))


def ensure(layout: Layout) -> CreatedAccounts:
    """All users and groups of the cluster; each is recorded before it is made."""
    hub, local = layout.config.hub, layout.config.local
    known = created(layout)
    users, groups = dict(known.users), list(known.groups)

    def remember() -> None:
        write(_record(layout), json.dumps({"users": users, "groups": groups}), mode=0o600)

    for group in (hub.users_group, hub.admins_group):
        if not _exists(grp.getgrnam, group):
            groups.append(group)
            remember()
            run(["groupadd", "--system", group])
    for service in (hub.user, local.view_user, local.exporter_user, local.service_user):
        if not _exists(pwd.getpwnam, service):
            users[service] = ""
            remember()
            home = str(layout.hub_dir if service == hub.user else layout.run)
            shell = "/usr/sbin/nologin"
            run(
                [
                    "useradd",
                    "--system",
                    "--user-group",
                    "--home-dir",
                    home,
                    "--shell",
                    shell,
                    service,
                ]
            )
    # PAM checks passwords against /etc/shadow, which this group may read.
    run(["usermod", "--append", "--groups", "shadow", hub.user])
    for person in (*local.users, *local.admins):
        memberships = hub.users_group
        if person in local.admins:
            memberships += f",{hub.admins_group}"
        if _exists(pwd.getpwnam, person):
            if person not in known.users:
                raise ConfigError(
                    f"the user {person} exists on this machine and was not made by Carme",
                    "choose other names in carme.toml: local.users, local.admins",
                )
            continue
        users[person] = secrets.token_urlsafe(9)
        remember()
        argv = ["useradd", "--no-create-home", "--user-group", "--shell", "/bin/bash"]
        run([*argv, "--groups", memberships, person])
        run(["chpasswd"], input=f"{person}:{users[person]}\n")
    return CreatedAccounts(users, tuple(groups))


def remove(layout: Layout) -> list[str]:
    """Remove every user (with home) and group that `ensure` made; their names."""
    known = created(layout)
    for user in known.users:
        if _exists(pwd.getpwnam, user):
            home = pwd.getpwnam(user).pw_dir
            # A service's home is a folder of the cluster and goes with it.
            argv = ["userdel", "--force"]
            run([*argv, "--remove", user] if home.startswith("/home/") else [*argv, user])
    for group in known.groups:
        if _exists(grp.getgrnam, group):
            run(["groupdel", group])
    return [*known.users, *known.groups]


def _exists(lookup: object, name: str) -> bool:
    try:
        lookup(name)  # type: ignore[operator]
    except KeyError:
        return False
    return True
