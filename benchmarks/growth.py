"""What grows with what: time with the history, memory with cache_bytes; and what a start costs."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.databases import Database, kinds_on
from benchmarks.items import Conversation
from benchmarks.measure import Call, Case, interleave
from benchmarks.scenarios import CALLS, Bench
from benchmarks.stores import CasSessionStore, Store
from cas_session import SessionStore

LENGTHS = (100, 1000, 10_000, 100_000)
LONGEST_COMPACTED = 10_000
MEMORY_BYTES = (0, 4 << 20, 16 << 20, 64 << 20)
MEMORY_SESSIONS, MEMORY_ITEMS = 60, 1000  # 75 MB of JSON
HEAVY = ("openai", "alembic", "typer", "rich", "agents", "starlette", "uvicorn")
STARTS = 5

LOADED = f"""
import json, sys, time
began = time.perf_counter()
import cas_session
print(json.dumps([time.perf_counter() - began, [name for name in {HEAVY} if name in sys.modules]]))
"""


async def growth(bench: Bench, database: Database) -> None:
    """Appends, reads of the newest items and a compaction's write, by the length of the history.

    The lengths are interleaved as the stores are: a contestant is a store at a length.
    """
    talk = Conversation()

    async def appends(store: Store, length: int, number: int) -> list[Call]:
        return [partial(store.session(str(length)).append, talk.turn()) for _ in range(CALLS)]

    async def newest(store: Store, length: int, number: int) -> list[Call]:
        return [partial(store.session(str(length)).read, 20)] * CALLS

    async def compactions(store: Store, length: int, number: int) -> list[Call]:
        name = f"{length}-{number}"
        await store.fill([(name, talk.history(bench.size(length)))])
        session = store.session(name)
        return [partial(session.compact, talk.summary(), await session.mark())]

    kinds = kinds_on(database)[:2]
    async with bench.filled(database, LENGTHS, kinds=kinds) as stores:
        await _by_length(bench, Case("append, by length", database), stores, LENGTHS, appends)
        await _by_length(bench, Case("read 20, by length", database), stores, LENGTHS, newest)
        lengths = [length for length in LENGTHS if length <= LONGEST_COMPACTED]
        case = Case("compact to 10, by length", database)
        await _by_length(bench, case, stores, lengths, compactions)


async def _by_length(
    bench: Bench,
    case: Case,
    stores: Sequence[Store],
    lengths: Sequence[int],
    prepare: Callable[[Store, int, int], Awaitable[Sequence[Call]]],
) -> None:
    contestants = {
        f"{store.name} at {length}": partial(prepare, store, length) for store in stores for length in lengths
    }
    await interleave(case, contestants, bench.few_rounds)
    bench.cases.append(case)


async def memory(bench: Bench, database: Database) -> None:
    """What a store keeps after it has read more than its cache may hold; no matter from which database."""
    if database == "postgres":
        return
    talk = Conversation()
    names = [str(number) for number in range(MEMORY_SESSIONS)]
    kept: dict[str, dict[str, int]] = {}
    async with bench.filled(database, [], kinds=[CasSessionStore]) as [filled]:
        await filled.fill((name, talk.history(bench.size(MEMORY_ITEMS))) for name in names)
        for shared in (False, True):
            for cache_bytes in MEMORY_BYTES:
                how = "shared" if shared else "safe to change"
                held = await _held_bytes(filled.url, names, cache_bytes, shared)
                kept.setdefault(how, {})[str(cache_bytes)] = held
    bench.facts["memory, bytes held by cache_bytes"] = kept


async def _held_bytes(url: str, names: Sequence[str], cache_bytes: int, shared: bool) -> int:
    async with SessionStore(url, cache_bytes=cache_bytes, maintenance_interval_s=None) as store:
        tracemalloc.start()
        for _ in range(3):  # the second and third time from what is held
            for name in names:
                await store.session(name).snapshot(shared=shared)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return held


def _imported() -> dict[str, Any]:
    """In processes of their own."""
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True).stdout)
        for _ in range(STARTS)
    ]
    return {
        "seconds": sorted(seconds for seconds, _ in runs)[STARTS // 2],
        "loads": runs[0][1],
        "does not load": [name for name in HEAVY if name not in runs[0][1]],
    }


async def start(bench: Bench, database: Database) -> None:
    """What importing the package loads, and what a session object costs."""
    if "import cas_session" not in bench.facts:
        bench.facts["import cas_session"] = await asyncio.to_thread(_imported)
    case = Case("make a session object", database)
    async with bench.databases.stores(database) as stores:
        for number in range(bench.rounds):
            for store in stores:
                began = time.perf_counter()
                sessions = [store.session(f"{number}-{at}") for at in range(100)]
                case.add(store.name, number, {"p50_s": (time.perf_counter() - began) / 100})
                for session in sessions:
                    await session.close()
    bench.cases.append(case)
