"""Checks of what measures: exporters, discovery, Prometheus and its targets, Alertmanager."""

import json
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from carme.config.services import Service
from carme.doctor.finding import Finding, fault, ok, warning
from carme.doctor.host import read_unit
from carme.doctor.host_services import HostServices
from carme.doctor.programs import get
from carme.errors import UnavailableError
from carme.prometheus import PrometheusClient, ScrapeTarget
from carme.units import format_duration

_COLLECTOR = re.compile(r'^carme_collector_success\{[^}]*collector="([^"]+)"[^}]*\} (\S+)', re.M)
_OLD_SECONDS = 45.0
"""Discovery touches its file every ten seconds."""


def exporter(check: str, status: int, text: str, todo: str) -> Finding:
    """`text`: its metrics, where this host has the password; else 401 is as it should be."""
    if status == 401 and not text:
        return ok(check, "answers, wants a password")
    if status == 401:
        words = "does not take the password that Prometheus has"
        return fault(check, words, "site.yml --tags exporter,prometheus; " + todo)
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
    if bad := read_unit(site, service):
        return bad
    password = site.secret("exporter")
    url = (
        f"{_scheme(site.config.exporter.web_config)}://{service.address}:{service.ports[0]}/metrics"
    )
    answer = get(url, ("prometheus", password) if password else None)
    text = answer.body.decode("utf-8", "replace")
    return exporter(service.name, answer.status, text if password else "", site.repair(service))


def _scheme(web_config: Path | None) -> str:
    try:
        text = web_config.read_text(encoding="utf-8") if web_config else ""
    except OSError:
        text = ""
    return "https" if re.search(r"^tls_server_config:", text, re.M) else "http"


def discovery(listed: Collection[str], known: Collection[str], age: float, todo: str) -> Finding:
    """Nodes in the file for Prometheus, nodes that slurm.conf has, and the file's age."""
    if age > _OLD_SECONDS:
        return fault("discovery", f"its file is {format_duration(age)} old", todo)
    if strange := sorted(set(listed) - set(known)):
        words = f"Prometheus is told of {', '.join(strange)}, which slurm.conf does not have"
        return warning("discovery", words, todo)
    missing = sorted(set(known) - set(listed))
    also = f" ({', '.join(missing)} switched off)" if missing else ""
    if not listed:
        return fault("discovery", "it names no node", todo)
    return ok("discovery", f"Prometheus is told of {len(listed)} nodes{also}")


def read_discovery(site: HostServices, service: Service) -> Finding:
    if bad := read_unit(site, service):
        return bad
    path = site.config.prometheus.targets
    try:
        groups = json.loads(path.read_bytes())
        age = time.time() - path.stat().st_mtime
        listed = [str(group["labels"]["node"]) for group in groups]
    except FileNotFoundError:
        raise UnavailableError(f"{path} is not there") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"{path} cannot be read: {error}") from None
    known = [node.name for node in site.slurm.nodes] if site.slurm else listed
    return discovery(listed, known, age, site.repair(service))


def _prometheus(site: HostServices) -> PrometheusClient:
    settings = site.config.prometheus
    return PrometheusClient.of(settings.url, settings.login_file, timeout_seconds=8)


def read_prometheus(site: HostServices, service: Service) -> Finding:
    """It answers a question, with the password that the view has."""
    if bad := read_unit(site, service):
        return bad
    series = _prometheus(site).query("prometheus_tsdb_head_series")
    if not series:
        words = "answers, but has read nothing, not even itself"
        wait = f"it has just started? Ask again in a minute, then: {site.repair(service)}"
        return warning(service.name, words, wait)
    return ok(service.name, f"answers, {series[0].value:.0f} series")


def targets(found: Sequence[ScrapeTarget], todo: str) -> Finding:
    """All that Prometheus reads, and what it cannot."""
    down = [target for target in found if target.health == "down"]
    if not found:
        return fault("targets", "Prometheus reads nothing", todo)
    if down:
        words = "; ".join(f"{t.job} {t.instance} ({_reason(t.error)})" for t in down[:6])
        more = f" and {len(down) - 6} more" if len(down) > 6 else ""
        found_words = f"{len(down)} of {len(found)} down: {words}{more}"
        return fault("targets", found_words, todo)
    new = sum(target.health != "up" for target in found)
    waiting = f", {new} not read yet" if new else ""
    return ok("targets", f"{len(found) - new} of {len(found)} up{waiting}")


def _reason(error: str) -> str:
    """The end of what Prometheus says, where the reason is; the address in front is known."""
    return error.rpartition(": ")[2] or "down"


def read_targets(site: HostServices) -> Finding:
    todo = "see the line of that service; on another host: carme doctor there; is its port open?"
    return targets(_prometheus(site).targets(), todo)


def alertmanager(status: int, listed: int, todo: str) -> Finding:
    """`status` of its readiness; `listed`: how many Prometheus sends alerts to."""
    if status not in (200, 401):
        return fault("alertmanager", f"answers {status}", todo)
    if not listed:
        words = "answers, but Prometheus sends it nothing"
        return fault("alertmanager", words, "is it in prometheus.yml (alerting)? " + todo)
    return ok("alertmanager", "answers, and Prometheus sends alerts to it")


def read_alertmanager(site: HostServices, service: Service) -> Finding:
    if bad := read_unit(site, service):
        return bad
    password = site.secret("alertmanager")
    login = ("carme", password) if password else None
    status = get(f"http://{service.address}:{service.ports[0]}{service.health}", login).status
    return alertmanager(status, len(_prometheus(site).alertmanagers()), site.repair(service))
