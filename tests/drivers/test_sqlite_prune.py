"""Pruning a SQLite file: what is particular to it. What holds for every driver is in tests/conformance."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from cas_session.driver import FinishCompaction, Kind, Prune
from cas_session.drivers import sqlite as module
from cas_session.drivers.sqlite import SqliteDriver
from tests.conformance.writes import append, begin, clear, load, pop, replace, send, texts, texts_of, write
from tests.drivers.sqlite_file import Gate, connected, opened, statements, versions, writer_link

S = "conversation-1"
NOTHING, DAY, WEEK, MONTH = timedelta(0), timedelta(days=1), timedelta(days=7), timedelta(days=30)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
async def driver(path: Path) -> AsyncIterator[SqliteDriver]:
    async with opened(path) as driver:
        yield driver


def rows(path: Path, table: str) -> int:
    with connected(path) as raw:
        (count,) = raw.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(count)


async def replaced(driver: SqliteDriver, session_id: str) -> None:
    """A session with one hidden item and one visible."""
    await send(driver, append(session_id, "old"))
    await send(driver, replace(session_id, "new", expected=1))


async def test_each_call_goes_on_where_the_one_before_it_stopped(
    driver: SqliteDriver, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PRUNE_SESSIONS", 2)
    for at in range(7):
        await replaced(driver, f"session-{at}")
    prune = Prune(retain=NOTHING, fence=WEEK, batch=3)
    removed = [await driver.prune(prune) for _ in range(4)]
    await replaced(driver, "session-0a")
    more = [await driver.prune(prune) for _ in range(2)]

    assert removed == [2, 2, 2, 1]
    assert more == [1, 0]
    assert rows(path, "cas_session_item") == 8


async def test_a_batch_that_is_full_in_the_middle_of_a_session_goes_on_there(driver: SqliteDriver) -> None:
    await send(driver, append(S, *"abcdefg"))
    await send(driver, replace(S, "new", expected=1))
    prune = Prune(retain=NOTHING, fence=WEEK, batch=3)

    assert [await driver.prune(prune) for _ in range(4)] == [3, 3, 1, 0]


async def test_the_search_holds_up_no_writer(driver: SqliteDriver) -> None:
    """It runs on a reader; with nothing to remove the writer is not asked at all."""
    await send(driver, append(S, "a"))

    async with Gate(driver).shut():
        assert await driver.prune(Prune(retain=NOTHING, fence=WEEK)) == 0


async def test_one_batch_is_one_transaction(driver: SqliteDriver) -> None:
    for at in range(5):
        await replaced(driver, f"session-{at}")

    async with statements(driver) as ran:
        assert await driver.prune(Prune(retain=NOTHING, fence=WEEK)) == 5

    assert ran.count("BEGIN IMMEDIATE") == ran.count("COMMIT") == 1


async def test_a_retention_longer_than_the_calendar_removes_nothing(driver: SqliteDriver, path: Path) -> None:
    await replaced(driver, S)
    await send(driver, pop(S))

    assert await driver.prune(Prune(retain=timedelta.max, fence=WEEK)) == 0
    assert rows(path, "cas_session_item") == 2


async def test_what_was_hidden_by_a_write_without_an_op_row_is_old_enough(
    driver: SqliteDriver, path: Path
) -> None:
    """Its op row was pruned, so it is older than any retention was."""
    await replaced(driver, S)
    await send(driver, append(S, "x"))
    await send(driver, pop(S))
    await send(driver, append(S, "y"))
    with connected(path) as raw:
        raw.execute("DELETE FROM cas_session_op WHERE version IN (2, 4)")
        raw.execute("UPDATE cas_session_op SET created_at = '2020-01-01 00:00:00.000' WHERE version = 1")

    assert await driver.prune(Prune(retain=MONTH, fence=timedelta(days=100_000))) == 2
    assert await texts(driver, S) == ["new", "y"]
    assert rows(path, "cas_session_item") == 2


async def test_attempts_go_with_the_op_rows_of_their_time(driver: SqliteDriver, path: Path) -> None:
    """Finished ones, and those whose worker died so long ago that nobody can take them over."""
    await send(driver, append(S, "a"))
    manifest = (await load(driver, S)).manifest
    for attempt, status in (("old", "done"), ("young", "done")):
        started = begin(S, manifest, attempt_id=attempt)
        await driver.begin_compaction(started)
        await driver.finish_compaction(FinishCompaction(attempt_id=attempt, status="done", decision=status))
    await driver.begin_compaction(begin(S, manifest, attempt_id="running"))
    with connected(path) as raw:
        raw.execute(
            "UPDATE cas_session_compaction SET finished_at = '2020-01-01 00:00:00.000'"
            " WHERE attempt_id = 'old'"
        )
    first = await driver.prune(Prune(retain=NOTHING, fence=DAY))
    left = {row.attempt_id for row in await driver.compactions(S, limit=10)}
    with connected(path) as raw:
        raw.execute(
            "UPDATE cas_session_compaction SET expires_at = '2020-01-01 00:00:00.000'"
            " WHERE attempt_id = 'running'"
        )
    second = await driver.prune(Prune(retain=NOTHING, fence=DAY))

    assert (first, left) == (1, {"young", "running"})
    assert second == 1
    assert [row.attempt_id for row in await driver.compactions(S, limit=10)] == ["young"]


async def test_erased_texts_that_a_crash_left_go_with_the_next_prune(driver: SqliteDriver) -> None:
    await send(driver, append(S, "a"))
    await driver.begin_compaction(begin(S, (await load(driver, S)).manifest, attempt_id="one"))
    await driver.finish_compaction(
        FinishCompaction(attempt_id="one", decision="failed", error="secret", output_digest=b"secret")
    )
    await send(driver, clear(S))

    await driver.prune(Prune(retain=MONTH, fence=MONTH))
    (row,) = await driver.compactions(S, limit=10)

    assert (row.error, row.output_digest, row.source_digest) == (None, None, None)
    assert row.decision == "failed"


async def test_a_long_erasure_is_removed_in_short_transactions(
    driver: SqliteDriver, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMOVE_BATCH", 10)
    await send(driver, append(S, *("a" for _ in range(35))))
    await send(driver, clear(S))

    async with statements(driver) as ran:
        await driver.remove_erased(S)

    assert ran.count("COMMIT") == 4
    assert rows(path, "cas_session_item") == 0
    assert await versions(driver, S) == [1, 2]


async def test_a_base_that_took_over_lately_by_its_own_clock_hides_for_the_whole_time(
    driver: SqliteDriver, path: Path
) -> None:
    """The clock of a worker that writes behind it may be far back."""
    await replaced(driver, S)
    for text in "abc":
        await send(driver, append(S, text))
    with connected(path) as raw:
        raw.execute("UPDATE cas_session_op SET created_at = '1970-01-01 00:00:00.000' WHERE version > 2")

    assert await driver.prune(Prune(retain=MONTH, fence=MONTH * 1000)) == 0
    assert texts_of(await driver.load_as_of(S, 1)) == ["old"]


@pytest.mark.parametrize("kind", ["append", "pop", "replace"])
async def test_what_prune_does_with_the_lock_held_does_not_grow_with_the_past_that_stays(
    tmp_path: Path, kind: Kind
) -> None:
    """It is in the way of every writer: counted in instructions of SQLite's machine."""
    few, many = [await _steps_of_prune(tmp_path / f"{past}.db", kind, past) for past in (100, 400)]

    assert 0 < many < 1.5 * few


async def _steps_of_prune(path: Path, kind: Kind, past: int) -> int:
    """Of a session that was begun long ago, with so many young writes."""
    prune = Prune(retain=WEEK, fence=WEEK, batch=50)
    async with opened(path) as driver:
        await replaced(driver, S)
        if kind == "pop":
            await send(driver, append(S, *(str(at) for at in range(past))))
        for _ in range(past):
            await send(driver, write(kind, await load(driver, S)))
        with connected(path) as raw:
            raw.execute("UPDATE cas_session_op SET created_at = '2020-01-01 00:00:00.000' WHERE version < 3")
        assert await driver.prune(prune) > 0
        async with steps(driver) as counted:
            assert await driver.prune(prune) == 0
        return len(counted)


@contextlib.asynccontextmanager
async def steps(driver: SqliteDriver) -> AsyncIterator[list[None]]:
    """The instructions that the writer's connection runs meanwhile."""
    counted: list[None] = []
    link = writer_link(driver)
    raw = link.raw
    assert raw is not None
    await link.hop(lambda: raw.set_progress_handler(lambda: counted.append(None), 1))
    try:
        yield counted
    finally:
        await link.hop(lambda: raw.set_progress_handler(None, 1))
