"""Who may compute under which account and QoS, and how much: Slurm's associations as models.

Amounts are whole numbers per TRES (`cpu`, `node`, `gres/gpu`, `gres/gpu:a100`), `mem` in bytes.
A limit that is not there does not limit.
"""

from collections.abc import Mapping
from functools import cached_property

from pydantic import Field

from carme.requests.resource_request import ResourceRequest
from carme.slurm.models import SlurmModel

Amounts = Mapping[str, int]


class AssociationLimits(SlurmModel):
    """What one QoS or association allows; None and missing amounts: it says nothing of that."""

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
    """Of all jobs of one user that run at once; a QoS alone has it."""
    per_account: Amounts = Field(default_factory=dict)
    """Of all jobs of one account that run at once; a QoS alone has it."""
    group: Amounts = Field(default_factory=dict)
    """Of all jobs together that run at once."""


class Qos(SlurmModel):
    """A quality of service."""

    name: str
    flags: tuple[str, ...] = ()
    limits: AssociationLimits = AssociationLimits()

    @property
    def over_partition_qos(self) -> bool:
        """What it says goes before what the partition's own QoS says."""
        return "OverPartQOS" in self.flags

    @property
    def own_time(self) -> bool:
        """Its MaxWall stands in the place of the partition's limit."""
        return "PartitionTimeLimit" in self.flags and self.limits.max_seconds is not None


class Association(SlurmModel):
    """A user in an account, perhaps in one partition only; without a user, the account itself."""

    account: str
    user: str = ""
    partition: str = ""
    """Empty: any."""
    parent: str = ""
    """The account above; Slurm says it for accounts only."""
    below: tuple[str, ...] = ()
    """The accounts whose jobs count here, too; filled in for `UserRights.accounts`."""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    limits: AssociationLimits = AssociationLimits()
    """Those of the accounts above included, except for `group…`."""


class UserRights(SlurmModel):
    """What one user may choose from, as the accounting database said at `taken_at`."""

    user: str
    taken_at: float = 0
    error: str = ""
    """Why it is not fresher, when slurmdbd is away."""
    enforced: tuple[str, ...] = ()
    """Slurm's AccountingStorageEnforce: `associations`, `limits`, `qos` …"""
    default_account: str = ""
    associations: tuple[Association, ...] = ()
    """The user's own."""
    accounts: tuple[Association, ...] = ()
    """The user's accounts and those above them."""
    qos: tuple[Qos, ...] = ()
    """All of the cluster: partitions have theirs, too."""

    @property
    def limited(self) -> bool:
        """Whether Slurm enforces limits here."""
        return bool({"limits", "safe", "all"} & set(self.enforced))

    def account_names(self, partition: str = "") -> tuple[str, ...]:
        """The accounts that the user may use (in this partition), the default one first."""
        names = {
            own.account: None
            for own in self.associations
            if not partition or own.partition in ("", partition)
        }
        return tuple(sorted(names, key=lambda name: (name != self.default_account, name)))

    def association(self, account: str, partition: str) -> Association | None:
        """What holds for a job in this account and partition; the partition's own goes first."""
        wanted = account or self.default_account
        found = [own for own in self.associations if own.account == wanted]
        for where in (partition, ""):
            for own in found:
                if own.partition == where:
                    return own
        return None

    def default_qos(self, account: str, partition: str) -> str:
        """The QoS of a job that names none; empty if Slurm does not say."""
        own = self.association(account, partition)
        if own is None:
            return ""
        if own.default_qos or len(own.qos) == 1:
            return own.default_qos or own.qos[0]
        return "normal" if "normal" in own.qos else ""

    def qos_named(self, name: str) -> Qos | None:
        """The QoS with this name."""
        return next((qos for qos in self.qos if qos.name == name), None)

    def lineage(self, account: str) -> tuple[Association, ...]:
        """The account and all above it, nearest first."""
        by_name = {item.account: item for item in self.accounts}
        found: list[Association] = []
        name = account or self.default_account
        while name in by_name and by_name[name] not in found:
            found.append(by_name[name])
            name = found[-1].parent
        return tuple(found)


class Rights(SlurmModel):
    """The rights of all users, from one reading."""

    enforced: tuple[str, ...] = ()
    associations: tuple[Association, ...] = ()
    qos: tuple[Qos, ...] = ()
    default_accounts: Mapping[str, str] = Field(default_factory=dict)

    def knows(self, user: str) -> bool:
        """Whether the user has any account."""
        return user in self._by_user

    def of(self, user: str, taken_at: float = 0, error: str = "") -> UserRights:
        """The rights of one user; empty for a user without an account."""
        own = self._by_user.get(user, ())
        accounts = {item.account: item for item in self._by_user.get("", ())}
        needed: dict[str, Association] = {}
        for name in (item.account for item in own):
            while name in accounts and name not in needed:
                needed[name] = accounts[name].model_copy(update={"below": self._below(name)})
                name = accounts[name].parent
        return UserRights(
            user=user,
            taken_at=taken_at,
            error=error,
            enforced=self.enforced,
            default_account=self.default_accounts.get(user, ""),
            associations=own,
            accounts=tuple(needed.values()),
            qos=self.qos,
        )

    # Ten thousand associations are searched once per reading, not once per request.
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
        found: dict[str, None] = {}
        waiting = list(self._children.get(account, ()))
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = None
                waiting.extend(self._children.get(name, ()))
        return tuple(found)


def asked_as(choice: ResourceRequest, own: UserRights) -> ResourceRequest:
    """The question as a user with `own` rights can ask it: without what only others may name.

    Slurm refuses to plan for an account that is not the asker's. Account and QoS matter little
    for when a job fits; what of them limits it is known without asking.
    """
    account = choice.account if choice.account in own.account_names(choice.partition) else ""
    mine = own.association(account, choice.partition)
    qos = choice.qos if mine and choice.qos in mine.qos else ""
    return choice.model_copy(update={"account": account, "qos": qos})
