"""Slurm's accounting database on the one-machine cluster: MariaDB, accounts, QoS and users."""

from carme.config.services import LOOPBACK
from carme.local.layout import Layout, Secrets
from carme.local.render import SLURM_DB
from carme.system.programs import run

ACCOUNT = "research"
QOS = {
    "normal": ("Priority=10", "MaxTRESPerUser=gres/gpu=6"),
    "short": ("Priority=100", "MaxWall=01:00:00", "MaxTRESPerUser=gres/gpu=2"),
}
"""Two, so that users can choose: `short` starts earlier and allows less."""


def make_database_files(layout: Layout) -> bool:
    """Create MariaDB's system tables; True if they did not exist."""
    data = layout.state / "mariadb"
    if (data / "mysql").is_dir():
        return False
    argv = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=mysql"]
    argv += ["--skip-test-db", "--auth-root-authentication-method=socket"]
    run(argv, timeout_seconds=120, log=layout.log / "install.log")
    return True


def make_database(layout: Layout, secrets: Secrets) -> None:
    """Create slurmdbd's database and its user, who may use no other database."""
    user = f"'slurm'@'{LOOPBACK}'"
    statements = f"""
        CREATE DATABASE IF NOT EXISTS {SLURM_DB};
        CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{secrets.mariadb_password}';
        GRANT ALL ON {SLURM_DB}.* TO {user};
    """
    run(["mariadb", "--no-defaults", "-S", layout.mariadb_socket], stdin=statements)


def make_associations(layout: Layout) -> bool:
    """Create cluster, QoS, account and users in slurmdbd; True if something was added.

    Runs before slurmctld starts, so that slurmctld knows all users from the start.
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
        settings = [f"cluster={name}", "Fairshare=100", f"Description={ACCOUNT}"]
        _sacctmgr(layout, "-i", "add", "account", ACCOUNT, *settings)
        changed = True
    existing = _listed(layout, "user", "user")
    levels = dict.fromkeys((*local.users, *local.admins), "None") | {local.view_user: "Operator"}
    for user, level in levels.items():
        if user not in existing:
            settings = [f"account={ACCOUNT}", f"cluster={name}", "Fairshare=1"]
            settings += [f"qos={','.join(QOS)}", "defaultqos=normal", f"AdminLevel={level}"]
            _sacctmgr(layout, "-i", "add", "user", user, *settings)
            changed = True
    return changed


def set_limits(layout: Layout) -> None:
    """Set the limits of each QoS; slurmctld must have registered its GPUs with slurmdbd before."""
    for qos, limits in QOS.items():
        _sacctmgr(layout, "-i", "modify", "qos", qos, "set", *limits)


def _sacctmgr(layout: Layout, *arguments: str) -> str:
    return run(
        ["sacctmgr", *arguments],
        added_env={"SLURM_CONF": str(layout.slurm_conf)},
        timeout_seconds=30,
    )


def _listed(layout: Layout, entity: str, column: str) -> set[str]:
    return set(_sacctmgr(layout, "-nP", "show", entity, f"format={column}").split())
