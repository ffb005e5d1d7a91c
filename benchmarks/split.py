"""Where the time of a call goes, on Postgres: the statement, or the Python around it.

In one interleaved run: the floor's statement and the driver's, each by bare asyncpg on one connection with
its arguments made before, and the same operation through the floor and through the store. A commit does not
wait for the disk, which would hide the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import asyncpg

from benchmarks import floor_postgres
from benchmarks.databases import Database, kinds_on
from benchmarks.items import Conversation
from benchmarks.measure import Call, Case, interleave
from benchmarks.scenarios import CALLS, Bench
from benchmarks.stores import Store
from cas_session import codec
from cas_session.drivers import postgres_reads, postgres_writes
from cas_session.snapshot import Item
from cas_session.writes import digest, new_nonce, new_op_id

FLOOR_SQL, OURS_SQL = "floor's statement alone", "cas-session's statement alone"


async def split(bench: Bench, database: Database) -> None:
    """An append at a thousand items, a read of them, and a read of the newest twenty."""
    if database == "sqlite":  # there the statements run in this process
        return
    talk = Conversation()
    async with bench.filled(database, [1000], kinds=kinds_on(database)[:2], durable=False) as stores:
        bare = [await asyncpg.connect(store.url) for store in stores]

        async def append(number: int, index: int) -> list[Call]:
            return [partial(stores[index].session("1000").append, talk.turn()) for _ in range(CALLS)]

        async def append_bare(number: int, index: int) -> list[Call]:
            make = (_floor_append, _our_append)[index]
            return [partial(bare[index].fetchrow, *make("1000", talk.turn())) for _ in range(CALLS)]

        await _compare(bench, "append, SQL and client", stores, append, append_bare)

        for name, limit in (("read 1k", None), ("read 20", 20)):

            async def read(number: int, index: int, limit: int | None = limit) -> list[Call]:
                return [partial(_read_cold, stores[index], limit)] * CALLS

            async def read_bare(number: int, index: int, limit: int | None = limit) -> list[Call]:
                if index == 1:
                    arguments: tuple[Any, ...] = (postgres_reads.LOAD, "1000", limit)
                elif limit is None:
                    arguments = (floor_postgres.READ, "1000")
                else:
                    arguments = (floor_postgres.READ_NEWEST, "1000", limit)
                return [partial(bare[index].fetch, *arguments)] * CALLS

            await _compare(bench, f"{name}, SQL and client", stores, read, read_bare)
        for connection in bare:
            await connection.close()


async def _compare(bench: Bench, name: str, stores: Sequence[Store], whole: Any, alone: Any) -> None:
    case = Case(name, "postgres")
    contestants = {
        FLOOR_SQL: partial(alone, index=0),
        OURS_SQL: partial(alone, index=1),
        stores[0].name: partial(whole, index=0),
        stores[1].name: partial(whole, index=1),
    }
    await interleave(case, contestants, bench.rounds)
    bench.cases.append(case)
    bench.facts[f"{name}, as multiples"] = {
        "cas-session's statement / floor's": case.ratio(OURS_SQL, FLOOR_SQL, "p50_s"),
        "cas-session / its statement alone": case.ratio(stores[1].name, OURS_SQL, "p50_s"),
        "floor / its statement alone": case.ratio(stores[0].name, FLOOR_SQL, "p50_s"),
        "CPU of cas-session / CPU of its statement alone": case.ratio(stores[1].name, OURS_SQL, "cpu_s"),
        "CPU of floor / CPU of its statement alone": case.ratio(stores[0].name, FLOOR_SQL, "cpu_s"),
    }


async def _read_cold(store: Store, limit: int | None) -> None:
    session = store.session("1000")
    session.forget()
    await session.read(limit)


def _floor_append(session_id: str, items: list[Item]) -> tuple[Any, ...]:
    return floor_postgres.APPEND, session_id, list(codec.encode(items).texts)


def _our_append(session_id: str, items: list[Item]) -> tuple[Any, ...]:
    encoded, op_id = codec.encode(items), new_op_id()
    named = session_id, op_id, new_nonce(), digest("append", op_id, encoded.texts), "bench", "append"
    return postgres_writes.APPEND, *named, None, "", list(encoded.texts), encoded.size, None, None
