"""What Slurm lets this person have, before it is asked: messages at fields, and why one waits."""

from typing import Any

from carme.slurm.limits import JOBS, SECONDS, SUBMITTED, Limit, amount, time_limits
from carme.slurm.models import Job, Partition
from carme.slurm.rights import AssociationLimits
from carme.slurm.snapshot import Snapshot
from carme.units import format_bytes, format_duration, hours_within
from carme_spawner import options
from carme_spawner.options import GIB, Options, Problems
from carme_spawner.slurm_user import SlurmUser

_FIELD = {SECONDS: "hours", "cpu": "cpus", "mem": "memory_gb", "node": "nodes"}
_UNKNOWN = "what you have of these cannot be read from Slurm now; leave it empty"
_FOR = {
    "job": "a session",
    "node": "a session",
    "user": "one user",
    "account": "one account",
    "group": "all its jobs together",
}


def limits(
    choice: Options, snapshot: Snapshot, person: SlurmUser, now: float, max_nodes: int | None = None
) -> Problems:
    """What the cluster and this person's rights could not give even if nothing else ran."""
    return {
        **problems(choice, snapshot, person, now),
        **options.limits(choice, snapshot, max_nodes),
    }


def problems(choice: Options, snapshot: Snapshot, person: SlurmUser, now: float) -> Problems:
    """What of the choice is not this person's to have; empty when all is."""
    partition = snapshot.partition(choice.partition)
    if partition is None or partition.hidden:
        return {}  # said elsewhere
    found = {
        **_name_problems(choice, partition, person),
        **_reservation_problems(choice, snapshot, person, now),
    }
    if found:
        return found  # the limits of an account that one has not say nothing
    wish = wanted(choice, person)
    for bound in person.bounds(partition, snapshot, choice.account, choice.qos):
        field = _field(bound)
        if field is not None and _demand(bound, wish) > bound.most:
            found.setdefault(field, _too_much(bound))
        elif bound.what == SUBMITTED and bound.used(snapshot.jobs) >= bound.most:
            found.setdefault(field or "", _full(bound))
    return found


def fitted(
    values: dict[str, Any], raw: dict[str, Any], snapshot: Snapshot, person: SlurmUser, now: float
) -> dict[str, Any]:
    """Defaults that go with what was asked for: a time that account, QoS and reservation allow."""
    given = {**values, **{name: value for name, value in raw.items() if isinstance(value, str)}}
    partition = snapshot.partition(given["partition"])
    limits = time_limits(partition, person.rights, given["account"], given["qos"])
    most = [bound.most for bound in limits]
    for plan in person.reservations(snapshot, now):
        if plan.name == given["reservation"] and plan.ends_at:
            most.append(
                max(60, round(plan.ends_at - max(now, plan.starts_at or 0)) // 60 * 60 - 60)
            )
    return {**values, "hours": min(values["hours"], *(hours_within(m) for m in most), 8760)}


def wanted(choice: Options, person: SlurmUser) -> Job:
    """The choice as a job, so that it can be counted like one."""
    account, qos = person.effective(choice.account, choice.qos, choice.partition)
    nodes = choice.nodes
    return Job(
        id=0,
        user=person.name,
        account=account,
        qos=qos,
        partition=choice.partition,
        node_count=nodes,
        cpus=nodes * choice.cpus,
        memory_bytes=nodes * choice.memory_gb * GIB,
        gpus={choice.gpu_type: nodes * choice.gpus} if choice.gpus else {},
        limit_seconds=choice.seconds,
        reservation=choice.reservation,
    )


def _demand(bound: Limit, wish: Job) -> int:
    taken = amount(wish, bound.what)
    return taken // max(1, wish.node_count) if bound.scope == "node" else taken


def _name_problems(choice: Options, partition: Partition, person: SlurmUser) -> Problems:
    """Account, QoS and partition that do not go together; a name that is not this person's."""
    if partition.allow_groups and not person.groups & set(partition.allow_groups):
        return {"partition": f"{partition.name} is open to other groups than yours"}
    if person.rights is None:
        named = ("account", "qos")
        return {name: _UNKNOWN for name in named if getattr(choice, name)}
    if choice.account and choice.account not in person.accounts:
        yours = ", ".join(person.accounts) or "none"
        return {"account": f"you have no account {choice.account}; yours: {yours}"}
    account, qos = person.effective(choice.account, choice.qos, partition.name)
    own = person.rights.association(account, partition.name)
    field = "account" if person.chooses_account else "partition"
    if own is None and person.rights.associations:
        return {field: f"account {account} may not use {partition.name}"}
    if own is not None and person.account_refused(partition, account):
        return {field: f"{partition.name} is closed to account {account}"}
    if choice.qos and (own is None or choice.qos not in own.qos):
        yours = ", ".join(own.qos) if own else "none"
        return {"qos": f"account {account or 'of yours'} has no QoS {choice.qos}; it has {yours}"}
    if qos and (
        qos in partition.deny_qos or (partition.allow_qos and qos not in partition.allow_qos)
    ):
        field = "qos" if person.chooses_qos else "partition"
        return {field: f"{partition.name} is closed to QoS {qos}"}
    return {}


def _reservation_problems(
    choice: Options, snapshot: Snapshot, person: SlurmUser, now: float
) -> Problems:
    if not choice.reservation:
        return {}
    usable = person.reservations(snapshot, now)
    plan = next((item for item in usable if item.name == choice.reservation), None)
    if plan is None:
        yours = ", ".join(item.name for item in usable) or "none"
        return {"reservation": f"you have no reservation {choice.reservation}; yours: {yours}"}
    account, _ = person.effective(choice.account, "", choice.partition)
    if not person.admitted(plan, account):
        return {"reservation": f"{plan.name} is not for account {account}"}
    if plan.nodes and not any(n.name in plan.nodes for n in snapshot.nodes_in(choice.partition)):
        return {"reservation": f"{plan.name} has no nodes of {choice.partition}"}
    if plan.ends_at and max(now, plan.starts_at or 0) + choice.seconds > plan.ends_at:
        left = format_duration(max(0, plan.ends_at - max(now, plan.starts_at or 0)))
        return {"hours": f"{plan.name} has {left} left"}
    return {}


def _field(bound: Limit) -> str | None:
    """Where the message belongs; None for what the form does not ask for."""
    if bound.what.startswith("gres/gpu"):
        return "gpus"
    if bound.what in (JOBS, SUBMITTED):
        return ""
    field = _FIELD.get(bound.what)
    return field if field in Options.model_fields else None


def _too_much(bound: Limit) -> str:
    if bound.what == SECONDS:
        who = bound.who.removeprefix("partition ")
        return f"{who} allows at most {format_duration(bound.most)}"
    return f"{bound.who} gives {_FOR[bound.scope]} at most {_much(bound.what, bound.most)}"


def _full(bound: Limit) -> str:
    whose, who = ("of yours ", "you have") if bound.user else ("", "there are")
    jobs = _much("job", bound.most)
    return f"{bound.who} takes {jobs} {whose}at a time, and {who} that many"


def _much(what: str, count: int) -> str:
    """`2 GPUs of type a100`, `1 core`, `64 GiB`."""
    if what == "mem":
        return format_bytes(count)
    name, _, kind = what.partition(":")
    noun = {"cpu": "core", "node": "node", JOBS: "running job", "gres/gpu": "GPU"}.get(name, name)
    return f"{count} {noun}{'s' if count != 1 else ''}{f' of type {kind}' if kind else ''}"


def shortages(choice: Options, snapshot: Snapshot, person: SlurmUser) -> list[tuple[Limit, int]]:
    """The limits that what runs now leaves too little of for this choice, with what is left."""
    partition = snapshot.partition(choice.partition)
    if partition is None:
        return []
    wish = wanted(choice, person)
    found = []
    for bound in person.bounds(partition, snapshot, choice.account, choice.qos):
        asked = amount(wish, bound.what)
        if asked and bound.scope in ("user", "account", "group") and bound.what != SUBMITTED:
            left = bound.most - bound.used(snapshot.jobs)
            if asked > left:
                found.append((bound, max(0, left)))
    return found


def held(short: list[tuple[Limit, int]]) -> str:
    """Why a choice would wait although nodes are free, in plain words; empty if it would not."""
    if not short:
        return ""
    bound, left = short[0]
    used = _much(bound.what, bound.most - left)
    if not bound.user:
        most = format_bytes(bound.most) if bound.what == "mem" else bound.most
        return f"Jobs of {bound.who} already have {used} of the {most} that it gives."
    most = _much(bound.what, bound.most)
    return f"You already have {used}, and {bound.who} gives one user at most {most}."


def reduced(choice: Options, short: list[tuple[Limit, int]]) -> Options | None:
    """The part of the choice that limits leave room for now; None if that is nothing useful."""
    gpus, cpus, memory = choice.gpus, choice.cpus, choice.memory_gb
    for bound, together in short:
        left = together // choice.nodes  # the choice is for each node, limits are not
        if bound.what.startswith("gres/gpu"):
            gpus = min(gpus, left)
        elif bound.what == "cpu":
            cpus = min(cpus, left)
        elif bound.what == "mem":
            memory = min(memory, left // GIB)
        else:
            return None
    if cpus < 1 or memory < 1 or (choice.gpus and not gpus):
        return None
    return choice.model_copy(update={"gpus": gpus, "cpus": cpus, "memory_gb": memory})


def describe(given: AssociationLimits) -> str:
    """A QoS's limits in a line for the form; empty when it has none."""
    parts = [f"up to {format_duration(given.max_seconds)}"] if given.max_seconds else []
    for amounts, whose in ((given.per_job, "a job"), (given.per_user, "all your jobs")):
        known = [w for w in amounts if w in ("cpu", "mem", "node") or w.startswith("gres/gpu")]
        parts += [f"at most {_much(what, amounts[what])} in {whose}" for what in known]
    if given.max_jobs is not None:
        parts.append(f"at most {_much(JOBS, given.max_jobs)}")
    return "; ".join(parts)
