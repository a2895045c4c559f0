"""Checks of what people use: hub, proxy, view, service, and the helper that acts for them."""

import json
import re
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from carme.config.services import Service
from carme.doctor.finding import Finding, absent, fault, ok, warning
from carme.doctor.host import read_unit
from carme.doctor.host_services import HostServices
from carme.doctor.programs import ProgramResult, as_user, call, get, person_in
from carme.errors import UnavailableError
from carme.helper.models import VERBS
from carme.slurm.snapshot import Snapshot
from carme.system import health_checks
from carme.units import format_duration
from carme.view.client import ViewClient

MAKE_HOMES = ("root", r"/usr/sbin/mkhomedir_helper ^[a-z_][a-z0-9_-]{0\,31} 0077$")
"""The sudo rule beside the helper's, as sudo lists it: whom to run as, and the command."""


def read_hub(site: HostServices, service: Service | None) -> Finding:
    """The hub answers where proxy and sessions look for it, asked from every host."""
    if service and (bad := read_unit(site, service)):
        return bad
    hub = site.config.hub
    url = f"http://{hub.api_address}:{hub.api_port}/hub/health"
    status = get(url).status
    if status != 200:
        raise UnavailableError(f"{url} answers {status}")
    return ok("hub", f"answers at {hub.api_address}:{hub.api_port}")


def proxy(status: int, control: int, todo: str) -> Finding:
    """`status` of the hub's health through the proxy; `control` of its control port, unasked."""
    if control == 200:
        words = "its control port takes orders without a token: every user of this host can"
        return fault("proxy", words, "set CONFIGPROXY_AUTH_TOKEN; " + todo)
    if control not in (401, 403):
        return fault("proxy", f"its control port answers {control}", todo)
    if status == 200:
        return ok("proxy", "answers, its control wants a token")
    if status in (502, 503):
        return ok("proxy", f"answers {status}, for the hub behind it does not")
    return fault("proxy", f"answers {status}", todo)


def read_proxy(site: HostServices, service: Service) -> Finding:
    if bad := read_unit(site, service):
        return bad
    hub = site.config.hub
    url = urlsplit(hub.url)
    # The site's name may lead through a firewall that does not let this host back in.
    try:
        status = get(f"{url.scheme}://{service.address}:{service.ports[0]}{service.health}").status
    except UnavailableError:
        if site.folder:
            raise
        status = get(f"{hub.url.rstrip('/')}/hub/health").status  # it listens there alone
    control = get(f"http://127.0.0.1:{hub.proxy_port}/api/routes").status
    return proxy(status, control, site.repair(service))


def view(snapshot: Snapshot, now: float, poll_seconds: float, todo: str) -> Finding:
    """What the view knows, and from when."""
    age = now - snapshot.taken_at
    if snapshot.controller != "up":
        words = f"Slurm is away for it since {format_duration(age)}: {snapshot.error}"
        return fault("view", words, "see the line slurmctld")
    if age > 3 * poll_seconds + 30:
        return fault("view", f"what it knows is {format_duration(age)} old", todo)
    return ok("view", f"{len(snapshot.nodes)} nodes and {len(snapshot.jobs)} jobs, as of now")


def read_view(site: HostServices, service: Service) -> Finding:
    if bad := read_unit(site, service):
        return bad
    settings = site.config.view
    snapshot = ViewClient(settings.socket, 8).snapshot()
    return view(snapshot, time.time(), settings.poll_seconds, site.repair(service))


def service_state(status: int, body: bytes, todo: str) -> Finding:
    """Its own words on what it needs."""
    try:
        said = {str(name): str(words) for name, words in json.loads(body).items()}
    except (ValueError, AttributeError):
        return fault("service", f"answers {status}, and not as the service does", todo)
    bad = [f"{name}: {words}" for name, words in said.items() if words != "ok"]
    if status != 200:
        return fault("service", f"answers {status}; {'; '.join(bad)}", todo)
    if bad:
        return warning("service", f"answers; {'; '.join(bad)}", "see the lines of those services")
    return ok("service", "answers, and so does its database")


def read_service(site: HostServices, service: Service) -> Finding:
    if bad := read_unit(site, service):
        return bad
    answer = get(f"http://{service.address}:{service.ports[0]}{service.health}")
    return service_state(answer.status, answer.body, site.repair(service))


def allowed(said: str) -> list[tuple[str, str]]:
    """`said`: sudo's list for a user; (run as, command) of each rule."""
    _, _, rules = said.partition("may run the following commands")
    words = " ".join(rules.split())
    found = []
    for whom, commands in re.findall(r"\(([^()]*)\)((?:(?! \([^()]*\) ).)*)", words):
        for command in commands.split(", "):
            found.append((whom, re.sub(r"^\s*(?:[A-Z]+:\s*)*", "", command).strip()))
    return found


def sudo_rule(said: str, helper: str, group: str, todo: str) -> Finding:
    """Exactly the helper's verbs as members of `group` (and the making of homes). `helper`: its
    path with --config."""
    rules = allowed(said)
    expected = {verb: (f"%{group}", f"{helper} {verb}") for verb in VERBS}
    missing = [verb for verb, rule in expected.items() if rule not in rules]
    if missing:
        words = f"the hub may not {', '.join(missing)} as people with {helper}"
        return fault("sudo rule", words, todo)
    if more := [rule for rule in rules if rule not in (*expected.values(), MAKE_HOMES)]:
        words = "; ".join(f"{command} as {whom}" for whom, command in more)
        user = "the hub's user may run more than the helper: "
        return fault("sudo rule", user + words, "remove that rule: grep -r . /etc/sudoers.d")
    return ok("sudo rule", f"the helper's {len(VERBS)} verbs as people, nothing more")


def _helper(site: HostServices) -> list[str]:
    return [str(Path(sys.prefix) / "bin/carme-helper"), "--config", str(site.config_path)]


def read_sudo_rule(site: HostServices) -> Finding:
    done = call(["sudo", "-l", "-U", site.config.hub.user])
    todo = site.up if site.folder else "ansible-playbook site.yml --tags jupyterhub"
    return sudo_rule(done.out, " ".join(_helper(site)), site.config.hub.users_group, todo)


def helper(done: ProgramResult, person: str, todo: str) -> Finding:
    """The helper's answer about a session that is not there."""
    try:
        error = json.loads(done.out)["error"]
    except (ValueError, KeyError, TypeError):
        return fault("helper", f"as {person}: {done.last}", todo)
    if error.get("reason") != "missing":
        return fault("helper", f"as {person}: {error.get('message')}", todo)
    return ok("helper", f"the hub can act as {person}")


def read_helper(site: HostServices) -> Finding:
    """The whole way that a spawn goes: hub's user, sudo, the helper as a person."""
    person = person_in(site.config.hub.users_group)
    if not person:
        words = f"nobody is in group {site.config.hub.users_group}: there is nobody to act for"
        return warning("helper", words, "add people: common_users in the inventory, or usermod -aG")
    sudo = ["sudo", "-n", f"--user={person}", "--", *_helper(site), "tail-log"]
    done = call(as_user(site.config.hub.user, sudo), stdin='{"name": "carme-doctor"}', seconds=20)
    return helper(done, person, "see the line sudo rule; journalctl -t sudo -n 20")


def read_supervisor(site: HostServices) -> Finding:
    """What keeps the services of the one-machine cluster running."""
    path = f"{site.folder}/run/supervisor.sock"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(3)
        try:
            connection.connect(path)
        except OSError as error:
            words = f"does not run, and so nothing does ({error.strerror})"
            raise UnavailableError(words) from None
    return ok("supervisor", "runs, and starts again what ends")


def read_rest(site: HostServices, service: Service) -> Finding:
    """slurmrestd of the one-machine cluster."""
    path = site.config.slurm.rest_socket
    if not path:
        return absent(service.name)
    return ok(service.name, health_checks.slurmrestd(path))


def read_virtual(site: HostServices, service: Service) -> Finding:
    """The daemon that moves the stand-ins' counters."""
    done = call(
        [str(Path(sys.prefix) / "bin/carme-vgpu"), "health", "--run", str(site.config.exporter.run)]
    )
    if done.code:
        raise UnavailableError(done.last)
    return ok(service.name, done.out.strip() or "answers")


def read_only_unit(site: HostServices, service: Service) -> Finding:
    """A service of which only systemd can tell."""
    return read_unit(site, service) or ok(service.name, f"{service.unit} runs")
