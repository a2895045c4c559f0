"""Checks of what sessions need: hub, proxy, view, service, helper, images, containers."""

import grp
import json
import os
import pwd
import re
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from carme.config.services import Service
from carme.doctor.check import Finding, call, fault, ok, warning
from carme.doctor.host_services import HostServices
from carme.errors import UnavailableError
from carme.helper.models import VERBS
from carme.helper.program import MIN_UID
from carme.images.catalogue import Image, check_file, file_stamp, read_index
from carme.images.own_image import find_apptainer
from carme.slurm.snapshot import Snapshot
from carme.system.health_checks import get
from carme.system.programs import CommandResult
from carme.units import format_duration
from carme.view.client import ViewClient

MAKE_HOMES = ("root", r"/usr/sbin/mkhomedir_helper ^[a-z_][a-z0-9_-]{0\,31} 0077$")
"""The sudo rule beside the helper's, as sudo lists it: the user to run as, and the command."""
READING_SECONDS = 15.0
READING_BYTES = 4_000_000_000
"""How much of unchanged images is read: a slow file server must not delay the other checks."""


def read_hub(site: HostServices) -> Finding:
    """Whether the hub answers where proxy and sessions expect it; every host checks this."""
    hub = site.config.hub
    url = f"http://{hub.api_address}:{hub.api_port}{hub.base_url}hub/health"
    status = get(url).status
    if status != 200:
        raise UnavailableError(f"{url} answers {status}")
    return ok("hub", f"answers at {hub.api_address}:{hub.api_port}")


def proxy(status: int, control: int, todo: str) -> Finding:
    """`status`: of the hub's health through the proxy; `control`: of its API without a token."""
    if control == 200:
        message = "its control port needs no token: every user of this host can change routes"
        return fault("proxy", message, "set CONFIGPROXY_AUTH_TOKEN; " + todo)
    if control not in (401, 403):
        return fault("proxy", f"its control port answers {control}", todo)
    if status == 200:
        return ok("proxy", "answers, its control port requires a token")
    if status in (502, 503):
        return ok("proxy", f"answers {status}: the hub behind it does not")
    return fault("proxy", f"answers {status}", todo)


def read_proxy(site: HostServices, service: Service) -> Finding:
    hub = site.config.hub
    scheme = urlsplit(hub.url).scheme
    # The public name may lead through a firewall that blocks this host.
    try:
        status = get(f"{scheme}://{service.address}:{service.ports[0]}{service.health}").status
    except UnavailableError:
        if site.folder:
            raise
        status = get(f"{hub.url.rstrip('/')}/hub/health").status  # it may listen only there
    control = get(f"http://127.0.0.1:{hub.proxy_port}/api/routes").status
    return proxy(status, control, site.repair(service))


def session_host(pattern: str, is_known: bool) -> Finding:
    """`pattern`: the host names of sessions; `is_known`: whether this host can resolve one."""
    check = "session host"
    if not pattern:
        message = "sessions share the hub's host name: a page of one user can act for another"
        return warning(check, message, "set hub.session_host (jupyterhub_session_host in Ansible)")
    if not is_known:
        message = f"{pattern} does not resolve here, so browsers may not find sessions"
        return warning(check, message, f"add a DNS record: {pattern} with the hub's address")
    return ok(check, f"sessions are at {pattern}, apart from the hub")


def read_session_host(site: HostServices) -> Finding:
    pattern = site.config.hub.session_host_or_default
    return session_host(pattern, _resolves(pattern.replace("*", "carme-doctor", 1)))


def _resolves(name: str) -> bool:
    if f".{name}".endswith(".localhost"):
        return True  # for browsers; the C library need not know these names
    try:
        return bool(name and socket.getaddrinfo(name, None))
    except OSError:
        return False


def view(snapshot: Snapshot, now: float, poll_seconds: float, todo: str) -> Finding:
    """Whether the view's snapshot is recent."""
    age = snapshot.age_seconds(now)
    if snapshot.controller != "up":
        message = f"Slurm has not answered it for {format_duration(age)}: {snapshot.error}"
        return fault("view", message, "see the line slurmctld")
    if age > 3 * poll_seconds + 30:
        return fault("view", f"its snapshot is {format_duration(age)} old", todo)
    return ok("view", f"{len(snapshot.nodes)} nodes and {len(snapshot.jobs)} jobs, as of now")


def read_view(site: HostServices, service: Service) -> Finding:
    settings = site.config.view
    snapshot = ViewClient(settings.socket, 8).snapshot()
    return view(snapshot, time.time(), settings.poll_seconds, site.repair(service))


def service_state(status: int, body: bytes, todo: str) -> Finding:
    """What the prediction service reports about itself and the services it needs."""
    try:
        states = {str(name): str(state) for name, state in json.loads(body).items()}
    except (ValueError, AttributeError):
        return fault("service", f"answers {status}, but not as the service does", todo)
    problems = "; ".join(f"{name}: {state}" for name, state in states.items() if state != "ok")
    if status != 200:
        return fault("service", f"answers {status}; {problems}", todo)
    if problems:
        return warning("service", f"answers; {problems}", "see the lines of those services")
    return ok("service", "answers, and so does its database")


def read_service(site: HostServices, service: Service) -> Finding:
    response = get(f"http://{service.address}:{service.ports[0]}{service.health}")
    return service_state(response.status, response.body, site.repair(service))


def sudo_rules(listing: str) -> list[tuple[str, str]]:
    """(user to run as, command) of each rule in the output of sudo -l."""
    _, _, text = listing.partition("may run the following commands")
    rules = []
    for user, commands in re.findall(
        r"\(([^()]*)\)((?:(?! \([^()]*\) ).)*)", " ".join(text.split())
    ):
        for command in commands.split(", "):
            rules.append((user, re.sub(r"^\s*(?:[A-Z]+:\s*)*", "", command).strip()))
    return rules


def sudo_rule(listing: str, helper: str, group: str, todo: str) -> Finding:
    """Whether the hub may run exactly the helper's verbs as members of `group` (and make homes).

    `helper` is its path with --config.
    """
    rules = sudo_rules(listing)
    expected = {verb: (f"%{group}", f"{helper} {verb}") for verb in VERBS}
    missing = [verb for verb, rule in expected.items() if rule not in rules]
    if missing:
        message = f"the hub may not {', '.join(missing)} as users with {helper}"
        return fault("sudo rule", message, todo)
    if further_rules := [rule for rule in rules if rule not in (*expected.values(), MAKE_HOMES)]:
        commands = "; ".join(f"{command} as {user}" for user, command in further_rules)
        message = f"the hub's user may run more than the helper: {commands}"
        return fault("sudo rule", message, "remove that rule: grep -r . /etc/sudoers.d")
    return ok("sudo rule", f"the helper's {len(VERBS)} verbs as users, nothing more")


def _helper_command(site: HostServices) -> list[str]:
    return [str(Path(sys.prefix) / "bin/carme-helper"), "--config", str(site.config_path)]


def read_sudo_rule(site: HostServices) -> Finding:
    hub = site.config.hub
    listing = call(["sudo", "-l", "-U", hub.user]).stdout
    todo = site.up if site.folder else "ansible-playbook site.yml --tags jupyterhub"
    return sudo_rule(listing, " ".join(_helper_command(site)), hub.users_group, todo)


def helper(result: CommandResult, user: str, todo: str) -> Finding:
    """The helper's answer to a question about a session that does not exist."""
    try:
        error = json.loads(result.stdout)["error"]
    except (ValueError, KeyError, TypeError):
        return fault("helper", f"as {user}: {result.last_line}", todo)
    if error.get("reason") != "missing":
        return fault("helper", f"as {user}: {error.get('message')}", todo)
    return ok("helper", f"the hub can act as {user}")


def read_helper(site: HostServices) -> Finding:
    """Runs the helper as a spawn does: the hub's user calls sudo, which becomes the user."""
    hub = site.config.hub
    user = member_of(hub.users_group)
    if not user:
        message = f"the group {hub.users_group} has no members, so there is no user to act as"
        todo = "add users: common_users in the inventory, or usermod -aG"
        return warning("helper", message, todo)
    sudo = ["sudo", "-n", f"--user={user}", "--", *_helper_command(site), "tail-log"]
    command = ["runuser", "-u", hub.user, "--", *sudo]
    result = call(command, stdin='{"name": "carme-doctor"}', seconds=20)
    return helper(result, user, "see the line sudo rule; journalctl -t sudo -n 20")


def member_of(group: str) -> str:
    """A member of the group to run a check as, not a system user; empty if there is none."""
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        return ""
    for name in entry.gr_mem:
        try:
            if pwd.getpwnam(name).pw_uid >= MIN_UID:
                return name
        except KeyError:
            continue  # a member who exists on other hosts only
    primary = (user.pw_name for user in pwd.getpwall() if user.pw_gid == entry.gr_gid)
    return next(primary, "")


def images(problems: Sequence[str], intact: int, unread: int, changed: Sequence[str]) -> Finding:
    """`intact`: number with a right checksum; `unread`: number with the date of their publication;
    `changed`: images with another date, too large to read."""
    todo = "carme images list; build or publish again what is broken: carme images build NAME"
    if problems:
        others = f"; {intact + unread} others are intact" if intact + unread else ""
        return fault("images", "; ".join(problems) + others, todo)
    if changed:
        message = f"changed since publication, too large to read here: {', '.join(changed)}"
        return warning("images", message, "carme images verify --quick")
    if not intact + unread:
        return fault("images", "none is published, so no session can start", todo)
    unchanged = f", {unread} unchanged since publication" if unread else ""
    return ok("images", f"{intact} read completely, checksums right{unchanged}")


def read_images(site: HostServices, seconds: float = READING_SECONDS) -> Finding:
    settings = site.config.images
    if not settings.folder.is_dir():
        todo = "is the shared file system mounted? findmnt; site.yml --tags shared_storage,images"
        return fault("images", f"no folder {settings.folder}", todo)
    problems: list[str] = []
    changed: list[str] = []
    intact = unread = 0
    deadline, bytes_left = time.monotonic() + seconds, READING_BYTES
    published = _published(settings.folder)
    published.sort(key=lambda image: not _has_changed(settings.folder / image.file, image))
    for image in published:
        path = settings.folder / image.file
        problem = _visible_problem(path, image, bool(settings.verify_key))
        if not problem and time.monotonic() < deadline and image.size_bytes <= bytes_left:
            bytes_left -= image.size_bytes
            # Without its stamp the file is read: a failing disk changes no date.
            problem = check_file(path, image.model_copy(update={"stamp": ""}))
            intact += not problem
        elif not problem and _has_changed(path, image):
            changed.append(image.id)
        elif not problem:
            unread += 1
        if problem:
            problems.append(f"{image.id}: {problem}")
    return images(problems, intact, unread, changed)


def _published(folder: Path) -> list[Image]:
    """The images that sessions may start from, small ones first."""
    published = (image for image in read_index(folder).images if image.state == "published")
    return sorted(published, key=lambda image: image.size_bytes)


def _has_changed(path: Path, image: Image) -> bool:
    try:
        return file_stamp(path) != image.stamp
    except OSError:
        return True


def _visible_problem(path: Path, image: Image, require_signed: bool) -> str:
    """What is wrong with an image file, without reading it; empty if nothing is."""
    try:
        stamp = file_stamp(path)
    except OSError as error:
        return f"{path.name}: {error.strerror}"
    if require_signed and not image.signed_by:
        return "it is not signed, and images.verify_key requires it"
    return check_file(path, image.model_copy(update={"stamp": stamp}))


def container(result: CommandResult, image: str, user: str) -> Finding:
    """How a container that only runs `true` ended."""
    if not result.returncode:
        return ok("container", f"{image} starts as {user}")
    todo = (
        "as that user: apptainer exec IMAGE true; is /dev/fuse there with mode 0666, and are user "
        "namespaces allowed (sysctl user.max_user_namespaces)?"
    )
    return fault("container", f"{image} does not start as {user}: {result.last_line}", todo)


def read_container(site: HostServices) -> Finding:
    """Starts a container as a normal user, as sessions do; root could do more."""
    config = site.config
    program = find_apptainer(config.images.apptainer)
    if not program or not program.exists():
        message = f"no program {program}" if program else "neither apptainer nor singularity"
        return fault("container", message, "site.yml --tags apptainer; images.apptainer names it")
    folder = config.images.folder
    intact = [i for i in _published(folder) if not _visible_problem(folder / i.file, i, False)]
    if not intact:
        version = call([program, "version"]).stdout.strip()
        return warning("container", f"{program.name} {version}, but no image to try", "see images")
    image = intact[0]
    argv: list[str | Path] = [program, "--quiet", "exec", "--containall", "--no-home"]
    argv += [folder / image.file, "true"]
    if os.geteuid():
        user = pwd.getpwuid(os.geteuid())
    else:
        user = pwd.getpwnam(member_of(config.hub.users_group) or "nobody")
        argv = ["runuser", "-u", user.pw_name, "--", *argv]
    path = os.environ.get("PATH", "/usr/bin:/bin")
    env = {"PATH": path, "HOME": user.pw_dir, "LC_ALL": "C.UTF-8"}
    return container(call(argv, env=env, seconds=30), image.id, user.pw_name)
