"""Checks of monitoring: exporters, discovery, Prometheus and its targets, Alertmanager."""

import json
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from carme.config.services import Service
from carme.doctor.check import Finding, fault, ok, warning
from carme.doctor.host import first_items
from carme.doctor.host_services import HostServices
from carme.errors import UnavailableError
from carme.prometheus import PrometheusClient, ScrapeTarget
from carme.system.health_checks import get
from carme.units import format_duration

_COLLECTOR = re.compile(r'^carme_collector_success\{[^}]*collector="([^"]+)"[^}]*\} (\S+)', re.M)
_DISCOVERY_MAX_SECONDS = 45.0
"""Discovery updates its file every ten seconds."""
_MAX_TARGETS_SHOWN = 6


def exporter(check: str, status: int, text: str, todo: str) -> Finding:
    """`text`: its metrics; empty if this host has no password, and 401 is right."""
    if status == 401 and not text:
        return ok(check, "answers, requires a password")
    if status == 401:
        message = "does not accept the password that Prometheus has"
        return fault(check, message, "site.yml --tags exporter,prometheus; " + todo)
    if status != 200:
        return fault(check, f"answers {status}", todo)
    collectors = dict(_COLLECTOR.findall(text))
    failing = sorted(name for name, value in collectors.items() if float(value) == 0)
    if failing:
        return warning(check, f"answers, but cannot read: {', '.join(failing)}", todo)
    if not collectors:
        return fault(check, "answers, but measures nothing", todo)
    return ok(check, f"answers, {len(collectors)} collectors work")


def read_exporter(site: HostServices, service: Service) -> Finding:
    password = site.secret("exporter")
    scheme = _scheme(site.config.exporter.web_config)
    url = f"{scheme}://{service.address}:{service.ports[0]}/metrics"
    response = get(url, (service.entry.login, password) if password else None)
    text = response.body.decode("utf-8", "replace") if password else ""
    return exporter(service.name, response.status, text, site.repair(service))


def _scheme(web_config: Path | None) -> str:
    try:
        text = web_config.read_text(encoding="utf-8") if web_config else ""
    except OSError:
        text = ""
    return "https" if re.search(r"^tls_server_config:", text, re.M) else "http"


def discovery(listed: Collection[str], nodes: Collection[str], age: float, todo: str) -> Finding:
    """`listed`: nodes in the file for Prometheus; `nodes`: those of slurm.conf; `age`: seconds."""
    if age > _DISCOVERY_MAX_SECONDS:
        return fault("discovery", f"its file is {format_duration(age)} old", todo)
    if unknown := sorted(set(listed) - set(nodes)):
        message = f"lists {', '.join(unknown)} for Prometheus, which slurm.conf does not have"
        return warning("discovery", message, todo)
    if not listed:
        return fault("discovery", "lists no node for Prometheus", todo)
    missing = sorted(set(nodes) - set(listed))
    also = f" ({', '.join(missing)} switched off)" if missing else ""
    return ok("discovery", f"lists {len(listed)} nodes for Prometheus{also}")


def read_discovery(site: HostServices, service: Service) -> Finding:
    path = site.config.prometheus.targets
    try:
        groups = json.loads(path.read_bytes())
        age = time.time() - path.stat().st_mtime
        listed = [str(group["labels"]["node"]) for group in groups]
    except FileNotFoundError:
        raise UnavailableError(f"{path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"{path} cannot be read: {error}") from None
    nodes = [node.name for node in site.slurm.nodes] if site.slurm else listed
    return discovery(listed, nodes, age, site.repair(service))


def _prometheus(site: HostServices) -> PrometheusClient:
    settings = site.config.prometheus
    return PrometheusClient.of(settings.url, settings.login_file, timeout_seconds=8)


def read_prometheus(site: HostServices, service: Service) -> Finding:
    """Whether Prometheus answers a query with the view's password."""
    series = _prometheus(site).query("prometheus_tsdb_head_series")
    if not series:
        message = "answers, but has scraped nothing, not even itself"
        wait = f"has it just started? Check again in a minute, then: {site.repair(service)}"
        return warning(service.name, message, wait)
    return ok(service.name, f"answers, {series[0].value:.0f} series")


def targets(scraped: Sequence[ScrapeTarget], todo: str) -> Finding:
    """Whether Prometheus can scrape every target."""
    if not scraped:
        return fault("targets", "Prometheus scrapes nothing", todo)
    # Prometheus' error ends with the reason, after the address.
    down = [
        f"{target.job} {target.instance} ({target.error.rpartition(': ')[2] or 'down'})"
        for target in scraped
        if target.health == "down"
    ]
    if down:
        names = first_items(down, _MAX_TARGETS_SHOWN)
        return fault("targets", f"{len(down)} of {len(scraped)} down: {names}", todo)
    unscraped = sum(target.health != "up" for target in scraped)
    waiting = f", {unscraped} not scraped yet" if unscraped else ""
    return ok("targets", f"{len(scraped) - unscraped} of {len(scraped)} up{waiting}")


def read_targets(site: HostServices) -> Finding:
    todo = "see the line of that service; on another host: carme doctor there; is its port open?"
    return targets(_prometheus(site).targets(), todo)


def alertmanager(status: int, listed: int, todo: str) -> Finding:
    """`status`: of its readiness; `listed`: how many Alertmanagers Prometheus sends alerts to."""
    if status not in (200, 401):
        return fault("alertmanager", f"answers {status}", todo)
    if not listed:
        message = "answers, but Prometheus sends it nothing"
        return fault("alertmanager", message, "is it in prometheus.yml (alerting)? " + todo)
    return ok("alertmanager", "answers, and Prometheus sends alerts to it")


def read_alertmanager(site: HostServices, service: Service) -> Finding:
    password = site.secret("alertmanager")
    login = (service.entry.login, password) if password else None
    status = get(f"http://{service.address}:{service.ports[0]}{service.health}", login).status
    return alertmanager(status, len(_prometheus(site).alertmanagers()), site.repair(service))


def read_grafana(_: HostServices, service: Service) -> Finding:
    """Only its systemd unit is checked: the site may set address and TLS in grafana_settings."""
    return ok(service.name, f"{service.unit} runs")
