"""The floor on SQLite: sqlite3 in one writer thread and one reader thread, a whole transaction in one hop.

WAL and ``synchronous=FULL``. As on Postgres there is a version and nothing more. `FairSqliteFloor` waits for
other processes at a file lock, and not in SQLite's own busy handler, which starves.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from benchmarks.items import Turn, text_of
from benchmarks.stores import Session, Store
from cas_session.snapshot import Item

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_TIMEOUT_S = 30.0

TABLES = """
CREATE TABLE session (
    session_id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    next_seq INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE item (
    session_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (session_id, seq)
);
"""

TAKE_SEQS = """
INSERT INTO session VALUES (?, 1, ?, ?, ?)
ON CONFLICT (session_id) DO UPDATE SET
    version = version + 1,
    next_seq = next_seq + excluded.next_seq,
    updated_at = excluded.updated_at
RETURNING next_seq
"""
TAKE_SEQS_IF = """
UPDATE session SET version = version + 1, next_seq = next_seq + ?, updated_at = ?
WHERE session_id = ? AND version = ?
RETURNING next_seq
"""
TOUCH = "UPDATE session SET version = version + 1, updated_at = ? WHERE session_id = ?"
INSERT_SESSION = "INSERT INTO session VALUES (?, ?, ?, 0, 0)"
INSERT_ITEM = "INSERT INTO item VALUES (?, ?, ?)"
DELETE_LAST = """
DELETE FROM item
WHERE session_id = ?1 AND seq = (SELECT max(seq) FROM item WHERE session_id = ?1)
RETURNING data
"""
DELETE_ALL = "DELETE FROM item WHERE session_id = ?"
DELETE_BELOW = "DELETE FROM item WHERE session_id = ? AND seq < ?"
READ = "SELECT data FROM item WHERE session_id = ? ORDER BY seq"
READ_NEWEST = "SELECT data FROM item WHERE session_id = ? ORDER BY seq DESC LIMIT ?"
READ_VERSION = "SELECT version FROM session WHERE session_id = ?"
NEWEST = "SELECT session_id, version, updated_at FROM session ORDER BY updated_at DESC LIMIT ?"


class FloorSession(Session):
    def __init__(self, store: SqliteFloor, session_id: str) -> None:
        self._store = store
        self._id = session_id

    async def append(self, items: list[Item]) -> None:
        await self._store.write(partial(_append, self._id, [text_of(item) for item in items]))

    async def read(self, limit: int | None = None) -> list[Any]:
        return await self._store.read(partial(_read, self._id, limit))

    async def pop(self) -> None:
        await self._store.write(partial(_pop, self._id))

    async def clear(self) -> None:
        await self._store.write(partial(_clear, self._id))

    async def mark(self) -> int:
        def version(connection: sqlite3.Connection) -> int:
            return int(connection.execute(READ_VERSION, (self._id,)).fetchone()[0])

        return await self._store.read(version)

    async def replace(self, items: list[Item], mark: int) -> None:
        await self._store.write(partial(_replace, self._id, [text_of(item) for item in items], mark))


class SqliteFloor(Store):
    name = "floor"

    async def open(self, *, create: bool = False) -> None:
        self.path = self.url.removeprefix("sqlite:///")
        self._writer, self._reader = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._loop = asyncio.get_running_loop()
        self._writing = await self._loop.run_in_executor(self._writer, connect, self.path)
        if create:
            await self._loop.run_in_executor(self._writer, self._writing.executescript, TABLES)
        self._reading = await self._loop.run_in_executor(self._reader, connect, self.path)

    async def close(self) -> None:
        await self._loop.run_in_executor(self._reader, self._reading.close)
        await self._loop.run_in_executor(self._writer, self._writing.close)
        self._reader.shutdown()
        self._writer.shutdown()

    def session(self, session_id: str) -> FloorSession:
        return FloorSession(self, session_id)

    async def write(self, work: Work[T]) -> T:
        return await self._loop.run_in_executor(self._writer, self._transaction, work)

    async def read(self, work: Work[T]) -> T:
        return await self._loop.run_in_executor(self._reader, work, self._reading)

    async def fill(self, sessions: Iterable[tuple[str, list[Turn]]]) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            for session_id, turns in sessions:
                texts = [text for turn in turns for text in turn.texts]
                connection.execute(INSERT_SESSION, (session_id, len(turns), len(texts)))
                rows = ((session_id, seq, text) for seq, text in enumerate(texts))
                connection.executemany(INSERT_ITEM, rows)

        await self.write(insert)

    async def newest(self, limit: int) -> object:
        return await self.read(lambda connection: connection.execute(NEWEST, (limit,)).fetchall())

    def _transaction(self, work: Work[T]) -> T:
        self._writing.execute("BEGIN IMMEDIATE")
        try:
            result = work(self._writing)
        except BaseException:
            self._writing.execute("ROLLBACK")
            raise
        self._writing.execute("COMMIT")
        return result


class FairSqliteFloor(SqliteFloor):
    name = "floor, waits at a file lock"

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=create)
        self._lock = os.open(f"{self.path}-turn", os.O_CREAT | os.O_RDWR)

    async def close(self) -> None:
        await super().close()
        os.close(self._lock)

    def _transaction(self, work: Work[T]) -> T:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            return super()._transaction(work)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _append(session_id: str, texts: list[str], connection: sqlite3.Connection) -> None:
    now = time.time()
    [(next_seq,)] = connection.execute(TAKE_SEQS, (session_id, len(texts), now, now)).fetchall()
    _insert(connection, session_id, next_seq - len(texts), texts)


def _insert(connection: sqlite3.Connection, session_id: str, first: int, texts: list[str]) -> None:
    rows = [(session_id, seq, text) for seq, text in enumerate(texts, first)]
    connection.executemany(INSERT_ITEM, rows)


def _read(session_id: str, limit: int | None, connection: sqlite3.Connection) -> list[Any]:
    if limit is None:
        rows = connection.execute(READ, (session_id,)).fetchall()
    else:
        rows = connection.execute(READ_NEWEST, (session_id, limit)).fetchall()[::-1]
    return [json.loads(data) for (data,) in rows]


def _pop(session_id: str, connection: sqlite3.Connection) -> Any:
    rows = connection.execute(DELETE_LAST, (session_id,)).fetchall()
    if not rows:
        return None
    connection.execute(TOUCH, (time.time(), session_id))
    return json.loads(rows[0][0])


def _clear(session_id: str, connection: sqlite3.Connection) -> None:
    connection.execute(DELETE_ALL, (session_id,))
    connection.execute(TOUCH, (time.time(), session_id))


def _replace(session_id: str, texts: list[str], version: int, connection: sqlite3.Connection) -> None:
    rows = connection.execute(TAKE_SEQS_IF, (len(texts), time.time(), session_id, version)).fetchall()
    if not rows:
        raise RuntimeError("somebody else wrote")
    first = rows[0][0] - len(texts)
    connection.execute(DELETE_BELOW, (session_id, first))
    _insert(connection, session_id, first, texts)
