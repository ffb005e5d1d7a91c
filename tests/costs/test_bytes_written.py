"""Bytes that a write adds to the write-ahead log: in proportion to its own items, and flat in the history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median_low

import pytest

from cas_session import CasSession, Item, SessionStore, codec
from tests.costs.histories import SUMMARY, numbered, session_of, turn
from tests.costs.postgres_meter import PostgresMeter
from tests.costs.sqlite_meter import FRAME_BYTES, SqliteMeter

SHORT, LONG = 100, 10_000  # items of a history
SESSIONS = 5  # a write that splits a page of an index costs more than others; the median does not

WORKER = "worker-1"  # of the same length on every machine

Verb = Callable[[CasSession], Awaitable[object]]


@dataclass(frozen=True)
class Log:
    """A store whose write-ahead log nobody else writes.

    Attributes:
        written: Gives the bytes that were written so far.
        slack: Bytes by which two writes of the same kind may differ.
        factor: Bytes for each byte of an item, at most.
        per_item: Bytes beside its text, for row and index.
        per_transaction: Bytes beside the items: session row, op row and their indexes.
    """

    store: SessionStore
    written: Callable[[], Awaitable[int]]
    slack: int
    factor: float
    per_item: int
    per_transaction: int


async def _compact(session: CasSession) -> None:
    assert (await session.compact(force=True)).landed


# The write, its new items, and its transactions. A compaction takes its lease and records how it ended.
WRITES: dict[str, tuple[Verb, list[Item], int]] = {
    "append": (lambda s: s.append(turn()), turn(), 1),
    "append of a long turn": (lambda s: s.append(turn(25_000)), turn(25_000), 1),
    "pop": (lambda s: s.pop(), [], 1),
    "clear": (lambda s: s.clear(), [], 1),
    "delete": (lambda s: s.delete(), [], 1),
    "replace": (lambda s: s.replace(SUMMARY, expected_version=1), SUMMARY, 1),
    "compact": (_compact, SUMMARY, 3),
}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    fixture = "fresh_sqlite" if request.param == "sqlite" else "quiet_postgres"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
async def log(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Log]:
    async with (sqlite_log if url.startswith("sqlite") else postgres_log)(url) as log:
        # What was cleared is removed behind the clear, at a cost of its own; here it is left to prune.
        monkeypatch.setattr(log.store.backend.driver, "remove_erased", _leave)
        yield log


@asynccontextmanager
async def sqlite_log(url: str) -> AsyncIterator[Log]:
    """Whole pages are written; a write of a few rows changes some ten of them in tables and indexes."""
    async with SessionStore(url, worker=WORKER) as store:
        meter = SqliteMeter(store)
        await meter.keep_log()

        async def written() -> int:
            return meter.log_pages() * FRAME_BYTES

        yield Log(store, written, 2 * FRAME_BYTES, 1.1, 0, 12 * FRAME_BYTES)


@asynccontextmanager
async def postgres_log(url: str) -> AsyncIterator[Log]:
    """Rows are written, without images of whole pages."""
    async with PostgresMeter(url) as meter, SessionStore(url, pool_size=1, worker=WORKER) as store:
        yield Log(store, meter.log_bytes, 256, 1.1, 256, 2048)


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_writes_as_much_as_its_items_however_long_the_history_is(log: Log, name: str) -> None:
    verb, items, transactions = WRITES[name]
    short, long = [await _cost(log, verb, f"{name}-{count:05}", count) for count in (SHORT, LONG)]

    assert abs(long - short) <= log.slack
    payload = codec.encode(items).size * log.factor + len(items) * log.per_item
    assert 0 < long <= payload + transactions * log.per_transaction


async def _cost(log: Log, verb: Verb, name: str, item_count: int) -> int:
    """Bytes that a write of a session with so many items costs."""
    costs = []
    for at in range(SESSIONS):
        session = await session_of(log.store, f"{name}-{at}", numbered(item_count))
        before = await log.written()
        await verb(session)
        costs.append(await log.written() - before)
    return median_low(costs)


async def _leave(session_id: str) -> None:
    """Remove nothing."""
