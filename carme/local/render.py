"""Folders and configuration files of the one-machine cluster, all below one folder."""

import grp
import os
import re
import secrets as random
import shutil
import sys
from pathlib import Path
from typing import Any

import bcrypt
import tomli_w

from carme.config.services import LOOPBACK
from carme.helper.models import VERBS
from carme.local import host_checks, vgpu
from carme.local.layout import Layout, Secrets
from carme.node import hook_interface
from carme.system.files import folder, write
from carme.templates import PROMETHEUS_RULES, prometheus_rules, render

SLURM_DB = "slurm_acct"
_BCRYPT_ROUNDS = 4
"""bcrypt's minimum: the passwords are random, and more rounds would only let whoever sends wrong
ones use up processor time."""
File = tuple[Path, str, dict[str, Any]]
"""Path, text, and options of `write`."""


def make_folders(layout: Layout) -> None:
    """Create every folder with its owner and mode."""
    config, local = layout.config, layout.config.local
    etc, run, log, state = layout.etc, layout.run, layout.log, layout.state
    for path in (layout.dir, etc, run, log, state, state / "slurm", state / "tmp"):
        folder(path)
    for path in (config.images.folder, layout.vgpu_state, layout.gpu_allocations):
        folder(path)
    (log / "supervisord.log").touch()  # supervisord sets its umask after it has opened the log
    for path in log.glob("*.log*"):
        path.chmod(0o600)
    for node in local.nodes:
        folder(state / "slurm" / node.name)
    private, readable_by_group = 0o700, 0o750
    for path, mode, owner in (
        (run / "munge", 0o755, "munge"),
        (etc / "munge", private, "munge"),
        (state / "munge", private, "munge"),
        (log / "munge", private, "munge"),
        (run / "mariadb", 0o755, "mysql"),
        (state / "mariadb", private, "mysql"),
        (state / "slurm/ctld", private, "slurm"),
        (run / "slurm", 0o755, "slurm"),
        (log / "slurm", readable_by_group, "slurm"),
        (run / "rest", private, local.view_user),
        (config.view.socket.parent, 0o755, local.view_user),
        (etc / "view", readable_by_group, local.view_user),
        (layout.hub_dir, private, config.hub.user),
        # Prometheus has the metrics of all users' jobs: no other user may read its files.
        (state / "prometheus", private, "prometheus"),
        (state / "alertmanager", private, "prometheus"),
        (etc / "prometheus", readable_by_group, "prometheus"),
        (etc / "prometheus/rules", readable_by_group, "prometheus"),
        (config.prometheus.targets.parent, private, "prometheus"),
        (layout.service_dir, private, config.service.user),
        (state / "exporter", private, local.exporter_user),
        (etc / "exporter", readable_by_group, local.exporter_user),
    ):
        folder(path, mode=mode, owner=owner)
    # Only the exporter's group may see which job holds which GPU; listeners create sockets there.
    exporter = grp.getgrnam(local.exporter_user).gr_name
    for name, mode in (("jobs", 0o2750), ("listen", 0o775), ("top", 0o775)):
        shutil.chown(folder(layout.gpu_allocations / name, mode=mode), "root", exporter)
        (layout.gpu_allocations / name).chmod(mode)


def write_files(layout: Layout, secrets: Secrets) -> set[Path]:
    """Write every configuration file; returns those that changed."""
    config = layout.config
    changed = {
        path for path, text, options in _files(layout, secrets) if write(path, text, **options)
    }
    munge_key = layout.etc / "munge/munge.key"
    if not munge_key.exists():
        munge_key.touch(mode=0o600)
        munge_key.write_bytes(random.token_bytes(1024))
        munge_key.chmod(0o600)
        shutil.chown(munge_key, "munge", "munge")
    prometheus = layout.etc / "prometheus"
    for path, login, owner in (
        (prometheus / "web.yml", secrets.prometheus_login, "prometheus"),
        (prometheus / "alertmanager-web.yml", secrets.alertmanager_login, "prometheus"),
        (config.exporter.web_config, secrets.exporter_login, config.local.exporter_user),
    ):
        if path and _write_login(path, login, owner):
            changed.add(path)
    return changed


def _files(layout: Layout, secrets: Secrets) -> list[File]:
    config, local = layout.config, layout.config.local
    slurm = layout.etc / "slurm"
    ports = layout.ports()
    common: dict[str, Any] = {
        "cluster_name": config.cluster.name,
        "slurm_user": "slurm",
        "munge_socket": layout.munge_socket,
        "loopback_only": True,
        "run_dir": layout.run / "slurm",
        "log_dir": layout.log / "slurm",
        "database_host": "localhost",
        "slurmdbd_port": local.ports.slurmdbd,
    }
    nodes = [
        {
            **node.model_dump(),
            "hostname": layout.hostname,
            "address": LOOPBACK,
            "port": ports[f"slurmd-{node.name}"],
            "minors": layout.minors(node),
        }
        for node in local.nodes
    ]
    library = vgpu.job_environment(layout.vgpu_library, layout.vgpu_state) if layout.virtual else {}
    return [
        (layout.carme_toml, _carme_toml(layout, library), {}),
        *(
            (
                slurm / event,
                hook_interface.script(
                    event, layout.gpu_allocations, config.hub.api_base, environment=library
                ),
                {"mode": 0o755},
            )
            for event in ("prolog", "epilog")
        ),
        (
            layout.slurm_conf,
            render(
                "slurm.conf",
                **common,
                controller_host=layout.hostname,
                controller_address=LOOPBACK,
                slurmctld_port=local.ports.slurmctld,
                state_dir=layout.state / "slurm",
                first_job_id=local.first_job_id,
                prolog=slurm / "prolog",
                epilog=slurm / "epilog",
                slurmd_parameters="config_overrides",
                nodes=nodes,
                partitions=[partition.model_dump() for partition in local.partitions],
            ),
            {},
        ),
        (slurm / "gres.conf", render("gres.conf", autodetect=False, nodes=nodes), {}),
        (
            slurm / "cgroup.conf",
            render(
                "cgroup.conf",
                cgroup_plugin=host_checks.cgroup_plugin(),
                # Nodes declare more CPUs than the machine has, so jobs cannot be bound to CPUs.
                constrain_cores=False,
                ignore_systemd=True,
            ),
            {},
        ),
        (
            slurm / "job_container.conf",
            render("job_container.conf", job_tmp_dir=layout.state / "tmp"),
            {},
        ),
        (
            slurm / "slurmdbd.conf",
            render(
                "slurmdbd.conf",
                **common,
                database_address=LOOPBACK,
                mariadb_address=LOOPBACK,
                mariadb_port=local.ports.mariadb,
                mariadb_user="slurm",
                mariadb_password=secrets.mariadb_password,
                mariadb_database=SLURM_DB,
            ),
            {"mode": 0o600, "owner": "slurm"},
        ),
        (layout.etc / "jupyterhub_config.py", render("jupyterhub_config.py.j2"), {}),
        *_prometheus_files(layout, secrets),
        (
            layout.etc / "view/prometheus-login",
            ":".join(secrets.prometheus_login),
            {"mode": 0o600, "owner": local.view_user},
        ),
    ]


def _carme_toml(layout: Layout, library: dict[str, str]) -> str:
    """The configuration for services, and where sessions find virtual GPUs."""
    data = layout.config.model_dump(mode="json", exclude_none=True)
    if layout.virtual:
        # Without a driver, Apptainer's GPU flag only prints a warning.
        data["session"]["gpu_flag"] = ""
        data["session"]["environment"] |= library
        data["session"]["binds"] = sorted(
            {*data["session"]["binds"], *(f"{path}:{path}:ro" for path in library.values())}
        )
    return tomli_w.dumps(data)


def _write_login(file: Path, login: tuple[str, str], owner: str) -> bool:
    """Write a login for Prometheus' tools, only if the password changed: each hash has a salt."""
    user, password = login
    if file.exists():
        stored_hash = file.read_text(encoding="ascii").split()[-1]
        has_rounds = stored_hash[4:6] == f"{_BCRYPT_ROUNDS:02}"
        if has_rounds and bcrypt.checkpw(password.encode(), stored_hash.encode()):
            return False
    new_hash = bcrypt.hashpw(password.encode(), bcrypt.gensalt(_BCRYPT_ROUNDS)).decode()
    text = render("prometheus-web.yml", prometheus_user=user, prometheus_password_bcrypt=new_hash)
    return write(file, text, mode=0o600, owner=owner)


def sudoers_path(layout: Layout) -> Path:
    """The sudo rule that lets the hub act as a user: the only file outside the cluster's folder."""
    return Path("/etc/sudoers.d") / f"carme-{layout.config.hub.user}"


def write_sudoers(layout: Layout) -> bool:
    """Let the hub's user run the helper as a member of the users' group, and nothing else."""
    hub = layout.config.hub
    text = render(
        "sudoers",
        # Two clusters on a machine need different names.
        alias="CARME_" + re.sub("[^A-Z0-9]", "_", hub.user.upper()),
        hub_user=hub.user,
        users_group=hub.users_group,
        helper=Path(sys.prefix) / "bin/carme-helper",
        config=layout.carme_toml,
        verbs=VERBS,
        make_homes=hub.make_homes,
    )
    path = sudoers_path(layout)
    os.umask(0o022)
    return write(path, text, mode=0o440)


def _prometheus_files(layout: Layout, secrets: Secrets) -> list[File]:
    config, etc, ports = layout.config, layout.etc / "prometheus", layout.ports()
    secret = {"mode": 0o600, "owner": "prometheus"}
    return [
        (
            etc / "prometheus.yml",
            render(
                "prometheus.yml",
                cluster_name=config.cluster.name,
                prometheus=config.prometheus.model_dump(),
                rules_dir=etc / "rules",
                prometheus_user=secrets.prometheus_login[0],
                prometheus_password_file=etc / "password",
                prometheus_address=f"{LOOPBACK}:{config.local.ports.prometheus}",
                alertmanager_user=secrets.alertmanager_login[0],
                alertmanager_password_file=etc / "alertmanager-password",
                alertmanager_address=f"{LOOPBACK}:{ports['alertmanager']}",
                hub_token_file=etc / "hub-token",
                base_url=config.hub.base_url,
                hub_address=f"{LOOPBACK}:{config.hub.api_port}",
                service_address=f"{config.service.listen}:{config.service.port}",
                exporter_user=secrets.exporter_login[0],
                exporter_password_file=etc / "exporter-password",
                controller_exporter=f"{LOOPBACK}:{ports['exporter-controller']}",
            ),
            {},
        ),
        (etc / "alertmanager.yml", render("alertmanager.yml", alerts=config.alerts), secret),
        *(
            (etc / "rules" / name, prometheus_rules(name, config.prometheus.runbooks_url), {})
            for name in PROMETHEUS_RULES
        ),
        *(
            (etc / name, text, secret)
            for name, text in (
                ("password", secrets.prometheus_password),
                ("alertmanager-password", secrets.alertmanager_password),
                ("hub-token", secrets.hub_metrics_token),
                ("exporter-password", secrets.exporter_password),
            )
        ),
    ]
