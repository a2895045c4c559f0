"""`carme-vgpu`: keep the virtual GPUs of this machine, and ask the one that does."""

import json
import socket
import sys
from pathlib import Path

import click

from carme.config import load
from carme.errors import CarmeError, UnavailableError
from carme.local.vgpu import daemon
from carme.local.vgpu.cards import cards

_run_option = click.option(
    "--run", "run_folder", type=click.Path(path_type=Path), required=True,
    help="Where prolog and epilog keep their records and find this daemon's socket.",
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
    """Keep the cards until stopped."""
    daemon.make(cards(load(config).local.nodes), state, run_folder, cgroup).run(run_folder)


@vgpu.command()
@_run_option
def health(run_folder: Path) -> None:
    """Exit 0 when the daemon answers."""
    found = ask(run_folder, {"health": True})["nodes"]
    click.echo(" ".join(f"{name}={count}" for name, count in found.items()))  # type: ignore[attr-defined]


@vgpu.command()
@_run_option
@click.argument("node", required=False)
def record(run_folder: Path, node: str | None) -> None:
    """Print the joules of every holder so far, as JSON: spans that ended, and open ones."""
    click.echo(json.dumps(ask(run_folder, {"record": node or True}), indent=1))


@vgpu.command()
@_run_option
@click.argument("node")
@click.argument("gpu", type=int)
@click.argument("call")
@click.argument("error", required=False, type=click.Choice(list(daemon.ERRORS)))
def fault(run_folder: Path, node: str, gpu: int, call: str, error: str | None) -> None:
    """Make NVML's CALL (or '*') on a card fail with ERROR; without ERROR it works again."""
    _say(ask(run_folder, {"node": node, "gpu": gpu, "fault": call, "error": error}))


@vgpu.command()
@_run_option
@click.argument("node")
@click.argument("gpu", type=int)
@click.argument("number", type=int)
def xid(run_folder: Path, node: str, gpu: int, number: int) -> None:
    """Report the XID error NUMBER on a card."""
    _say(ask(run_folder, {"node": node, "gpu": gpu, "xid": number}))


def ask(run_folder: Path, request: dict[str, object], seconds: float = 5) -> dict[str, object]:
    """The daemon's answer to `request`."""
    path = run_folder / "listen" / f"{daemon.LISTENER}.sock"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(seconds)
            client.connect(str(path))
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as stream:
                found: dict[str, object] = json.loads(stream.readline())
    except (OSError, ValueError) as error:
        raise UnavailableError(f"carme-vgpu does not answer on {path}: {error}") from error
    return found


def _say(answer: dict[str, object]) -> None:
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
