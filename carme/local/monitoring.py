"""Prometheus and Alertmanager of the one-machine cluster: folders, files, rules."""

from pathlib import Path
from typing import Any

from carme.config.services import LOOPBACK
from carme.local.layout import Layout
from carme.local.secrets import Secrets
from carme.system.files import folder
from carme.templates import PROMETHEUS_RULES, prometheus_rules, render

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
    config, etc, ports = layout.config, layout.etc / "prometheus", layout.ports()
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
                alertmanager_address=f"{LOOPBACK}:{ports['alertmanager']}",
                hub_token_file=etc / "hub-token",
                hub_address=f"{LOOPBACK}:{config.hub.api_port}",
                service_address=f"{config.service.listen}:{config.service.port}",
                exporter_user=secrets.exporter_login[0],
                exporter_password_file=etc / "exporter-password",
                controller_exporter=f"{LOOPBACK}:{ports['exporter-controller']}",
            ),
            {},
        ),
        (etc / "alertmanager.yml", render("alertmanager.yml", alerts=config.alerts), secret),
        *(
            (etc / "rules" / name, prometheus_rules(name, config.prometheus.runbooks_url), {})
            for name in PROMETHEUS_RULES
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
