"""The whole cluster on one machine: bring it up, look at it, take it down."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tomli_w

from carme.config import Config
from carme.errors import CarmeError, UnavailableError
from carme.local import accounting, accounts, devices, host_checks, packages, purge, render, secrets
from carme.local.layout import layout_for
from carme.local.packages import Say
from carme.local.purge import INSTALL_LOG, SITE_FILE
from carme.local.services import LocalService, local_services
from carme.local.supervisor import ProcessStatus, Supervisor, end_strays
from carme.system import apptainer
from carme.system.files import write
from carme.system.programs import run, run_module

_READY_SECONDS = 60
T = TypeVar("T")
RENDERED_FILE = "etc/carme.toml"
"""What the services read."""


@dataclass(frozen=True)
class ServiceHealth:
    """One line of `carme status`."""

    service: LocalService
    process: ProcessStatus | None
    is_healthy: bool
    message: str


class LocalCluster:
    """The cluster of one configuration."""

    def __init__(self, config: Config) -> None:
        self._site = config
        self.layout = layout_for(config)
        self.supervisor = Supervisor(self.layout)

    def up(self, say: Say) -> bool:
        """Bring everything up and wait until it answers; False if nothing had to be done."""
        host_checks.check_root()
        with self._lock():
            running = self.supervisor.alive()
            if not running:
                end_strays(self.layout)
            system = host_checks.check(self.layout, running)
            return self._up(say, system, running)

    @property
    def _env(self) -> dict[str, str]:
        return {
            "CARME_CONFIG": str(self.layout.etc / "carme.toml"),
            "SLURM_CONF": str(self.layout.slurm_conf),
        }

    def _up(self, say: Say, system: str, running: bool) -> bool:
        log = self._install_log()
        changed = False
        if absent := packages.missing({**packages.PACKAGES, **apptainer.APT_PACKAGES}):
            say(f"Installing {len(absent)} packages of {system} (about a minute):")
            changed |= packages.install(absent, say, log)
        proxy = packages.ensure_proxy(self.layout.cache, say, log)
        mirror = self.layout.config.images.debian_mirror
        program = apptainer.find_or_install(self.layout.cache, say, mirror)
        self.layout = layout_for(self._site, program)
        self.supervisor = Supervisor(self.layout)

        known = accounts.created(self.layout)
        if accounts.ensure(self.layout) != known:
            say("Made users and groups")
            changed = True
        shared = secrets.ensure(self.layout.secrets)
        render.make_folders(self.layout)
        given = self._site.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        write(self.layout.dir / SITE_FILE, tomli_w.dumps(given))
        written = render.write_files(self.layout, shared)
        changed |= devices.ensure(self.layout) | render.write_sudoers(self.layout) | bool(written)
        changed |= accounting.make_database_files(self.layout)
        run_module("carme_containers", "base", env=self._env, say=say)

        services = local_services(self.layout, shared, proxy)
        self.supervisor.configure(services)
        self.supervisor.start()
        if not running:
            say("Starting:")
        for service in services:
            if running and written & set(service.command.reads):
                say(f"  {service.name}: its configuration changed, starting it again")
                self.supervisor.stop_service(service.name)
            if self.supervisor.start_service(service.name):
                changed = True
                say(f"  {service.name}: {service.service.what}, {service.where}")
            if service.name == "mariadbd":
                self._wait(service)
                accounting.make_database(self.layout, shared)
            if service.name == "slurmdbd":
                changed |= self._until(service, lambda: accounting.make_associations(self.layout))
            if service.name == "slurmctld" and not running:
                self._until(service, lambda: accounting.set_limits(self.layout))
        for service in services:
            self._wait(service)
        return changed

    def _wait(self, service: LocalService) -> None:
        self._until(service, service.health_check)

    def _until(self, service: LocalService, step: Callable[[], T]) -> T:
        """What `step` returns, tried until the service is ready for it."""
        end = time.monotonic() + _READY_SECONDS
        while True:
            try:
                return step()
            except CarmeError as error:
                if time.monotonic() > end:
                    raise self._not_ready(service, error) from error
                time.sleep(0.2)

    def _not_ready(self, service: LocalService, error: CarmeError) -> UnavailableError:
        return UnavailableError(
            f"{service.name} is not ready after {_READY_SECONDS} s: {error.message}",
            f"see {self.layout.log}/{service.name}.log",
        )

    def services(self) -> list[LocalService]:
        """Every service of the cluster."""
        shared = secrets.ensure(self.layout.secrets)
        return local_services(self.layout, shared, packages.proxy_program(self.layout.cache))

    def health(self) -> list[ServiceHealth]:
        """The health of every service, checked all at once."""
        host_checks.check_root()  # most services answer nobody else
        services = self.services()
        processes = self.supervisor.processes() if self.supervisor.alive() else {}

        def ask(service: LocalService) -> ServiceHealth:
            process = processes.get(service.name)
            try:
                return ServiceHealth(service, process, True, service.health_check())
            except CarmeError as error:
                message = error.message.strip().splitlines()[-1].strip()
                return ServiceHealth(service, process, False, message)

        with ThreadPoolExecutor(len(services)) as pool:
            return list(pool.map(ask, services))

    def down(self, say: Say) -> None:
        """End all jobs and services; nothing of the cluster runs afterwards."""
        host_checks.check_root()
        with self._lock():
            if self.supervisor.alive():
                self._cancel_jobs(say)
                say("Stopping the services")
                self.supervisor.shutdown()
            end_strays(self.layout, jobs=True)

    def _cancel_jobs(self, say: Say) -> None:
        env = self._env
        try:
            jobs = run(["squeue", "-h", "-o", "%A"], env=env, timeout=15).split()
            if not jobs:
                return
            say(f"Ending {len(jobs)} jobs")
            run(["scancel", *jobs], env=env, timeout=15)
            end = time.monotonic() + 20
            while run(["squeue", "-h"], env=env, timeout=15) and time.monotonic() < end:
                time.sleep(0.5)
        except CarmeError:
            # A controller that does not answer must not keep the rest from stopping; the jobs'
            # processes are ended through their cgroups.
            return

    def purge(self, say: Say) -> None:
        """After `down`: remove state, users, devices and the sudo rule."""
        purge.check(self.layout)
        there = self.layout.dir.exists()
        self.down(say)
        gone = accounts.remove(self.layout)
        devices.remove(self.layout)
        left = purge.remove(self.layout)
        if there and not purge.remains_another():
            run_module("carme_containers", "--remove-build-user", env={}, say=say)
        if there:
            say(f"Removed {self.layout.dir}" + (f" and {', '.join(gone)}" if gone else ""))
        else:
            say(f"There is no cluster in {self.layout.dir}.")
        if left:
            say(f"Not made by carme, so kept: {', '.join(left)} in {self.layout.dir}")

    def _install_log(self) -> Path:
        self.layout.log.mkdir(parents=True, exist_ok=True)
        return self.layout.dir / INSTALL_LOG

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One `up` or `down` at a time for this folder."""
        name = str(self.layout.dir).strip("/").replace("/", "-")
        with Path(f"/run/carme-{name}.lock").open("w", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UnavailableError(
                    f"another carme up or down works on {self.layout.dir}", "wait until it ends"
                ) from None
            os.umask(0o022)
            yield
