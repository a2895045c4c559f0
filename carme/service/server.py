"""`carme-service`: serves the application until a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from flask import Flask
from sqlalchemy.exc import SQLAlchemyError
from tornado.netutil import bind_sockets

from carme.config import load
from carme.errors import CarmeError
from carme.service.app import create_app
from carme.service.context import ServiceContext
from carme.service.http_server import ApplicationServer
from carme.service.outcomes import keep_recording

log = logging.getLogger("carme.service")
_BACKLOG = 1024
_SWITCH_SECONDS = 0.0002
_RETRY_SECONDS = 5.0
_END_SECONDS = 2.0


def main() -> None:
    """Serve until a signal; a database that does not answer at the start is tried again."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        config = load()
    except CarmeError as error:
        sys.exit(f"carme-service: {error}")
    app = create_app(config)
    context: ServiceContext = app.extensions["carme"]
    stopping = threading.Event()
    threading.Thread(target=_migrate_and_record, args=(context, stopping), daemon=True).start()
    context.tasks.warm()
    # The event loop passes on requests and answers; it must not wait long for threads that compute.
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        threads = asyncio.run(_serve(app, config.service.listen, config.service.port))
    except OSError as error:
        sys.exit(f"carme-service: {config.service.listen}:{config.service.port}: {error.strerror}")
    stopping.set()
    _end(context, threads)


async def _serve(app: Flask, address: str, port: int) -> ThreadPoolExecutor:
    """Serve until a signal; returns the threads, some of which may still be at work."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = ApplicationServer(app, (address, port))
    server.add_sockets(bind_sockets(port, address, backlog=_BACKLOG))
    log.info("listening on http://%s:%s", address, port)
    watching = asyncio.create_task(server.watch())
    await stopped.wait()
    watching.cancel()
    server.stop()
    return server.threads


def _end(context: ServiceContext, threads: ThreadPoolExecutor) -> None:
    """Close the pools of processes and threads; kill them if that takes more than two seconds."""
    context.sandboxes.close()

    def close() -> None:
        context.tasks.close()
        threads.shutdown(cancel_futures=True)

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(_END_SECONDS)
    if closing.is_alive():
        context.tasks.kill()
        logging.shutdown()
        os._exit(0)  # a normal exit would wait for the pools


def _migrate_and_record(context: ServiceContext, stopping: threading.Event) -> None:
    """Update the database, then record outcomes of predictions."""
    while not stopping.is_set():
        try:
            context.store.migrate()
        except SQLAlchemyError as error:
            log.error("database: %s", str(error).splitlines()[0])
            stopping.wait(_RETRY_SECONDS)
        else:
            break
    keep_recording(context.store, context.cluster, stopping)


if __name__ == "__main__":
    main()
