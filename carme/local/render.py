"""Folders and configuration files of the cluster, below its one folder."""

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
from carme.local import host_checks, monitoring, vgpu
from carme.local.layout import Layout
from carme.local.secrets import Secrets
from carme.node import gpu_allocations
from carme.system.files import folder, write
from carme.templates import render

SLURM_DB = "slurm_acct"


def make_folders(layout: Layout) -> None:
    """Every folder with its owner; who may not read it cannot."""
    config = layout.config
    folder(layout.dir)
    folder(layout.etc)
    folder(layout.run)
    folder(layout.log)
    folder(layout.state)
    for name, owner in (("munge", "munge"), ("mariadb", "mysql")):
        folder(layout.run / name, owner=owner)
    folder(layout.etc / "munge", mode=0o700, owner="munge")
    folder(layout.state / "munge", mode=0o700, owner="munge")
    folder(layout.log / "munge", mode=0o700, owner="munge")
    folder(layout.state / "mariadb", mode=0o700, owner="mysql")
    folder(layout.state / "slurm")
    folder(layout.state / "slurm/ctld", mode=0o700, owner="slurm")
    for node in config.local.nodes:
        folder(layout.state / "slurm" / node.name)
    folder(layout.run / "slurm", owner="slurm")
    folder(layout.log / "slurm", mode=0o750, owner="slurm")
    folder(layout.state / "tmp")
    folder(layout.run / "rest", mode=0o700, owner=config.local.view_user)
    folder(config.view.socket.parent, owner=config.local.view_user)
    folder(layout.etc / "view", mode=0o750, owner=config.local.view_user)
    folder(layout.hub_dir, mode=0o700, owner=config.hub.user)
    monitoring.make_folders(layout)
    folder(layout.service_dir, mode=0o700, owner=config.service.user)
    folder(config.images.folder)
    exporter = grp.getgrnam(config.local.exporter_user).gr_name
    folder(layout.state / "exporter", mode=0o700, owner=config.local.exporter_user)
    folder(layout.etc / "exporter", mode=0o750, owner=config.local.exporter_user)
    folder(layout.vgpu_state)
    folder(layout.gpu_allocations)
    # Who holds what is not for everybody; each listener makes its own socket.
    for name, mode in (("jobs", 0o2750), ("listen", 0o775), ("top", 0o775)):
        shutil.chown(folder(layout.gpu_allocations / name, mode=mode), "root", exporter)
        (layout.gpu_allocations / name).chmod(mode)


def write_files(layout: Layout, secrets: Secrets) -> set[Path]:
    """Write every configuration file; those that changed."""
    config = layout.config
    changed = {path for path, text, how in _files(layout, secrets) if write(path, text, **how)}
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


def _files(layout: Layout, secrets: Secrets) -> list[tuple[Path, str, dict[str, Any]]]:
    config, local = layout.config, layout.config.local
    slurm = layout.etc / "slurm"
    plugin = host_checks.cgroup_plugin()
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
        (layout.etc / "carme.toml", _carme_toml(layout, library), {}),
        *(
            (
                slurm / event,
                gpu_allocations.script(event, layout.gpu_allocations, environment=library),
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
                prolog=layout.etc / "slurm/prolog",
                epilog=layout.etc / "slurm/epilog",
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
                cgroup_plugin=plugin,
                # Nodes declare more CPUs than the machine has, so jobs cannot be bound to them.
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
        *monitoring.files(layout, secrets),
        (
            layout.etc / "view/prometheus-login",
            ":".join(secrets.prometheus_login),
            {"mode": 0o600, "owner": local.view_user},
        ),
    ]


def _carme_toml(layout: Layout, library: dict[str, str]) -> str:
    """What the services read: the whole configuration, and where sessions find virtual GPUs."""
    data = layout.config.model_dump(mode="json", exclude_none=True)
    if layout.virtual:
        # Without a driver Apptainer's flag would only warn.
        data["session"]["gpu_flag"] = ""
        data["session"]["environment"] |= library
        data["session"]["binds"] = sorted(
            {*data["session"]["binds"], *(f"{path}:{path}:ro" for path in library.values())}
        )
    return tomli_w.dumps(data)


def _write_login(file: Path, login: tuple[str, str], owner: str) -> bool:
    """A salted hash differs each time it is made, so it is made only when the password changed."""
    user, password = login
    if file.exists():
        last = file.read_text(encoding="ascii").split()[-1]
        if bcrypt.checkpw(password.encode(), last.encode()):
            return False
    word = bcrypt.hashpw(password.encode(), bcrypt.gensalt(10)).decode()
    text = render("prometheus-web.yml", prometheus_user=user, prometheus_password_bcrypt=word)
    return write(file, text, mode=0o600, owner=owner)


def sudoers_path(layout: Layout) -> Path:
    """The one file outside of the cluster's folder that lets the hub act as a user."""
    return Path("/etc/sudoers.d") / f"carme-{layout.config.hub.user}"


def write_sudoers(layout: Layout) -> bool:
    """Let the hub's user run the helper as a member of the users' group, and nothing else."""
    hub = layout.config.hub
    text = render(
        "sudoers",
        # Two clusters on a machine need two names.
        alias="CARME_" + re.sub("[^A-Z0-9]", "_", hub.user.upper()),
        hub_user=hub.user,
        users_group=hub.users_group,
        helper=Path(sys.prefix) / "bin/carme-helper",
        config=layout.etc / "carme.toml",
        make_homes=hub.make_homes,
    )
    path = sudoers_path(layout)
    os.umask(0o022)
    return write(path, text, mode=0o440)
