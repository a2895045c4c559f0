"""`carme-vgpu run`: one process that keeps the virtual GPUs of all nodes of this machine."""

import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from carme.errors import ConfigError
from carme.local.vgpu.cards import Card
from carme.local.vgpu.node import VirtualNode
from carme.node import gpu_allocations

LISTENER = "10-vgpu"
ERRORS = {
    "not-supported": 3,
    "no-permission": 4,
    "timeout": 10,
    "gpu-is-lost": 15,
    "unknown": 999,
}
"""What tests can ask for, with NVML's number."""


class Daemon:
    """Ticks every node and answers on the socket: the hook's events, and the commands of tests."""

    def __init__(self, nodes: list[VirtualNode], hz: float = 20) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._period = 1 / hz
        self._running = True

    def handle(self, request: dict[str, object]) -> dict[str, object]:
        """Answer one request: `event` (from the hook), `fault`, `xid`, `record` or `health`."""
        if "record" in request:
            chosen = [n for n in self.nodes.values() if request["record"] in (True, n.name)]
            return {
                "ended": [span for node in chosen for span in node.record.read()],
                "open": [span for node in chosen for span in node.open_spans()],
            }
        if "health" in request:
            return {"ok": True, "nodes": {name: len(n.cards) for name, n in self.nodes.items()}}
        node = self.nodes.get(str(request.get("node")))
        if node is None:
            return {"error": "no such node"}
        if "event" in request:
            node.tick(told=True)
            return {"ok": True}
        gpu = request.get("gpu")
        if not isinstance(gpu, int) or not 0 <= gpu < len(node.cards):
            return {"error": "no such GPU"}
        if "fault" in request:
            error = request.get("error")
            if error is not None and error not in ERRORS:
                return {"error": f"error is one of {', '.join(ERRORS)}"}
            node.set_fault(gpu, str(request["fault"]), ERRORS[str(error)] if error else None)
            return {"ok": True}
        if isinstance(xid := request.get("xid"), int):
            node.raise_xid(gpu, xid)
            return {"ok": True}
        return {"error": "nothing that is known here"}

    def run(self, run_folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Keep the GPUs until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        server = gpu_allocations.listener(run_folder, LISTENER)
        due = now()
        try:
            while self._running:
                due = max(due + self._period, now())  # after a stall: no burst of late ticks
                while self._running and (left := due - now()) > 0:
                    if select.select([server], [], [], left)[0]:
                        gpu_allocations.answer(server, self.handle)
                for node in self.nodes.values():
                    node.tick()
        finally:
            server.close()
            for node in self.nodes.values():
                node.close()

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._running = False


def make(cards: dict[str, tuple[Card, ...]], folder: Path, run: Path, cgroup: Path) -> Daemon:
    """A daemon for every node that has cards."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    nodes = [VirtualNode(mine, folder, run, cgroup=cgroup) for mine in cards.values() if mine]
    if not nodes:
        raise ConfigError("no node has GPUs", "set local.nodes[*].gpus in carme.toml")
    return Daemon(nodes)
