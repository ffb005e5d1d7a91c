"""The driver for SQLite: one writer connection with a queue in front of it, and readers beside it.

Writes run in BEGIN IMMEDIATE: SQLite lets in one at a time, of all processes. Two drivers on one file behave
as two processes do. ``:memory:`` is one connection for everything.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Literal, TypeVar

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from cas_session.driver import (
    Append,
    BeginCompaction,
    CancelledUnitError,
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
from cas_session.drivers import sqlite_reads as reads
from cas_session.drivers import sqlite_upkeep as upkeep
from cas_session.drivers import sqlite_writes as writes
from cas_session.drivers.settle import settle
from cas_session.drivers.sqlite_lane import Lane, Unit
from cas_session.drivers.sqlite_link import MEMORY, Link, Synchronous, Turn, check_file
from cas_session.errors import StoreClosedError
from cas_session.migrate import upgrade

T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0  # how long a unit waits for other processes
READERS = 3  # connections; a read holds one for a hop
REMOVE_BATCH = 1000  # erased rows a transaction, some 6 ms with secure_delete
PRUNE_SESSIONS = 100  # looked at in one transaction


class SqliteDriver:
    """The `Driver` for a SQLite file.

    Args:
        path: The file, or ``:memory:``.
        synchronous: FULL keeps every acknowledged write through a power cut; NORMAL is faster and may lose
            the last ones then. Neither loses any when a process is killed.
        busy_timeout_s: How long a unit waits for other processes before it is a StorageUnavailableError.
        readers: Connections for reads.
        call_timeout_s: How long a call may take, its time in the queue included.
    """

    traits = Traits(name="sqlite", migrates_when_opened=True)

    def __init__(
        self,
        path: str,
        *,
        synchronous: Synchronous = "FULL",
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        readers: int = READERS,
        call_timeout_s: float = 30,
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous must be 'FULL' or 'NORMAL', not {synchronous!r}")
        if readers < 1:
            raise ValueError(f"readers must be 1 or more, not {readers}")
        self._path = path
        self._synchronous: Synchronous = synchronous
        self._busy_timeout_s = min(busy_timeout_s, call_timeout_s)
        self._reader_count = readers
        self._call_timeout_s = call_timeout_s
        self._writes: Lane | None = None
        self._reads: Lane | None = None
        self._pruned_through = ""  # the session_id up to which prune has looked
        self._closing: asyncio.Future[None] | None = None

    # Life

    async def open(self) -> None:
        check_file(self._path)
        self._closing = None
        links: list[Link] = []
        try:
            # The first one turns on WAL; the others find it on.
            await self._connect(links)
            if self._path != MEMORY:
                for _ in range(self._reader_count):
                    await self._connect(links, query_only=True)
        except BaseException:
            with _plainly_cancelled():
                await settle(_close_links(links))
            raise
        turn = Turn(self._path, bound_s=self._busy_timeout_s)
        self._writes = Lane(links[:1], turn=turn, call_timeout_s=self._call_timeout_s)
        self._reads = self._writes
        if len(links) > 1:
            self._reads = Lane(links[1:], turn=None, call_timeout_s=self._call_timeout_s)

    async def schema_revision(self) -> str | None:
        return await self._read(reads.schema_revision)

    async def migrate(self) -> None:
        # Not bounded by the call's time: a migration that is cut short would only begin again.
        await self._writer.run(Unit(_migrate, begin=None), bounded=False)

    async def close(self) -> None:
        if self._closing is None:
            lanes = dict.fromkeys(lane for lane in (self._writes, self._reads) if lane is not None)
            for lane in lanes:
                lane.shut()
            self._closing = asyncio.ensure_future(_close_lanes(lanes))
        with _plainly_cancelled():
            await settle(self._closing)

    async def ping(self) -> None:
        await self._read(reads.ping)

    # Items

    async def load(self, load: Load) -> Loaded:
        return await self._read(partial(reads.load, load=load))

    async def load_as_of(self, session_id: str, version: int) -> Loaded:
        return await self._read(partial(reads.load_as_of, session_id=session_id, version=version))

    async def append(self, group: Sequence[Append]) -> list[Landed]:
        size = sum(sum(member.sizes) for member in group)
        work = partial(writes.append, group=group)
        unit = Unit(work, begin="BEGIN IMMEDIATE", op_id=group[0].op_id, joins=True, size=size)
        return await self._writer.run(unit)

    async def pop(self, pop: Pop) -> Landed:
        return await self._write(partial(writes.pop, pop=pop), pop.op_id)

    async def clear(self, clear: Clear) -> Landed:
        return await self._write(partial(writes.clear, clear=clear), clear.op_id)

    async def remove_erased(self, session_id: str) -> None:
        work = partial(upkeep.remove_erased, session_id=session_id, batch=REMOVE_BATCH)
        while await self._write(work) == REMOVE_BATCH:
            pass

    async def replace(self, replace: Replace) -> Landed:
        if replace.prefix is None:
            work = partial(writes.replace_all, write=replace)
        else:
            work = partial(writes.replace_prefix, write=replace, prefix=replace.prefix)
        return await self._write(work, replace.op_id)

    async def restore(self, restore: Restore) -> Landed:
        return await self._write(partial(writes.restore, write=restore), restore.op_id)

    async def record_chain(self, session_id: str, chain: Chain) -> bool:
        return await self._write(partial(writes.record_chain, session_id=session_id, chain=chain))

    # Compaction attempts

    async def begin_compaction(self, begin: BeginCompaction) -> Literal["started", "held", "moved"]:
        return await self._write(partial(upkeep.begin_compaction, begin=begin))

    async def renew_compaction(self, attempt_id: str, lease: timedelta) -> bool:
        return await self._write(partial(upkeep.renew_compaction, attempt_id=attempt_id, lease=lease))

    async def finish_compaction(self, finish: FinishCompaction) -> None:
        await self._write(partial(upkeep.finish_compaction, finish=finish))

    # What is recorded

    async def find_op(self, session_id: str, op_id: str) -> OpRow | None:
        return await self._read(partial(reads.find_op, session_id=session_id, op_id=op_id))

    async def operations(self, session_id: str, *, limit: int, before: int | None) -> list[OpRow]:
        return await self._read(partial(reads.operations, session_id=session_id, limit=limit, before=before))

    async def compactions(self, session_id: str, *, limit: int) -> list[CompactionRow]:
        return await self._read(partial(reads.compactions, session_id=session_id, limit=limit))

    async def list_sessions(self, query: ListSessions) -> list[SessionRow]:
        return await self._read(partial(reads.list_sessions, query=query))

    async def set_metadata(self, session_id: str, metadata: str | None) -> bool:
        return await self._write(partial(writes.set_metadata, session_id=session_id, metadata=metadata))

    # Upkeep

    async def prune(self, prune: Prune) -> int:
        """Remove one batch. The search for it runs on a reader, so that it holds up no writer; it goes on
        where the call before it stopped, and a 0 has looked at every session."""
        cutoffs = await self._read(partial(upkeep.read_cutoffs, prune=prune))
        looked_at_all = self._pruned_through == ""
        while True:
            find = partial(
                upkeep.find_prunable, cutoffs=cutoffs, after=self._pruned_through, sessions=PRUNE_SESSIONS
            )
            session_ids, through = await self._read(find)
            removed = 0
            if session_ids:
                work = partial(
                    upkeep.prune_sessions, cutoffs=cutoffs, session_ids=session_ids, batch=prune.batch
                )
                removed = await self._write(work)
            if removed < prune.batch:
                self._pruned_through = through or ""
            if removed:
                return removed
            if through is None:
                if looked_at_all:
                    return 0
                looked_at_all = True

    async def forget(self, session_id: str) -> bool:
        return await self._write(partial(upkeep.forget, session_id=session_id))

    # The lanes

    @property
    def _writer(self) -> Lane:
        if self._writes is None:
            raise StoreClosedError("the database is not open")
        return self._writes

    async def _write(self, work: Callable[[sqlite3.Connection], T], op_id: str = "") -> T:
        return await self._writer.run(Unit(work, begin="BEGIN IMMEDIATE", op_id=op_id))

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._reads is None:
            raise StoreClosedError("the database is not open")
        with _plainly_cancelled():
            return await self._reads.run(Unit(work, begin="BEGIN"))

    async def _connect(self, links: list[Link], *, query_only: bool = False) -> None:
        link = Link(
            self._path,
            synchronous=self._synchronous,
            busy_timeout_s=self._busy_timeout_s,
            query_only=query_only,
        )
        links.append(link)  # before it is open: a cancelled open may have opened it all the same
        with _plainly_cancelled():
            await link.open()


@contextmanager
def _plainly_cancelled() -> Iterator[None]:
    """For what changes nothing: nobody needs to know how it ended."""
    try:
        yield
    except CancelledUnitError:
        raise asyncio.CancelledError from None


async def _close_links(links: Sequence[Link]) -> None:
    async with AsyncExitStack() as stack:
        for link in links:
            stack.push_async_callback(link.close)


async def _close_lanes(lanes: Iterable[Lane]) -> None:
    async with AsyncExitStack() as stack:  # the writer, which came first, goes last
        for lane in lanes:
            stack.push_async_callback(lane.close)


def _migrate(raw: sqlite3.Connection) -> None:
    """Run Alembic on this connection, in one transaction that excludes every other writer."""
    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    with _unwrapped_errors(), engine.connect() as connection:
        # Behind SQLAlchemy's first look at the database, which ends in a rollback.
        raw.execute("BEGIN IMMEDIATE")
        with connection.begin():
            upgrade(connection)


@contextmanager
def _unwrapped_errors() -> Iterator[None]:
    """SQLite's errors as they were before SQLAlchemy wrapped them."""
    try:
        yield
    except DBAPIError as error:
        raise (error.orig or error) from None
