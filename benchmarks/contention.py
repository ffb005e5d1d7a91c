"""Many writers: eight tasks in each of one or four processes, on one session or on a thousand.

After the runs every acknowledged append is looked for, and what is missing is counted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from benchmarks.databases import Database, kinds_on
from benchmarks.floor_sqlite import FairSqliteFloor
from benchmarks.items import TAG, TURN_ITEMS, Conversation
from benchmarks.measure import Case, times
from benchmarks.scenarios import Bench
from benchmarks.stores import Store
from benchmarks.writers import TASKS, Order, Outcome

PROCESSES = (1, 4)
MANY_SESSIONS = 1000
SECONDS, QUICK_SECONDS = 1.0, 0.2  # of one run


async def one_session(bench: Bench, database: Database) -> None:
    """Everybody appends to the same conversation."""
    kinds = kinds_on(database)
    if database == "sqlite":
        kinds.append(FairSqliteFloor)
    async with bench.databases.stores(database, kinds) as stores:
        await _contend(bench, database, stores, "one session", [])


async def many_sessions(bench: Bench, database: Database) -> None:
    """Everybody appends to one of a thousand conversations, with a session object for each call."""
    talk, names = Conversation(), [f"shared-{number}" for number in range(MANY_SESSIONS)]
    async with bench.databases.stores(database) as stores:
        for store in stores:
            await store.fill((name, talk.history(TURN_ITEMS)) for name in names)
        await bench.databases.rest(stores)
        await _contend(bench, database, stores, f"{MANY_SESSIONS:,} sessions", names)


async def _contend(
    bench: Bench, database: Database, stores: Sequence[Store], what: str, names: Sequence[str]
) -> None:
    """Run each store in turn; without ``names`` each run has a new session to itself."""
    cases = {processes: Case(f"{processes} x {TASKS} tasks, {what}", database) for processes in PROCESSES}
    acknowledged: dict[tuple[int, str], list[tuple[str, str]]] = defaultdict(list)
    for number in range(bench.few_rounds):
        start = number % len(stores)
        for processes, case in cases.items():
            for store in [*stores[start:], *stores[:start]]:
                run = f"{processes}.{number}"
                seconds = QUICK_SECONDS if bench.quick else SECONDS
                order = Order(type(store), store.url, names or [run], seconds, run)
                outcomes = await asyncio.to_thread(bench.writers.run, processes, order)
                _add(case, store.name, number, outcomes)
                for outcome in outcomes:
                    acknowledged[processes, store.name] += outcome.acknowledged
    for processes, case in cases.items():
        for store in stores:
            case.lost[store.name] = await _lost(store, acknowledged[processes, store.name])
        bench.cases.append(case)


def _add(case: Case, store: str, number: int, outcomes: Sequence[Outcome]) -> None:
    landed = sum(len(outcome.acknowledged) for outcome in outcomes)
    seconds = [one for outcome in outcomes for one in outcome.seconds]
    wall_s = max(outcome.wall_s for outcome in outcomes)
    cpu_s = sum(outcome.cpu_s for outcome in outcomes) / len(seconds)
    case.add(store, number, {**times(seconds), "per_s": landed / wall_s, "cpu_s": cpu_s})
    case.failed[store] = case.failed.get(store, 0) + sum(outcome.failed for outcome in outcomes)


async def _lost(store: Store, acknowledged: Sequence[tuple[str, str]]) -> int:
    """How many acknowledged appends are not there with all of their items."""
    tags: dict[str, list[str]] = defaultdict(list)
    for session_id, tag in acknowledged:
        tags[session_id].append(tag)
    lost = 0
    for session_id, wanted in tags.items():
        session = store.session(session_id)
        found = {item.get(TAG) for item in await session.read()}
        await session.close()
        lost += sum(not {f"{tag}:{at}" for at in range(TURN_ITEMS)} <= found for tag in wanted)
    return lost
