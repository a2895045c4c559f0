"""The limits for a job in one account, QoS and partition; pure, from Slurm's settings.

Of several limits on the same resource Slurm applies the first that is set: the partition's QoS, the
job's QoS (before it with OverPartQOS), the user's association, the accounts above.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from carme.slurm.models import Job, Partition
from carme.slurm.rights import JobLimits, Qos, UserRights

SECONDS, JOBS, SUBMITTED = "seconds", "jobs", "submitted"
Scope = Literal["job", "node", "user", "account", "group"]
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Limit:
    """`source` allows at most `maximum` of `resource`: SECONDS, JOBS, SUBMITTED or a TRES.

    With a scope beyond the job, other jobs count: those that match the last four fields.
    """

    resource: str
    maximum: int
    source: str
    scope: Scope = "job"
    user: str = ""
    accounts: tuple[str, ...] = ()
    qos: str = ""
    partitions: tuple[str, ...] = ()

    def counts(self, job: Job) -> bool:
        """Whether this job uses some of the limit; a waiting job uses SUBMITTED only."""
        # The spawn form checks thousands of jobs: the cheap comparisons go first.
        return (
            (not self.user or self.user == job.user)
            and (not self.qos or self.qos == job.qos)
            and (not self.accounts or job.account in self.accounts)
            and (not self.partitions or job.partition in self.partitions)
            and (job.state.active or (self.resource == SUBMITTED and job.state.waiting))
        )

    def used(self, jobs: Iterable[Job]) -> int:
        """How much `jobs` use; 0 for a limit on single jobs."""
        if self.scope in ("job", "node"):
            return 0
        return sum(amount(job, self.resource) for job in jobs if self.counts(job))


_AMOUNT: Mapping[str, Callable[[Job], int]] = {
    JOBS: lambda _: 1,
    SUBMITTED: lambda _: 1,
    SECONDS: lambda job: job.limit_seconds or 0,
    "gres/gpu": lambda job: job.gpu_count,
    "cpu": lambda job: job.cpus,
    "mem": lambda job: job.memory_bytes,
    "node": lambda job: job.node_count,
}


def amount(job: Job, resource: str) -> int:
    """How much of the resource a job takes; 0 for an unknown resource."""
    if resource in _AMOUNT:
        return _AMOUNT[resource](job)
    is_gpu_type = resource.startswith("gres/gpu:")
    return job.gpus.get(resource.removeprefix("gres/gpu:"), 0) if is_gpu_type else 0


def time_limits(
    partition: Partition | None, rights: UserRights | None, account: str, qos: str
) -> list[Limit]:
    """How long a job may run: the partition's limit, and the first of QoS and association."""
    limits = []
    chain = _qos_chain(partition, rights, account, qos)
    is_replaced = any(item.replaces_partition_time for item, _ in chain)
    if partition and partition.max_seconds is not None and not is_replaced:
        limits.append(Limit(SECONDS, partition.max_seconds, f"partition {partition.name}"))
    if not rights or not rights.limited:
        return limits
    association = rights.association(account, partition.name if partition else "")
    candidates = [(item.limits.max_seconds, f"QoS {item.name}") for item, _ in chain]
    candidates += (
        [(association.limits.max_seconds, f"account {association.account}")] if association else []
    )
    first = next(((maximum, source) for maximum, source in candidates if maximum is not None), None)
    return [*limits, Limit(SECONDS, *first)] if first else limits


def minute_limits(job: Job, partition: Partition | None, rights: UserRights | None) -> list[Limit]:
    """How long this job may run by MaxTRESMins, which limits amount times time for each TRES."""
    if not rights or not rights.limited:
        return []
    layers = [
        (item.limits.minutes_per_job, f"QoS {item.name}")
        for item, _ in _qos_chain(partition, rights, job.account, job.qos)
    ]
    if association := rights.association(job.account, partition.name if partition else ""):
        layers.append((association.limits.minutes_per_job, f"account {association.account}"))
    limits = []
    for minutes in _first_set((amounts, source, {}) for amounts, source in layers):
        if used := amount(job, minutes.resource):
            source = f"{minutes.source} (MaxTRESMins of {minutes.resource})"
            limits.append(Limit(SECONDS, 60 * minutes.maximum // used, source))
    return limits


def job_limits(
    partition: Partition,
    partitions: Iterable[Partition],
    rights: UserRights | None,
    account: str,
    qos: str,
) -> list[Limit]:
    """All limits for a job of this user; only the partition's without `rights`."""
    limits = time_limits(partition, rights, account, qos)
    association = rights.association(account, partition.name) if rights else None
    if not rights or not rights.limited or association is None:
        return limits
    by_qos: list[tuple[JobLimits, str, dict[str, Any]]] = []
    for item, is_of_partition in _qos_chain(partition, rights, account, qos):
        jobs: dict[str, Any] = {"qos": item.name}
        if is_of_partition:
            jobs = {"partitions": tuple(p.name for p in partitions if p.qos == item.name)}
        by_qos.append((item.limits, f"QoS {item.name}", jobs))
    user, source, accounts = rights.user, f"account {association.account}", (association.account,)
    single = [*((item, name) for item, name, _ in by_qos), (association.limits, source)]
    limits += _first_set((item.per_job, name, {"scope": "job"}) for item, name in single)
    limits += _first_set((item.per_node, name, {"scope": "node"}) for item, name in single)
    limits += _first_set(
        (_user_amounts(item), name, {"scope": "user", "user": user, **jobs})
        for item, name, jobs in by_qos
    )
    limits += _first_set(
        (item.per_account, name, {"scope": "account", "accounts": accounts, **jobs})
        for item, name, jobs in by_qos
    )
    # Each of these holds beside the others.
    separate = [
        (_group_amounts(item), name, {"scope": "group", **jobs}) for item, name, jobs in by_qos
    ]
    own_jobs = {"scope": "user", "user": user, "accounts": accounts}
    own_jobs["partitions"] = (association.partition,) if association.partition else ()
    for amounts in (_user_amounts(association.limits), _group_amounts(association.limits)):
        separate.append((amounts, source, own_jobs))
    for parent in rights.lineage(association.account):
        members = {"scope": "group", "accounts": (parent.account, *parent.below)}
        separate.append((_group_amounts(parent.limits), f"account {parent.account}", members))
    for layer in separate:
        limits += _first_set([layer])
    return limits


def _first_set(layers: Iterable[tuple[Amounts, str, Mapping[str, Any]]]) -> Iterator[Limit]:
    """A limit for each resource, from the first layer that has an amount of it."""
    limited: set[str] = set()
    for amounts, source, jobs in layers:
        for resource, maximum in amounts.items():
            if resource not in limited:
                yield Limit(resource, maximum, source, **jobs)
        limited |= set(amounts)


def _user_amounts(limits: JobLimits) -> Amounts:
    return _with_counts(limits.per_user, limits.max_jobs, limits.max_submitted)


def _group_amounts(limits: JobLimits) -> Amounts:
    return _with_counts(limits.group, limits.group_jobs, limits.group_submitted)


def _with_counts(amounts: Amounts, jobs: int | None, submitted: int | None) -> Amounts:
    counts = {JOBS: jobs, SUBMITTED: submitted}
    return {
        **amounts,
        **{resource: count for resource, count in counts.items() if count is not None},
    }


def _qos_chain(
    partition: Partition | None, rights: UserRights | None, account: str, qos: str
) -> list[tuple[Qos, bool]]:
    """The job's QoS and the partition's (True) in the order in which Slurm applies them."""
    if not rights:
        return []
    by_name = {item.name: item for item in rights.qos}
    of_partition = by_name.get(partition.qos) if partition else None
    of_job = by_name.get(qos or rights.default_qos(account, partition.name if partition else ""))
    chain = [(of_partition, True), (of_job, False)]
    if of_job and "OverPartQOS" in of_job.flags:
        chain.reverse()
    return [(item, is_of_partition) for item, is_of_partition in chain if item]
