"""Checks of Slurm on this host: Munge, controller, database, nodes, GPUs, cgroups."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from carme.config.services import Service
from carme.doctor import slurmconf
from carme.doctor.check import Finding, Level, absent, call, fault, ok, output, warning
from carme.doctor.host import first_items, port_owners
from carme.doctor.host_services import HostServices, is_virtual
from carme.doctor.slurmconf import ConfiguredNode
from carme.errors import UnavailableError
from carme.slurm.command_runner import clean_environment
from carme.slurm.hostlist import compress
from carme.system import health_checks
from carme.system.gpus import read_gpus

# "inval": the node has less than slurm.conf declares.
_DOWN = ("down", "fail", "unk", "inval", "error", "*")
_DRAINED = ("drain", "maint", "reboot")
_MAX_NODES_SHOWN = 6
_V1_CONTROLLERS = {
    "freezer": "",
    "cpuacct": "",
    "memory": "constrainramspace",
    "cpuset": "constraincores",
    "devices": "constraindevices",
}
"""Cgroup controllers, and the setting of cgroup.conf that needs each (empty: always needed)."""
_V2_CONTROLLERS = {"cpu": "", "memory": "", "pids": "", "cpuset": "constraincores"}
_DRIVER_HINT = "nvidia-smi shows what is wrong: the driver, or a GPU that fell off the bus"


def slurm(site: HostServices, argv: Sequence[str]) -> str:
    """What a Slurm command prints about this host's cluster."""
    return output(argv, env=clean_environment(site.config.slurm))


def munge(encoded: str, returncode: int, message: str, todo: str) -> Finding:
    """`returncode` and `message`: of unmunge, or of munge if there is no credential `encoded`."""
    if not encoded or returncode:
        return fault("munge", message or "no credential could be made", todo)
    return ok("munge", "encodes and decodes credentials")


def read_munge(site: HostServices, service: Service) -> Finding:
    socket = site.slurm.munge_socket if site.slurm else ""
    options = ["--socket", socket] if socket else []
    encoded = call(["munge", "--no-input", *options])
    if encoded.returncode:
        return munge("", 0, encoded.last_line, site.repair(service))
    decoded = call(["unmunge", "--no-output", *options], stdin=encoded.stdout)
    todo = "is the clock right, and /etc/munge/munge.key the same on every host?"
    return munge(encoded.stdout, decoded.returncode, decoded.last_line, todo)


def controller(ping: str, todo: str) -> Finding:
    """`ping`: the output of scontrol ping, a line for each controller."""
    # With none up, scontrol adds a frame of asterisks.
    lines = [line.strip() for line in ping.splitlines() if line.strip(" *")]
    lines = [line for line in lines if " is " in line] or lines
    up = [line for line in lines if line.endswith(" UP")]
    if not up:
        return fault("slurmctld", lines[-1] if lines else "no answer", todo)
    if len(up) < len(lines):
        down = next(line for line in lines if line not in up)
        return warning("slurmctld", f"answers, but {down}", todo)
    return ok("slurmctld", "answers")


def read_controller(site: HostServices, service: Service | None) -> Finding:
    """Every host checks this: nodes and sessions need the controller, too."""
    result = call(["scontrol", "ping"], env=clean_environment(site.config.slurm))
    remote = "on the head: carme doctor; from here: is its port open, is munge.key the same?"
    return controller(result.stdout or result.stderr, site.repair(service) if service else remote)


def read_accounting(site: HostServices, service: Service) -> Finding:
    """Whether slurmdbd has this cluster."""
    clusters = slurm(site, ["sacctmgr", "-nP", "show", "cluster", "format=cluster"]).split()
    name = site.slurm.cluster if site.slurm else ""
    if name.lower() not in clusters:
        message = f"the cluster {name} is not registered, only: {', '.join(clusters) or 'none'}"
        return fault(service.name, message, f"sacctmgr -i add cluster {name}; restart slurmctld")
    return ok(service.name, f"stores the jobs of {name}")


def read_mariadb(site: HostServices, service: Service) -> Finding:
    options = ["--no-defaults", "-S", f"{site.folder}/run/mariadb/mariadb.sock"]
    version = output(["mariadb", *(options if site.folder else ()), "-NBe", "select version()"])
    return ok(service.name, f"answers, version {version.split('-')[0].strip()}")


def read_rest(site: HostServices, service: Service) -> Finding:
    path = site.config.slurm.rest_socket
    return ok(service.name, health_checks.slurmrestd(path)) if path else absent(service.name)


def node_state(check: str, states: Sequence[tuple[str, str, str]], todo: str) -> Finding:
    """`states`: name, state and reason of nodes, as sinfo shows them."""
    down = [row for row in states if any(word in row[1] for word in _DOWN)]
    drained = [row for row in states if any(word in row[1] for word in _DRAINED)]
    if down:
        problems = [*down, *(row for row in drained if row not in down)]
        return fault(check, _describe_nodes(problems), todo)
    if drained:
        names = compress(row[0] for row in drained)
        resume = f"when it is repaired: scontrol update nodename={names} state=resume"
        return warning(check, f"accepts no new jobs: {_describe_nodes(drained)}", resume)
    if not states:
        return fault(check, "Slurm does not know it", "is it in slurm.conf? site.yml --tags slurm")
    return ok(check, states[0][1] if len(states) == 1 else f"{len(states)} accept jobs")


def _describe_nodes(states: Sequence[tuple[str, str, str]]) -> str:
    nodes = [
        f"{name} is {state}" + (f" ({reason})" if reason not in ("", "none") else "")
        for name, state, reason in states
    ]
    return first_items(nodes, _MAX_NODES_SHOWN)


def read_states(site: HostServices, node: str = "") -> list[tuple[str, str, str]]:
    options = ["-n", node] if node else []
    states: dict[str, tuple[str, str, str]] = {}
    for line in slurm(site, ["sinfo", "-h", "-N", *options, "-o", "%N|%T|%E"]).splitlines():
        name, state, reason = (*line.split("|", 2), "", "")[:3]
        states[name] = (name, state, reason.strip())
    return list(states.values())


def read_slurmd(site: HostServices, service: Service) -> Finding:
    """Whether slurmd listens, and the controller may give it jobs."""
    todo = site.repair(service)
    if service.ports and not port_owners(service.ports):
        message = f"does not run: nothing listens on {service.ports[0]}"
        return fault(service.name, message, todo)
    return node_state(service.name, read_states(site, service.node), todo)


def read_nodes(site: HostServices) -> Finding:
    return node_state("nodes", read_states(site), "on that node: carme doctor")


def operator(level: str, user: str, todo: str) -> Finding:
    """The view's admin level in Slurm; without it, sessions seem to end at once."""
    if level in ("Operator", "Administrator"):
        return ok("view's right", f"{user} is {level.lower()} in Slurm, sees all jobs")
    message = f"{user} is no operator in Slurm and cannot see other people's jobs"
    return fault("view's right", message, todo)


def read_operator(site: HostServices, user: str) -> Finding:
    level = slurm(site, ["sacctmgr", "-nP", "show", "user", user, "format=adminlevel"])
    todo = f"sacctmgr -i modify user {user} set AdminLevel=Operator; restart slurmctld"
    return operator(level.strip(), user, todo)


def gpus(
    node: str,
    declared: int,
    detected: int | None,
    problem: str = "",
    missing: Sequence[str] = (),
    todo: str = _DRIVER_HINT,
) -> Finding:
    """Compares GPUs in slurm.conf (`declared`) and in NVML (`detected`, None if there is a
    `problem`). `missing`: device files of gres.conf that do not exist."""
    check = f"GPUs {node}"
    if missing:
        return fault(check, f"gres.conf names {', '.join(missing)}, which does not exist", todo)
    if not declared and not detected:
        return absent(check, "no GPU declared, and none found")
    if detected is None:
        return fault(check, f"Slurm declares {declared}, but {problem}", todo)
    if declared > detected:
        return fault(check, f"Slurm declares {declared}, NVML shows {detected}", todo)
    if declared < detected:
        declare = "set slurm_gpus of this node in the inventory and run site.yml --tags slurm"
        return warning(check, f"NVML shows {detected}, Slurm declares {declared}", declare)
    return ok(check, f"{detected} in NVML and in Slurm")


def read_node_gpus(site: HostServices, node: ConfiguredNode) -> Finding:
    files = slurmconf.device_files(read_conf(site, "gres.conf"), node.name)
    missing = [file for file in files if not Path(file).exists()]
    environment, todo = dict(os.environ), _DRIVER_HINT
    if is_virtual(site.config):
        if not node.gpus:
            return absent(f"GPUs {node.name}", "no GPU declared")
        todo = f"{site.up} creates the virtual GPUs again"
        session = site.config.session.environment
        environment["LD_LIBRARY_PATH"] = session["LD_LIBRARY_PATH"]
        environment["CARME_VGPU_STATE"] = f"{session['CARME_VGPU_DIR']}/{node.name}.state"
    try:
        detected = read_gpus(environment, seconds=15)
    except UnavailableError as error:
        return gpus(node.name, node.gpus, None, error.message, missing, todo)
    count = sum(gpu.slices or 1 for gpu in detected)
    return gpus(node.name, node.gpus, count, missing=missing, todo=todo)


def read_virtual_gpus(site: HostServices, service: Service) -> Finding:
    """Whether the daemon of the virtual GPUs answers."""
    program = Path(sys.prefix) / "bin/carme-vgpu"
    result = call([program, "health", "--run", site.config.exporter.run])
    if result.returncode:
        raise UnavailableError(result.last_line)
    return ok(service.name, result.stdout.strip() or "answers")


def cgroups(settings: Mapping[str, str], root: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Compares cgroup.conf with what the kernel mounted below `root`."""
    plugin = settings.get("cgroupplugin", "autodetect").lower()
    listing = root / "cgroup.controllers"
    version = "cgroup/v2" if listing.exists() else "cgroup/v1"
    if plugin not in ("autodetect", version):
        todo = "set CgroupPlugin=autodetect in cgroup.conf (slurm_cgroup_plugin); restart slurmd"
        return fault("cgroups", f"cgroup.conf has {plugin}, this host has {version}", todo)
    is_v2 = version == "cgroup/v2"
    controllers = _V2_CONTROLLERS if is_v2 else _V1_CONTROLLERS
    needed = {
        name
        for name, setting in controllers.items()
        if not setting or settings.get(setting, "no").lower() == "yes"
    }
    if is_v2:
        available = set(listing.read_text(encoding="ascii").split())
    else:
        available = {name for name in controllers if (root / name).is_dir()}
    if missing := sorted(needed - available):
        message = f"{version} without {', '.join(missing)}, which cgroup.conf needs"
        return fault("cgroups", message, f"boot a kernel that has them, or mount them below {root}")
    read_only = sorted(
        name for name in needed if os.statvfs(root if is_v2 else root / name).f_flag & os.ST_RDONLY
    )
    if read_only:
        message = f"{', '.join(read_only)} mounted read-only below {root}: slurmd cannot limit jobs"
        return fault("cgroups", message, "mount -o remount,bind,rw on each; then restart slurmd")
    return ok("cgroups", f"{version} with {', '.join(sorted(needed))}")


def read_cgroups(site: HostServices) -> Finding:
    if not site.slurm_path:
        if os.geteuid():
            return Finding("cgroups", Level.ROOT, "only root can read cgroup.conf here")
        todo = "slurmd fetches it from the controller: journalctl -u slurmd -n 50"
        return warning("cgroups", "no slurm.conf and no cgroup.conf on this host", todo)
    return cgroups(slurmconf.settings(read_conf(site, "cgroup.conf")))


def read_conf(site: HostServices, name: str) -> str:
    """The text of a file beside slurm.conf; empty if there is none."""
    path = (site.slurm_path or Path("/etc/slurm/slurm.conf")).with_name(name)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
