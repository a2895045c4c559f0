"""Rows that users store: list, get and delete. Owners may delete theirs, admins may read all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import BaseModel

from carme.errors import DeniedError, MissingError
from carme.service.context import current_context
from carme.service.hub_client import Caller
from carme.service.models.requests import PageQuery
from carme.service.store import Row, next_cursor

Shown = TypeVar("Shown", bound=BaseModel)


class StoredRows(Generic[Row, Shown]):
    """Rows of one kind, by the word that people know them by, and how they are shown."""

    def __init__(self, noun: str, kind: type[Row], shown: Callable[[Row], Shown]) -> None:
        self._noun, self._kind, self.shown = noun, kind, shown

    def page(self, who: Caller, query: PageQuery) -> tuple[tuple[Shown, ...], str | None]:
        """The newest first, and where the next page begins; an admin sees everybody's."""
        owner = None if who.admin else who.name
        rows = current_context().store.page(self._kind, owner, query.limit, query.cursor)
        return tuple(self.shown(row) for row in rows), next_cursor(rows, query.limit)

    def row(self, who: Caller, row_id: str) -> Row:
        """One that the caller may see."""
        row = current_context().store.get(self._kind, row_id)
        if row is None or not who.may_see(row.user):
            raise MissingError(f"no {self._noun} {row_id[:40]!r}", f"GET {self._noun}s lists yours")
        return row

    def forget(self, who: Caller, row_id: str) -> None:
        """Delete one of the caller's own."""
        row = self.row(who, row_id)
        if row.user != who.name:
            raise DeniedError(f"this {self._noun} is somebody else's", "only its owner deletes it")
        current_context().store.remove(row)
