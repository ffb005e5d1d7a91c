"""Many items, and large ones: no call has a limit of its own, and removals stay in short transactions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from cas_session import Item, SessionStore
from cas_session.driver import Prune
from cas_session.drivers.sqlite import REMOVE_BATCH
from tests.costs.histories import answers, message, numbered, session_of, settled
from tests.costs.sqlite_meter import SqliteMeter

MANY = 40_000  # more than a statement may have parameters, of Postgres (32,767) and of SQLite
BATCH = Prune(retain=timedelta(0), fence=timedelta(days=7)).batch

# Notes how many items each transaction removes, by the server itself.
NOTE_REMOVALS = """
CREATE TABLE removal (xact xid8 NOT NULL DEFAULT pg_current_xact_id(), items bigint NOT NULL);
CREATE FUNCTION note_removal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO removal (items) SELECT count(*) FROM gone;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_removal AFTER DELETE ON cas_session_item REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION note_removal();
"""
FORGET_REMOVALS = "DROP FUNCTION note_removal CASCADE; DROP TABLE removal"
REMOVALS = "SELECT sum(items)::bigint FROM removal GROUP BY xact HAVING sum(items) > 0"


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SessionStore]:
    async with SessionStore(database_url, retain=timedelta(0)) as store:
        yield store


@pytest.mark.parametrize("count", [10_000, MANY])
async def test_so_many_items_are_one_append(store: SessionStore, database_url: str, count: int) -> None:
    await store.session("s").append([{"first": True}])

    assert await store.session("s").append(numbered(count)) == 2
    assert await _read(database_url) == [{"first": True}, *numbered(count)]


async def test_so_many_items_are_one_replace(store: SessionStore, database_url: str) -> None:
    await store.session("s").append([{"first": True}])

    assert await store.session("s").replace(numbered(MANY), expected_version=1) == 2
    assert await _read(database_url) == numbered(MANY)


async def test_a_compactor_may_answer_with_so_many_items(store: SessionStore, database_url: str) -> None:
    session = await session_of(store, "s", answers(1), _unfold)
    report = await session.compact(force=True)

    assert (report.status, report.items_after) == ("applied", MANY)
    assert await _read(database_url) == numbered(MANY)


async def test_an_item_of_20_mb_comes_out_as_it_went_in(store: SessionStore, database_url: str) -> None:
    large = {"role": "user", "content": message(500_000)["content"] * 40}
    session = store.session("s")
    await session.append([{"first": True}, large, {"last": True}])

    assert await _read(database_url) == [{"first": True}, large, {"last": True}]
    await session.pop()
    assert (await session.pop())[0] == large


async def test_prune_removes_many_items_in_short_transactions_on_postgres(fresh_postgres: str) -> None:
    async with SessionStore(fresh_postgres, retain=timedelta(0)) as store, _noting(fresh_postgres) as admin:
        session = await session_of(store, "s", numbered(MANY))
        await session.replace([{"new": True}], expected_version=1)

        assert await store.prune() == MANY
        assert (await session.snapshot()).items == [{"new": True}]
        removals = [items for (items,) in await admin.fetch(REMOVALS)]

    assert removals == [BATCH] * (MANY // BATCH)


async def test_prune_removes_many_items_in_short_transactions_on_sqlite(fresh_sqlite: str) -> None:
    async with SessionStore(fresh_sqlite, retain=timedelta(0)) as store:
        session = await session_of(store, "s", numbered(MANY))
        await session.replace([{"new": True}], expected_version=1)
        meter = SqliteMeter(store)
        async with meter.counting():
            assert await store.prune() == MANY

        assert (await session.snapshot()).items == [{"new": True}]

    assert [rows for rows in meter.rows_by_hop if rows] == [BATCH] * (MANY // BATCH)


async def test_what_was_cleared_goes_in_short_transactions_on_sqlite(fresh_sqlite: str) -> None:
    """There a removal keeps every writer waiting; on Postgres it keeps nobody."""
    async with SessionStore(fresh_sqlite) as store:
        session = await session_of(store, "s", numbered(MANY))
        meter = SqliteMeter(store)
        async with meter.counting():
            await session.clear()
            await session.append([{"new": True}])
            await settled(store)

        assert (await session.snapshot()).items == [{"new": True}]

    assert max(meter.rows_by_hop) == REMOVE_BATCH
    assert sum(meter.rows_by_hop) >= MANY


@contextlib.asynccontextmanager
async def _noting(url: str) -> AsyncIterator[Any]:
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(NOTE_REMOVALS)
        yield admin
    finally:
        await admin.execute(FORGET_REMOVALS)
        await admin.close()


async def _unfold(request: object) -> list[Item]:
    return numbered(MANY)


async def _read(url: str) -> list[Item]:
    """The session as another store reads it."""
    async with SessionStore(url) as other:
        return (await other.session("s").snapshot()).items
