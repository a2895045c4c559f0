"""Which checks concern this host."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from carme.config.services import Service
from carme.doctor import (
    backups,
    clock,
    compute_node,
    containers,
    host,
    monitoring,
    platform,
    ports,
    slurm,
)
from carme.doctor.finding import Check, Finding, absent
from carme.doctor.host_services import HostServices

Look = Callable[[HostServices, Service], Finding]


def checks(site: HostServices) -> list[Check]:
    """Every check, in the order in which services depend on each other."""
    return [*_host(site), *_slurm(site), *_sessions(site), *_measuring(site)]


def _host(site: HostServices) -> Iterator[Check]:
    if site.folder:
        look = lambda: platform.read_supervisor(site)  # noqa: E731
        yield Check("supervisor", look, todo=site.up, root=True)
    yield Check("clock", lambda: clock.read_clock(site))
    yield Check("names", lambda: host.read_names(site))
    yield Check("ports", lambda: ports.read_ports(site), needs=("supervisor",))
    state = site.folder or Path("/var/lib/slurm")
    places = (Path("/"), Path("/var"), Path("/var/log"), Path("/tmp"), state, Path("/home"))  # noqa: S108
    for folder in host.disks((*places, site.config.images.folder)):
        yield Check(f"disk {folder}", partial(host.read_disk, folder))
    if site.service("proxy"):
        yield Check("certificate", lambda: host.read_certificate(site), root=True)
    else:
        yield _missing("certificate", "host")
    if site.service("slurmctld") and not site.folder:
        yield Check("backup", backups.read_backup, root=True)
    else:
        yield _missing("backup", "host")


def _slurm(site: HostServices) -> Iterator[Check]:
    group = "Slurm"
    yield _of(site, "munge", group, slurm.read_munge)
    yield _of(site, "mariadb", group, slurm.read_mariadb, root=True)
    # With PrivateData, Slurm tells users nothing of the accounting.
    needs = ("mariadb", "munge")
    yield _of(site, "slurmdbd", group, slurm.read_accounting, root=True, needs=needs)
    if site.services:
        controller = site.service("slurmctld")
        look = partial(slurm.read_controller, site, controller)
        todo = site.repair(controller) if controller else "on the head: carme doctor"
        yield Check("slurmctld", look, group, todo, needs=("supervisor", "munge"))
    needs = ("munge", "slurmctld")
    if site.service("slurmrestd"):
        yield _of(site, "slurmrestd", group, platform.read_rest, root=True, needs=needs)
    if site.service("slurmctld"):
        look = partial(slurm.read_nodes, site)
        yield Check("nodes", look, group, needs=("supervisor", *needs))
    else:
        yield _missing("nodes", group)
    slurmds = site.running("slurmd")
    if not slurmds:
        yield from (_missing(name, group) for name in ("slurmd", "GPUs", "cgroups"))
        return
    for service in slurmds:
        yield _check(site, service, group, slurm.read_slurmd, needs=needs)
    if site.service("virtual GPUs"):
        yield _of(site, "virtual GPUs", group, platform.read_virtual, root=True)
    for node in site.nodes:
        look = partial(compute_node.read_gpus_of, site, node)
        yield Check(f"GPUs {node.name}", look, group)
    yield Check("cgroups", lambda: compute_node.read_cgroups(site), group)


def _sessions(site: HostServices) -> Iterator[Check]:
    group = "sessions"
    hub = site.service("hub")
    if site.running("slurmd") or hub:
        yield Check("images", lambda: containers.read_images(site), group, seconds=60)
        todo = "as a user: apptainer exec IMAGE true"
        look = partial(containers.read_container, site)
        yield Check("container", look, group, todo, seconds=45, needs=("images",))
    else:
        yield from (_missing(name, group) for name in ("images", "container"))
    yield _of(site, "view", group, platform.read_view)
    if site.service("view"):
        user = site.config.local.view_user if site.folder else "carme-view"
        operator = partial(slurm.read_operator, site, user)
        needs = ("supervisor", "munge", "slurmdbd")
        yield Check("view's right", operator, group, root=True, needs=needs)
    if hub:
        yield Check("sudo rule", lambda: platform.read_sudo_rule(site), group, root=True)
        look = partial(platform.read_helper, site)
        yield Check("helper", look, group, root=True, needs=("sudo rule",))
    else:
        yield from (_missing(name, group) for name in ("sudo rule", "helper"))
    if site.services:
        todo = site.repair(hub) if hub else "on the head: carme doctor; is its port open to nodes?"
        look = partial(platform.read_hub, site, hub)
        yield Check("hub", look, group, todo, needs=("supervisor",))
    yield _of(site, "proxy", group, platform.read_proxy)
    yield _of(site, "service", group, platform.read_service)


def _measuring(site: HostServices) -> Iterator[Check]:
    group = "measuring"
    exporters = site.running("carme-exporter")
    if not exporters:
        yield _missing("exporter", group)
    for service in exporters:
        yield _check(site, service, group, monitoring.read_exporter)
    yield _of(site, "discovery", group, monitoring.read_discovery, root=True, needs=("view",))
    # The password is the view's; users have none.
    yield _of(site, "prometheus", group, monitoring.read_prometheus, root=True)
    if site.service("prometheus"):
        look = partial(monitoring.read_targets, site)
        needs = ("supervisor", "prometheus")
        yield Check("targets", look, group, root=True, needs=needs)
    else:
        yield _missing("targets", group)
    yield _of(
        *(site, "alertmanager", group, monitoring.read_alertmanager),
        root=True,
        needs=("prometheus",),
    )
    if site.service("grafana"):
        yield _of(site, "grafana", group, platform.read_only_unit)


def _of(
    site: HostServices,
    name: str,
    group: str,
    look: Look,
    root: bool = False,
    needs: tuple[str, ...] = (),
) -> Check:
    """The check of the service of this name, if the host should run it."""
    service = site.service(name)
    return _check(site, service, group, look, root, needs) if service else _missing(name, group)


def _check(
    site: HostServices,
    service: Service,
    group: str,
    look: Look,
    root: bool = False,
    needs: tuple[str, ...] = (),
) -> Check:
    causes = ("supervisor", *needs)
    return Check(
        service.name, partial(look, site, service), group, site.repair(service), root, needs=causes
    )


def _missing(name: str, group: str) -> Check:
    return Check(name, partial(absent, name), group)
