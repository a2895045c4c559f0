"""A database of the first release, and a private PostgreSQL server."""

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from sqlalchemy import text

from carme.local import packages
from carme.service.store import PredictionRow


def fill_first_version(store, predictions):
    """Tables of revision 0001 with a row in each; a row of `predictions` for each given."""
    store.migrate("0001")
    with store.engine.begin() as connection:
        for number, (job_id, body) in enumerate(predictions):
            connection.execute(
                text(
                    'INSERT INTO predictions (id, "user", job_id, workload, body, created_at)'
                    " VALUES (:id, 'ann', :job, 'resnet-50', :body, :at)"
                ),
                {"id": f"{number:024x}", "job": job_id, "body": json.dumps(body), "at": 1e9},
            )


def check_upgrade(store):
    """Check that the upgrade keeps the first release's data and sets their source."""
    fill_first_version(store, [(7, {"provenance": {"source": "fit"}}), (None, {})])
    store.migrate()
    rows = store.page(PredictionRow, "ann", 10, None)
    assert [(r.job_id, r.kind, r.source) for r in rows] == [
        (7, "session", "fit"), (None, "session", "data sheet"),
    ]  # fmt: skip
    store.engine.dispose()


class Postgresql:
    """Debian's server with a private folder, on a unix socket only."""

    def __init__(self):
        packages.install({"postgresql": "the database of a test"}, print, Path("/dev/null"))
        self._bin = max(Path("/usr/lib/postgresql").glob("*/bin"))
        self._dir = Path(tempfile.mkdtemp(prefix="carme-postgresql-"))
        shutil.chown(self._dir, "postgres", "postgres")
        self._as(self._bin / "initdb", "-D", self._dir / "data", "-A", "trust", "--no-sync")
        self.url = f"postgresql+psycopg://postgres@/postgres?host={self._dir}"
        self.start()

    def _as(self, *arguments):
        line = ["runuser", "-u", "postgres", "--", *map(str, arguments)]
        subprocess.run(line, check=True, capture_output=True, cwd="/", timeout=120)

    def start(self):
        arguments = [self._bin / "postgres", "-D", self._dir / "data", "-k", self._dir, "-c",
                 "listen_addresses=", "-c", "fsync=off"]  # fmt: skip
        self._server = subprocess.Popen(
            ["runuser", "-u", "postgres", "--", *map(str, arguments)], cwd="/",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        ready = [self._bin / "pg_isready", "-h", self._dir]
        for _ in range(300):
            if subprocess.run(ready, check=False, capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError("PostgreSQL did not start")

    def stop(self):
        """Stop it at once, with its connections."""
        self._as(self._bin / "pg_ctl", "stop", "-D", self._dir / "data", "-m", "immediate")
        self._server.wait(30)

    def close(self):
        self.stop()
        shutil.rmtree(self._dir)
