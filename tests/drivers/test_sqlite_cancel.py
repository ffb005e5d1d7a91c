"""Cancellation on SQLite: a unit that waits is dropped, one that was begun is settled, nothing is left."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cas_session.driver import CancelledUnitError, Driver, Kind, Write
from cas_session.drivers.sqlite import SqliteDriver
from cas_session.drivers.sqlite_lane import Unit
from cas_session.errors import StorageUnavailableError
from tests.conformance.writes import KINDS, append, everything, load, resent, send, texts, write
from tests.drivers.sqlite_file import (
    Gate,
    check_gapless,
    connected,
    more_and_more,
    on_writer,
    opened,
    statements,
    turns,
    writer_lane,
    writer_link,
)

S = "conversation-1"
COUNT = (
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT max(i) FROM n"
)
ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
async def driver(path: Path) -> AsyncIterator[SqliteDriver]:
    async with opened(path) as driver:
        yield driver


async def is_clean(driver: SqliteDriver) -> bool:
    """The writer's connection is in no transaction, and the next write lands."""
    raw = writer_link(driver).raw
    assert raw is not None
    await send(driver, append("another", "a"))
    return not raw.in_transaction


async def outcome_of(task: asyncio.Task[Any]) -> Any:
    """What the task returned or raised, in its very class."""
    try:
        return await task
    except (StorageUnavailableError, asyncio.CancelledError) as error:
        return error


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_cancelled_at_any_turn_landed_whole_or_not_at_all(
    driver: SqliteDriver, kind: Kind, times: int
) -> None:
    """Old or new, never mixed, and the next write lands."""
    for at, wait in enumerate(more_and_more()):
        s = f"{S}-{at}"
        await send(driver, append(s, "a", "b"))
        before = await everything(driver, s)
        sent: Write = write(kind, await load(driver, s), op_id="cancelled")
        task = asyncio.create_task(send(driver, sent))
        await turns(wait)
        cancelled = task.cancel()
        for _ in range(times - 1):
            await turns(1)
            task.cancel()
        outcome = await outcome_of(task)
        landed = await driver.find_op(s, "cancelled")
        after = await everything(driver, s)

        assert (after == before) == (landed is None)
        if isinstance(outcome, CancelledUnitError):
            assert (landed is not None) == (outcome.error is None)
        elif isinstance(outcome, asyncio.CancelledError):
            assert landed is None
        again = await send(driver, resent(sent))
        assert again.manifest.version == 2
        assert await is_clean(driver)
        if not cancelled:
            assert landed is not None
            return
    pytest.fail("no write came through")


async def test_a_unit_that_waits_is_dropped_at_once(driver: SqliteDriver) -> None:
    async with Gate(driver).shut():
        waiting = asyncio.create_task(send(driver, append(S, "dropped")))
        await turns(3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await waiting  # while the gate is still shut
    await send(driver, append(S, "a"))

    assert not isinstance(caught.value, CancelledUnitError)
    assert await texts(driver, S) == ["a"]


async def test_a_unit_that_was_begun_is_settled_however_often_it_is_cancelled(
    driver: SqliteDriver, path: Path
) -> None:
    with connected(path) as raw:
        raw.execute("BEGIN IMMEDIATE")
        begun = asyncio.create_task(send(driver, append(S, "a")))
        await turns(10)
        for _ in range(5):
            begun.cancel()
            await turns(10)
        waits = not begun.done()
        raw.execute("COMMIT")

    assert waits
    with pytest.raises(CancelledUnitError) as caught:
        await begun
    assert caught.value.error is None
    assert await texts(driver, S) == ["a"]
    assert await is_clean(driver)


async def test_a_cancelled_member_of_a_group_lands_with_the_others(driver: SqliteDriver, path: Path) -> None:
    with connected(path) as raw:
        async with Gate(driver).shut():
            members = [asyncio.create_task(send(driver, append(S, name))) for name in "abc"]
            await turns(3)
            raw.execute("BEGIN IMMEDIATE")
        await turns(10)
        members[1].cancel()
        raw.execute("COMMIT")
    outcomes = [await outcome_of(member) for member in members]

    assert isinstance(outcomes[1], CancelledUnitError)
    assert await texts(driver, S) == ["a", "b", "c"]


async def test_a_cancelled_read_waits_for_its_connection_and_is_plainly_cancelled(
    driver: SqliteDriver,
) -> None:
    for wait in more_and_more():
        reading = asyncio.create_task(load(driver, S))
        await turns(wait)
        if not reading.cancel():
            return
        with pytest.raises(asyncio.CancelledError) as caught:
            await reading
        assert type(caught.value) is asyncio.CancelledError
    pytest.fail("no read came through")


async def test_a_timeout_around_a_read_is_a_timeout(path: Path) -> None:
    """asyncio.timeout looks for the very class."""
    async with opened(path, readers=1) as driver:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await driver._read(lambda raw: raw.execute(COUNT).fetchone())
        assert (await load(driver, S)).row is None


async def test_a_call_whose_time_is_over_in_the_queue_is_dropped(path: Path) -> None:
    async with opened(path, call_timeout_s=0.05) as driver:
        async with Gate(driver).shut():
            with pytest.raises(StorageUnavailableError, match="not begun") as caught:
                await send(driver, append(S, "late"))

        assert caught.value.transient
        assert (await send(driver, append(S, "a"))).manifest.version == 1


async def test_a_call_whose_time_is_over_is_interrupted_and_leaves_nothing(path: Path) -> None:
    async with opened(path, call_timeout_s=0.05) as driver:
        for run in (driver._read, driver._write):
            with pytest.raises(StorageUnavailableError, match="SQLITE_INTERRUPT") as caught:
                await run(lambda raw: raw.execute(ENDLESS).fetchone())

            assert caught.value.transient
        assert await is_clean(driver)


async def test_an_interrupt_that_came_between_two_statements_comes_again(path: Path) -> None:
    async with opened(path, call_timeout_s=0.05) as driver:

        def work(raw: sqlite3.Connection) -> object:
            while not unit.expired:
                time.sleep(0.01)
            return raw.execute(COUNT.replace("1000000", "100000000")).fetchone()

        unit = Unit(work, begin="BEGIN IMMEDIATE")
        running = asyncio.create_task(writer_lane(driver).run(unit))

        with pytest.raises(StorageUnavailableError, match="SQLITE_INTERRUPT"):
            await running
        assert await is_clean(driver)


async def test_a_group_goes_on_without_the_member_that_was_interrupted(path: Path) -> None:
    async with opened(path, call_timeout_s=0.1) as driver:
        async with Gate(driver).shut():
            first = asyncio.create_task(send(driver, append(S, "a")))
            endless = asyncio.create_task(_run_joining(driver, ENDLESS))
            await turns(3)
        with pytest.raises(StorageUnavailableError):
            await endless
        outcome = (await asyncio.gather(first, return_exceptions=True))[0]

        # It was begun when its own time ended, too: whatever it says is what happened.
        landed = await texts(driver, S)
        assert landed == ([] if isinstance(outcome, StorageUnavailableError) else ["a"])
        assert await is_clean(driver)


async def _run_joining(driver: SqliteDriver, statement: str) -> object:
    unit = Unit(lambda raw: raw.execute(statement).fetchone(), begin="BEGIN IMMEDIATE", joins=True)
    return await driver._writer.run(unit)


def test_a_loop_that_ends_settles_what_was_begun(path: Path) -> None:
    """asyncio.run cancels every task there is, also those that nobody wrote."""
    outcomes: list[BaseException | object] = []

    async def keep(sending: Awaitable[object]) -> None:
        try:
            outcomes.append(await sending)
        except BaseException as error:
            outcomes.append(error)
            raise

    driver = SqliteDriver(str(path))

    async def main() -> None:
        await driver.open()
        await driver.migrate()
        tasks.extend(asyncio.create_task(keep(send(driver, append(S, str(at))))) for at in range(10))
        await turns(3)

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(main())
    asyncio.run(driver.close())

    async def look() -> list[str]:
        async with opened(path) as driver:
            await check_gapless(driver, S, len(await texts(driver, S)))
            return await texts(driver, S)

    stored = asyncio.run(look())
    settled = [error for error in outcomes if isinstance(error, CancelledUnitError) and error.error is None]
    assert len(outcomes) == len(tasks) == 10
    assert len(stored) == len(settled) + sum(not isinstance(one, BaseException) for one in outcomes)


SWEPT: list[Callable[[Driver], Awaitable[object]]] = [
    lambda driver: driver.remove_erased(S),
    lambda driver: driver.set_metadata(S, "{}"),
    lambda driver: driver.forget(S),
    lambda driver: driver.migrate(),
]


@pytest.mark.parametrize("verb", SWEPT)
async def test_other_verbs_cancelled_at_any_turn_leave_the_connection_clean(
    driver: SqliteDriver, verb: Callable[[Driver], Awaitable[object]]
) -> None:
    for wait in more_and_more():
        task = asyncio.ensure_future(verb(driver))
        await turns(wait)
        cancelled = task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await is_clean(driver)
        if not cancelled:
            return
    pytest.fail("no call came through")


async def test_a_begin_that_is_refused_leaves_nothing(path: Path) -> None:
    async with opened(path, busy_timeout_s=0.05) as driver:
        with connected(path) as raw:
            raw.execute("BEGIN IMMEDIATE")
            async with statements(driver) as ran:
                with pytest.raises(StorageUnavailableError, match="SQLITE_BUSY") as caught:
                    await send(driver, append(S, "a"))
            raw.execute("ROLLBACK")

        assert caught.value.transient
        assert ran[0] == "BEGIN IMMEDIATE"
        assert await is_clean(driver)
        assert await on_writer(driver, "PRAGMA integrity_check") == ("ok",)
