"""`carme-service`: serves the application with waitress."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from typing import Any

import waitress
from sqlalchemy.exc import SQLAlchemyError

from carme.config import load
from carme.errors import CarmeError
from carme.service.app import create_app
from carme.service.parts import Parts

log = logging.getLogger("carme.service")
_THREADS = 16
_RETRY_SECONDS = 5.0


def main() -> None:
    """Serve until a signal; a database that is away at the start is tried again."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        config = load()
    except CarmeError as error:
        sys.exit(f"carme-service: {error}")
    app = create_app(config)
    here: Parts = app.extensions["carme"]
    threading.Thread(target=_migrate, args=(here,), daemon=True).start()
    here.tasks.warm()
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

    def stop(_number: int, _frame: Any) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    log.info("listening on http://%s:%s", config.service.listen, config.service.port)
    try:
        server.run()
    finally:
        here.tasks.close()
        server.close()


def _migrate(here: Parts) -> None:
    while True:
        try:
            here.store.migrate()
        except SQLAlchemyError as error:
            log.error("database: %s", str(error).splitlines()[0])
            time.sleep(_RETRY_SECONDS)
        else:
            return


if __name__ == "__main__":
    main()
