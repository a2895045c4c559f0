"""The inventory of services for the roles: `carme_toml | carme_services(playbook_dir)`."""

import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TABLE = "../carme/config/services.toml"
"""Path of the inventory of services from the playbooks' folder. The file explains its fields."""


def services(settings: dict[str, Any], playbooks: str) -> dict[str, dict[str, Any]]:
    """The services that have a unit, in the order in which they start.

    The keys are the names (`exporter_cluster` for "exporter cluster"). `settings` is carme.toml
    as a tree: a user that is one of its keys becomes the key's value, and the path of its
    hub.url begins the health paths of the hub and what lives below it.
    """
    text = (Path(playbooks) / TABLE).read_text(encoding="utf-8")
    return {
        row["name"].replace(" {node}", "").replace(" ", "_"): {
            **row,
            "user": _user(row["user"], settings),
            "health": row["health"].format(base_url=base_url(settings.get("hub", {}))),
            "restart_on_upgrade": row.get("restart_on_upgrade", False),
            "on_restore": row.get("on_restore", ""),
            "stopped_by_remove": row.get("stopped_by_remove", False),
        }
        for row in tomllib.loads(text)["services"]
        if row.get("unit")
    }


def base_url(hub: dict[str, Any]) -> str:
    """The path of `url` in the section [hub]; `/` without one."""
    return f"{urlsplit(hub.get('url', '')).path.rstrip('/')}/"


def _user(user: str, settings: dict[str, Any]) -> str:
    value: Any = settings
    if "." not in user:
        return user
    for key in user.split("."):
        value = value.get(key, {})
    return str(value or user)


class FilterModule:
    """The filters of this plugin, for Ansible."""

    def filters(self) -> dict[str, Any]:
        return {"carme_services": services, "carme_base_url": base_url}
