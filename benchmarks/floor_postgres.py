"""The floor on Postgres: asyncpg and one statement an operation, as a careful person writes it by hand.

There is a version, taken under the row lock, and a replace checks it. There is nothing for re-sent writes, no
audit trail, no restore, and whatever goes wrong is the caller's. READ COMMITTED, autocommit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import asyncpg

from benchmarks.items import Turn, text_of
from benchmarks.stores import Session, Store
from cas_session.snapshot import Item

TABLES = """
CREATE TABLE session (
    session_id text PRIMARY KEY,
    version bigint NOT NULL,
    next_seq bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);
CREATE TABLE item (
    session_id text NOT NULL,
    seq bigint NOT NULL,
    data text NOT NULL,
    PRIMARY KEY (session_id, seq)
);
"""

APPEND = """
WITH s AS (
    INSERT INTO session AS t (session_id, version, next_seq)
    VALUES ($1, 1, cardinality($2::text[]))
    ON CONFLICT (session_id) DO UPDATE SET
        version = t.version + 1,
        next_seq = t.next_seq + cardinality($2::text[]),
        updated_at = now()
    RETURNING version, next_seq
),
i AS (
    INSERT INTO item (session_id, seq, data)
    SELECT $1, s.next_seq - cardinality($2::text[]) - 1 + u.at, u.data
    FROM s, unnest($2::text[]) WITH ORDINALITY AS u (data, at)
)
SELECT version FROM s
"""

READ = "SELECT data FROM item WHERE session_id = $1 ORDER BY seq"
READ_NEWEST = "SELECT data FROM item WHERE session_id = $1 ORDER BY seq DESC LIMIT $2"
READ_VERSION = "SELECT version FROM session WHERE session_id = $1"

# The DELETE would miss what was committed while the UPDATE waited, but for the version.
POP = """
WITH seen AS MATERIALIZED (
    SELECT version, (SELECT max(seq) FROM item WHERE session_id = $1) AS last
    FROM session WHERE session_id = $1
),
s AS (
    UPDATE session t SET version = t.version + 1, updated_at = now()
    FROM seen
    WHERE t.session_id = $1 AND t.version = seen.version AND seen.last IS NOT NULL
    RETURNING t.version
),
d AS (
    DELETE FROM item USING seen, s
    WHERE item.session_id = $1 AND item.seq = seen.last
    RETURNING item.data
)
SELECT (SELECT last FROM seen), (SELECT data FROM d)
"""

CLEAR = """
WITH seen AS MATERIALIZED (SELECT version FROM session WHERE session_id = $1),
s AS (
    UPDATE session t SET version = t.version + 1, updated_at = now()
    FROM seen
    WHERE t.session_id = $1 AND t.version = seen.version
    RETURNING t.version
),
d AS (DELETE FROM item USING s WHERE item.session_id = $1)
SELECT (SELECT version FROM seen), (SELECT version FROM s)
"""

REPLACE = """
WITH s AS (
    UPDATE session t SET
        version = t.version + 1,
        next_seq = t.next_seq + cardinality($2::text[]),
        updated_at = now()
    WHERE session_id = $1 AND version = $3
    RETURNING version, next_seq
),
d AS (DELETE FROM item USING s WHERE item.session_id = $1),
i AS (
    INSERT INTO item (session_id, seq, data)
    SELECT $1, s.next_seq - cardinality($2::text[]) - 1 + u.at, u.data
    FROM s, unnest($2::text[]) WITH ORDINALITY AS u (data, at)
)
SELECT version FROM s
"""

NEWEST = "SELECT session_id, version, updated_at FROM session ORDER BY updated_at DESC LIMIT $1"


class FloorSession(Session):
    def __init__(self, pool: Any, session_id: str) -> None:
        self._pool = pool
        self._id = session_id

    async def append(self, items: list[Item]) -> None:
        texts = [text_of(item) for item in items]
        async with self._pool.acquire() as connection:
            await connection.fetchval(APPEND, self._id, texts)

    async def read(self, limit: int | None = None) -> list[Any]:
        async with self._pool.acquire() as connection:
            if limit is None:
                rows = await connection.fetch(READ, self._id)
            else:
                rows = (await connection.fetch(READ_NEWEST, self._id, limit))[::-1]
        return [json.loads(data) for (data,) in rows]

    async def pop(self) -> None:
        async with self._pool.acquire() as connection:
            data = None
            while data is None:
                last, data = await connection.fetchrow(POP, self._id)
                if last is None:
                    return
        json.loads(data)

    async def clear(self) -> None:
        async with self._pool.acquire() as connection:
            seen, landed = 0, None
            while seen is not None and landed is None:
                seen, landed = await connection.fetchrow(CLEAR, self._id)

    async def mark(self) -> int:
        async with self._pool.acquire() as connection:
            version: int = await connection.fetchval(READ_VERSION, self._id)
        return version

    async def replace(self, items: list[Item], mark: int) -> None:
        texts = [text_of(item) for item in items]
        async with self._pool.acquire() as connection:
            landed = await connection.fetchval(REPLACE, self._id, texts, mark)
        if landed is None:
            raise RuntimeError("somebody else wrote")


class PostgresFloor(Store):
    name = "floor"

    async def open(self, *, create: bool = False) -> None:
        async def no_reset(_: Any) -> None:
            """asyncpg's own would double the round trips."""

        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=10, reset=no_reset)
        if create:
            await self.pool.execute(TABLES)

    async def close(self) -> None:
        await self.pool.close()

    def session(self, session_id: str) -> FloorSession:
        return FloorSession(self.pool, session_id)

    async def fill(self, sessions: Iterable[tuple[str, list[Turn]]]) -> None:
        rows: list[tuple[str, int, int]] = []

        def items() -> Iterable[tuple[str, int, str]]:
            for session_id, turns in sessions:
                texts = [text for turn in turns for text in turn.texts]
                rows.append((session_id, len(turns), len(texts)))
                yield from ((session_id, seq, text) for seq, text in enumerate(texts))

        await self.pool.copy_records_to_table("item", records=items())
        columns = ["session_id", "version", "next_seq"]
        await self.pool.copy_records_to_table("session", records=rows, columns=columns)

    async def newest(self, limit: int) -> object:
        return await self.pool.fetch(NEWEST, limit)
