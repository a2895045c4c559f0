#!/usr/bin/env python3
"""`carme-tcp-kernel COMMAND…`: starts a kernel that knows only TCP, in a network of its own.

For the `argv` of a kernel.json, before the kernel's own command. The kernel listens on a loopback
that no other user reaches, and has no other network. This program passes the bytes between unix
sockets of Jupyter and ports of the kernel: ZeroMQ sends the same over both. With `--share-network`
the kernel keeps the node's network, and all users of the node can read its cells and outputs.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

CHANNELS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def main(arguments: "list[str]") -> int:
    """Run the kernel to its end; returns its exit code."""
    shares = arguments[:1] == ["--share-network"]
    command = arguments[shares:]
    file = connection_file(command)
    if file is None:
        sys.exit("carme-tcp-kernel: the command names no connection file of Jupyter")
    info = json.loads(file.read_text(encoding="utf-8"))
    if info["transport"] != "ipc":
        sys.exit(f"carme-tcp-kernel: {file} asks for {info['transport']} instead of ipc")
    if not shares:
        enter_own_network()
    ports = free_ports(len(CHANNELS))
    tcp_file = file.with_name(f"tcp-{file.name}")
    tcp_info = {**info, "transport": "tcp", "ip": "127.0.0.1"}
    tcp_info.update(zip(CHANNELS, ports))  # noqa: B905 (Python before 3.10)
    os.umask(0o077)
    with ExitStack() as stack:
        stack.callback(remove, tcp_file)
        tcp_file.write_text(json.dumps(tcp_info), encoding="utf-8")
        listeners = [stack.enter_context(listen(f"{info['ip']}-{info[c]}")) for c in CHANNELS]
        kernel = subprocess.Popen(
            [word.replace(str(file), str(tcp_file)) for word in command],
            # An IPython kernel ends when its parent has another number than this one.
            env={**os.environ, "CARME_TCP_KERNEL": "1", "JPY_PARENT_PID": str(os.getpid())},
        )
        # Jupyter sends an interrupt to the whole process group, so the kernel gets it, too.
        signal.signal(signal.SIGINT, lambda *_: None)
        for listener, port in zip(listeners, ports):  # noqa: B905
            endpoints = (listener, port, kernel)
            threading.Thread(target=accept, args=endpoints, daemon=True).start()
        return kernel.wait()


def connection_file(command: "list[str]") -> "Path | None":
    """The file that Jupyter put into the kernel's command, as a word or as `--option=FILE`."""
    for word in command:
        path = Path(word[word.find("/") :])
        if path.suffix == ".json" and path.is_file():
            return path
    return None


def enter_own_network() -> None:
    """Move this process to a network with nothing but its own loopback."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text, encoding="ascii")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    except OSError as error:
        sys.exit(
            f"carme-tcp-kernel: this node gives the kernel no network of its own: {error}\n"
            "Ask the admins to allow user namespaces. With --share-network before the kernel's\n"
            "command it starts, but all users of the node can read its cells and outputs."
        )


def free_ports(number: int) -> "list[int]":
    """Ports of loopback that no process listens on now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def listen(path: str) -> socket.socket:
    """The unix socket that Jupyter connects to; one that an earlier start left is replaced."""
    remove(Path(path))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    return listener


def remove(path: Path) -> None:
    """Remove a file that may be gone already."""
    with suppress(FileNotFoundError):
        path.unlink()


def accept(listener: socket.socket, port: int, kernel: "subprocess.Popen[bytes]") -> None:
    """Connect each client to the kernel's port."""
    while True:
        client, _ = listener.accept()
        threading.Thread(target=relay, args=(client, port, kernel), daemon=True).start()


def relay(client: socket.socket, port: int, kernel: "subprocess.Popen[bytes]") -> None:
    """Pass bytes in both directions until one side ends. The kernel may not listen yet."""
    # Not by trying to connect: from a free port, a socket can connect to itself.
    while not is_listening(port):
        if kernel.poll() is not None:
            client.close()
            return
        time.sleep(0.05)
    server = socket.create_connection(("127.0.0.1", port))
    threading.Thread(target=pump, args=(server, client), daemon=True).start()
    pump(client, server)


def is_listening(port: int) -> bool:
    """Whether a process listens on the port, from the kernel's table of sockets. Java listens with
    sockets of IPv6 on addresses of IPv4, too."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
                    return True
    return False


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy to the end of the source, then end the target."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
