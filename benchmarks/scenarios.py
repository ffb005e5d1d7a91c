"""One client: appends, reads, rewrites, turns, large writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any

from benchmarks.databases import Database, Databases
from benchmarks.items import Conversation, large
from benchmarks.measure import Call, Case, interleave
from benchmarks.stores import Session, Store
from benchmarks.writers import Writers
from cas_session.snapshot import Item

Prepare = Callable[[Store, int], Awaitable[Sequence[Call]]]

CALLS = 4  # of a cheap operation, in a round
ROUND_TRIP_S = 0.001
SMALLEST, LARGEST_QUICK = 20, 400  # items


@dataclass(slots=True)
class Bench:
    """A run: where it runs, how long, and what it found.

    Attributes:
        rounds: Of what is cheap; of what needs a new history for each call a third of them.
        quick: Histories a hundredth as long, so that it only shows that everything works.
        facts: What is not a comparison, by scenario.
    """

    databases: Databases
    writers: Writers
    rounds: int
    quick: bool
    cases: list[Case] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def few_rounds(self) -> int:
        return max(min(3, self.rounds), self.rounds // 3)

    def size(self, items: int) -> int:
        return min(max(SMALLEST, items // 100), LARGEST_QUICK) if self.quick else items

    async def compare(
        self, name: str, database: Database, stores: Sequence[Store], prepare: Prepare, *, few: bool = False
    ) -> Case:
        """Run one case, and keep what came of it."""
        by_store = {store.name: partial(prepare, store) for store in stores}
        case = Case(name, database)
        settle = {store.name: store.settle for store in stores}
        await interleave(case, by_store, self.few_rounds if few else self.rounds, settle)
        self.cases.append(case)
        return case

    @asynccontextmanager
    async def filled(
        self, database: Database, sizes: Sequence[int], **options: Any
    ) -> AsyncIterator[list[Store]]:
        """Stores that hold a session of each size, under the size as its id."""
        async with self.databases.stores(database, **options) as stores:
            for store in stores:
                await store.fill((str(size), Conversation().history(self.size(size))) for size in sizes)
            await self.databases.rest(stores)
            yield stores


async def append(bench: Bench, database: Database) -> None:
    """A turn of four items, to a session of a thousand."""
    async with bench.filled(database, [1000]) as stores:
        await _append_reused(bench, database, "append, 1k history", stores)
        await bench.compare("append, object per call", database, stores, _append_object_per_call)
        await bench.compare("append, new session", database, stores, _append_new_session)
    if database == "sqlite":  # its peers cannot be told to wait less for the disk
        return
    async with bench.filled(database, [1000], durable=False) as stores:
        await _append_reused(bench, database, "append, no fsync", stores)
    async with bench.filled(database, [1000], round_trip_s=ROUND_TRIP_S) as stores:
        await _append_reused(bench, database, "append, 1 ms round trip", stores)


async def read(bench: Bench, database: Database) -> None:
    """All items for the first time, all items again, the last twenty."""
    async with bench.filled(database, [100, 1000, 10_000, 100_000]) as stores:
        sessions = {
            (store.name, size): store.session(str(size))
            for store in stores
            for size in (100, 1000, 10_000, 100_000)
        }

        def of(size: int, prepare: Callable[[Session, int], Awaitable[Sequence[Call]]]) -> Prepare:
            return lambda store, number: prepare(sessions[store.name, size], number)

        for name, size, few in (("100", 100, False), ("1k", 1000, False), ("10k", 10_000, True)):
            await bench.compare(f"read {name}, cold", database, stores, of(size, _read_cold), few=few)
        await bench.compare("read 20 of 100k", database, stores, of(100_000, _read_newest))
        for verb, again in (("read", methodcaller("read")), ("look at", methodcaller("look"))):
            unchanged, extended = partial(_again, again), partial(_again_after_a_turn, again)
            name = f"{verb} 10k again"
            await bench.compare(f"{name}, nothing new", database, stores, of(10_000, unchanged), few=True)
            await bench.compare(f"{name}, a turn new", database, stores, of(10_000, extended), few=True)
        for session in sessions.values():
            await session.close()


async def rewrite(bench: Bench, database: Database) -> None:
    """What removes items."""
    talk = Conversation()
    async with bench.filled(database, [1000]) as stores:
        sessions = {store.name: store.session("1000") for store in stores}

        async def pop(store: Store, number: int) -> list[Call]:
            for _ in range(CALLS):
                await sessions[store.name].append(talk.turn())  # there is enough to pop
            return [sessions[store.name].pop] * CALLS

        await bench.compare("pop", database, stores, pop)
        for session in sessions.values():
            await session.close()

    def new(size: int, count: int, act: Callable[[Session, list[Item], Any], Awaitable[None]]) -> Prepare:
        async def prepare(store: Store, number: int) -> list[Call]:
            names = [f"{number}-{at}" for at in range(count)]
            await store.fill((name, talk.history(bench.size(size))) for name in names)
            calls: list[Call] = []
            for session in map(store.session, names):
                await session.read(1)
                calls.append(partial(act, session, talk.summary(), await session.mark()))
            return calls

        return prepare

    for name, size, count, act in (
        ("clear 1k", 1000, 3, lambda session, items, mark: session.clear()),
        ("replace 1k by 10", 1000, 3, lambda session, items, mark: session.replace(items, mark)),
        ("compact 10k to 10", 10_000, 1, lambda session, items, mark: session.compact(items, mark)),
    ):
        async with bench.databases.stores(database) as stores:
            await bench.compare(name, database, stores, new(size, count, act), few=True)


async def turns(bench: Bench, database: Database) -> None:
    """What a runner does: read all, append a turn; a session object for each turn."""
    talk = Conversation()
    async with bench.databases.stores(database) as stores:
        for name, size, count in (("turn, 25 from empty", 0, 25), ("turn, 8 at 1k", 1000, 8)):

            async def prepare(store: Store, number: int, size: int = size, count: int = count) -> list[Call]:
                session_id = f"{size}-{number}"
                if size:
                    await store.fill([(session_id, talk.history(bench.size(size)))])
                return [partial(_turn, store, session_id, talk.turn()) for _ in range(count)]

            case = await bench.compare(name, database, stores, prepare, few=True)
            whole = Case(f"{name}: the whole loop", database)
            for store, rounds in case.rounds.items():
                for number, measured in rounds.items():
                    whole.add(
                        store, number, {"p50_s": measured["total_s"], "cpu_s": measured["cpu_s"] * count}
                    )
            bench.cases.append(whole)


async def large_writes(bench: Bench, database: Database) -> None:
    """Ten thousand items in one append, and one item of 20 MB."""
    talk = Conversation()
    async with bench.databases.stores(database) as stores:

        async def many(store: Store, number: int) -> list[Call]:
            items = [item for turn in talk.history(bench.size(10_000)) for item in turn.items]
            return [partial(_append_once, store, f"many-{number}", items)]

        async def long(store: Store, number: int) -> list[Call]:
            item = large(200_000 if bench.quick else 20_000_000)
            return [partial(_append_once, store, f"large-{number}", [item])]

        await bench.compare("10,000 items in one append", database, stores, many, few=True)
        await bench.compare("one item of 20 MB", database, stores, long, few=True)


async def _append_reused(bench: Bench, database: Database, name: str, stores: Sequence[Store]) -> None:
    talk = Conversation()
    sessions = {store.name: store.session("1000") for store in stores}

    async def prepare(store: Store, number: int) -> list[Call]:
        return [partial(sessions[store.name].append, talk.turn()) for _ in range(CALLS)]

    await bench.compare(name, database, stores, prepare)
    for session in sessions.values():
        await session.close()


async def _append_object_per_call(store: Store, number: int) -> list[Call]:
    talk = Conversation(number)
    return [partial(_append_once, store, "1000", talk.turn()) for _ in range(CALLS)]


async def _append_new_session(store: Store, number: int) -> list[Call]:
    talk = Conversation(number)
    return [partial(_append_once, store, f"new-{number}-{at}", talk.turn()) for at in range(CALLS)]


async def _append_once(store: Store, session_id: str, items: list[Item]) -> None:
    session = store.session(session_id)
    await session.append(items)
    await session.close()


async def _turn(store: Store, session_id: str, items: list[Item]) -> None:
    session = store.session(session_id)
    await session.read()
    await session.append(items)
    await session.close()


async def _read_cold(session: Session, number: int) -> list[Call]:
    async def read() -> None:
        session.forget()
        await session.read()

    return [read] * 2


async def _read_newest(session: Session, number: int) -> list[Call]:
    return [partial(session.read, 20)] * CALLS


async def _again(again: Callable[[Session], Awaitable[Any]], session: Session, number: int) -> list[Call]:
    await again(session)
    return [partial(again, session)] * 2


async def _again_after_a_turn(
    again: Callable[[Session], Awaitable[Any]], session: Session, number: int
) -> list[Call]:
    await session.append(Conversation().turn(f"again-{number}"))
    return [partial(again, session)]
