"""Which checks concern this host."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from carme.config.services import Service
from carme.doctor import host, monitoring, sessions, slurm
from carme.doctor.check import Check, Finding, absent
from carme.doctor.host_services import HostServices

ServiceCheck = Callable[[HostServices, Service], Finding]


def checks(site: HostServices) -> list[Check]:
    """Every check, in the order in which services depend on each other."""
    return [*_host(site), *_slurm(site), *_sessions(site), *_monitoring(site)]


def _host(site: HostServices) -> Iterator[Check]:
    if site.folder:
        run = partial(host.read_supervisor, site)
        yield Check("supervisor", run, todo=site.up, needs_root=True)
    yield Check("clock", partial(host.read_clock, site))
    yield Check("names", partial(host.read_names, site))
    yield Check("ports", partial(host.read_ports, site), needs=("supervisor",))
    state = site.folder or Path("/var/lib/slurm")
    folders = (Path("/"), Path("/var"), Path("/var/log"), Path("/tmp"), state, Path("/home"))  # noqa: S108
    for folder in host.disks((*folders, site.config.images.folder)):
        yield Check(f"disk {folder}", partial(host.read_disk, folder))
    certificate = Check("certificate", partial(host.read_certificate, site), needs_root=True)
    yield _present(certificate, site.service("proxy"))
    backup = Check("backup", host.read_backup, needs_root=True)
    yield _present(backup, site.service("slurmctld") and not site.folder)


def _slurm(site: HostServices) -> Iterator[Check]:
    of = partial(_service_check, site, "Slurm")
    yield of("munge", slurm.read_munge)
    yield of("mariadb", slurm.read_mariadb, needs_root=True)
    # With PrivateData, Slurm shows the accounting to its operators only.
    yield of("slurmdbd", slurm.read_accounting, needs_root=True, needs=("mariadb", "munge"))
    controller = site.service("slurmctld")
    if site.services:
        todo = site.repair(controller) if controller else "on the head: carme doctor"
        run = _after_unit(site, controller, partial(slurm.read_controller, site, controller))
        yield Check("slurmctld", run, "Slurm", todo, needs=("supervisor", "munge"))
    needs = ("munge", "slurmctld")
    if site.service("slurmrestd"):
        yield of("slurmrestd", slurm.read_rest, needs_root=True, needs=needs)
    nodes = Check("nodes", partial(slurm.read_nodes, site), "Slurm", needs=("supervisor", *needs))
    yield _present(nodes, controller)
    slurmds = site.running("slurmd")
    for service in slurmds:
        yield of(service.name, slurm.read_slurmd, needs=needs)
    if slurmds and site.service("virtual GPUs"):
        yield of("virtual GPUs", slurm.read_virtual_gpus, needs_root=True)
    for node in site.nodes:
        yield Check(f"GPUs {node.name}", partial(slurm.read_node_gpus, site, node), "Slurm")
    names = ("cgroups",) if slurmds else ("slurmd", "GPUs", "cgroups")
    for name in names:
        yield _present(Check(name, partial(slurm.read_cgroups, site), "Slurm"), slurmds)


def _sessions(site: HostServices) -> Iterator[Check]:
    group, hub = "sessions", site.service("hub")
    runs_sessions = site.running("slurmd") or hub
    images = Check("images", partial(sessions.read_images, site), group, seconds=60)
    yield _present(images, runs_sessions)
    todo = "as a user: apptainer exec IMAGE true"
    run = partial(sessions.read_container, site)
    container = Check("container", run, group, todo, seconds=45, needs=("images",))
    yield _present(container, runs_sessions)
    of = partial(_service_check, site, group)
    yield of("view", sessions.read_view)
    if reader := site.service("view"):
        run = partial(slurm.read_operator, site, reader.user)
        needs = ("supervisor", "munge", "slurmdbd")
        yield Check("view's right", run, group, needs_root=True, needs=needs)
    run = partial(sessions.read_sudo_rule, site)
    yield _present(Check("sudo rule", run, group, needs_root=True), hub)
    run = partial(sessions.read_helper, site)
    yield _present(Check("helper", run, group, needs_root=True, needs=("sudo rule",)), hub)
    if site.services:
        todo = site.repair(hub) if hub else "on the head: carme doctor; is its port open to nodes?"
        read_hub = _after_unit(site, hub, partial(sessions.read_hub, site))
        yield Check("hub", read_hub, group, todo, needs=("supervisor",))
    yield of("proxy", sessions.read_proxy)
    run = partial(sessions.read_session_host, site)
    yield _present(Check("session host", run, group), hub)
    yield of("service", sessions.read_service)


def _monitoring(site: HostServices) -> Iterator[Check]:
    group = "measuring"
    of = partial(_service_check, site, group)
    exporters = [service.name for service in site.running("carme-exporter")]
    for name in exporters or ["exporter"]:
        yield of(name, monitoring.read_exporter)
    yield of("discovery", monitoring.read_discovery, needs_root=True, needs=("view",))
    # Only root can read the password for Prometheus.
    yield of("prometheus", monitoring.read_prometheus, needs_root=True)
    run = partial(monitoring.read_targets, site)
    needs = ("supervisor", "prometheus")
    targets = Check("targets", run, group, needs_root=True, needs=needs)
    yield _present(targets, site.service("prometheus"))
    alertmanager = monitoring.read_alertmanager
    yield of("alertmanager", alertmanager, needs_root=True, needs=("prometheus",))
    if site.service("grafana"):
        yield of("grafana", monitoring.read_grafana)


def _service_check(
    site: HostServices,
    group: str,
    name: str,
    read: ServiceCheck,
    *,
    needs_root: bool = False,
    needs: tuple[str, ...] = (),
) -> Check:
    """The check of the service of this name: absent where the host does not run it."""
    service = site.service(name)
    if not service:
        return _present(Check(name, partial(absent, name), group), False)
    run = _after_unit(site, service, partial(read, site, service))
    causes = ("supervisor", *needs)
    return Check(name, run, group, site.repair(service), needs_root, needs=causes)


def _after_unit(
    site: HostServices, service: Service | None, run: Callable[[], Finding]
) -> Callable[[], Finding]:
    """The check `run`, unless systemd already says that the service does not run."""
    return lambda: (host.read_unit(site, service) if service else None) or run()


def _present(check: Check, is_present: object) -> Check:
    """The check, or one that reports its subject as absent from this host."""
    if is_present:
        return check
    return replace(check, run=partial(absent, check.name), todo="", needs_root=False, needs=())
