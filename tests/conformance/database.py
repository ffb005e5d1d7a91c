"""A database, its drivers, and what only a test does to it: look at rows, make them older, hold a lock."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from sqlalchemy import make_url

from cas_session.driver import Driver

HANG_S = 60  # a driver that does not wait where it must would hang the test

LOCK_WAITERS = """
SELECT count(*)
  FROM pg_stat_activity
 WHERE datname = current_database()
   AND wait_event_type = 'Lock'
"""


class Database:
    """One database; every `opened` is a driver of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        self._path = str(make_url(url).database) if self.is_sqlite else ""

    def new_driver(self) -> Driver:
        if self.is_sqlite:
            from cas_session.drivers.sqlite import SqliteDriver

            return SqliteDriver(self._path)
        from cas_session.drivers.postgres import PostgresDriver

        return PostgresDriver(self.url)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Driver]:
        driver = self.new_driver()
        await driver.open()
        try:
            if driver.traits.migrates_when_opened:
                await driver.migrate()
            yield driver
        finally:
            await driver.close()

    async def item_rows(self, session_id: str) -> list[str]:
        """The text of every item row that is stored, visible or hidden."""
        if self.is_sqlite:
            rows = self._sqlite("SELECT data FROM cas_session_item WHERE session_id = ?", session_id)
        else:
            rows = await self._postgres("SELECT data FROM cas_session_item WHERE session_id = $1", session_id)
        return [data for (data,) in rows]

    async def age_writes(self, session_id: str, by: timedelta, *, through: int) -> None:
        """Make the writes up to version ``through`` look older."""
        if self.is_sqlite:
            self._sqlite(
                "UPDATE cas_session_op SET created_at = strftime('%Y-%m-%d %H:%M:%f', created_at, ?)"
                " WHERE session_id = ? AND version <= ?",
                f"-{by.total_seconds()} seconds",
                session_id,
                through,
            )
        else:
            await self._postgres(
                "UPDATE cas_session_op SET created_at = created_at - $1::interval"
                " WHERE session_id = $2 AND version <= $3",
                by,
                session_id,
                through,
            )

    async def age_items(self, session_id: str, by: timedelta) -> None:
        """Make the items of a session look older."""
        if self.is_sqlite:
            self._sqlite(
                "UPDATE cas_session_item SET created_at = strftime('%Y-%m-%d %H:%M:%f', created_at, ?)"
                " WHERE session_id = ?",
                f"-{by.total_seconds()} seconds",
                session_id,
            )
        else:
            await self._postgres(
                "UPDATE cas_session_item SET created_at = created_at - $1::interval WHERE session_id = $2",
                by,
                session_id,
            )

    async def age_attempts(self, session_id: str, by: timedelta) -> None:
        """Make the compaction attempts of a session look older."""
        if self.is_sqlite:
            self._sqlite(
                "UPDATE cas_session_compaction"
                "   SET started_at = strftime('%Y-%m-%d %H:%M:%f', started_at, ?1),"
                "       expires_at = strftime('%Y-%m-%d %H:%M:%f', expires_at, ?1),"
                "       finished_at = strftime('%Y-%m-%d %H:%M:%f', finished_at, ?1)"
                " WHERE session_id = ?2",
                f"-{by.total_seconds()} seconds",
                session_id,
            )
        else:
            await self._postgres(
                "UPDATE cas_session_compaction"
                "   SET started_at = started_at - $1::interval,"
                "       expires_at = expires_at - $1::interval,"
                "       finished_at = finished_at - $1::interval"
                " WHERE session_id = $2",
                by,
                session_id,
            )

    async def set_moment(self, session_id: str, moment: datetime) -> None:
        """Make a session look created and last written then."""
        if self.is_sqlite:
            text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
            sql = "UPDATE cas_session SET created_at = ?1, updated_at = ?1 WHERE session_id = ?2"
            self._sqlite(sql, text, session_id)
        else:
            sql = "UPDATE cas_session SET created_at = $1, updated_at = $1 WHERE session_id = $2"
            await self._postgres(sql, moment, session_id)

    @contextlib.asynccontextmanager
    async def held(self, session_id: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Let every writer of the session wait until this ends.

        Gives a function that returns when so many writers wait. On SQLite nobody can see them; there the
        order in which they go on is not forced, only that they all wait.
        """
        if self.is_sqlite:
            with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield _turns
                connection.execute("COMMIT")
            return
        connection = await asyncpg.connect(self.url)
        watcher = await asyncpg.connect(self.url)

        async def waiting(count: int) -> None:
            async with asyncio.timeout(HANG_S):
                await wait_for(count)

        async def wait_for(count: int) -> None:
            while await watcher.fetchval(LOCK_WAITERS) < count:  # noqa: ASYNC110  # the server has no event for it
                await asyncio.sleep(0.005)

        try:
            async with connection.transaction():
                await connection.execute(
                    "SELECT 1 FROM cas_session WHERE session_id = $1 FOR UPDATE", session_id
                )
                yield waiting
        finally:
            await connection.close()
            await watcher.close()

    def _sqlite(self, sql: str, *values: Any) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as connection:
            return connection.execute(sql, values).fetchall()

    async def _postgres(self, sql: str, *values: Any) -> list[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            return list(await connection.fetch(sql, *values))
        finally:
            await connection.close()


async def _turns(_: int) -> None:
    for _ in range(50):
        await asyncio.sleep(0)
