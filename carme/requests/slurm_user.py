"""A user of Slurm: a Unix user with groups, accounts and QoS."""

from dataclasses import dataclass

from carme.requests.resource_request import ResourceRequest
from carme.slurm.limits import Limit, job_limits
from carme.slurm.models import Partition, Reservation
from carme.slurm.rights import UserRights
from carme.slurm.snapshot import Snapshot

SOON_SECONDS = 24 * 3600
"""A reservation that begins within this time can be chosen."""


@dataclass(frozen=True)
class SlurmUser:
    """A user; `rights` is None while the accounts and QoS cannot be read."""

    name: str
    groups: frozenset[str] = frozenset()
    rights: UserRights | None = None

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that the user can name, the default one first."""
        return self.rights.account_names() if self.rights else ()

    @property
    def chooses_account(self) -> bool:
        """Whether the user has more than one account."""
        return len(self.accounts) > 1

    @property
    def chooses_qos(self) -> bool:
        """Whether any of the accounts has more than one QoS."""
        if self.rights is None:
            return False
        return any(len(association.qos) > 1 for association in self.rights.associations)

    def effective(self, account: str, qos: str, partition: str) -> tuple[str, str]:
        """Account and QoS of a job that names these or none; empty where Slurm does not say."""
        if not self.rights:
            return account, qos
        account = account or self.rights.default_account
        return account, qos or self.rights.default_qos(account, partition)

    def limits(
        self, partition: Partition, snapshot: Snapshot, account: str, qos: str
    ) -> list[Limit]:
        """The limits of a job of this user in the partition."""
        return job_limits(partition, snapshot.partitions, self.rights, account, qos)

    def may_use(self, partition: Partition) -> bool:
        """Whether the partition is open to one of the user's accounts."""
        if partition.allow_groups and not self.groups & set(partition.allow_groups):
            return False
        if not self.rights or not self.rights.associations:
            return True
        names = self.rights.account_names(partition.name)
        return any(not self.account_refused(partition, name) for name in names)

    def account_refused(self, partition: Partition, account: str) -> bool:
        """Whether the partition is closed to the account.

        Newer Slurm releases also accept an account whose parent is listed.
        """
        if account in partition.deny_accounts:
            return True
        allowed = set(partition.allow_accounts)
        return bool(allowed) and not self._with_parents(account) & allowed

    def reservations(self, snapshot: Snapshot, now: float) -> list[Reservation]:
        """The reservations that this user may name and that run now or soon."""
        return [
            reservation
            for reservation in snapshot.reservations
            if not reservation.maintenance
            and (reservation.starts_at or 0) < now + SOON_SECONDS
            and (reservation.ends_at is None or reservation.ends_at > now)
            and any(self.admitted(reservation, account) for account in self.accounts or ("",))
        ]

    def admitted(self, reservation: Reservation, account: str) -> bool:
        """Whether a job of this user in the account may use the reservation.

        Where users and accounts are listed, both must match; a name with a minus is shut out.
        """
        users, groups, accounts = reservation.users, reservation.groups, reservation.accounts
        if not (users or groups or accounts):
            return False
        if (users or groups) and not (
            _listed(users, {self.name}) or _listed(groups, set(self.groups))
        ):
            return False
        return not accounts or _listed(accounts, self._with_parents(account))

    def _with_parents(self, account: str) -> set[str]:
        parents = self.rights.lineage(account) if self.rights else ()
        return {account, *(parent.account for parent in parents)}


def within_rights(request: ResourceRequest, rights: UserRights) -> ResourceRequest:
    """The request without an account or QoS that the user with these `rights` may not name.

    Slurm plans no job for a foreign account. Account and QoS hardly change when a job fits, and
    Carme checks their limits itself.
    """
    account = request.account if request.account in rights.account_names(request.partition) else ""
    association = rights.association(account, request.partition)
    qos = request.qos if association and request.qos in association.qos else ""
    return request.model_copy(update={"account": account, "qos": qos})


def _listed(names: tuple[str, ...], own_names: set[str]) -> bool:
    if any(name.startswith("-") for name in names):
        return not own_names & {name.removeprefix("-") for name in names}
    return bool(own_names & set(names))
