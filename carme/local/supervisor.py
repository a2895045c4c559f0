"""Talking to supervisor, which keeps the services running."""

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
from carme.local import accounts
from carme.local.layout import Layout
from carme.local.services import LocalService
from carme.node import cgroups
from carme.system.files import write
from carme.system.programs import run
from carme.templates import render

MARK = "CARME_LOCAL_DIR"
"""Set in the environment of every process of the cluster, so that strays can be found."""
CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ProcessStatus:
    """What supervisor knows of a service."""

    state: str
    pid: int
    seconds: float

    @property
    def running(self) -> bool:
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

    def alive(self) -> bool:
        """Whether the supervisor itself answers."""
        try:
            return bool(self._call("getState")["statecode"] == 1)
        except (OSError, HTTPException, xmlrpc.client.Fault):
            return False

    def pid(self) -> int:
        """The supervisor's own process."""
        return int(self._call("getPID"))

    def processes(self) -> dict[str, ProcessStatus]:
        """Every service that supervisor runs or should run, by name."""
        return {
            info["name"]: ProcessStatus(
                info["statename"], info["pid"], max(0, info["now"] - info["start"])
            )
            for info in self._call("getAllProcessInfo")
        }

    def configure(self, services: list[LocalService]) -> bool:
        """Write the supervisor's file for `services`; True if it changed."""
        rows = [
            {
                "name": service.name,
                "command": " ".join(_quote(word) for word in service.command.argv),
                "user": service.service.user,
                "directory": service.command.directory,
                "environment": ",".join(
                    f'{key}="{_escape(value)}"'
                    for key, value in {
                        MARK: str(self._layout.dir),
                        **service.command.environment,
                    }.items()
                ),
            }
            for service in services
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
        """Start the supervisor, or have a running one read its file again."""
        if self.alive():
            self._reread()
            return
        run([Path(sys.prefix) / "bin/supervisord", "-c", self._layout.supervisor_conf])
        _wait(self.alive, "supervisord does not start", f"see {self._layout.log}/supervisord.log")

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
        if self.processes()[name].running:
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
        """Stop one service and wait until it is gone; fine if it was not running."""
        try:
            self._call("stopProcess", name, True)
        except xmlrpc.client.Fault as fault:
            if "NOT_RUNNING" not in fault.faultString:
                raise UnavailableError(f"{name} does not stop: {fault.faultString}") from None

    def shutdown(self) -> None:
        """Stop all services in reverse order, and the supervisor."""
        if not self.alive():
            return
        pid = self.pid()
        for name in reversed(list(self.processes())):
            self.stop_service(name)
        self._call("shutdown")
        _wait(lambda: not psutil.pid_exists(pid), "supervisord does not end", f"process {pid}")


def end_strays(layout: Layout, *, jobs: bool = False) -> list[int]:
    """End what an earlier supervisor left behind; sessions' processes only with `jobs`."""
    strays = []
    for process in psutil.process_iter(["pid", "name"]):
        if process.pid == os.getpid() or (process.info["name"] == "slurmstepd" and not jobs):
            continue
        try:
            marked = process.environ().get(MARK) == str(layout.dir)
        except psutil.Error:
            continue
        if marked:
            strays.append(process)
    if jobs:
        strays += _in_job_cgroups(layout)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in strays:
            try:
                process.send_signal(sign)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(strays, timeout=5)
        strays = [process for process in strays if process.is_running()]
    return [process.pid for process in strays]


def _in_job_cgroups(layout: Layout) -> list[psutil.Process]:
    """The processes of jobs of this cluster's users, which carry no mark of ours.

    Two clusters on a machine may have nodes of the same name, and then share their cgroups.
    """
    # An `up` or a purge that was interrupted knows users that are not there (any more).
    names = set(accounts.created(layout).users) & {user.pw_name for user in pwd.getpwall()}
    people = {pwd.getpwnam(name).pw_uid for name in names}
    found: dict[int, psutil.Process] = {}
    for node in layout.config.local.nodes:
        for job in cgroups.find_jobs(CGROUP_ROOT, node.name):
            for procs in (p for top in job.paths.values() for p in top.rglob("cgroup.procs")):
                for pid in map(int, procs.read_text(encoding="ascii").split()):
                    with suppress(psutil.Error):
                        process = psutil.Process(pid)
                        if process.uids().real in people:
                            found[pid] = process
    return list(found.values())


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
