"""The whole cluster on one machine: start it, check it, stop it, remove it."""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tomli_w

from carme.config import Config
from carme.errors import CarmeError, InputError, UnavailableError
from carme.local import accounts, devices, host_checks, packages, render
from carme.local.layout import Layout, ensure_secrets, layout_for
from carme.local.services import LocalService, local_services
from carme.local.supervisor import ProcessStatus, Supervisor, end_strays
from carme.system import apptainer
from carme.system.files import write
from carme.system.programs import ProgressCallback, run, run_module

_READY_SECONDS = 60
T = TypeVar("T")
SITE_FILE = "etc/site.toml"
"""The configuration that was passed to `up`."""
INSTALL_LOG = "log/install.log"
"""The first file that `up` writes, and the last that a purge removes: it can be repeated."""
_FOLDERS = ("etc", "images", "run", "state", "log")


@dataclass(frozen=True)
class ServiceHealth:
    """One line of `carme status`."""

    service: LocalService
    process: ProcessStatus | None
    is_healthy: bool
    message: str


class LocalCluster:
    """The one-machine cluster of one configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.layout = layout_for(config)
        self.supervisor = Supervisor(self.layout)

    def up(self, progress: ProgressCallback) -> bool:
        """Start everything and wait until it is healthy; False if there was nothing to do."""
        host_checks.check_root()
        with self._lock():
            is_running = self.supervisor.is_alive()
            if not is_running:
                end_strays(self.layout)
            system = host_checks.check(self.layout, is_running)
            return self._up(progress, system, is_running)

    @property
    def _env(self) -> dict[str, str]:
        return {
            "CARME_CONFIG": str(self.layout.carme_toml),
            "SLURM_CONF": str(self.layout.slurm_conf),
        }

    def _up(self, progress: ProgressCallback, system: str, is_running: bool) -> bool:
        self.layout.log.mkdir(parents=True, exist_ok=True)
        log = self.layout.dir / INSTALL_LOG
        changed = False
        if absent := packages.missing({**packages.PACKAGES, **apptainer.APT_PACKAGES}):
            progress(f"Installing {len(absent)} packages of {system} (about a minute):")
            changed |= packages.install(absent, progress, log)
        proxy = packages.ensure_proxy(self.layout.cache, progress, log)
        mirror = self.layout.config.images.debian_mirror
        program = apptainer.find_or_install(self.layout.cache, progress, mirror)
        self.layout = layout_for(self._config, program)
        self.supervisor = Supervisor(self.layout)

        existing = accounts.created(self.layout)
        if accounts.ensure(self.layout) != existing:
            progress("Created users and groups")
            changed = True
        secrets = ensure_secrets(self.layout.secrets)
        render.make_folders(self.layout)
        settings = self._config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        write(self.layout.dir / SITE_FILE, tomli_w.dumps(settings))
        written = render.write_files(self.layout, secrets)
        changed |= devices.ensure(self.layout) | render.write_sudoers(self.layout) | bool(written)
        changed |= accounts.make_database_files(self.layout)
        run_module("carme_containers", "base", added_env=self._env, progress=progress)

        services = local_services(self.layout, secrets, proxy)
        self.supervisor.configure(services)
        self.supervisor.start()
        if not is_running:
            progress("Starting:")
        for service in services:
            if is_running and written & set(service.command.reads):
                progress(f"  {service.name}: its configuration changed, restarting it")
                self.supervisor.stop_service(service.name)
            if self.supervisor.start_service(service.name):
                changed = True
                progress(f"  {service.name}: {service.service.description}, {service.address}")
            if service.name == "mariadbd":
                self._until(service, service.health_check)
                accounts.make_database(self.layout, secrets)
            if service.name == "slurmdbd":
                changed |= self._until(service, lambda: accounts.make_associations(self.layout))
            if service.name == "slurmctld" and not is_running:
                self._until(service, lambda: accounts.set_limits(self.layout))
        for service in services:
            self._until(service, service.health_check)
        return changed

    def _until(self, service: LocalService, step: Callable[[], T]) -> T:
        """The result of `step`, which is repeated until the service is ready for it."""
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                return step()
            except CarmeError as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"{service.name} is not ready after {_READY_SECONDS} s: {error.message}",
                        f"see {self.layout.log}/{service.name}.log",
                    ) from error
                time.sleep(0.2)

    def services(self) -> list[LocalService]:
        """Every service of the cluster."""
        secrets = ensure_secrets(self.layout.secrets)
        return local_services(self.layout, secrets, packages.proxy_program(self.layout.cache))

    def health(self) -> list[ServiceHealth]:
        """The health of every service; all checks run at the same time."""
        host_checks.check_root()  # most services answer only root
        services = self.services()
        processes = self.supervisor.processes() if self.supervisor.is_alive() else {}

        def check(service: LocalService) -> ServiceHealth:
            process = processes.get(service.name)
            try:
                return ServiceHealth(service, process, True, service.health_check())
            except CarmeError as error:
                message = error.message.strip().splitlines()[-1].strip()
                return ServiceHealth(service, process, False, message)

        with ThreadPoolExecutor(len(services)) as pool:
            return list(pool.map(check, services))

    def down(self, progress: ProgressCallback) -> None:
        """End all jobs and services; no process of the cluster is left."""
        host_checks.check_root()
        with self._lock():
            if self.supervisor.is_alive():
                self._cancel_jobs(progress)
                progress("Stopping the services")
                self.supervisor.shutdown()
            end_strays(self.layout, jobs=True)

    def _cancel_jobs(self, progress: ProgressCallback) -> None:
        env = self._env
        try:
            jobs = run(["squeue", "-h", "-o", "%A"], added_env=env, timeout_seconds=15).split()
            if not jobs:
                return
            progress(f"Ending {len(jobs)} jobs")
            run(["scancel", *jobs], added_env=env, timeout_seconds=15)
            deadline = time.monotonic() + 20
            while (
                run(["squeue", "-h"], added_env=env, timeout_seconds=15)
                and time.monotonic() < deadline
            ):
                time.sleep(0.5)
        except CarmeError:
            # The services stop even if the controller does not answer; `end_strays` ends the jobs'
            # processes.
            return

    def purge(self, progress: ProgressCallback) -> None:
        """After `down`: remove state, users, devices and the sudo rule."""
        check_is_cluster(self.layout)
        existed = self.layout.dir.exists()
        self.down(progress)
        removed = accounts.remove(self.layout)
        devices.remove(self.layout)
        remaining = remove_files(self.layout)
        if existed and not has_other_cluster():
            run_module("carme_containers", "--remove-build-user", added_env={}, progress=progress)
        if existed:
            progress(
                f"Removed {self.layout.dir}" + (f" and {', '.join(removed)}" if removed else "")
            )
        else:
            progress(f"There is no cluster in {self.layout.dir}.")
        if remaining:
            progress(f"Not created by carme, so kept: {', '.join(remaining)} in {self.layout.dir}")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Allow one `up` or `down` at a time for this folder."""
        name = str(self.layout.dir).strip("/").replace("/", "-")
        with Path(f"/run/carme-{name}.lock").open("w", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UnavailableError(
                    f"another carme up or down uses {self.layout.dir}", "wait until it ends"
                ) from None
            os.umask(0o022)
            yield


def check_is_cluster(layout: Layout) -> None:
    """InputError for a folder that does not belong to a cluster: purging could lose data."""
    folder = layout.dir
    is_cluster = any((folder / name).exists() for name in (SITE_FILE, INSTALL_LOG))
    if folder.exists() and not is_cluster:
        raise InputError(
            f"{folder} is no folder of a cluster: it has no {SITE_FILE}",
            "use the same folder as for `carme up`; nothing was removed",
        )


def remove_files(layout: Layout) -> list[str]:
    """Remove all files that `up` created; returns the names of other files, which stay."""
    rule = render.sudoers_path(layout)
    # Another cluster may have the same hub user; then the rule belongs to that cluster.
    if rule.exists() and str(layout.carme_toml) in rule.read_text(encoding="utf-8"):
        rule.unlink()
    if not layout.dir.exists():
        return []
    lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    mounts = sorted((line.split()[1] for line in lines), reverse=True)
    for folder in (layout.dir / name for name in _FOLDERS):
        for mount in (path for path in mounts if path.startswith(f"{folder}/")):
            run(["umount", "--lazy", mount])
        if folder.exists():
            shutil.rmtree(folder)
    remaining = sorted(path.name for path in layout.dir.iterdir())
    if not remaining:
        layout.dir.rmdir()
    return remaining


def has_other_cluster(folder: Path = Path("/etc/sudoers.d")) -> bool:
    """Whether this machine has another cluster: each has a sudo rule that names its carme.toml."""
    rules = (rule.read_text(encoding="utf-8") for rule in folder.glob("carme*"))
    paths = (path for text in rules for path in re.findall(r"--config (\S+)", text))
    return any(Path(path).exists() for path in paths)
