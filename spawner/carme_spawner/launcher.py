"""Starts jupyterhub-singleuser inside the container and reports its port to the hub.

Runs with the Python of the image, so it uses the standard library only. Environment and hub address
are in a file beside it that only the user can read: a token on a command line would show in `ps`.
"""

import contextlib
import fcntl
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

TRIES = 5
REPORT_SECONDS = 120
FOLDERS = {"PATH": "bin", "JUPYTER_PATH": "share", "JUPYTER_CONFIG_PATH": "config"}
"""Variable to the folder of the session's files that it finds first."""
RUNTIME_PARENTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 (the folder's name is random)
LOCK = ".carme-lock"
"""A file in the runtime folder, locked while the launcher runs."""
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def main(folder: Path) -> int:
    """Run Jupyter to its end; returns its exit code, or 1 if it did not start, and prints why."""
    settings = json.loads((folder / "session.json").read_text(encoding="utf-8"))
    environment = {**os.environ, **settings["environment"]}
    environment.update(lay_out(folder, settings.get("files", {}), environment))
    runtime = runtime_folder()
    environment["JUPYTER_RUNTIME_DIR"] = runtime
    try:
        return run(folder, settings, environment)
    finally:
        shutil.rmtree(runtime, ignore_errors=True)


def run(folder: Path, settings: "dict[str, Any]", environment: "dict[str, str]") -> int:
    """Run Jupyter to its end, on a port that is free."""
    # jupyterhub-singleuser takes its key and certificate from these, here both from one file.
    for name in ("JUPYTERHUB_SSL_KEYFILE", "JUPYTERHUB_SSL_CERTFILE"):
        environment[name] = str(folder / "server.pem")
    address = own_address(settings["hub_api_url"])
    for _ in range(TRIES):
        port = free_port(address)
        host = f"[{address}]" if ":" in address else address
        bind = f"https://{host}:{port}{settings['base_url']}"
        environment["JUPYTERHUB_SERVICE_URL"] = bind
        try:
            server = subprocess.Popen(settings["command"], env=environment, cwd=Path.home())
        except OSError as error:
            print(f"carme: this image cannot start {settings['command'][0]}: {error}", flush=True)
            print("carme: install the Python packages jupyterhub and jupyterlab in it", flush=True)
            return 1
        pass_on_signals(server)
        if wait_until_listening(server, port, settings["start_seconds"]):
            report(settings["hub_api_url"], environment["JUPYTERHUB_API_TOKEN"], port)
            return server.wait()
        # Another process may have taken the port before it was bound: choose another port.
        is_taken = bool(listener_uids(port) - {os.getuid()}) or is_port_used(address, port)
        if server.poll() is None:
            server.terminate()
        if not is_taken:
            break
    code = server.wait()
    print(f"carme: Jupyter ended with exit code {code} before it listened", flush=True)
    return code or 1


def lay_out(
    folder: Path, files: "dict[str, str]", environment: "dict[str, str]"
) -> "dict[str, str]":
    """Write the files for Jupyter below `folder`; returns the variables by which it finds them.

    Without the files kernels would not be closed to other users, so the session does not start.
    """
    root = folder / "jupyter"
    try:
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if path.parent.name == "bin":
                path.chmod(0o700)
    except OSError as error:
        raise SystemExit(
            f"carme: the session's files cannot be written: {error}; "
            "delete files in your home, then start the session again"
        ) from None
    variables = {"CARME_JUPYTER": str(root)}
    for name, folder_name in FOLDERS.items():
        variables[name] = os.pathsep.join(
            filter(None, [str(root / folder_name), environment.get(name)])
        )
    return variables if files else {}


def runtime_folder() -> str:
    """A new folder for the connection files and unix sockets of kernels, of mode 0700.

    Not in the home: its path may be longer than a socket's address can be, and a network file
    system may not allow sockets.
    """
    for parent in RUNTIME_PARENTS:
        remove_left_folders(Path(parent))
        try:
            folder = tempfile.mkdtemp(prefix="carme-", dir=parent)
        except OSError:
            continue
        lock(Path(folder))
        return folder
    raise SystemExit(
        f"carme: none of {', '.join(RUNTIME_PARENTS)} can be written in this container, and "
        "kernels need one of them for their sockets"
    )


def lock(folder: Path) -> None:
    """Mark the folder as in use until this process ends, however it ends."""
    new = folder / f"{LOCK}-new"
    with contextlib.suppress(OSError):  # a folder without the file is never removed
        fcntl.flock(os.open(new, os.O_CREAT | os.O_WRONLY, 0o600), fcntl.LOCK_EX)
        new.rename(folder / LOCK)  # nobody finds it before it is locked


def remove_left_folders(parent: Path) -> None:
    """Remove this user's folders whose launcher was killed."""
    for folder in parent.glob("carme-*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                with (folder / LOCK).open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)


def own_address(hub_api_url: str) -> str:
    """The address to listen on: loopback if the hub is reached over it, else all addresses.

    Those of IPv6 only if the hub cannot be reached by IPv4: sites name their nodes for one of them.
    """
    url = urllib.parse.urlsplit(hub_api_url)
    try:
        found = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise SystemExit(f"carme: the hub's address {url.hostname} is unknown: {error}") from None
    for family, kind, _, _, hub in sorted(found, key=lambda item: item[0] != socket.AF_INET):
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(hub)
            except OSError:
                continue
            address = str(probe.getsockname()[0])
        if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return address
        return "::" if family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104
    raise SystemExit(f"carme: no route from this node to the hub at {url.hostname}")


def tcp_socket(address: str) -> socket.socket:
    """A socket that can have this address."""
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)


def free_port(address: str) -> int:
    """A port that no process listens on now."""
    with tcp_socket(address) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def is_port_used(address: str, port: int) -> bool:
    """Whether another process has the port."""
    with tcp_socket(address) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return True
    return False


def wait_until_listening(
    server: "subprocess.Popen[bytes]", port: int, start_seconds: float
) -> bool:
    """True once processes of this user listen on `port`, and nobody else; False if another user
    does, if Jupyter ends before that, or does not listen within `start_seconds`.

    The owner is checked in the kernel's tables: another user's program on that port must not be
    reported as ours, whether it listens by IPv4 or IPv6.
    """
    end = time.monotonic() + start_seconds
    while server.poll() is None and time.monotonic() < end:
        uids = listener_uids(port)
        if uids == {os.getuid()}:
            return True
        if uids:
            return False
        time.sleep(0.05)
    return False


def listener_uids(port: int, tables: "tuple[Path, ...]" = SOCKET_TABLES) -> "set[int]":
    """The Unix users that listen on `port`, from the kernel's tables of sockets."""
    uids = set()
    for table in tables:
        if not table.exists():  # a kernel without IPv6
            continue
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
                uids.add(int(fields[7]))
    return uids


def report(hub_api_url: str, token: str, port: int) -> None:
    """Report the port to the hub. It may be restarting, so this is repeated for two minutes."""
    end = time.monotonic() + REPORT_SECONDS
    while True:
        request = urllib.request.Request(  # noqa: S310 (the hub's own address)
            f"{hub_api_url}/carme/port",
            data=json.dumps({"port": port}).encode(),
            headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=10):  # noqa: S310
                return
        except urllib.error.HTTPError as error:
            body = error.read(500).decode(errors="replace")
            if error.code in (400, 401, 403, 404) or time.monotonic() > end:
                raise SystemExit(
                    f"carme: the hub refuses this session: {error.code} {body}"
                ) from None
        except OSError as error:
            if time.monotonic() > end:
                raise SystemExit(f"carme: the hub does not answer: {error}") from None
        time.sleep(1)


def pass_on_signals(server: "subprocess.Popen[bytes]") -> None:
    """Pass the job's signals on to jupyterhub-singleuser, which then ends its kernels."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: server.send_signal(received))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
