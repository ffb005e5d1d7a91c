"""Sources made by the SDK's own sessions, and what only a test does to their rows."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
from agents import SQLiteSession
from agents.extensions.memory import AsyncSQLiteSession, SQLAlchemySession
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cas_session.importers import SdkTables
from tests import postgres

SQLITE = ["SQLiteSession", "AsyncSQLiteSession", "SQLAlchemySession on sqlite"]
KINDS = [*SQLITE, "SQLAlchemySession on postgres"]
TABLES = {"sessions_table": "agent_sessions", "messages_table": "agent_messages"}


class Sdk:
    """One database with sessions of one kind."""

    def __init__(self, kind: str, url: str, tables: dict[str, str], engine: AsyncEngine | None) -> None:
        self.kind = kind
        self.url = url
        self.tables = tables
        self.file = str(make_url(url).database)
        self._engine = engine
        self._opened: list[Any] = []

    @property
    def source(self) -> SdkTables:
        return SdkTables(self.url, messages_table=self.tables["messages_table"])

    def session(self, session_id: str) -> Any:
        if self._engine is not None:
            return SQLAlchemySession(session_id, engine=self._engine, create_tables=True, **self.tables)
        made = SQLiteSession if self.kind == "SQLiteSession" else AsyncSQLiteSession
        self._opened.append(made(session_id, self.file, **self.tables))
        return self._opened[-1]

    def content(self) -> bytes:
        """The bytes of the file."""
        return Path(self.file).read_bytes()

    async def add(self, session_id: str, items: list[Any]) -> None:
        await self.session(session_id).add_items(items)

    async def execute(self, sql: str, *values: Any) -> None:
        """Run a statement with ``?`` for parameters."""
        if self.url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
                connection.execute(sql, values)
            return
        for number in range(len(values)):
            sql = sql.replace("?", f"${number + 1}", 1)
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(sql, *values)
        finally:
            await connection.close()

    async def break_row(self, text: Any, *, row: int) -> None:
        await self.execute("UPDATE agent_messages SET message_data = ? WHERE id = ?", text, row)

    async def close(self) -> None:
        for session in self._opened:
            closing = session.close()
            if closing is not None:
                await closing
        if self._engine is not None:
            await self._engine.dispose()


@contextlib.asynccontextmanager
async def open_sdk(kind: str, url: str, **tables: str) -> AsyncIterator[Sdk]:
    tables = TABLES | tables
    engine = None
    if kind.startswith("SQLAlchemySession"):
        driver = "sqlite+aiosqlite" if url.startswith("sqlite") else "postgresql+asyncpg"
        engine = create_async_engine(make_url(url).set(drivername=driver))
    if url.startswith("postgres"):
        drop = "; ".join(f'DROP TABLE IF EXISTS "{name}" CASCADE' for name in tables.values())
        postgres.execute(url, drop)
    sdk = Sdk(kind, url, tables, engine)
    try:
        yield sdk
    finally:
        await sdk.close()
