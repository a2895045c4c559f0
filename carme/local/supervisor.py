"""The supervisor, which starts services and restarts them when they end."""

import os
import pwd
import signal
import sys
import time
import xmlrpc.client
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
from supervisor.xmlrpc import SupervisorTransport

from carme.errors import UnavailableError
from carme.local import unix_users
from carme.local.layout import Layout
from carme.local.services import SupervisedService
from carme.node import cgroups
from carme.system.files import write
from carme.system.programs import run
from carme.templates import render

MARK = "CARME_LOCAL_DIR"
"""Set in the environment of every process of the cluster, so that strays can be found."""
CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ProcessStatus:
    """The state of a service's process in supervisor."""

    state: str
    pid: int
    seconds: float

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"


class Supervisor:
    """The supervisor of one cluster."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def _call(self, method: str, *arguments: Any) -> Any:
        transport = SupervisorTransport(None, None, f"unix://{self._layout.supervisor_socket}")
        try:
            proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
            return getattr(proxy.supervisor, method)(*arguments)
        finally:
            transport.close()

    def is_alive(self) -> bool:
        """Whether supervisord answers."""
        try:
            return bool(self._call("getState")["statecode"] == 1)
        except (OSError, HTTPException, xmlrpc.client.Fault):
            return False

    def pid(self) -> int:
        """The process id of supervisord."""
        return int(self._call("getPID"))

    def processes(self) -> dict[str, ProcessStatus]:
        """The process of every configured service, by name."""
        return {
            info["name"]: ProcessStatus(
                info["statename"], info["pid"], max(0, info["now"] - info["start"])
            )
            for info in self._call("getAllProcessInfo")
        }

    def configure(self, services: list[SupervisedService]) -> bool:
        """Write supervisord's configuration of `services`; True if it changed."""
        rows = [
            {
                "name": service.name,
                "command": " ".join(_quote(word) for word in service.command.argv),
                "user": service.service.user,
                "directory": service.command.directory,
                "environment": ",".join(
                    f'{key}="{_escape(value)}"' for key, value in environment.items()
                ),
            }
            for service in services
            for environment in ({MARK: str(self._layout.dir), **service.command.environment},)
        ]
        text = render(
            "supervisord.conf",
            socket=self._layout.supervisor_socket,
            pidfile=self._layout.run / "supervisord.pid",
            log_dir=self._layout.log,
            services=rows,
        )
        return write(self._layout.supervisor_conf, text, mode=0o600)

    def start(self) -> None:
        """Start supervisord, or let a running one read its configuration again."""
        if self.is_alive():
            self._reread()
            return
        run([Path(sys.prefix) / "bin/supervisord", "-c", self._layout.supervisor_conf])
        _wait(
            self.is_alive, "supervisord does not start", f"see {self._layout.log}/supervisord.log"
        )

    def _reread(self) -> None:
        try:
            (added, changed, removed), *_ = self._call("reloadConfig")
        except xmlrpc.client.Fault as fault:
            raise UnavailableError(f"supervisor: {fault.faultString}") from None
        for name in (*changed, *removed):
            self.stop_service(name)
            self._call("removeProcessGroup", name)
        for name in (*added, *changed):
            self._call("addProcessGroup", name)

    def start_service(self, name: str) -> bool:
        """Start one service; True if it was not running."""
        if self.processes()[name].is_running:
            return False
        try:
            self._call("startProcess", name, True)
        except xmlrpc.client.Fault as fault:
            if "ALREADY_STARTED" not in fault.faultString:
                raise UnavailableError(
                    f"{name} does not start ({fault.faultString})",
                    f"see {self._layout.log}/{name}.log",
                ) from None
        return True

    def stop_service(self, name: str) -> None:
        """Stop one service and wait until it has ended; nothing happens if it was not running."""
        try:
            self._call("stopProcess", name, True)
        except xmlrpc.client.Fault as fault:
            if "NOT_RUNNING" not in fault.faultString:
                raise UnavailableError(f"{name} does not stop: {fault.faultString}") from None

    def shutdown(self) -> None:
        """Stop all services in reverse order, then supervisord."""
        if not self.is_alive():
            return
        pid = self.pid()
        for name in reversed(list(self.processes())):
            self.stop_service(name)
        self._call("shutdown")
        _wait(lambda: not psutil.pid_exists(pid), "supervisord does not end", f"process {pid}")


def end_strays(layout: Layout, *, jobs: bool = False) -> list[int]:
    """End processes that an earlier supervisor left; those of jobs only with `jobs`."""
    strays = []
    for process in psutil.process_iter(["pid", "name"]):
        if process.pid == os.getpid() or (process.info["name"] == "slurmstepd" and not jobs):
            continue
        try:
            if process.environ().get(MARK) == str(layout.dir):
                strays.append(process)
        except psutil.Error:
            continue
    if jobs:
        strays += _in_job_cgroups(layout)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in strays:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        psutil.wait_procs(strays, timeout=5)
        strays = [process for process in strays if process.is_running()]
    return [process.pid for process in strays]


def _in_job_cgroups(layout: Layout) -> list[psutil.Process]:
    """The processes of jobs of this cluster's users, which do not have MARK.

    Clusters on one machine share cgroups if their nodes have the same names.
    """
    # After an interrupted `up` or purge, the record has users that do not exist.
    names = set(unix_users.created(layout).users) & {user.pw_name for user in pwd.getpwall()}
    uids = {pwd.getpwnam(name).pw_uid for name in names}
    processes: dict[int, psutil.Process] = {}
    for node in layout.config.local.nodes:
        for job in cgroups.find_jobs(CGROUP_ROOT, node.name):
            for procs in (p for top in job.paths.values() for p in top.rglob("cgroup.procs")):
                for pid in map(int, procs.read_text(encoding="ascii").split()):
                    with suppress(psutil.Error):
                        process = psutil.Process(pid)
                        if process.uids().real in uids:
                            processes[pid] = process
    return list(processes.values())


def _quote(word: str) -> str:
    return f'"{_escape(word)}"' if any(c in word for c in " \"'%;") else word


def _escape(word: str) -> str:
    # supervisor expands %(name)s in its file.
    return word.replace("%", "%%").replace('"', '\\"')


def _wait(done: Any, message: str, hint: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise UnavailableError(message, hint)
        time.sleep(0.1)
