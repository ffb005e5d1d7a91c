"""The driver for Postgres: one statement, one round trip, autocommit, READ COMMITTED.

The row lock on the session row serialises the writers of a session. Nothing is held between two calls, and
nothing depends on a connection's state, so that a transaction pooler may stand in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Literal, TypeVar

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine

from cas_session import schema
from cas_session.driver import (
    Append,
    BeginCompaction,
    Chain,
    Clear,
    CompactionRow,
    FinishCompaction,
    Landed,
    ListSessions,
    Load,
    Loaded,
    OpRow,
    Pop,
    Prune,
    Replace,
    Restore,
    SessionRow,
    Traits,
)
from cas_session.drivers import postgres_units as units
from cas_session.drivers import postgres_upkeep as upkeep
from cas_session.drivers.postgres_errors import connecting
from cas_session.drivers.postgres_pool import EnginePool, Link, OwnPool, Pool
from cas_session.drivers.settle import settle, settle_here
from cas_session.errors import ConfigurationError, StoreClosedError
from cas_session.migrate import upgrade

T = TypeVar("T")

OLDEST_SERVER = 14
ENCODINGS = ("UTF8", "SQL_ASCII")  # others refuse what they have no character for
PRUNE_SESSIONS = 1000  # looked at in one statement
LONGEST_AGE = timedelta(days=365_000)  # Postgres' calendar begins in 4713 BC

TAKE_LOCK = text("SELECT pg_advisory_xact_lock(CAST(:key AS bigint))")
HAS_REVISION = f"SELECT to_regclass('{schema.VERSION_TABLE}') IS NOT NULL"
READ_REVISION = f"SELECT version_num FROM {schema.VERSION_TABLE}"


class PostgresDriver:
    """The `Driver` for a Postgres server, version 14 or newer.

    Args:
        url_or_engine: A URL in any form of `connect_arguments`, or an AsyncEngine over asyncpg whose pool is
            used and left open.
        pool_size: Connections at most; an engine has its own.
        connect_timeout_s: How long a new connection may take; an engine has its own.
        call_timeout_s: How long a unit waits for a connection, and how long a statement may take.
    """

    traits = Traits(name="postgres", migrates_when_opened=False)

    def __init__(
        self,
        url_or_engine: str | URL | AsyncEngine,
        *,
        pool_size: int = 10,
        connect_timeout_s: float = 10,
        call_timeout_s: float = 30,
    ) -> None:
        self._pool: Pool
        if isinstance(url_or_engine, AsyncEngine):
            self._pool = EnginePool(url_or_engine, call_timeout_s=call_timeout_s)
        else:
            self._pool = OwnPool(
                url_or_engine,
                pool_size=pool_size,
                connect_timeout_s=connect_timeout_s,
                call_timeout_s=call_timeout_s,
            )
        self._pruned_through = ""  # the session_id up to which prune has looked
        self._is_open = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    # Life

    async def open(self) -> None:
        await self._pool.open()
        self._is_open = True
        try:
            await self._read(_check_server)
        except BaseException:
            await self.close()
            raise

    async def schema_revision(self) -> str | None:
        return await self._read(_schema_revision)

    async def migrate(self) -> None:
        with connecting():
            async with self._pool.transaction() as connection:
                await connection.execute(TAKE_LOCK, {"key": schema.MIGRATION_LOCK})
                await connection.run_sync(upgrade)

    async def close(self) -> None:
        self._is_open = False
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await settle(self._closing)

    async def ping(self) -> None:
        await self._read(lambda link: link.row("SELECT 1"))

    # Items

    async def load(self, load: Load) -> Loaded:
        return await self._read(partial(units.load, load=load))

    async def load_as_of(self, session_id: str, version: int) -> Loaded:
        return await self._read(partial(units.load_as_of, session_id=session_id, version=version))

    async def append(self, group: Sequence[Append]) -> list[Landed]:
        return await self._write(partial(units.append, group=group))

    async def pop(self, pop: Pop) -> Landed:
        return await self._write(partial(units.pop, pop=pop))

    async def clear(self, clear: Clear) -> Landed:
        return await self._write(partial(units.clear, clear=clear))

    async def remove_erased(self, session_id: str) -> None:
        await self._write(lambda link: link.row(upkeep.REMOVE_ERASED, session_id))

    async def replace(self, replace: Replace) -> Landed:
        if replace.prefix is None:
            return await self._write(partial(units.replace_all, write=replace))
        return await self._write(partial(units.replace_prefix, write=replace, prefix=replace.prefix))

    async def restore(self, restore: Restore) -> Landed:
        return await self._write(partial(units.restore, write=restore))

    async def record_chain(self, session_id: str, chain: Chain) -> bool:
        return await self._write(partial(units.record_chain, session_id=session_id, chain=chain))

    # Compaction attempts

    async def begin_compaction(self, begin: BeginCompaction) -> Literal["started", "held", "moved"]:
        return await self._write(partial(units.begin_compaction, begin=begin))

    async def renew_compaction(self, attempt_id: str, lease: timedelta) -> bool:
        row = await self._write(lambda link: link.row(upkeep.RENEW_COMPACTION, attempt_id, lease))
        return row is not None

    async def finish_compaction(self, finish: FinishCompaction) -> None:
        await self._write(partial(units.finish_compaction, finish=finish))

    # What is recorded

    async def find_op(self, session_id: str, op_id: str) -> OpRow | None:
        return await self._read(partial(units.find_op, session_id=session_id, op_id=op_id))

    async def operations(self, session_id: str, *, limit: int, before: int | None) -> list[OpRow]:
        return await self._read(partial(units.operations, session_id=session_id, limit=limit, before=before))

    async def compactions(self, session_id: str, *, limit: int) -> list[CompactionRow]:
        return await self._read(partial(units.compactions, session_id=session_id, limit=limit))

    async def list_sessions(self, query: ListSessions) -> list[SessionRow]:
        return await self._read(partial(units.list_sessions, query=query))

    async def set_metadata(self, session_id: str, metadata: str | None) -> bool:
        row = await self._write(lambda link: link.row(upkeep.SET_METADATA, session_id, metadata))
        return row is not None

    # Upkeep

    async def prune(self, prune: Prune) -> int:
        """Remove one batch. It goes on where the call before it stopped; a 0 has looked at every session."""
        ages = min(prune.retain, LONGEST_AGE), min(max(prune.fence, prune.retain), LONGEST_AGE)
        looked_at_all = self._pruned_through == ""
        while True:
            removed, last = await self._write(
                partial(
                    units.prune,
                    after=self._pruned_through,
                    batch=prune.batch,
                    ages=ages,
                    window=PRUNE_SESSIONS,
                )
            )
            if removed < prune.batch:
                self._pruned_through = last or ""
            if removed:
                return removed
            if last is None:
                if looked_at_all:
                    return 0
                looked_at_all = True

    async def forget(self, session_id: str) -> bool:
        return await self._write(partial(units.forget, session_id=session_id))

    # Connections

    async def _write(self, unit: Callable[[Link], Awaitable[T]]) -> T:
        """Run a unit to its end: only the wait for a connection can be cancelled."""
        with self._counted():
            link = await self._pool.take()
            return await settle_here(_run(unit, link))

    async def _read(self, unit: Callable[[Link], Awaitable[T]]) -> T:
        """Run a unit that changes nothing; a cancellation ends it."""
        with self._counted():
            return await _run(unit, await self._pool.take())

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a call, so that closing waits for it."""
        if not self._is_open:
            raise StoreClosedError("the database is not open")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _close(self) -> None:
        while self._calls:
            self._idle.clear()
            await self._idle.wait()
        await self._pool.close()


async def _run(unit: Callable[[Link], Awaitable[T]], link: Link) -> T:
    try:
        return await unit(link)
    finally:
        await link.give_back()


async def _check_server(link: Link) -> None:
    with connecting():  # the connection may have died since it was made
        major = link.connection.get_server_version().major
        encoding = link.connection.get_settings().server_encoding
    if major < OLDEST_SERVER:
        raise ConfigurationError(
            f"Postgres {OLDEST_SERVER} or newer is needed, this server is version {major}"
        )
    if encoding not in ENCODINGS:
        raise ConfigurationError(f"the database's encoding must be UTF8, not {encoding}")


async def _schema_revision(link: Link) -> str | None:
    (exists,) = await link.row(HAS_REVISION)
    row = await link.row(READ_REVISION) if exists else None
    return None if row is None else str(row[0])
