"""The database: own workloads, calibrations, predictions. SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Engine,
    Float,
    String,
    and_,
    create_engine,
    event,
    or_,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from carme.predict.coefficients import Calibration


class Base(DeclarativeBase):
    """All tables."""


class Owned(Base):
    """What a user keeps."""

    __abstract__ = True
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user: Mapped[str] = mapped_column(String(255), index=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float)


class WorkloadRow(Owned):
    """A workload that a user keeps."""

    __tablename__ = "workloads"
    name: Mapped[str] = mapped_column(String(64))


class CalibrationRow(Owned):
    """Fitted coefficients with where they come from."""

    __tablename__ = "calibrations"
    workload: Mapped[str] = mapped_column(String(64))
    gpu: Mapped[str] = mapped_column(String(64))

    @property
    def calibration(self) -> Calibration:
        """The calibration, with the row's id in its provenance."""
        calibration = Calibration.model_validate(self.body)
        provenance = calibration.provenance.model_copy(update={"calibration": self.id})
        return calibration.model_copy(update={"provenance": provenance})


class PredictionRow(Owned):
    """A prediction that is kept, with the job it was made for if there is one."""

    __tablename__ = "predictions"
    job_id: Mapped[int | None] = mapped_column(BigInteger, index=True)
    workload: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    """`session` for those that the hub makes, which also hold the time in which people think."""
    source: Mapped[str] = mapped_column(String(16))
    """Where its coefficients came from."""
    ended_as: Mapped[str | None] = mapped_column(String(32))
    """The job's state in the end; unset while it waits or runs."""
    measured_seconds: Mapped[float | None] = mapped_column(Float)
    measured_joules: Mapped[float | None] = mapped_column(Float)
    """Of its GPUs; unset where nobody measured."""
    time_within: Mapped[bool | None] = mapped_column(Boolean)
    """Whether the measured time lay in the interval, for jobs that ran to their end."""
    energy_within: Mapped[bool | None] = mapped_column(Boolean)


Row = TypeVar("Row", bound=Owned)


class Store:
    """Sessions of the database. Made without touching it; `migrate` brings it up to date."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    def migrate(self, revision: str = "head") -> None:
        """Bring the tables to what this release needs, or up to an older revision."""
        with as_file(files("carme.service").joinpath("migrations")) as folder:
            config = AlembicConfig()
            config.set_main_option("script_location", str(folder).replace("%", "%%"))
            with self.engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, revision)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A transaction: committed at the end, rolled back on an error."""
        with self._sessions.begin() as found:
            yield found

    def check(self) -> None:
        """Raises what SQLAlchemy raises when the database does not answer."""
        with self.session() as session:
            session.execute(select(WorkloadRow.id).limit(1))

    def page(
        self, kind: type[Row], user: str | None, limit: int, cursor: str | None, /, **equal: Any
    ) -> list[Row]:
        """The newest rows of a user (of all for None), after the one that `cursor` names."""
        query = select(kind).order_by(kind.created_at.desc(), kind.id).limit(limit)
        if user is not None:
            query = query.where(kind.user == user)
        if cursor is not None:
            at, _, last = cursor.partition("-")
            older, beside = kind.created_at < float(at), kind.created_at == float(at)
            query = query.where(or_(older, and_(beside, kind.id > last)))
        for name, value in equal.items():
            query = query.where(getattr(kind, name) == value)
        with self.session() as session:
            return list(session.scalars(query))

    def get(self, kind: type[Row], row_id: str) -> Row | None:
        """One row."""
        with self.session() as session:
            return session.get(kind, row_id)

    def add(self, row: Owned) -> None:
        """Keep a row."""
        with self.session() as session:
            session.add(row)

    def remove(self, row: Owned) -> None:
        """Forget a row."""
        with self.session() as session:
            session.delete(row)


def next_cursor(rows: Sequence[Owned], limit: int) -> str | None:
    """Where the next page begins; None when these rows were the last."""
    return f"{rows[-1].created_at!r}-{rows[-1].id}" if len(rows) == limit else None


def new_id() -> str:
    """For a row: not guessable, sorts by nothing."""
    return secrets.token_hex(12)


def now() -> float:
    """Unix seconds, for `created_at`."""
    return time.time()


def _engine(url: str) -> Engine:
    if url.startswith("sqlite"):
        engine = create_engine(url, connect_args={"timeout": 1.0})

        @event.listens_for(engine, "connect")
        def _set_up(connection: Any, _record: Any) -> None:
            # Readers and a writer at the same time; a crash of the machine may lose the last words.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

        return engine
    # A server or a network that is gone must not hold a request: no default of libpq's ends it.
    wait = {"connect_timeout": 1, "options": "-c statement_timeout=1500", "tcp_user_timeout": 1500}
    return create_engine(url, pool_pre_ping=True, pool_timeout=1, connect_args=wait)
