"""Rows, pages and instructions of a call: the same however long the history is, seen or hidden."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from cas_session import CasSession, Item, SessionStore
from cas_session.compactors import CompactionRequest
from tests.costs.histories import SUMMARY, fold, numbered, session_of, settled, turn
from tests.costs.postgres_meter import PostgresMeter
from tests.costs.sqlite_meter import SqliteMeter

Cost = tuple[int, ...]
Call = Callable[[SessionStore, CasSession], Awaitable[object]]

CALLS: dict[str, Call] = {
    "get_items of the newest 20": lambda _, s: s.get_items(20),
    "version": lambda _, s: s.version(),
    "append": lambda _, s: s.append(turn()),
    "pop": lambda _, s: s.pop(),
}
REWRITES: dict[str, Call] = {
    "replace": lambda _, s: s.replace(SUMMARY, expected_version=1),
    "clear": lambda _, s: s.clear(),
    "delete": lambda _, s: s.delete(),
}
LISTS: list[Call] = [
    lambda st, _: st.list_sessions(),
    lambda st, _: st.list_sessions(owner="ann"),
    lambda st, _: _second_page(st),
]
LISTED = 100  # sessions
TIES = 100  # instructions more, if sessions at the edge of a page were created in the same millisecond
LENGTHS = 100, 10_000  # items of two histories
OTHERS = 300  # sessions of 20 items beside: of a table of one session the planner would rather read all
PREPARED = 6  # calls, after which Postgres has settled for a plan
TAIL = 10  # items behind what is hidden, fewer than are asked for


@dataclass(frozen=True)
class Counter:
    """A store, and what its calls have cost so far.

    Attributes:
        now: Pages, rows that were read and rows that were written on Postgres; instructions on SQLite.
        settle: Wait for what is left to the background; afterwards nothing but the next call costs.
        lengths: Items of two histories, as far apart as can be afforded.
        slack: By how much each may differ. An index of a hundred times the rows is a level higher, room for a
            new row is found at once or not, and the end of an index a step before the end of a range.
    """

    store: SessionStore
    now: Callable[[], Awaitable[Cost]]
    settle: Callable[[], Awaitable[None]]
    lengths: tuple[int, int]
    slack: int

    async def cost(self, session: CasSession, call: Call) -> Cost:
        await self.settle()
        return _difference(await self.now(), await call(self.store, session), await self.now())

    def check(self, short: Cost, long: Cost, *, slack: int = 0) -> None:
        """Both cost the same."""
        assert min(short[0], long[0]) > 0
        assert max(abs(one - other) for one, other in zip(short, long, strict=True)) <= self.slack + slack


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    fixture = "fresh_sqlite" if request.param == "sqlite" else "quiet_postgres"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
async def counter(url: str) -> AsyncIterator[Counter]:
    async with (sqlite_counter if url.startswith("sqlite") else postgres_counter)(url) as counter:
        yield counter


@asynccontextmanager
async def sqlite_counter(url: str) -> AsyncIterator[Counter]:
    async with SessionStore(f"{url}?synchronous=NORMAL") as store:  # which waits less for the disk
        meter = SqliteMeter(store)

        async def now() -> Cost:
            return (meter.steps,)

        async with meter.counting(steps=True):
            yield Counter(store, now, lambda: settled(store), LENGTHS, slack=4)


@asynccontextmanager
async def postgres_counter(url: str) -> AsyncIterator[Counter]:
    async with PostgresMeter(url) as meter, SessionStore(meter.engine) as store:

        async def settle() -> None:
            await settled(store)
            await meter.analyze()

        for at in range(OTHERS):
            await store.session(f"other-{at}").append(numbered(20))

        yield Counter(store, meter.touched, settle, (1_000, 100_000), slack=12)


async def histories(session: CasSession, item_count: int) -> AsyncIterator[str]:
    """Take a session through a history that shows so many items, and then such as hide them."""
    await session.append(numbered(item_count))
    yield "as appended"
    assert (await session.compact(force=True)).landed
    await session.append(numbered(TAIL))
    yield "behind a compaction"
    await session.replace(numbered(TAIL), expected_version=await session.version())
    yield "behind a replace"
    await session.clear()
    await session.append(numbered(TAIL))
    yield "behind a clear"


async def test_a_call_costs_the_same_however_long_the_history_is(counter: Counter) -> None:
    costs: list[dict[str, Cost]] = [{}, {}]
    for item_count, found in zip(counter.lengths, costs, strict=True):
        session = counter.store.session(f"history-{item_count:06}", compactor=fold)
        async for history in histories(session, item_count):
            for name, call in CALLS.items():
                for _ in range(PREPARED):
                    await call(counter.store, session)
                found[f"{name} {history}"] = await counter.cost(session, call)

    short, long = costs
    assert len(short) == len(CALLS) * 4
    for name, cost in short.items():
        counter.check(cost, long[name])


@pytest.mark.parametrize("name", REWRITES)
async def test_a_rewrite_costs_the_same_however_much_it_hides(counter: Counter, name: str) -> None:
    costs = []
    for item_count in LENGTHS:
        session = await session_of(counter.store, f"history-{item_count:06}", numbered(item_count))
        costs.append(await counter.cost(session, REWRITES[name]))

    counter.check(*costs)


async def test_the_write_of_a_compaction_costs_the_same_however_much_it_hides(counter: Counter) -> None:
    """From the model's answer on: the replace, and the record of how the attempt ended."""
    costs = []
    for item_count in LENGTHS:
        asked: list[Cost] = []

        async def fold_and_count(request: CompactionRequest, asked: list[Cost] = asked) -> list[Item]:
            assert len(request.items) == item_count  # noqa: B023
            asked.append(await counter.now())
            return SUMMARY

        session = counter.store.session(f"history-{item_count:06}", compactor=fold_and_count)
        await session.append(numbered(item_count))
        await counter.settle()
        report = await session.compact(force=True)
        costs.append(_difference(asked[0], report, await counter.now()))

        assert report.landed

    counter.check(*costs)


async def test_a_list_costs_the_same_however_many_sessions_there_are(counter: Counter) -> None:
    costs: list[list[Cost]] = []
    for count in (LISTED, 10 * LISTED):
        for at in range(count):
            owner = "ann" if at % 2 else "ben"
            await counter.store.session(f"{count}-{at}", owner=owner).append(numbered(1))
        session = counter.store.session("none")
        for _ in range(PREPARED):
            for call in LISTS:
                await call(counter.store, session)
        costs.append([await counter.cost(session, call) for call in LISTS])

    for few, many in zip(*costs, strict=True):
        counter.check(few, many, slack=TIES)


async def _second_page(store: SessionStore) -> None:
    page = await store.list_sessions()
    assert len(await store.list_sessions(after=page[-1])) == 50


def _difference(before: Cost, between: object, after: Cost) -> Cost:
    return tuple(there - here for here, there in zip(before, after, strict=True))
