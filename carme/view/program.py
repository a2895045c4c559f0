"""The program `carme-view`: a poller and a server, until SIGTERM or SIGINT."""

import asyncio
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from carme.config import Config, load
from carme.errors import CarmeError
from carme.slurm.client import connect
from carme.slurm.command_client import CommandClient
from carme.view.server import UnixServer
from carme.view.service import ViewService

log = logging.getLogger(__name__)
_THREADS = 16
"""More than poller, rights, expected starts, histories and extensions take together. Names and
groups of users have threads of their own."""


async def serve(config: Config) -> None:
    """Poll and answer until SIGTERM or SIGINT."""
    # asyncio's own number depends on the cores: four questions of users would delay the poller.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "slurm"))
    # The poller does its own retries and serves the last snapshot meanwhile.
    slurm = config.slurm.model_copy(update={"retry_seconds": 0})
    view = ViewService(config, connect(slurm), CommandClient.of(slurm))
    server = UnixServer(config.view.socket, view.answer, view.connections)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start()
    polling = asyncio.create_task(view.poller.run())
    # Read before the first spawn form needs them; if that fails, requests get the error.
    rights = asyncio.create_task(view.rights.of("root"))
    log.info("serving %s, polling every %g s", config.view.socket, config.view.poll_seconds)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if polling.done():
            polling.result()
    finally:
        for task in (polling, rights, stopping):
            task.cancel()
        await server.stop()
        await asyncio.gather(polling, rights, stopping, return_exceptions=True)


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="carme.toml to use.")
def main(path: Path | None) -> None:
    """Poll Slurm and answer on the socket view.socket until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        asyncio.run(serve(load(path)))
    except CarmeError as error:
        log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
