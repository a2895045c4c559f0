"""How long `carme-discovery` takes with ten thousand nodes."""

import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from carme.slurm.models import Node, Partition
from carme.slurm.snapshot import Snapshot
from carme.slurm.states import NodeState
from carme.view.client import ViewClient
from carme_monitoring.discovery import Discovery

NODES = 10_000


def _snapshot(nodes: int) -> bytes:
    node_list = tuple(
        Node(
            name=f"node{index:05}",
            address=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
            state=NodeState.MIXED,
            partitions=("gpu",),
            cpus=64,
            cpus_used=32,
            gpus={"a100": 8},
            gpus_used={"a100": 3},
        )
        for index in range(nodes)
    )
    snapshot = Snapshot(taken_at=time.time(), partitions=(Partition(name="gpu"),), nodes=node_list)
    return snapshot.model_dump_json().encode()


@contextmanager
def _served(body: bytes, folder: Path) -> Iterator[Path]:
    """A socket that answers every request with `body`, as carme-view does."""
    path = folder / "view.sock"
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def response() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(1 << 16)
                    client.sendall(head + body)

        threading.Thread(target=response, daemon=True).start()
        yield path
        server.shutdown(socket.SHUT_RDWR)


def discovery_ms(nodes: int = NODES, rounds: int = 5) -> float:
    """From asking the view until the file is in place: the median of some rounds."""
    times = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with _served(_snapshot(nodes), folder) as path:
            for round_ in range(rounds):
                file = folder / f"nodes{round_}.json"
                discovery = Discovery(ViewClient(path), file, "load", 9810, None)
                began = time.perf_counter()
                written = discovery.update()
                times.append((time.perf_counter() - began) * 1000)
                assert written == nodes == len(json.loads(file.read_text()))
    return statistics.median(times)
