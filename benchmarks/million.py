"""A million items in ten thousand sessions: what they take on disk, and what one more costs."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import asyncpg

from benchmarks.databases import Database
from benchmarks.items import TURN_ITEMS, Conversation, Turn
from benchmarks.measure import Call, Case
from benchmarks.scenarios import Bench
from benchmarks.stores import Session, Store

SESSIONS, QUICK_SESSIONS = 10_000, 50
TURNS = 25  # in a session
POOL = 400  # different turns
ON_DISK = "million: on disk"


async def million(bench: Bench, database: Database) -> None:
    count = QUICK_SESSIONS if bench.quick else SESSIONS
    disk = Case(ON_DISK, database)
    talk = Conversation()
    async with bench.databases.stores(database) as stores:
        pool = talk.history(POOL * TURN_ITEMS)
        for store in stores:
            await store.fill(_sessions(count, pool))
        await bench.databases.rest(stores)
        for store in stores:
            disk.add(store.name, 0, {"bytes": await _bytes_on_disk(store)})
        payload = sum(
            len(text) for _, turns in _sessions(count, pool) for turn in turns for text in turn.texts
        )
        bench.facts[f"million items on {database}, bytes on disk for each byte of JSON"] = {
            store.name: round(disk.rounds[store.name][0]["bytes"] / payload, 3) for store in stores
        }
        bench.cases.append(disk)

        opened: list[Session] = []

        async def close() -> None:
            while opened:
                await opened.pop().close()

        async def some(store: Store, how_many: int, seed: str) -> list[Session]:
            await close()
            opened.extend(store.session(name) for name in _some(how_many, count, seed))
            return list(opened)

        async def append(store: Store, number: int) -> list[Call]:
            sessions = await some(store, 8, f"append {number}")
            return [partial(session.append, talk.turn()) for session in sessions]

        async def read(store: Store, number: int) -> list[Call]:
            return [partial(session.read, 20) for session in await some(store, 16, f"read {number}")]

        async def newest(store: Store, number: int) -> list[Call]:
            return [partial(store.newest, 50)] * 2

        await bench.compare("million: append", database, stores, append)
        await bench.compare("million: read 20", database, stores, read)
        await bench.compare("million: list 50", database, stores, newest)
        await close()


def _sessions(count: int, pool: list[Turn]) -> Iterator[tuple[str, list[Turn]]]:
    dice = random.Random(1)
    for number in range(count):
        start = dice.randrange(len(pool))
        yield _name(number), [pool[(start + at) % len(pool)] for at in range(TURNS)]


def _some(how_many: int, count: int, seed: str) -> list[str]:
    """Sessions at random, the same for every store."""
    return [_name(number) for number in random.Random(seed).sample(range(count), how_many)]


def _name(number: int) -> str:
    return f"session-{number:06d}"


async def _bytes_on_disk(store: Store) -> int:
    """After all is written out, so that nobody pays for it later."""
    if store.url.startswith("sqlite"):
        file = store.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(file)) as raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return os.stat(file).st_size  # noqa: PTH116
    connection = await asyncpg.connect(store.url)
    size: int = await connection.fetchval("SELECT pg_database_size(current_database())")
    await connection.close()
    return size
