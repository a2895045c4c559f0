"""The inventory of services for the roles: `carme_toml | carme_services(playbook_dir)`."""

import tomllib
from pathlib import Path
from typing import Any

TABLE = "../carme/config/services.toml"
"""Path of the inventory of services from the playbooks' folder. The file explains its fields."""


def services(settings: dict[str, Any], playbooks: str) -> dict[str, dict[str, Any]]:
    """The services that have a unit, in the order in which they start.

    The keys are the names (`exporter_cluster` for "exporter cluster"). `settings` is carme.toml
    as a tree: a user that is one of its keys becomes the key's value.
    """
    text = (Path(playbooks) / TABLE).read_text(encoding="utf-8")
    return {
        row["name"].replace(" {node}", "").replace(" ", "_"): {
            **row,
            "user": _user(row["user"], settings),
            "carme_code": row.get("carme_code", False),
            "restored": row.get("restored", ""),
            "removed": row.get("removed", False),
        }
        for row in tomllib.loads(text)["services"]
        if row.get("unit")
    }


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
        return {"carme_services": services}
