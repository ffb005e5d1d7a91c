"""What a store on SQLite does, counted: hops, statements, instructions, rows, pages written."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

from cas_session import SessionStore
from cas_session.drivers.sqlite import SqliteDriver
from cas_session.drivers.sqlite_link import Link
from tests.drivers.sqlite_file import on_writer

LOG_HEAD_BYTES = 32
FRAME_BYTES = 4096 + 24  # a page and its head in the write-ahead log


class SqliteMeter:
    """Looks at every connection of an open store.

    Attributes:
        hops: Calls that were made in the threads of the connections.
        statements: What ran, each by its first words.
        steps: Instructions of SQLite's virtual machine: each row that is looked at costs some, seen or not.
        rows_by_hop: Rows that each call changed; a call is one transaction at most.
    """

    def __init__(self, store: SessionStore) -> None:
        driver = store.backend.driver
        assert isinstance(driver, SqliteDriver)
        self._driver = driver
        lanes = (driver._writes, driver._reads)
        self._links = [link for lane in lanes if lane is not None for link in lane._links]
        self.hops = 0
        self.statements: list[str] = []
        self.steps = 0
        self.rows_by_hop: list[int] = []

    @contextlib.asynccontextmanager
    async def counting(self, *, steps: bool = False) -> AsyncIterator[None]:
        """Count meanwhile: instructions, or hops, statements and rows."""
        for link in self._links:
            await link.hop(partial(self._watch, link, steps))
        real = Link.hop

        def hop(link: Link, work: Callable[[], Any]) -> Any:
            self.hops += 1
            return real(link, partial(self._run, link, work))

        Link.hop = hop  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            Link.hop = real  # type: ignore[method-assign]
            for link in self._links:
                await link.hop(partial(self._leave, link))

    async def keep_log(self) -> None:
        """From now on the write-ahead log only grows, so that its length tells what was written."""
        await on_writer(self._driver, "PRAGMA wal_autocheckpoint=0")

    def log_pages(self) -> int:
        """Pages in the write-ahead log: each that a transaction changed, once."""
        log = Path(f"{self._driver._path}-wal")
        return max(0, log.stat().st_size - LOG_HEAD_BYTES) // FRAME_BYTES

    def _watch(self, link: Link, steps: bool) -> None:
        raw = _raw(link)
        if steps:
            raw.set_progress_handler(self._step, 1)
        else:
            raw.set_trace_callback(lambda sql: self.statements.append(" ".join(sql.split()[:3])))

    def _leave(self, link: Link) -> None:
        _raw(link).set_trace_callback(None)
        _raw(link).set_progress_handler(None, 1)

    def _step(self) -> None:
        self.steps += 1

    def _run(self, link: Link, work: Callable[[], Any]) -> Any:
        before = _raw(link).total_changes
        try:
            return work()
        finally:
            self.rows_by_hop.append(_raw(link).total_changes - before)


def _raw(link: Link) -> sqlite3.Connection:
    assert link.raw is not None
    return link.raw
