"""What a job in one account, QoS and partition is held to: pure, from what Slurm says.

Of limits on the same thing Slurm takes the first that is set: the partition's QoS, the job's QoS
(before it with OverPartQOS), the user's association, the accounts above.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from carme.slurm.models import Job, Partition
from carme.slurm.rights import Association, Qos, UserRights

SECONDS, JOBS, SUBMITTED = "seconds", "jobs", "submitted"
Scope = Literal["job", "node", "user", "account", "group"]


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` of `what` (SECONDS, JOBS, SUBMITTED or a TRES), says `who`.

    With a scope beyond the job, what others use counts: those whom the last four fields name.
    """

    what: str
    most: int
    who: str
    scope: Scope = "job"
    user: str = ""
    accounts: tuple[str, ...] = ()
    qos: str = ""
    partitions: tuple[str, ...] = ()

    def counts(self, job: Job) -> bool:
        """Whether this job uses up some of it; waiting jobs do of SUBMITTED only."""
        # Thousands of jobs pass here for each look at the form: what is cheap goes first.
        return (
            (not self.user or self.user == job.user)
            and (not self.qos or self.qos == job.qos)
            and (not self.accounts or job.account in self.accounts)
            and (not self.partitions or job.partition in self.partitions)
            and (job.state.active or (self.what == SUBMITTED and job.state.waiting))
        )

    def used(self, jobs: Iterable[Job]) -> int:
        """How much is taken; nothing of what holds for each job alone."""
        if self.scope in ("job", "node"):
            return 0
        return sum(amount(job, self.what) for job in jobs if self.counts(job))


def amount(job: Job, what: str) -> int:
    """How much of it a job takes; 0 of what is not known here."""
    if what in (JOBS, SUBMITTED):
        return 1
    if what == "gres/gpu":
        return job.gpu_count
    if what == "cpu":
        return job.cpus
    if what == "mem":
        return job.memory_bytes
    if what == "node":
        return job.node_count
    if what == SECONDS:
        return job.limit_seconds or 0
    return job.gpus.get(what.removeprefix("gres/gpu:"), 0) if what.startswith("gres/gpu:") else 0


def time_limits(
    partition: Partition | None, rights: UserRights | None, account: str, qos: str
) -> list[Limit]:
    """How long a job there may be: the partition's limit, and the first of QoS and association."""
    applicable = []
    chain = _qos_chain(partition, rights, account, qos)
    if partition and partition.max_seconds is not None and not any(q.own_time for q, _ in chain):
        applicable.append(Limit(SECONDS, partition.max_seconds, f"partition {partition.name}"))
    if not rights or not rights.limited:
        return applicable
    own = rights.association(account, partition.name if partition else "")
    limits = [(q.limits.max_seconds, f"QoS {q.name}") for q, _ in chain]
    limits += [(own.limits.max_seconds, f"account {own.account}")] if own else []
    first = next(((most, who) for most, who in limits if most is not None), None)
    return [*applicable, Limit(SECONDS, *first)] if first else applicable


def job_limits(
    partition: Partition,
    partitions: Iterable[Partition],
    rights: UserRights | None,
    account: str,
    qos: str,
) -> list[Limit]:
    """All that holds for a job of this user there; only the partition's without `rights`."""
    found = time_limits(partition, rights, account, qos)
    own = rights.association(account, partition.name) if rights else None
    if not rights or not rights.limited or own is None:
        return found
    chain = _qos_chain(partition, rights, account, qos)
    whose = [
        (q, q.name if not of_partition else "", _with_qos(partitions, q) if of_partition else ())
        for q, of_partition in chain
    ]
    me, name = rights.user, own.account
    single = [*((q.limits, f"QoS {q.name}") for q, _ in chain), (own.limits, f"account {name}")]
    found += _first((limits.per_job, who, "job", "", (), "", ()) for limits, who in single)
    found += _first((limits.per_node, who, "node", "", (), "", ()) for limits, who in single)
    found += _first(
        (_with_counts(q.limits.per_user, q.limits.max_jobs, q.limits.max_submitted),
         f"QoS {q.name}", "user", me, (), word, where)
        for q, word, where in whose
    )  # fmt: skip
    found += _first(
        (q.limits.per_account, f"QoS {q.name}", "account", "", (name,), word, where)
        for q, word, where in whose
    )
    # Of a group's limits each holds by itself.
    for q, word, where in whose:
        group = _with_counts(q.limits.group, q.limits.group_jobs, q.limits.group_submitted)
        found += _first([(group, f"QoS {q.name}", "group", "", (), word, where)])
    return [*found, *_account_bounds(rights, own)]


def _account_bounds(rights: UserRights, own: Association) -> Iterator[Limit]:
    mine = own.limits
    where = (own.partition,) if own.partition else ()
    here = (own.account,)
    single = _with_counts({}, mine.max_jobs, mine.max_submitted)
    alone = _with_counts(mine.group, mine.group_jobs, mine.group_submitted)
    who = f"account {own.account}"
    for amounts in (single, alone):
        yield from _first([(amounts, who, "user", rights.user, here, "", where)])
    for account in rights.lineage(own.account):
        limits, members = account.limits, (account.account, *account.below)
        group = _with_counts(limits.group, limits.group_jobs, limits.group_submitted)
        yield from _first([(group, f"account {account.account}", "group", "", members, "", ())])


_Layer = tuple[Mapping[str, int], str, Scope, str, tuple[str, ...], str, tuple[str, ...]]


def _first(layers: Iterable[_Layer]) -> Iterator[Limit]:
    """A bound for each thing, from the first layer that says something of it."""
    seen: set[str] = set()
    for amounts, who, scope, user, accounts, qos, partitions in layers:
        for what, most in amounts.items():
            if what not in seen:
                yield Limit(what, most, who, scope, user, accounts, qos, partitions)
        seen |= set(amounts)


def _with_counts(
    amounts: Mapping[str, int], jobs: int | None, submitted: int | None
) -> dict[str, int]:
    counts = {JOBS: jobs, SUBMITTED: submitted}
    return {**amounts, **{what: most for what, most in counts.items() if most is not None}}


def _qos_chain(
    partition: Partition | None, rights: UserRights | None, account: str, qos: str
) -> list[tuple[Qos, bool]]:
    """The job's QoS and the partition's (True) in the order in which they count."""
    if not rights:
        return []
    of_partition = rights.qos_named(partition.qos) if partition and partition.qos else None
    where = partition.name if partition else ""
    of_job = rights.qos_named(qos or rights.default_qos(account, where))
    chain = [(of_partition, True), (of_job, False)]
    if of_job and of_job.over_partition_qos:
        chain.reverse()
    return [(q, flag) for q, flag in chain if q]


def _with_qos(partitions: Iterable[Partition], qos: Qos) -> tuple[str, ...]:
    return tuple(partition.name for partition in partitions if partition.qos == qos.name)
