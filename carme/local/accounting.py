"""Slurm's accounting: the database, and who may compute how much."""

from carme.config.services import LOOPBACK
from carme.local.layout import Layout
from carme.local.render import SLURM_DB
from carme.local.secrets import Secrets
from carme.system.programs import run

ACCOUNT = "research"
QOS = {
    "normal": ("Priority=10", "MaxTRESPerUser=gres/gpu=6"),
    "short": ("Priority=100", "MaxWall=01:00:00", "MaxTRESPerUser=gres/gpu=2"),
}
"""Two, so that a user has a choice: `short` waits less and gets less."""


def make_database_files(layout: Layout) -> bool:
    """MariaDB's own tables; True if they were not there."""
    data = layout.state / "mariadb"
    if (data / "mysql").is_dir():
        return False
    run(
        [
            *("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=mysql"),
            *("--skip-test-db", "--auth-root-authentication-method=socket"),
        ],
        timeout=120,
        log=layout.log / "install.log",
    )
    return True


def make_database(layout: Layout, secrets: Secrets) -> None:
    """The database of slurmdbd and its user, who reaches nothing else."""
    user = f"'slurm'@'{LOOPBACK}'"
    statements = f"""
        CREATE DATABASE IF NOT EXISTS {SLURM_DB};
        CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{secrets.mariadb_password}';
        GRANT ALL ON {SLURM_DB}.* TO {user};
    """
    run(["mariadb", "--no-defaults", "-S", layout.mariadb_socket], input=statements)


def make_associations(layout: Layout) -> bool:
    """Cluster, QoS, account and users in slurmdbd; True if something was added.

    Done before slurmctld starts, which then knows everybody from its first moment.
    """
    local, name = layout.config.local, layout.config.cluster.name
    changed = False
    if name not in _listed(layout, "cluster", "cluster"):
        _sacctmgr(layout, "-i", "add", "cluster", name)
        changed = True
    for qos in QOS.keys() - _listed(layout, "qos", "name"):
        _sacctmgr(layout, "-i", "add", "qos", qos)
        changed = True
    if ACCOUNT not in _listed(layout, "account", "account"):
        what = ("account", ACCOUNT, f"cluster={name}", "Fairshare=100", f"Description={ACCOUNT}")
        _sacctmgr(layout, "-i", "add", *what)
        changed = True
    known = _listed(layout, "user", "user")
    people = dict.fromkeys((*local.users, *local.admins), "None") | {local.view_user: "Operator"}
    for user, level in people.items():
        if user not in known:
            where = (f"account={ACCOUNT}", f"cluster={name}", "Fairshare=1")
            rights = (f"qos={','.join(QOS)}", "defaultqos=normal", f"AdminLevel={level}")
            _sacctmgr(layout, "-i", "add", "user", user, *where, *rights)
            changed = True
    return changed


def set_limits(layout: Layout) -> None:
    """The QoS's limits; GPUs can be limited once slurmctld has told slurmdbd that it has some."""
    for qos, limits in QOS.items():
        _sacctmgr(layout, "-i", "modify", "qos", qos, "set", *limits)


def _sacctmgr(layout: Layout, *words: str) -> str:
    return run(["sacctmgr", *words], env={"SLURM_CONF": str(layout.slurm_conf)}, timeout=30)


def _listed(layout: Layout, what: str, column: str) -> set[str]:
    return set(_sacctmgr(layout, "-nP", "show", what, f"format={column}").split())
