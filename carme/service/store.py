"""The database: users' workloads, calibrations and predictions. SQLite, or PostgreSQL by URL."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from importlib.resources import as_file, files
from typing import Any, ClassVar, TypeVar

from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    Engine,
    Float,
    String,
    and_,
    create_engine,
    delete,
    event,
    or_,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from carme.errors import DeniedError, MissingError
from carme.predict.coefficients import Calibration
from carme.service.hub_client import Caller
from carme.service.models import PageQuery


class Base(DeclarativeBase):
    """All tables."""


class OwnedRow(Base):
    """A row of one user. Id and time are set when it is added."""

    __abstract__ = True
    noun: ClassVar[str]
    """A row's name in messages; its plural is the path in the API."""
    id: Mapped[str] = mapped_column(
        String(32), primary_key=True, default=lambda: secrets.token_hex(12)
    )
    user: Mapped[str] = mapped_column(String(255), index=True)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float, default=time.time)


class WorkloadRow(OwnedRow):
    """A workload that a user described."""

    __tablename__ = "workloads"
    noun = "workload"
    name: Mapped[str] = mapped_column(String(64))


class CalibrationRow(OwnedRow):
    """Fitted coefficients with their provenance."""

    __tablename__ = "calibrations"
    noun = "calibration"
    workload: Mapped[str] = mapped_column(String(64))
    gpu: Mapped[str] = mapped_column(String(64))

    @property
    def calibration(self) -> Calibration:
        """The calibration, with the row's id in its provenance."""
        calibration = Calibration.model_validate(self.body)
        provenance = calibration.provenance.model_copy(update={"calibration": self.id})
        return calibration.model_copy(update={"provenance": provenance})


class PredictionRow(OwnedRow):
    """A stored prediction, with its job if it was made for one, and what was measured."""

    __tablename__ = "predictions"
    noun = "prediction"
    job_id: Mapped[int | None] = mapped_column(BigInteger, index=True)
    workload: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    """`session` if the hub made it: its time includes that in which the user does nothing."""
    source: Mapped[str] = mapped_column(String(16))
    """The source of its coefficients."""
    ended_as: Mapped[str | None] = mapped_column(String(32))
    """The job's final state; unset while it waits or runs."""
    measured_seconds: Mapped[float | None] = mapped_column(Float)
    measured_joules: Mapped[float | None] = mapped_column(Float)
    """Energy of its GPUs; unset where it was not measured."""
    time_within: Mapped[bool | None] = mapped_column(Boolean)
    """Whether the measured time lay in the interval; set for jobs that ran to their end."""
    energy_within: Mapped[bool | None] = mapped_column(Boolean)


Row = TypeVar("Row", bound=OwnedRow)


class Store:
    """The rows of all users. Making a store does not connect; `migrate` updates the tables."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)
        self.session = sessionmaker(self.engine, expire_on_commit=False).begin
        """A transaction, as a context manager: committed at the end, rolled back on an error."""

    def migrate(self, revision: str = "head") -> None:
        """Update the tables to this release, or to an older revision."""
        with as_file(files("carme.service").joinpath("migrations")) as folder:
            config = AlembicConfig()
            config.set_main_option("script_location", str(folder).replace("%", "%%"))
            with self.engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, revision)

    def check(self) -> None:
        """Raises SQLAlchemyError if the database does not answer."""
        with self.session() as session:
            session.execute(select(WorkloadRow.id).limit(1))

    def page(
        self, kind: type[Row], user: str | None, limit: int, cursor: str | None, /, **equal: Any
    ) -> list[Row]:
        """The newest rows of a user (None: of all users) after the row that `cursor` names."""
        query = select(kind).order_by(*_newest_first(kind)).limit(limit)
        if user is not None:
            query = query.where(kind.user == user)
        if cursor is not None:
            at, _, last = cursor.partition("-")
            older, same_time = kind.created_at < float(at), kind.created_at == float(at)
            query = query.where(or_(older, and_(same_time, kind.id > last)))
        for name, value in equal.items():
            query = query.where(getattr(kind, name) == value)
        with self.session() as session:
            return list(session.scalars(query))

    def newest(self, kind: type[Row], user: str, /, **equal: Any) -> Row | None:
        """The user's newest row with these values; None without one."""
        return next(iter(self.page(kind, user, 1, None, **equal)), None)

    def visible_page(
        self, kind: type[Row], caller: Caller, query: PageQuery
    ) -> tuple[list[Row], str | None]:
        """The caller's newest rows and the next page's cursor; an admin sees all users' rows."""
        rows = self.page(kind, None if caller.admin else caller.name, query.limit, query.cursor)
        return rows, next_cursor(rows, query.limit)

    def visible(self, kind: type[Row], caller: Caller, row_id: str) -> Row:
        """The row; MissingError if there is none that the caller may see."""
        with self.session() as session:
            row = session.get(kind, row_id)
        if row is None or not caller.may_see(row.user):
            raise MissingError(f"no {kind.noun} {row_id[:40]!r}", f"GET {kind.noun}s lists yours")
        return row

    def remove_own(self, kind: type[Row], caller: Caller, row_id: str) -> None:
        """Delete a row of the caller; DeniedError for an admin who sees another user's row."""
        row = self.visible(kind, caller, row_id)
        if row.user != caller.name:
            raise DeniedError(f"this {kind.noun} is another user's", "only its owner can delete it")
        self.remove(row)

    def add(self, row: OwnedRow, replaces: OwnedRow | None = None, most: int | None = None) -> None:
        """Store a row, in one transaction with the deletion of the one that it replaces.

        If the user then has more than `most` rows, the oldest are deleted.
        """
        with self.session() as session:
            if replaces is not None:
                session.delete(replaces)
                session.flush()  # the new row may have the same unique name
            session.add(row)
            if most is not None:
                session.flush()
                kind = type(row)
                ids = select(kind.id).where(kind.user == row.user)
                surplus = session.scalars(ids.order_by(*_newest_first(kind)).offset(most)).all()
                session.execute(delete(kind).where(kind.id.in_(surplus)))

    def add_calibration(self, row: CalibrationRow, most: int) -> bool:
        """Store a calibration. If the user then has more than `most`, the oldest of those are
        deleted that a newer one of the same workload and GPU supersedes; False, and nothing
        changes, if there are none."""
        kind = CalibrationRow
        columns = (kind.id, kind.workload, kind.gpu)
        query = select(*columns).where(kind.user == row.user).order_by(*_newest_first(kind))
        with self.session() as session:
            stored = session.execute(query).all()
            newest = {(row.workload, row.gpu)}
            superseded = []
            for row_id, workload, gpu in stored:
                if (workload, gpu) in newest:
                    superseded.append(row_id)
                newest.add((workload, gpu))
            surplus = max(len(stored) + 1 - most, 0)
            if surplus > len(superseded):
                return False
            removed = superseded[len(superseded) - surplus :]
            session.execute(delete(kind).where(kind.id.in_(removed)))
            session.add(row)
        return True

    def remove(self, row: OwnedRow) -> None:
        """Delete a row."""
        with self.session() as session:
            session.delete(row)


def _newest_first(kind: type[OwnedRow]) -> tuple[ColumnElement[Any], ...]:
    return kind.created_at.desc(), kind.id.asc()


def next_cursor(rows: Sequence[OwnedRow], limit: int) -> str | None:
    """Where the next page begins; None if there are no more rows."""
    return f"{rows[-1].created_at!r}-{rows[-1].id}" if len(rows) == limit else None


def _engine(url: str) -> Engine:
    if url.startswith("sqlite"):
        engine = create_engine(url, connect_args={"timeout": 1.0})

        @event.listens_for(engine, "connect")
        def _set_up(connection: Any, _record: Any) -> None:
            # Readers beside a writer; a crash of the machine may lose the last transactions.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")

        return engine
    # libpq waits for a lost server or network without a limit, which would block a request.
    wait = {"connect_timeout": 1, "options": "-c statement_timeout=1500", "tcp_user_timeout": 1500}
    return create_engine(url, pool_pre_ping=True, pool_timeout=1, connect_args=wait)
