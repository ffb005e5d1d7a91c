"""A SQLite file, its drivers, and what a test does to both: hold the writer, look at rows, see statements."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from cas_session.drivers.sqlite import SqliteDriver
from cas_session.drivers.sqlite_lane import Lane, Unit
from cas_session.drivers.sqlite_link import Link
from tests.conformance.writes import operations

GIVE_UP_S = 30.0  # of a wait that no working driver needs


@contextlib.asynccontextmanager
async def opened(path: Path | str, **options: Any) -> AsyncIterator[SqliteDriver]:
    """A driver over the file, migrated."""
    driver = SqliteDriver(str(path), **options)
    await driver.open()
    try:
        await driver.migrate()
        yield driver
    finally:
        await driver.close()


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of somebody else's."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=GIVE_UP_S)) as raw:
        yield raw


def writer_lane(driver: SqliteDriver) -> Lane:
    return driver._writer


def writer_link(driver: SqliteDriver) -> Link:
    return driver._writer._links[0]


async def on_writer(driver: SqliteDriver, statement: str) -> Any:
    """Run a statement on the writer's own connection, outside a transaction."""
    unit = Unit(lambda raw: raw.execute(statement).fetchone(), begin=None)
    return await writer_lane(driver).run(unit)


class Gate:
    """A unit that holds the writer's thread until it is opened."""

    def __init__(self, driver: SqliteDriver) -> None:
        self._begun = threading.Event()
        self._opened = threading.Event()
        self._lane = writer_lane(driver)

    def open(self) -> None:
        self._opened.set()

    @contextlib.asynccontextmanager
    async def shut(self) -> AsyncIterator[Gate]:
        """Units that come meanwhile wait in the queue, and leave together when it ends."""
        unit = Unit(self._hold, begin=None)
        holding = asyncio.create_task(self._lane.run(unit, bounded=False))
        await asyncio.to_thread(self._begun.wait, GIVE_UP_S)
        try:
            yield self
        finally:
            self.open()
            await holding

    def _hold(self, raw: sqlite3.Connection) -> None:
        self._begun.set()
        self._opened.wait(GIVE_UP_S)


@contextlib.asynccontextmanager
async def traced(driver: SqliteDriver, look: Callable[[str], None]) -> AsyncIterator[None]:
    """Show each statement of the writer's connection to ``look``, before it runs."""
    link = writer_link(driver)
    raw = link.raw
    assert raw is not None
    await link.hop(lambda: raw.set_trace_callback(look))
    try:
        yield
    finally:
        await link.hop(lambda: raw.set_trace_callback(None))


@contextlib.asynccontextmanager
async def statements(driver: SqliteDriver) -> AsyncIterator[list[str]]:
    """The statements that the writer's connection runs meanwhile, each by its first words."""
    seen: list[str] = []
    async with traced(driver, lambda sql: seen.append(" ".join(sql.split()[:3]))):
        yield seen


@contextlib.asynccontextmanager
async def hops(driver: SqliteDriver) -> AsyncIterator[list[Any]]:
    """The calls that are made in the writer's thread meanwhile."""
    link, seen = writer_link(driver), []
    real = link.hop

    def counted(work: Any) -> Any:
        seen.append(work)
        return real(work)

    link.hop = counted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del link.hop  # type: ignore[method-assign]


async def turns(count: int) -> None:
    """Let the event loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)


def more_and_more() -> Iterator[int]:
    """How many turns to wait: each number at first, then by leaps, for most turns only wait for a thread."""
    count = 0
    while count < 1_000_000:
        yield count
        count += 1 + count // 8


async def versions(driver: SqliteDriver, session_id: str) -> list[int]:
    """The versions that have op rows, oldest first."""
    return sorted(int(row.manifest.version) for row in await operations(driver, session_id))


async def check_gapless(driver: SqliteDriver, session_id: str, version: int) -> None:
    """Every version up to this one was written once."""
    assert await versions(driver, session_id) == list(range(1, version + 1))
