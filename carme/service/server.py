"""`carme-service`: serves the application with waitress."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress

import waitress
from sqlalchemy.exc import SQLAlchemyError

from carme.config import load
from carme.errors import CarmeError
from carme.service.app import create_app
from carme.service.context import ServiceContext
from carme.service.outcomes import keep_recording

log = logging.getLogger("carme.service")
_THREADS = 16
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
    server = waitress.create_server(
        app,
        host=config.service.listen,
        port=config.service.port,
        threads=_THREADS,
        ident="",
        max_request_body_size=config.service.most_onnx_bytes + 1,
        channel_timeout=60,
        connection_limit=500,
    )

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log.info("listening on http://%s:%s", config.service.listen, config.service.port)
    with suppress(SystemExit):
        server.run()
    stopping.set()
    server.close()
    _end(context)


def _end(context: ServiceContext) -> None:
    """Close the pool of processes; kill it if that takes more than two seconds."""
    context.sandbox.close()
    closing = threading.Thread(target=context.tasks.close, daemon=True)
    closing.start()
    closing.join(_END_SECONDS)
    if closing.is_alive():
        context.tasks.kill()
        logging.shutdown()
        os._exit(0)  # a normal exit would wait for the pool


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
