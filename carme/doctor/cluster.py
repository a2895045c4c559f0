"""Checks of Slurm as this host sees it: munge, controller, nodes, the view's right."""

import subprocess

from carme.config import Config
from carme.doctor.finding import Finding, failure, fine, skipped, warning
from carme.doctor.host import output
from carme.errors import CarmeError
from carme.slurm.view_client import ViewClient


def read_munge() -> Finding:
    """A credential goes round through the daemon."""
    credential = output(["munge", "--no-input"])
    done = subprocess.run(
        ["unmunge", "--no-output"], input=credential, capture_output=True, text=True, timeout=20
    )
    if done.returncode:
        todo = "is the clock right, and /etc/munge/munge.key the same on every host?"
        return failure("munge", done.stderr.strip(), todo)
    return fine("munge", "credentials go round")


def controller(said: str) -> Finding:
    """`said`: scontrol ping's answer."""
    if "UP" in said and "DOWN" not in said:
        return fine("slurmctld", "answers")
    todo = "on the head: systemctl status slurmctld; journalctl -u slurmctld"
    return failure("slurmctld", said.strip().splitlines()[-1] if said.strip() else "silent", todo)


def read_controller() -> Finding:
    return controller(output(["scontrol", "ping"], check=False))


def nodes(listing: str) -> Finding:
    """`listing`: a line `name state reason` for each node."""
    bad = []
    known = 0
    for line in listing.splitlines():
        name, state, *reason = line.split(None, 2)
        known += 1
        if any(word in state for word in ("down", "drain", "fail", "unk", "*")):
            why = f" ({reason[0]})" if reason and reason[0] != "none" else ""
            bad.append(f"{name} is {state}{why}")
    if not known:
        return failure("nodes", "Slurm knows no node", "see slurm.conf on the head")
    if bad:
        todo = "on the node: systemctl status slurmd; then: scontrol update nodename=… state=resume"
        return warning("nodes", "; ".join(bad), todo)
    return fine("nodes", f"{known} take jobs")


def read_nodes() -> Finding:
    return nodes(output(["sinfo", "-h", "-N", "-o", "%N %T %E"]))


def gpus(declared: int, found: int) -> Finding:
    """GPUs that Slurm gives out on this node, against those that the driver shows."""
    if declared == found:
        return fine("GPUs", f"{found}, as Slurm knows")
    if declared < found:
        return warning(
            "GPUs",
            f"the driver shows {found}, Slurm gives out {declared}",
            "set slurm_gpus of this node in the inventory and run site.yml",
        )
    return failure(
        "GPUs",
        f"Slurm gives out {declared}, the driver shows {found}",
        "nvidia-smi; a missing driver or a GPU that fell off the bus",
    )


def operator(level: str, user: str) -> Finding:
    """The view's right in Slurm; without it, sessions seem to end at once."""
    if level in ("Operator", "Administrator"):
        return fine("view's right", f"{user} is {level}")
    todo = f"sacctmgr -i modify user {user} set AdminLevel=Operator; systemctl restart slurmctld"
    return failure("view's right", f"{user} cannot see other people's jobs", todo)


def read_operator(user: str = "carme-view") -> Finding:
    said = output(["sacctmgr", "-nP", "show", "user", user, "format=adminlevel"]).strip()
    return operator(said, user)


def read_view(config: Config) -> Finding:
    """The view answers, and what it knows is fresh."""
    if not config.view.socket.exists():
        return skipped("view", f"no {config.view.socket} on this host")
    try:
        snapshot = ViewClient.of(config.view).snapshot()
    except CarmeError as error:
        return failure("view", error.message, "systemctl status carme-view")
    return fine("view", f"{len(snapshot.nodes)} nodes, {len(snapshot.jobs)} jobs")
