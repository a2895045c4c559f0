"""`carme-exporter`: run the exporter, print one collection, make a web configuration."""

import logging
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from carme.config import Config, ExporterSettings, load
from carme.errors import CarmeError, ConfigError, InputError
from carme_monitoring import webconfig
from carme_monitoring.collector import CollectorContext, Mode, Roots
from carme_monitoring.collectors import network
from carme_monitoring.collectors.power import PowerPoller, read_ipmi, read_redfish
from carme_monitoring.collectors.slurm import SchedulerReader
from carme_monitoring.guard import Guards
from carme_monitoring.metrics import LabelledCounter
from carme_monitoring.nvml import NvmlGpus
from carme_monitoring.pipeline import NodePipeline, Pipeline
from carme_monitoring.process import ExporterProcess
from carme_monitoring.sampler import GpuSampler
from carme_monitoring.server import MetricsPage

_path = click.Path(path_type=Path)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=_path, help="carme.toml; default: CARME_CONFIG or /etc/carme.")
@click.option(
    "--mode", type=click.Choice(["node", "controller"]), default="node", show_default=True
)
@click.option("--node", help="Slurm's name of this node; default: SLURMD_NODENAME or the host's.")
@click.option("--once", is_flag=True, help="Print one collection and end; changes nothing.")
@click.option("--listen", help="Address to serve on.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to serve on.")
@click.option("--web-config", type=_path, help="Users and TLS (exporter-toolkit's form).")
@click.option("--open", "is_open", is_flag=True, help="Serve everybody, without credentials.")
@click.option("--state", type=_path, help="Folder of the state file.")
@click.option("--run", type=_path, help="Folder of the prolog's records and sockets.")
@click.option("--proc-root", type=_path, default=Path("/proc"), help="Where procfs is mounted.")
@click.option("--sys-root", type=_path, default=Path("/sys"), help="Where sysfs is mounted.")
@click.option("--cgroup-root", type=_path, default=Path("/sys/fs/cgroup"), help="And cgroups.")
@click.option("--verbose", is_flag=True)
@click.pass_context
def exporter(
    ctx: click.Context,
    /,
    config: Path | None,
    mode: Mode,
    node: str | None,
    once: bool,
    is_open: bool,
    proc_root: Path,
    sys_root: Path,
    cgroup_root: Path,
    verbose: bool,
    **overrides: Any,
) -> None:
    """Measure this node (or, on the controller, the cluster) and serve /metrics."""
    if ctx.invoked_subcommand:
        return
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(levelname)s %(message)s",
        stream=sys.stderr,
    )
    carme_config = load(config)
    changes = {name: value for name, value in overrides.items() if value is not None}
    settings = carme_config.exporter.model_copy(update=changes)
    roots = Roots(proc_root, sys_root, cgroup_root)
    name = node or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    if once:
        with tempfile.TemporaryDirectory() as scratch:
            in_scratch = settings.model_copy(update={"state": Path(scratch)})
            pipeline = make_pipeline(carme_config, in_scratch, mode, name, roots, is_once=True)
            page = MetricsPage(pipeline.table, settings.series_limit)
            page.publish(pipeline.collect(), pipeline.add_profiles)
            click.echo(page.get().decode(), nl=False)
        return
    web = None
    if not is_open:
        if settings.web_config is None:
            raise ConfigError("exporter.web_config is not set", "set it, or use --open")
        web = webconfig.load(settings.web_config)
        tls = web.tls_server_config
        if not web.basic_auth_users and not (tls and tls.client_ca_file):
            raise ConfigError(
                f"{settings.web_config} requires no credentials", "add users, or use --open"
            )
    _make_state_folder(settings.state)
    ExporterProcess(make_pipeline(carme_config, settings, mode, name, roots), web).run()


@exporter.command("web-config")
@click.argument("path", type=_path)
@click.option("--user", default="prometheus", show_default=True)
@click.option("--password-file", type=_path, help="Where to write the password, mode 0600.")
@click.option("--password-stdin", is_flag=True, help="Take the password from standard input.")
@click.option("--keep", is_flag=True, help="Keep the file if it has this password already.")
def web_config(
    path: Path, user: str, password_file: Path | None, password_stdin: bool, keep: bool
) -> None:
    """Make a web configuration at PATH, with a random password unless one is given."""
    own_password = sys.stdin.read().strip() if password_stdin else None
    if own_password == "":
        raise InputError("standard input holds no password")
    if keep and own_password and webconfig.is_current(path, user, own_password):
        click.echo(f"{path}: already has this password")
        return
    password = webconfig.write(path, user, own_password)
    if own_password:
        click.echo(f"{path}: changed")
        return
    if password_file:
        fd = os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(password)
    else:
        click.echo(f"{user} {password}")


def make_pipeline(
    config: Config,
    settings: ExporterSettings,
    mode: Mode,
    node: str,
    roots: Roots,
    is_once: bool = False,
) -> Pipeline:
    """The exporter as configured; its background readers are started."""
    if mode == "controller":
        from carme.view.client import ViewClient

        slurm = config.slurm
        environment = {**os.environ, **({"SLURM_CONF": str(slurm.conf)} if slurm.conf else {})}
        scheduler = SchedulerReader(str(slurm.bin / "sdiag") if slurm.bin else "sdiag", environment)
        if is_once:
            scheduler.step()
        else:
            scheduler.start()
        view = ViewClient.of(config.view)
        return Pipeline(CollectorContext(config=settings, view=view, scheduler=scheduler))
    guards = Guards({"gpu": 10.0})  # a driver without persistence mode wakes up slowly
    gpus = NvmlGpus(guards.value_errors)
    power_pollers = _power_pollers(settings, guards.value_errors)
    for reader in power_pollers:
        reader.start()
    sampler = None if is_once else GpuSampler(gpus.sample, lambda: _traffic(roots))
    context = CollectorContext(
        node, settings, roots, guards.value_errors, gpus, sampler, tuple(power_pollers)
    )
    pipeline = NodePipeline(context, guards)
    if sampler:
        guards.run("gpu", gpus.watch_xids)
        sampler.start()
    return pipeline


def _power_pollers(settings: ExporterSettings, errors: LabelledCounter) -> list[PowerPoller]:
    readers = []
    if redfish := settings.redfish:
        secret = redfish.password_file.read_text().strip() if redfish.password_file else ""

        def ask() -> float | None:
            return read_redfish(redfish.url, redfish.user, secret, redfish.ca_file)

        readers.append(PowerPoller("redfish", ask, errors=errors))
    if settings.ipmi:
        readers.append(PowerPoller("ipmi", read_ipmi, errors=errors))
    return readers


def _traffic(roots: Roots) -> tuple[int, int]:
    traffic = network.read(roots.proc, roots.sys)
    return traffic.send_bytes, traffic.receive_bytes


def _make_state_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}", "set exporter.state") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{folder}: not writable", "set exporter.state or its owner")


def main() -> None:
    """The command line; an expected error is one line and exit code 1."""
    try:
        exporter()
    except CarmeError as error:
        click.echo(f"carme-exporter: {error}", err=True)
        sys.exit(1)
