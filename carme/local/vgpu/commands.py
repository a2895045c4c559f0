"""`carme-vgpu`: the daemon of the virtual GPUs of this machine, and commands that ask it."""

import json
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click

from carme.config import load
from carme.errors import CarmeError, ConfigError, UnavailableError
from carme.local.vgpu.cards import Card, cards
from carme.local.vgpu.node import VirtualNode
from carme.node import hook_interface

LISTENER = "10-vgpu"
ERRORS = {
    "not-supported": 3,
    "no-permission": 4,
    "timeout": 10,
    "gpu-is-lost": 15,
    "unknown": 999,
}
"""NVML errors that `carme-vgpu fault` can cause."""


class Daemon:
    """Updates every node and answers on the socket: the hook's events, and these commands."""

    def __init__(self, nodes: list[VirtualNode], hz: float = 20) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._period = 1 / hz
        self._running = True

    def handle(self, request: dict[str, object]) -> dict[str, object]:
        """Answer one request: `event` (from the hook), `fault`, `xid`, `record` or `health`."""
        if "record" in request:
            nodes = [n for n in self.nodes.values() if request["record"] in (True, n.name)]
            return {
                "ended": [span for node in nodes for span in node.record.read()],
                "open": [span for node in nodes for span in node.open_spans()],
            }
        if "health" in request:
            return {"ok": True, "nodes": {name: len(n.cards) for name, n in self.nodes.items()}}
        node = self.nodes.get(str(request.get("node")))
        if node is None:
            return {"error": "no such node"}
        if "event" in request:
            node.tick(force=True)
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
        return {"error": "unknown request"}

    def run(self, run_folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Update the GPUs until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        server = hook_interface.listener(run_folder, LISTENER)
        due = now()
        try:
            while self._running:
                due = max(due + self._period, now())  # no burst of ticks after a pause
                while self._running and (left := due - now()) > 0:
                    if select.select([server], [], [], left)[0]:
                        hook_interface.answer(server, self.handle)
                for node in self.nodes.values():
                    node.tick()
        finally:
            server.close()
            for node in self.nodes.values():
                node.close()

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._running = False


def make_daemon(
    cards_of: dict[str, tuple[Card, ...]], folder: Path, run: Path, cgroup: Path
) -> Daemon:
    """A daemon for all nodes that have cards."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    nodes = [VirtualNode(group, folder, run, cgroup=cgroup) for group in cards_of.values() if group]
    if not nodes:
        raise ConfigError("no node has GPUs", "set local.nodes[*].gpus in carme.toml")
    return Daemon(nodes)


_run_option = click.option(
    "--run", "run_folder", type=click.Path(path_type=Path), required=True,
    help="Where prolog and epilog write their records and find this daemon's socket.",
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def vgpu() -> None:
    """Virtual GPUs: cards that compute nothing and follow the job that holds them."""


@vgpu.command()
@click.option("--config", type=click.Path(path_type=Path), help="carme.toml (local.nodes).")
@click.option(
    "--state", type=click.Path(path_type=Path), required=True, help="Folder of the cards' files."
)
@_run_option
@click.option(
    "--cgroup", type=click.Path(path_type=Path), default=Path("/sys/fs/cgroup"), show_default=True
)
def run(config: Path | None, state: Path, run_folder: Path, cgroup: Path) -> None:
    """Maintain the cards until stopped."""
    make_daemon(cards(load(config).local.nodes), state, run_folder, cgroup).run(run_folder)


@vgpu.command()
@_run_option
def health(run_folder: Path) -> None:
    """Exit with 0 if the daemon answers."""
    nodes = ask(run_folder, {"health": True})["nodes"]
    click.echo(" ".join(f"{name}={count}" for name, count in nodes.items()))


@vgpu.command()
@_run_option
@click.argument("node", required=False)
def record(run_folder: Path, node: str | None) -> None:
    """Print the joules of every job so far, as JSON: ended spans and open ones."""
    click.echo(json.dumps(ask(run_folder, {"record": node or True}), indent=1))


@vgpu.command()
@_run_option
@click.argument("node")
@click.argument("gpu", type=int)
@click.argument("call")
@click.argument("error", required=False, type=click.Choice(list(ERRORS)))
def fault(run_folder: Path, node: str, gpu: int, call: str, error: str | None) -> None:
    """Make NVML's CALL (or '*') on a card fail with ERROR; without ERROR it works again."""
    _confirm(ask(run_folder, {"node": node, "gpu": gpu, "fault": call, "error": error}))


@vgpu.command()
@_run_option
@click.argument("node")
@click.argument("gpu", type=int)
@click.argument("number", type=int)
def xid(run_folder: Path, node: str, gpu: int, number: int) -> None:
    """Report the XID error NUMBER on a card."""
    _confirm(ask(run_folder, {"node": node, "gpu": gpu, "xid": number}))


def ask(run_folder: Path, request: dict[str, object], seconds: float = 5) -> dict[str, Any]:
    """The daemon's answer to `request`."""
    path = run_folder / "listen" / f"{LISTENER}.sock"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(seconds)
            client.connect(str(path))
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as stream:
                answer: dict[str, Any] = json.loads(stream.readline())
    except (OSError, ValueError) as error:
        raise UnavailableError(f"carme-vgpu does not answer on {path}: {error}") from error
    return answer


def _confirm(answer: dict[str, Any]) -> None:
    if "error" in answer:
        raise UnavailableError(str(answer["error"]))
    click.echo("done")


def main() -> None:
    """The command line; an expected error is one line and exit code 1."""
    try:
        vgpu()
    except CarmeError as error:
        click.echo(f"carme-vgpu: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
