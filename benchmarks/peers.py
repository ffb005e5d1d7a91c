"""Other session stores, each as its documentation uses it. One that is not installed is left out."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from benchmarks.items import Turn
from benchmarks.stores import Session, Store
from cas_session.snapshot import Item

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

MODULES = {"openai-agents": "agents"}
BEGINNING = datetime(2026, 1, 1)

INSERT_SESSION = "INSERT INTO agent_sessions (session_id) VALUES (?)"
INSERT_ITEM = "INSERT INTO agent_messages (session_id, message_data, created_at) VALUES (?, ?, ?)"
NEWEST = "SELECT session_id, updated_at FROM agent_sessions ORDER BY updated_at DESC LIMIT {}"


def missing() -> list[str]:
    """The libraries that are not installed."""
    return [library for library, module in MODULES.items() if importlib.util.find_spec(module) is None]


class AgentsSession(Session):
    """Any session of openai-agents."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def append(self, items: list[Item]) -> None:
        await self._session.add_items(items)

    async def read(self, limit: int | None = None) -> list[Any]:
        items: list[Any] = await self._session.get_items(limit)
        return items

    async def pop(self) -> None:
        await self._session.pop_item()

    async def clear(self) -> None:
        await self._session.clear_session()

    async def replace(self, items: list[Item], mark: Any) -> None:
        """As its own compaction by hand does it: in two transactions."""
        await self._session.clear_session()
        await self._session.add_items(items)

    async def close(self) -> None:
        if (close := getattr(self._session, "close", None)) is not None:
            close()


class SqlalchemySession(Store):
    """Over one engine with its defaults."""

    name = "SQLAlchemySession"
    _engine: AsyncEngine

    def session(self, session_id: str) -> AgentsSession:
        return AgentsSession(self._peer(session_id, engine=self._engine))

    async def open(self, *, create: bool = False) -> None:
        from agents.extensions.memory import SQLAlchemySession
        from sqlalchemy import make_url
        from sqlalchemy.ext.asyncio import create_async_engine

        self._peer = SQLAlchemySession
        url = make_url(self.url)
        driver = "asyncpg" if url.get_backend_name() == "postgresql" else "aiosqlite"
        self._engine = create_async_engine(url.set(drivername=f"{url.get_backend_name()}+{driver}"))
        if create:
            await SQLAlchemySession("first", engine=self._engine, create_tables=True).get_items()

    async def close(self) -> None:
        await self._engine.dispose()

    async def fill(self, sessions: Iterable[tuple[str, list[Turn]]]) -> None:
        if self.url.startswith("sqlite"):
            _fill_sqlite(self.url, sessions)
        else:
            await _fill_postgres(self.url, sessions)

    async def newest(self, limit: int) -> object:
        """It has no such call; this is what a user would write."""
        from sqlalchemy import text

        async with self._engine.connect() as connection:
            return (await connection.execute(text(NEWEST.format(limit)))).all()


class SqliteSession(Store):
    """SQLiteSession on a file."""

    name = "SQLiteSession"

    async def open(self, *, create: bool = False) -> None:
        from agents.memory import SQLiteSession

        self._peer, self._path = SQLiteSession, self.url.removeprefix("sqlite:///")
        if create:
            SQLiteSession("first", self._path).close()

    async def close(self) -> None:
        """Each session has connections of its own."""

    def session(self, session_id: str) -> AgentsSession:
        return AgentsSession(self._peer(session_id, self._path))

    async def fill(self, sessions: Iterable[tuple[str, list[Turn]]]) -> None:
        _fill_sqlite(self.url, sessions)

    async def newest(self, limit: int) -> object:
        """It has no such call; this is what a user would write."""
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute(NEWEST.format(limit)).fetchall()


def _rows(session_id: str, turns: list[Turn]) -> Iterator[tuple[str, str, datetime]]:
    for number, turn in enumerate(turns):
        stored_at = BEGINNING + timedelta(seconds=number)
        yield from ((session_id, text, stored_at) for text in turn.texts)


async def _fill_postgres(url: str, sessions: Iterable[tuple[str, list[Turn]]]) -> None:
    connection = await asyncpg.connect(url)
    columns = ["session_id", "message_data", "created_at"]
    try:
        for session_id, turns in sessions:
            await connection.copy_records_to_table(
                "agent_sessions", records=[(session_id,)], columns=["session_id"]
            )
            await connection.copy_records_to_table(
                "agent_messages", records=_rows(session_id, turns), columns=columns
            )
    finally:
        await connection.close()


def _fill_sqlite(url: str, sessions: Iterable[tuple[str, list[Turn]]]) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as connection, connection:
        for session_id, turns in sessions:
            connection.execute(INSERT_SESSION, (session_id,))
            rows = ((one, text, f"{stored_at}") for one, text, stored_at in _rows(session_id, turns))
            connection.executemany(INSERT_ITEM, rows)
