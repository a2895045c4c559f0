"""Prometheus and Alertmanager of the one-machine cluster: folders, files, rules."""

from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from carme.local.layout import LOOPBACK, Layout
from carme.local.secrets import Secrets
from carme.system.files import folder
from carme.templates import render

RULES = ("recording.yml", "alerts.yml")
_RUNBOOKS = "docs/runbooks/"
_OWNER = "prometheus"


def make_folders(layout: Layout) -> None:
    """What Prometheus knows of everybody is for nobody else on this machine."""
    for place in ("prometheus", "alertmanager"):
        folder(layout.state / place, mode=0o700, owner=_OWNER)
    folder(layout.etc / "prometheus", mode=0o750, owner=_OWNER)
    folder(layout.etc / "prometheus/rules", mode=0o750, owner=_OWNER)
    folder(layout.config.prometheus.targets.parent, mode=0o700, owner=_OWNER)


def files(layout: Layout, secrets: Secrets) -> list[tuple[Path, str, dict[str, Any]]]:
    """Every file, with mode and owner."""
    config, etc = layout.config, layout.etc / "prometheus"
    secret = {"mode": 0o600, "owner": _OWNER}
    return [
        (
            etc / "prometheus.yml",
            render(
                "prometheus.yml",
                cluster_name=config.cluster.name,
                prometheus=config.prometheus.model_dump(),
                rules_dir=etc / "rules",
                prometheus_user=secrets.prometheus_login[0],
                prometheus_password_file=etc / "password",
                prometheus_address=f"{LOOPBACK}:{config.local.ports.prometheus}",
                alertmanager_user=secrets.alertmanager_login[0],
                alertmanager_password_file=etc / "alertmanager-password",
                alertmanager_address=f"{LOOPBACK}:{layout.alertmanager_port}",
                hub_token_file=etc / "hub-token",
                hub_address=f"{LOOPBACK}:{config.hub.api_port}",
                service_address=f"{config.service.listen}:{config.service.port}",
                exporter_user=secrets.exporter_login[0],
                exporter_password_file=etc / "exporter-password",
                controller_exporter=f"{LOOPBACK}:{layout.exporter_port(None)}",
            ),
            {},
        ),
        (etc / "alertmanager.yml", render("alertmanager.yml", alerts=config.alerts), secret),
        *(
            (etc / "rules" / name, rules(name, config.prometheus.runbooks_url), {})
            for name in RULES
        ),
        *(
            (etc / name, text, secret)
            for name, text in (
                ("password", secrets.prometheus_password),
                ("alertmanager-password", secrets.alertmanager_password),
                ("hub-token", secrets.hub_metrics_token),
                ("exporter-password", secrets.exporter_password),
            )
        ),
    ]


def rules(name: str, runbooks_url: str = "") -> str:
    """A rules file; its alerts link to the site's copy of the runbooks, if it has one."""
    text = (resources("carme_monitoring") / "prometheus/rules" / name).read_text(encoding="utf-8")
    if runbooks_url:
        lines = text.splitlines(keepends=True)
        text = "".join(
            line.replace(_RUNBOOKS, f"{runbooks_url.rstrip('/')}/").replace(".md", ".html")
            if "runbook_url:" in line
            else line
            for line in lines
        )
    return text
