"""The accounts and QoS that users may use, and their limits: Slurm's associations as models.

Amounts are whole numbers per TRES (`cpu`, `node`, `gres/gpu`, `gres/gpu:a100`), `mem` in bytes.
A missing limit does not limit.
"""

from collections.abc import Mapping
from functools import cached_property

from pydantic import Field

from carme.slurm.models import SlurmModel

Amounts = Mapping[str, int]


class JobLimits(SlurmModel):
    """The limits of one QoS or association; None and missing amounts do not limit."""

    max_seconds: int | None = None
    """MaxWall: the longest that one job may ask for."""
    max_jobs: int | None = None
    """Jobs of one user that run at once."""
    max_submitted: int | None = None
    """Jobs of one user that wait or run."""
    group_jobs: int | None = None
    """The same for all users together."""
    group_submitted: int | None = None
    per_job: Amounts = Field(default_factory=dict)
    per_node: Amounts = Field(default_factory=dict)
    per_user: Amounts = Field(default_factory=dict)
    """Of all jobs of one user that run at once; only QoS have it."""
    per_account: Amounts = Field(default_factory=dict)
    """Of all jobs of one account that run at once; only QoS have it."""
    group: Amounts = Field(default_factory=dict)
    """Of all jobs together that run at once."""
    minutes_per_job: Amounts = Field(default_factory=dict)
    """MaxTRESMins: of one job, amount times time limit."""


class Qos(SlurmModel):
    """A quality of service."""

    name: str
    flags: tuple[str, ...] = ()
    limits: JobLimits = JobLimits()

    @property
    def replaces_partition_time(self) -> bool:
        """Its MaxWall replaces the partition's time limit."""
        return "PartitionTimeLimit" in self.flags and self.limits.max_seconds is not None


class Association(SlurmModel):
    """A user in an account, perhaps in one partition only; without a user, the account itself."""

    account: str
    user: str = ""
    partition: str = ""
    """Empty: any."""
    parent: str = ""
    """The account above; only accounts have one."""
    below: tuple[str, ...] = ()
    """The accounts whose jobs count here, too; only `UserRights.accounts` have them."""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    limits: JobLimits = JobLimits()
    """With those of the accounts above, except for `group…`."""


class UserRights(SlurmModel):
    """One user's accounts, QoS and their limits, read from the accounting database."""

    user: str
    taken_at: float = 0
    error: str = ""
    """Why a newer reading failed, while slurmdbd is away."""
    enforced: tuple[str, ...] = ()
    """Slurm's AccountingStorageEnforce: `associations`, `limits`, `qos` …"""
    default_account: str = ""
    associations: tuple[Association, ...] = ()
    """The user's own."""
    accounts: tuple[Association, ...] = ()
    """The user's accounts and those above them."""
    qos: tuple[Qos, ...] = ()
    """All of the cluster, because partitions have a QoS, too."""

    @property
    def limited(self) -> bool:
        """Whether Slurm enforces limits here."""
        return bool({"limits", "safe", "all"} & set(self.enforced))

    def account_names(self, partition: str = "") -> tuple[str, ...]:
        """The accounts that the user may use (in this partition), the default one first."""
        names = {
            association.account: None
            for association in self.associations
            if not partition or association.partition in ("", partition)
        }
        return tuple(sorted(names, key=lambda name: (name != self.default_account, name)))

    def association(self, account: str, partition: str) -> Association | None:
        """The association for a job in this account; one for this partition goes first."""
        name = account or self.default_account
        by_partition = {own.partition: own for own in self.associations if own.account == name}
        return by_partition.get(partition) or by_partition.get("")

    def default_qos(self, account: str, partition: str) -> str:
        """The QoS of a job that names none; empty if it is unknown."""
        association = self.association(account, partition)
        if association is None:
            return ""
        if association.default_qos or len(association.qos) == 1:
            return association.default_qos or association.qos[0]
        return "normal" if "normal" in association.qos else ""

    def lineage(self, account: str) -> tuple[Association, ...]:
        """The account and all above it, nearest first."""
        by_name = {item.account: item for item in self.accounts}
        lineage: dict[str, Association] = {}
        name = account or self.default_account
        while name in by_name and name not in lineage:
            lineage[name] = by_name[name]
            name = by_name[name].parent
        return tuple(lineage.values())


class Rights(SlurmModel):
    """The rights of all users, from one reading."""

    enforced: tuple[str, ...] = ()
    associations: tuple[Association, ...] = ()
    qos: tuple[Qos, ...] = ()
    default_accounts: Mapping[str, str] = Field(default_factory=dict)

    def has_account(self, user: str) -> bool:
        """Whether the user has any account."""
        return user in self._by_user

    def of(self, user: str, taken_at: float = 0, error: str = "") -> UserRights:
        """The rights of one user; empty for a user without an account."""
        associations = self._by_user.get(user, ())
        accounts = {item.account: item for item in self._by_user.get("", ())}
        own_and_above: dict[str, Association] = {}
        for name in (item.account for item in associations):
            while name in accounts and name not in own_and_above:
                below = {"below": self._below(name)}
                own_and_above[name] = accounts[name].model_copy(update=below)
                name = accounts[name].parent
        return UserRights(
            user=user,
            taken_at=taken_at,
            error=error,
            enforced=self.enforced,
            default_account=self.default_accounts.get(user, ""),
            associations=associations,
            accounts=tuple(own_and_above.values()),
            qos=self.qos,
        )

    # Ten thousand associations are grouped once per reading, not once per request.
    @cached_property
    def _by_user(self) -> dict[str, tuple[Association, ...]]:
        lists: dict[str, list[Association]] = {}
        for item in self.associations:
            lists.setdefault(item.user, []).append(item)
        return {user: tuple(items) for user, items in lists.items()}

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = {}
        for item in self._by_user.get("", ()):
            if item.parent != item.account:
                children.setdefault(item.parent, []).append(item.account)
        return children

    def _below(self, account: str) -> tuple[str, ...]:
        below: dict[str, None] = {}
        pending = list(self._children.get(account, ()))
        while pending:
            name = pending.pop()
            if name not in below:
                below[name] = None
                pending.extend(self._children.get(name, ()))
        return tuple(below)
