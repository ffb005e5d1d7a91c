"""What the server does for a statement: index ranges, heap-only updates, batches that stay bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from cas_session.driver import Driver, Load, Prune
from cas_session.drivers import postgres as module
from cas_session.drivers import postgres_reads as reads
from cas_session.drivers import postgres_upkeep as upkeep
from cas_session.drivers.postgres import PostgresDriver
from tests.conformance.writes import append, clear, compact, load, pop, prefix_of, send, texts

MANY = 100_000

# A long history beside many short ones, written by hand.
FILL = f"""
INSERT INTO cas_session
SELECT 's' || n, 1, 0, 'nonce', 3, 0, 0, 1, 0, 2, 2, NULL, NULL, NULL, NULL, NULL, now(), now()
FROM generate_series(1, 2000) n;
INSERT INTO cas_session_item SELECT 's' || n, m, 0, 'x', NULL, now()
FROM generate_series(1, 2000) n, generate_series(1, 2) m;
INSERT INTO cas_session VALUES
('long', 1, 0, 'nonce', {MANY + 1}, 0, 0, 1, 0, {MANY}, {MANY}, NULL, NULL, NULL, NULL, NULL, now(), now());
INSERT INTO cas_session_item SELECT 'long', n, 0, 'x', NULL, now() FROM generate_series(1, {MANY}) n;
INSERT INTO cas_session_op
SELECT session_id, 'op', 1, 'append', nonce, 0, next_seq, 0, 0, 1, 0, item_count, byte_count, '', '', now()
FROM cas_session;
"""
NEVER_ANALYZED = "ALTER TABLE cas_session_item SET (autovacuum_enabled = false)"


@pytest.fixture
async def admin(fresh_postgres: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(fresh_postgres)
    yield connection
    await connection.close()


@pytest.fixture
async def driver(fresh_postgres: str) -> AsyncIterator[PostgresDriver]:
    driver = PostgresDriver(fresh_postgres, pool_size=1)
    await driver.open()
    yield driver
    await driver.close()


async def plan(admin: asyncpg.Connection, sql: str, *values: Any, mode: str = "auto") -> list[dict[str, Any]]:
    """The nodes that ran, with what they touched."""
    async with admin.transaction():
        await admin.execute(f"SET LOCAL plan_cache_mode = {mode}")
        names = ", ".join("NULL" if value is None else f"'{value}'" for value in values)
        await admin.execute(f"PREPARE one AS {sql}")
        try:
            text = await admin.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE one ({names})")
        finally:
            await admin.execute("DEALLOCATE one")
    nodes = []
    todo = [json.loads(text)[0]["Plan"]]
    while todo:
        node = todo.pop()
        nodes.append(node)
        todo.extend(node.get("Plans", ()))
    return nodes


def pages(nodes: list[dict[str, Any]]) -> int:
    """Pages that the statement touched."""
    return int(nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"])


@pytest.fixture(params=["ANALYZE", NEVER_ANALYZED])
async def filled(request: pytest.FixtureRequest, admin: asyncpg.Connection) -> asyncpg.Connection:
    await admin.execute(NEVER_ANALYZED)
    await admin.execute(FILL)
    await admin.execute(request.param)
    return admin


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("sql", [reads.LOAD, reads.LOAD_WITH_AGES])
async def test_a_tail_read_costs_the_same_however_long_the_history_is(
    filled: asyncpg.Connection, sql: str, mode: str
) -> None:
    assert pages(await plan(filled, sql, "long", 20, mode=mode)) < 30
    assert pages(await plan(filled, reads.LAST_ITEM, "long", mode=mode)) < 30


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_reading_on_costs_the_same_however_long_the_history_is(
    filled: asyncpg.Connection, mode: str
) -> None:
    assert pages(await plan(filled, reads.LOAD_BEHIND, "long", MANY - 3, 1, "nonce", 0, mode=mode)) < 30


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_a_whole_history_is_read_in_order_and_not_sorted(filled: asyncpg.Connection, mode: str) -> None:
    whole = await plan(filled, reads.LOAD, "long", None, mode=mode)
    whole += await plan(filled, reads.LOAD_BEHIND, "long", 0, 1, "another", 7, mode=mode)

    assert {"Sort", "Incremental Sort"}.isdisjoint(node["Node Type"] for node in whole)


async def test_one_plan_serves_short_and_long_sessions(driver: Driver, admin: asyncpg.Connection) -> None:
    """After the five with which Postgres tries plans out: to plan a tail read costs more than to do it."""
    await send(driver, append("short", "x"))
    await send(driver, append("long", *["x"] * 20_000))
    await admin.execute("ANALYZE")
    for sql, *limit in ((reads.LOAD, 20), (reads.LAST_ITEM,)):
        statement = await admin.prepare(sql)
        for session_id in [*["short"] * 5, "long", "short"]:
            await statement.fetch(session_id, *limit)
        made = await admin.fetchrow(
            "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement = $1", sql
        )

        assert tuple(made) == (5, 2)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_a_read_touches_only_its_own_session(filled: asyncpg.Connection, mode: str) -> None:
    nodes = await plan(filled, reads.LOAD, "s7", None, mode=mode)

    assert pages(nodes) < 20
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]


@pytest.mark.parametrize("analyzed", [True, False])
async def test_what_a_compaction_hid_is_not_read_again(
    driver: Driver, admin: asyncpg.Connection, analyzed: bool
) -> None:
    await admin.execute(NEVER_ANALYZED)
    await send(driver, append("s", *["x"] * 20_000))
    await send(driver, compact("s", prefix_of(await load(driver, "s"), 20_000), "summary"))
    if analyzed:
        await admin.execute("VACUUM ANALYZE")

    for limit in (None, 20):
        assert pages(await plan(admin, reads.LOAD, "s", limit)) < 20
    assert await texts(driver, "s") == ["summary"]


async def test_a_write_leaves_the_indexes_of_the_session_row_alone(
    driver: Driver, admin: asyncpg.Connection
) -> None:
    """Heap-only updates: no index on a column that a write changes, and room in the page."""
    await send(driver, append("s", "a", owner="ann", metadata='{"title":"x"}'))
    for at in range(300):
        await send(driver, append("s", "a"))
        if at % 10 == 0:
            await send(driver, pop("s"))
            await send(driver, clear("s"))
    await driver.close()  # its backend reports when it ends
    updates = await _statistics(admin)

    assert updates["n_tup_hot_upd"] >= 0.95 * updates["n_tup_upd"] > 300


async def _statistics(admin: asyncpg.Connection) -> Any:
    """The session table's counters, once they are in."""
    sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'cas_session'"
    while (row := await admin.fetchrow(sql))["n_tup_upd"] < 300:
        await admin.execute("SELECT pg_sleep(0.02)")
    return row


async def test_prune_walks_many_sessions_in_windows(
    driver: Driver, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PRUNE_SESSIONS", 7)
    nothing = timedelta(0)
    for at in range(30):
        await send(driver, append(f"s{at:02}", "a", "b"))
    for at in (0, 13, 29):
        await send(driver, pop(f"s{at:02}"))

    removed = []
    while went := await driver.prune(Prune(retain=nothing, fence=nothing, batch=4)):
        removed.append(went)

    assert max(removed) <= 4
    assert sum(removed) == 6  # three popped items, three op rows that are not the newest
    assert await driver.prune(Prune(retain=nothing, fence=nothing, batch=4)) == 0
    assert [len(await texts(driver, f"s{at:02}")) for at in range(30)].count(1) == 3


async def test_prune_takes_as_much_as_a_batch_from_one_session_and_goes_on(
    driver: Driver, admin: asyncpg.Connection
) -> None:
    await send(driver, append("s", *["x"] * 5000))
    await send(driver, compact("s", prefix_of(await load(driver, "s"), 5000), "summary"))
    retain, fence = timedelta(0), timedelta(days=7)

    removed = [await driver.prune(Prune(retain=retain, fence=fence, batch=2000)) for _ in range(4)]

    assert removed == [2000, 2000, 1000, 0]
    assert await texts(driver, "s") == ["summary"]


async def test_prune_of_a_window_with_nothing_to_prune_reads_no_items(admin: asyncpg.Connection) -> None:
    await admin.execute(FILL)

    values = ("", 1000, timedelta(days=30), timedelta(days=30), 1000)
    nodes = await plan(admin, upkeep.PRUNE, *values, mode="force_generic_plan")
    read = sum(
        node["Actual Rows"] * node["Actual Loops"]
        for node in nodes
        if node.get("Relation Name") == "cas_session_item"
    )

    assert read == 0
    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    assert not scanned & {"cas_session_item", "cas_session_op"}


async def test_two_workers_that_prune_at_once_stay_out_of_each_others_way(
    driver: Driver, fresh_postgres: str, admin: asyncpg.Connection
) -> None:
    await send(driver, append("s", *["x"] * 100))
    await send(driver, compact("s", prefix_of(await load(driver, "s"), 100), "summary"))
    async with admin.transaction():
        await admin.execute("SELECT FROM cas_session_item WHERE seq <= 40 FOR UPDATE")
        beside = await driver.prune(Prune(retain=timedelta(0), fence=timedelta(days=7)))
    after = await driver.prune(Prune(retain=timedelta(0), fence=timedelta(days=7)))

    assert (beside, after) == (60, 40)


async def test_ages_come_with_the_items(driver: Driver) -> None:
    await send(driver, append("s", "a", "b"))
    await send(driver, append("s", "c"))

    loaded = await driver.load(Load("s", limit=2, ages=True))

    assert loaded.rows == [(2, "b"), (3, "c")]
    assert len(loaded.created_at) == 2
    assert loaded.created_at[0] < loaded.created_at[1]
    assert loaded.row is not None
    assert loaded.created_at[1] == loaded.row.updated_at
