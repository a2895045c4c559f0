"""Around the hook: the scripts with which slurmd runs it, and the sockets that it notifies."""

import json
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from carme.node import hook

DEFAULT_FOLDER = Path("/run/carme")


def listener(folder: Path, name: str, mode: int = 0o600) -> socket.socket:
    """A listening socket that the hook notifies, in the order of names; may end in `.NODE`."""
    listen = folder / "listen"
    listen.mkdir(parents=True, exist_ok=True)
    path = listen / f"{name}.sock"
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    server.bind(str(path))
    path.chmod(mode)
    server.listen(64)
    return server


def answer(server: socket.socket, handle: Callable[[dict[str, object]], dict[str, object]]) -> None:
    """Accept one connection, read a JSON line, send `handle`'s reply; bad clients are ignored."""
    try:
        client, _ = server.accept()
    except OSError:
        return
    with client:
        client.settimeout(0.5)
        try:
            line = b""
            while not line.endswith(b"\n") and len(line) < 65536:
                if not (part := client.recv(65536)):
                    break
                line += part
            request = json.loads(line)
            reply = handle(request) if isinstance(request, dict) else {"error": "not an object"}
            client.sendall(json.dumps(reply).encode() + b"\n")
        except (OSError, ValueError):
            return


def script(
    event: Literal["prolog", "epilog"],
    folder: Path = DEFAULT_FOLDER,
    hub: str = "",
    python: str = sys.executable,
    environment: dict[str, str] | None = None,
) -> str:
    """A shell script for slurm.conf's Prolog= or Epilog=, which cannot fail or delay a job.

    `hub` is the ADDRESS:PORT/PATH of the hub's API, which hears of the end of sessions.
    """
    command = shlex.join([python, "-I", "-S", hook.__file__, event, str(folder), hub])
    extra = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in (environment or {}).items()
    )
    return (
        "#!/bin/sh\n"
        f"# Run by slurmd as Slurm's {event}: records which job holds which GPUs.\n"
        "# It always succeeds: its errors must not keep a job from starting and ending.\n"
        f"PATH=/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n{extra}"
        f"timeout -k 1 6 {command} </dev/null >/dev/null 2>&1\n"
        "exit 0\n"
    )
