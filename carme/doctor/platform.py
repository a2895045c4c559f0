"""Checks of what people use: hub, images, the sudo rule, containers."""

import grp
import os
import pwd
import socket
import subprocess
from pathlib import Path

from carme.config import Config
from carme.doctor.finding import Finding, failure, fine, skipped, warning
from carme.doctor.host import output
from carme.errors import UnavailableError
from carme.images import load_catalogue
from carme.local import probes


def read_hub(config: Config) -> Finding:
    """The hub answers where sessions look for it."""
    url = f"http://{config.hub.api_address}:{config.hub.api_port}/hub/health"
    try:
        return fine("hub", probes.http(url))
    except UnavailableError as error:
        todo = "on the head: systemctl status carme-hub; from a node: is the port open?"
        return failure("hub", f"{url} {error.message}", todo)


def port(name: str, host: str, number: int) -> Finding:
    """Whether somebody listens there, as seen from this host."""
    try:
        with socket.create_connection((host, number), timeout=3):
            return fine(f"port {name}", f"{host}:{number} is open")
    except OSError as error:
        todo = "does the part run, and does a firewall let this host through?"
        return failure(f"port {name}", f"{host}:{number}: {error.strerror or error}", todo)


def images(problems: tuple[str, ...], offered: int) -> Finding:
    if offered and not problems:
        return fine("images", f"{offered} offered, whole")
    todo = "carme images list; carme images verify"
    if offered:
        return warning("images", "; ".join(problems), todo)
    return failure("images", "; ".join(problems) or "none is offered", todo)


def read_images(config: Config) -> Finding:
    catalogue = load_catalogue(config.images.folder, bool(config.images.verify_key))
    listed = [image for image in catalogue.index.images if image.state == "published"]
    broken = len([problem for problem in catalogue.problems if "is not offered" in problem])
    return images(catalogue.problems, len(listed) - broken)


def sudo_rule(said: str, helper: str) -> Finding:
    """`said`: what sudo lists for the hub's user."""
    lines = [line for line in said.splitlines() if "NOPASSWD" in line or helper in said]
    if helper not in said or not lines:
        todo = "run: ansible-playbook site.yml --tags jupyterhub"
        return failure("sudo rule", "the hub may not run the helper as people", todo)
    if "NOPASSWD: ALL" in said:
        todo = "remove the rule that allows everything from /etc/sudoers.d"
        return failure("sudo rule", "the hub's user may run anything", todo)
    return fine("sudo rule", "the helper, and nothing else")


def read_sudo_rule(config: Config) -> Finding:
    if os.geteuid() != 0:
        return skipped("sudo rule", "only root can look")
    try:
        pwd.getpwnam(config.hub.user)
    except KeyError:
        return skipped("sudo rule", "the hub does not run on this host")
    return sudo_rule(output(["sudo", "-l", "-U", config.hub.user]), "carme-helper")


def read_container(config: Config) -> Finding:
    """A container starts as a normal user, as sessions do."""
    program = config.images.apptainer or Path("apptainer")
    catalogue = load_catalogue(config.images.folder)
    listed = [image for image in catalogue.index.images if image.state == "published"]
    if not listed:
        return skipped("container", "no image to start")
    argv = [str(program), "--quiet", "exec", "--containall", "--no-home"]
    argv += [str(catalogue.path(listed[0])), "true"]
    user = _somebody(config) if os.geteuid() == 0 else None
    done = subprocess.run(
        ["runuser", "-u", user, "--", *argv] if user else argv,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        todo = "is /dev/fuse there with mode 0666, and are user namespaces allowed?"
        return failure("container", said, todo)
    return fine("container", f"{listed[0].id} starts as {user or 'you'}")


def _somebody(config: Config) -> str:
    """Somebody who may start sessions; `nobody` where the group is empty or unknown."""
    try:
        return next(iter(grp.getgrnam(config.hub.users_group).gr_mem), "nobody")
    except KeyError:
        return "nobody"
