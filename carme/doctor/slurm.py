"""Checks of Slurm as this host sees it: munge, controller, database, nodes."""

from collections.abc import Sequence
from pathlib import Path

from carme.config.services import Service
from carme.doctor.finding import Finding, fault, ok, warning
from carme.doctor.host import read_unit
from carme.doctor.host_services import HostServices
from carme.doctor.ports import listeners
from carme.doctor.programs import call, output
from carme.slurm.hostlist import compress
from carme.slurm.slurm_commands import clean_environment

# "inval": the node has less than slurm.conf says.
_AWAY = ("down", "fail", "unk", "inval", "error", "*")
_CLOSED = ("drain", "maint", "reboot")


def slurm(site: HostServices, argv: Sequence[str]) -> str:
    """What one of Slurm's commands prints, asked of this host's cluster."""
    return output(argv, env=clean_environment(site.config.slurm))


def munge(encoded: str, decoded: int, said: str, todo: str) -> Finding:
    """A credential was made, and `decoded` is how reading it ended."""
    if not encoded or decoded:
        return fault("munge", said or "no credential could be made", todo)
    return ok("munge", "credentials go round")


def read_munge(site: HostServices, service: Service) -> Finding:
    if bad := read_unit(site, service):
        return bad
    socket = site.slurm.munge_socket if site.slurm else ""
    where = ["--socket", socket] if socket else []
    made = call(["munge", "--no-input", *where])
    if made.code:
        return munge("", 0, made.last, site.repair(service))
    read = call(["unmunge", "--no-output", *where], stdin=made.out)
    todo = "is the clock right, and /etc/munge/munge.key the same on every host?"
    return munge(made.out, read.code, read.last, todo)


def controller(said: str, todo: str) -> Finding:
    """`said`: scontrol ping's answer, a line for each controller."""
    # With none up, scontrol adds a frame of asterisks.
    lines = [line.strip() for line in said.splitlines() if line.strip(" *")]
    lines = [line for line in lines if " is " in line] or lines
    up = [line for line in lines if line.endswith(" UP")]
    if not up:
        return fault("slurmctld", lines[-1] if lines else "no answer", todo)
    if len(up) < len(lines):
        down = next(line for line in lines if line not in up)
        return warning("slurmctld", f"answers, but {down}", todo)
    return ok("slurmctld", "answers")


def read_controller(site: HostServices, service: Service | None) -> Finding:
    """Asked from every host: nodes and sessions need it, too."""
    if service and (bad := read_unit(site, service)):
        return bad
    done = call(["scontrol", "ping"], env=clean_environment(site.config.slurm))
    elsewhere = "on the head: carme doctor; from here: is its port open, is munge.key the same?"
    todo = site.repair(service) if service else elsewhere
    return controller(done.out or done.err, todo)


def read_accounting(site: HostServices, service: Service) -> Finding:
    """slurmdbd knows this cluster."""
    if bad := read_unit(site, service):
        return bad
    known = slurm(site, ["sacctmgr", "-nP", "show", "cluster", "format=cluster"]).split()
    name = site.slurm.cluster if site.slurm else ""
    if name.lower() not in known:
        words = f"the cluster {name} is not registered, only: {', '.join(known) or 'none'}"
        return fault(service.name, words, f"sacctmgr -i add cluster {name}; restart slurmctld")
    return ok(service.name, f"keeps the jobs of {name}")


def read_mariadb(site: HostServices, service: Service) -> Finding:
    if bad := read_unit(site, service):
        return bad
    where = ["--no-defaults", "-S", f"{site.folder}/run/mariadb/mariadb.sock"]
    said = output(["mariadb", *(where if site.folder else ()), "-NBe", "select version()"])
    return ok(service.name, f"answers, version {said.split('-')[0].strip()}")


def node_state(check: str, states: Sequence[tuple[str, str, str]], todo: str) -> Finding:
    """`states`: name, state and reason of nodes, as sinfo shows them."""
    away = [_words(*row) for row in states if any(word in row[1] for word in _AWAY)]
    closed = [_words(*row) for row in states if any(word in row[1] for word in _CLOSED)]
    if away:
        return fault(check, _some([*away, *(row for row in closed if row not in away)]), todo)
    if closed:
        names = compress(row[0] for row in states if any(word in row[1] for word in _CLOSED))
        resume = f"when it is mended: scontrol update nodename={names} state=resume"
        return warning(check, f"takes no new jobs: {_some(closed)}", resume)
    if not states:
        return fault(check, "Slurm does not know it", "is it in slurm.conf? site.yml --tags slurm")
    return ok(check, states[0][1] if len(states) == 1 else f"{len(states)} take jobs")


def _words(name: str, state: str, reason: str) -> str:
    return f"{name} is {state}" + (f" ({reason})" if reason not in ("", "none") else "")


def _some(rows: Sequence[str], most: int = 6) -> str:
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return "; ".join(rows[:most]) + more


def read_states(site: HostServices, node: str = "") -> list[tuple[str, str, str]]:
    only = ["-n", node] if node else []
    found: dict[str, tuple[str, str, str]] = {}
    for line in slurm(site, ["sinfo", "-h", "-N", *only, "-o", "%N|%T|%E"]).splitlines():
        name, state, reason = (*line.split("|", 2), "", "")[:3]
        found[name] = (name, state, reason.strip())
    return list(found.values())


def read_slurmd(site: HostServices, service: Service) -> Finding:
    """It listens, and the controller may give it jobs."""
    if bad := read_unit(site, service):
        return bad
    if service.ports and not listeners(service.ports):
        return fault(service.name, f"does not run: nobody listens on {service.ports[0]}",
                     site.repair(service))  # fmt: skip
    return node_state(service.name, read_states(site, service.node), site.repair(service))


def read_nodes(site: HostServices) -> Finding:
    todo = "on that node: carme doctor"
    return node_state("nodes", read_states(site), todo)


def operator(level: str, user: str, todo: str) -> Finding:
    """The view's right in Slurm; without it, sessions seem to end at once."""
    if level in ("Operator", "Administrator"):
        return ok("view's right", f"{user} is {level.lower()} in Slurm, sees all jobs")
    found = f"{user} is no operator in Slurm and cannot see other people's jobs"
    return fault("view's right", found, todo)


def read_operator(site: HostServices, user: str) -> Finding:
    said = slurm(site, ["sacctmgr", "-nP", "show", "user", user, "format=adminlevel"])
    todo = f"sacctmgr -i modify user {user} set AdminLevel=Operator; restart slurmctld"
    return operator(said.strip(), user, todo)


def read_conf(site: HostServices, name: str) -> str:
    """A file beside slurm.conf; empty where there is none."""
    path = (site.slurm_path or Path("/etc/slurm/slurm.conf")).with_name(name)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
