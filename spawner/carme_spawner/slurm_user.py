"""Who asks for a session: a Unix user with groups, and with rights in Slurm."""

from dataclasses import dataclass

from carme.slurm.limits import Limit, job_limits
from carme.slurm.models import Partition, Reservation
from carme.slurm.rights import UserRights
from carme.slurm.snapshot import Snapshot

SOON_SECONDS = 24 * 3600
"""A reservation that begins within this time can be chosen."""


@dataclass(frozen=True)
class SlurmUser:
    """A user; without `rights` nobody knows what accounts and QoS there are."""

    name: str
    groups: frozenset[str] = frozenset()
    rights: UserRights | None = None

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that can be named, the default one first."""
        return self.rights.account_names() if self.rights else ()

    def qos(self, account: str, partition: str) -> tuple[str, ...]:
        """The QoS that can be named there."""
        own = self.rights.association(account, partition) if self.rights else None
        return own.qos if own else ()

    @property
    def chooses_account(self) -> bool:
        """Whether there is more than one."""
        return len(self.accounts) > 1

    @property
    def chooses_qos(self) -> bool:
        """Whether any of the accounts has more than one."""
        return any(len(own.qos) > 1 for own in self.rights.associations) if self.rights else False

    def effective(self, account: str, qos: str, partition: str) -> tuple[str, str]:
        """Account and QoS of a job that names these, or none; empty where Slurm does not say."""
        if not self.rights:
            return account, qos
        account = account or self.rights.default_account
        return account, qos or self.rights.default_qos(account, partition)

    def bounds(
        self, partition: Partition, snapshot: Snapshot, account: str, qos: str
    ) -> list[Limit]:
        """What a job of this person there is held to."""
        return job_limits(partition, snapshot.partitions, self.rights, account, qos)

    def may_use(self, partition: Partition) -> bool:
        """Whether any choice of account gets this person into the partition."""
        if partition.allow_groups and not self.groups & set(partition.allow_groups):
            return False
        if not self.rights or not self.rights.associations:
            return True
        names = self.rights.account_names(partition.name)
        return any(not self.account_refused(partition, name) for name in names)

    def account_refused(self, partition: Partition, account: str) -> bool:
        """Whether the partition is closed to the account.

        Newer releases also count the accounts above, so a list with one of those opens it.
        """
        if account in partition.deny_accounts:
            return True
        line = {account}
        line |= {item.account for item in self.rights.lineage(account)} if self.rights else set()
        return bool(partition.allow_accounts) and not line & set(partition.allow_accounts)

    def reservations(self, snapshot: Snapshot, now: float) -> list[Reservation]:
        """Those that this person may name and that run now or soon."""
        return [
            plan
            for plan in snapshot.reservations
            if not plan.maintenance
            and (plan.starts_at or 0) < now + SOON_SECONDS
            and (plan.ends_at is None or plan.ends_at > now)
            and any(self.admitted(plan, account) for account in self.accounts or ("",))
        ]

    def admitted(self, plan: Reservation, account: str) -> bool:
        """Whether a job of this person in the account may use it.

        Both lists must agree where both are given; a minus in front of a name shuts it out.
        """
        line = {account}
        line |= {item.account for item in self.rights.lineage(account)} if self.rights else set()
        people = _listed(plan.users, {self.name}) if plan.users else None
        if plan.groups:
            people = bool(people) or _listed(plan.groups, set(self.groups))
        accounts = _listed(plan.accounts, line) if plan.accounts else None
        return people is not False and accounts is not False and not people is accounts is None


def _listed(names: tuple[str, ...], mine: set[str]) -> bool:
    if any(name.startswith("-") for name in names):
        return not mine & {name.removeprefix("-") for name in names}
    return bool(mine & set(names))
