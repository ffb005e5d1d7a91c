"""What a store costs a Postgres server, counted: trips, statements, pages and rows touched, log written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.drivers.postgres_proxy import Proxy

RAN = (b"C", b"s")  # CommandComplete, PortalSuspended: an Execute was answered

# Of all tables of the database: buffers that were asked for, rows that scans fetched, rows written.
TOUCHED = """
SELECT
    (
        SELECT sum(heap_blks_read + heap_blks_hit + COALESCE(idx_blks_read + idx_blks_hit, 0))
        FROM pg_statio_user_tables
    )::bigint,
    (SELECT sum(seq_tup_read + COALESCE(idx_tup_fetch, 0)) FROM pg_stat_user_tables)::bigint,
    (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables)::bigint
"""
REPORT_NOW = "SELECT pg_stat_force_next_flush()"
LOG_END = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


class CountingProxy(Proxy):
    """A `Proxy` that counts statements as well.

    Attributes:
        statements: Statements that the server ran so far, BEGIN and COMMIT included.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.statements = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._serve(reader, _Answers(self, writer))  # type: ignore[arg-type]


class _Answers:
    """The way to the client, to which the proxy writes one message at a time."""

    def __init__(self, proxy: CountingProxy, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writer = writer
        self.transport = writer.transport

    def write(self, message: bytes) -> None:
        self._proxy.statements += message[:1] in RAN
        self._writer.write(message)


class Touched(NamedTuple):
    """Pages are counted as often as they are asked for; rows are those that scans fetched, seen or not."""

    pages: int
    rows_read: int
    rows_written: int


class PostgresMeter:
    """Asks a server that nobody else uses what one engine's only connection made it do.

    Attributes:
        engine: For the store.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin: Any = None
        self.engine: AsyncEngine = create_async_engine(
            url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=1, max_overflow=0
        )

    async def __aenter__(self) -> Self:
        self._admin = await asyncpg.connect(self._url)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.engine.dispose()
        await self._admin.close()

    async def analyze(self) -> None:
        """Let the planner know the tables, which autovacuum would do."""
        await self._admin.execute("ANALYZE")
        await self._admin.execute(REPORT_NOW)

    async def touched(self) -> Touched:
        """Since the tables were made."""
        async with self.engine.connect() as connection:
            raw = await connection.get_raw_connection()
            await raw.driver_connection.execute(REPORT_NOW)  # type: ignore[union-attr]
        return Touched(*await self._admin.fetchrow(TOUCHED))

    async def cost(self, work: Callable[[], Awaitable[object]]) -> Touched:
        """What this work touched."""
        before = await self.touched()
        await work()
        after = await self.touched()
        return Touched(*(there - here for here, there in zip(before, after, strict=True)))

    async def log_bytes(self) -> int:
        """Of the write-ahead log, commits included."""
        return int(await self._admin.fetchval(LOG_END))
