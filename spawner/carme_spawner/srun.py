#!/usr/bin/env python3
"""`srun` inside the session's container: sends the call to the relay outside of it.

Takes srun's own options; the command runs in this container's image on each node.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> int:
    """Have the relay run srun; returns srun's exit code, or 1 without an answer."""
    folder = os.environ.get("CARME_RELAY", "")
    relay = socket.socket(socket.AF_UNIX)
    try:
        relay.connect(f"{folder}/socket")
    except OSError as error:
        print(f"srun: this session cannot reach Slurm any more: {error}", file=sys.stderr)
        return 1
    request = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": str(Path.cwd())}
    body = json.dumps(request).encode()
    socket.send_fds(relay, [len(body).to_bytes(4, "big")], [0, 1, 2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda received, _: relay.sendall(bytes([received])))
    relay.sendall(body)
    code = relay.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(main())
