"""`sacctmgr --parsable2`: associations, QoS and users, whatever columns a release prints."""

from collections.abc import Iterator, Mapping

from carme.slurm.gres import memory_of_tres, parse_tres
from carme.slurm.parse.values import clean, integer, names, seconds
from carme.slurm.rights import Association, AssociationLimits, Qos

ASSOCIATION_FIELDS = (
    "Cluster",
    "Account",
    "User",
    "Partition",
    "ParentName",
    "QOS",
    "DefaultQOS",
    "MaxJobs",
    "MaxSubmit",
    "MaxWall",
    "MaxTRES",
    "MaxTRESPerNode",
    "GrpJobs",
    "GrpSubmit",
    "GrpTRES",
)
"""Names that every release since 17.11 takes; it refuses all columns for one that it lacks."""


def parse_associations(text: str, cluster: str = "") -> tuple[Association, ...]:
    """The associations in `sacctmgr show associations`, of one cluster if it is named."""
    return tuple(
        Association(
            account=raw["account"],
            user=raw.get("user", ""),
            partition=raw.get("partition", ""),
            parent=raw.get("parentname", ""),
            qos=names(raw.get("qos", "")),
            default_qos=clean(raw.get("defqos", "")),
            limits=_limits(raw),
        )
        for raw in _rows(text)
        if raw.get("account") and (not cluster or raw.get("cluster", cluster) == cluster)
    )


def parse_qos(text: str) -> tuple[Qos, ...]:
    """The QoS in `sacctmgr show qos`."""
    return tuple(
        Qos(name=raw["name"], flags=names(raw.get("flags", "")), limits=_limits(raw))
        for raw in _rows(text)
        if raw.get("name")
    )


def parse_default_accounts(text: str) -> dict[str, str]:
    """User to default account in `sacctmgr show users`."""
    return {
        raw["user"]: raw["defacct"] for raw in _rows(text) if raw.get("user") and raw.get("defacct")
    }


def parse_accounting(text: str) -> tuple[str, tuple[str, ...]]:
    """The cluster's name and what it enforces, in `scontrol show config`."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            found.setdefault(key.strip().lower(), clean(value))
    words = found.get("accountingstorageenforce", "").lower()
    # Spelled out it may be `all`, which must not be read as "no names".
    return found.get("clustername", ""), names(words, everybody="")


def _rows(text: str) -> Iterator[dict[str, str]]:
    """A dictionary a line, by column names without blanks; a line of another width is not one."""
    header: list[str] = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.rstrip("\r").split("|")]
        if not header:
            # sacctmgr may warn before it answers.
            if len(cells) > 1:
                header = [cell.replace(" ", "").lower() for cell in cells]
        elif len(cells) == len(header):
            yield dict(zip(header, cells, strict=True))


def _limits(raw: Mapping[str, str]) -> AssociationLimits:
    """The limits of a row; the columns of QoS and associations differ in names, not in sense."""

    def first(*columns: str) -> str:
        return next((raw[column] for column in columns if raw.get(column)), "")

    return AssociationLimits(
        max_seconds=seconds(first("maxwall", "maxwallpj")) or None,
        max_jobs=integer(first("maxjobs", "maxjobspu", "maxjobsperuser")),
        max_submitted=integer(first("maxsubmit", "maxsubmitpu", "maxsubmitjobsperuser")),
        group_jobs=integer(first("grpjobs")),
        group_submitted=integer(first("grpsubmit", "grpsubmitjobs")),
        per_job=_amounts(first("maxtres", "maxtrespj", "maxtresperjob")),
        per_node=_amounts(first("maxtrespernode", "maxtrespn")),
        per_user=_amounts(first("maxtrespu", "maxtresperuser")),
        per_account=_amounts(first("maxtrespa", "maxtresperaccount")),
        group=_amounts(first("grptres")),
    )


def _amounts(text: str) -> dict[str, int]:
    tres = parse_tres(text)
    found = {key: number for key, value in tres.items() if (number := integer(value)) is not None}
    if "mem" in tres:
        # A limit of zero is a limit: nonsense is none.
        found.pop("mem", None)
        if tres["mem"] == "0" or memory_of_tres(tres):
            found["mem"] = memory_of_tres(tres)
    return found
