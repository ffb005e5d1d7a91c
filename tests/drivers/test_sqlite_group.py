"""One unit is one hop; appends that wait share a transaction, and each gets its own answer."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cas_session.driver import GroupRefusedError
from cas_session.drivers import sqlite_lane
from cas_session.drivers.sqlite import SqliteDriver
from cas_session.drivers.sqlite_lane import Unit
from cas_session.errors import OperationMismatchError, StorageUnavailableError, VersionConflictError
from tests.conformance.writes import append, clear, load, pop, resent, send, texts
from tests.drivers.sqlite_file import (
    Gate,
    check_gapless,
    hops,
    on_writer,
    opened,
    statements,
    traced,
    turns,
    writer_lane,
)

S = "conversation-1"
INSERT = "INSERT INTO witness VALUES (?)"


@pytest.fixture
async def driver(tmp_path: Path) -> Any:
    async with opened(tmp_path / "chat.db") as driver:
        yield driver


def member(work: Any) -> Unit[Any]:
    """A unit of its own kind that shares its transaction."""
    return Unit(work, begin="BEGIN IMMEDIATE", op_id="op", joins=True)


def note(value: str) -> Unit[str]:
    def work(raw: sqlite3.Connection) -> str:
        raw.execute(INSERT, (value,))
        return value

    return member(work)


async def witnesses(driver: SqliteDriver) -> set[str]:
    found = Unit(lambda raw: raw.execute("SELECT name FROM witness").fetchall(), begin="BEGIN")
    return {name for (name,) in await writer_lane(driver).run(found)}


async def together(driver: SqliteDriver, *units: Unit[Any]) -> list[Any]:
    """Let the units leave the queue as one group; give results and exceptions."""
    await on_writer(driver, "CREATE TABLE IF NOT EXISTS witness (name TEXT UNIQUE)")
    async with Gate(driver).shut():
        running = asyncio.gather(*(writer_lane(driver).run(unit) for unit in units), return_exceptions=True)
        await turns(3)
    return await running


async def test_who_appends_again_at_once_shares_the_next_transaction(driver: SqliteDriver) -> None:
    async def three_times(session_id: str) -> None:
        for text in "abc":
            await send(driver, append(session_id, text))

    async with hops(driver) as made:
        await asyncio.gather(*(three_times(f"s{at}") for at in range(8)))

    assert [len(hop.args[1]) for hop in made] == [1, 8, 8, 7]


async def test_an_append_to_a_session_is_one_hop_and_a_few_statements(driver: SqliteDriver) -> None:
    await send(driver, append(S, "a"))

    async with statements(driver) as ran, hops(driver) as made:
        await send(driver, append(S, "b"))

    assert len(made) == 1
    assert ran == [
        "BEGIN IMMEDIATE",
        "SELECT s.version, s.nonce,",
        "INSERT INTO cas_session_op",
        "INSERT INTO cas_session_item",
        "UPDATE cas_session SET",
        "COMMIT",
    ]


@pytest.mark.parametrize("make", [pop, clear])
async def test_a_rewrite_is_one_hop(driver: SqliteDriver, make: Any) -> None:
    await send(driver, append(S, "a"))

    async with statements(driver) as ran, hops(driver) as made:
        await send(driver, make(S))

    assert len(made) == 1
    assert ran[0] == "BEGIN IMMEDIATE"
    assert ran[-1] == "COMMIT"


async def test_a_write_that_conflicts_leaves_no_transaction(driver: SqliteDriver) -> None:
    async with statements(driver) as ran:
        with pytest.raises(VersionConflictError):
            await send(driver, append(S, "a", expected=7))

    assert ran[-1] == "ROLLBACK"
    assert (await send(driver, append(S, "a"))).manifest.version == 1


async def test_appends_that_wait_share_a_transaction(driver: SqliteDriver) -> None:
    """Of all sessions."""
    async with statements(driver) as ran, hops(driver) as made:
        async with Gate(driver).shut():
            sending = asyncio.gather(
                *(send(driver, append(f"session-{at % 4}", str(at))) for at in range(12))
            )
            await turns(3)
        landed = await sending

    assert len(made) == 2
    assert ran.count("BEGIN IMMEDIATE") == 1
    assert ran.count("COMMIT") == 1
    assert [int(one.manifest.version) for one in landed] == [1 + at // 4 for at in range(12)]
    assert await texts(driver, "session-1") == ["1", "5", "9"]


async def test_other_writes_are_transactions_of_their_own_in_the_order_of_the_queue(
    driver: SqliteDriver,
) -> None:
    async with statements(driver) as ran:
        async with Gate(driver).shut():
            writes = [append(S, "a"), append(S, "b"), clear(S), append(S, "c"), append(S, "d")]
            sending = asyncio.gather(*(send(driver, write) for write in writes))
            await turns(3)
        landed = await sending

    assert ran.count("COMMIT") == 3
    assert [int(one.manifest.version) for one in landed] == [1, 2, 3, 4, 5]
    assert await texts(driver, S) == ["c", "d"]


async def test_a_shared_transaction_is_bounded_in_members(driver: SqliteDriver) -> None:
    count = 2 * sqlite_lane.GROUP_UNITS + 1
    async with statements(driver) as ran:
        async with Gate(driver).shut():
            sending = asyncio.gather(*(send(driver, append(S, "a")) for _ in range(count)))
            await turns(3)
        await sending

    assert ran.count("COMMIT") == 3
    await check_gapless(driver, S, count)


async def test_a_shared_transaction_is_bounded_in_bytes(driver: SqliteDriver) -> None:
    big = "x" * (sqlite_lane.GROUP_BYTES // 2)
    async with statements(driver) as ran:
        async with Gate(driver).shut():
            sending = asyncio.gather(*(send(driver, append(S, big)) for _ in range(5)))
            await turns(3)
        await sending

    assert ran.count("COMMIT") == 3


async def test_a_member_that_is_refused_leaves_the_others_as_they_are(driver: SqliteDriver) -> None:
    used = append(S, "a")
    await send(driver, used)
    async with Gate(driver).shut():
        sending = asyncio.gather(
            send(driver, append(S, "b")),
            send(driver, append(S, "stale", expected=7)),
            send(driver, append(S, "other", op_id=used.op_id)),
            send(driver, resent(used)),
            send(driver, append(S, "c")),
            return_exceptions=True,
        )
        await turns(3)
    first, stale, other, again, last = await sending

    assert first.manifest.version == 2
    assert isinstance(stale, VersionConflictError)
    assert stale.actual == 2
    assert isinstance(other, OperationMismatchError)
    assert again.manifest.version == 1
    assert last.manifest.version == 3
    assert await texts(driver, S) == ["a", "b", "c"]


async def test_a_store_group_that_is_refused_lands_nothing_of_it(driver: SqliteDriver) -> None:
    used = append(S, "a")
    await send(driver, used)
    async with Gate(driver).shut():
        sending = asyncio.gather(
            driver.append([append(S, "b"), append(S, "c")]),
            driver.append([append(S, "no"), resent(used, fenced=False), append(S, "no")]),
            driver.append([append(S, "d")]),
            return_exceptions=True,
        )
        await turns(3)
    two, refused, one = await sending

    assert [int(landed.manifest.version) for landed in two] == [2, 3]
    assert isinstance(refused, GroupRefusedError)
    assert int(one[0].manifest.version) == 4
    assert await texts(driver, S) == ["a", "b", "c", "d"]


async def test_an_error_of_one_member_is_that_members_alone(driver: SqliteDriver) -> None:
    def fail(raw: sqlite3.Connection) -> None:
        raw.execute(INSERT, ("half",))
        raise ValueError("mine")

    first, failed, last = await together(driver, note("a"), member(fail), note("b"))

    assert (first, last) == ("a", "b")
    assert isinstance(failed, ValueError)
    assert await witnesses(driver) == {"a", "b"}


async def test_when_the_transaction_is_gone_nothing_more_runs_in_it(driver: SqliteDriver) -> None:
    """Some errors roll everything back. What came behind would land by itself, and what came before would be
    answered though it is gone."""
    calls: list[str] = []

    def lose(raw: sqlite3.Connection) -> None:
        calls.append("lose")
        raw.execute("ROLLBACK")
        raise sqlite3.OperationalError("the transaction is gone")

    def behind(raw: sqlite3.Connection) -> str:
        calls.append("behind")
        assert raw.in_transaction
        raw.execute(INSERT, ("behind",))
        return "behind"

    before, lost, after = await together(driver, note("before"), member(lose), member(behind))

    assert (before, after) == ("before", "behind")
    assert isinstance(lost, StorageUnavailableError)
    assert calls == ["lose", "lose", "behind"]
    assert await witnesses(driver) == {"before", "behind"}


async def test_nobody_is_answered_before_commit_returned(driver: SqliteDriver) -> None:
    at_commit: list[bool] = []
    units: list[Unit[str]] = []

    def look(sql: str) -> None:
        if sql == "COMMIT":
            at_commit.extend(unit.answer.done() for unit in units)

    units.extend((note("a"), note("b")))
    async with traced(driver, look):
        answers = await together(driver, *units)

    assert answers == ["a", "b"]
    assert at_commit == [False, False]


async def test_a_commit_that_is_refused_and_leaves_the_transaction_open_landed_nothing(
    driver: SqliteDriver,
) -> None:
    """A deferred constraint is such a COMMIT that SQLite refuses; the group is rolled back whole."""
    await on_writer(driver, "PRAGMA foreign_keys=ON")
    await on_writer(driver, "CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    await on_writer(
        driver, "CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)"
    )

    def orphan(raw: sqlite3.Connection) -> None:
        raw.execute("INSERT INTO child VALUES (7)")

    answers = await together(driver, note("a"), member(orphan), note("b"))
    alone = await asyncio.gather(writer_lane(driver).run(member(orphan)), return_exceptions=True)

    assert all(isinstance(answer, StorageUnavailableError) for answer in answers + alone)
    assert await witnesses(driver) == set()
    assert (await send(driver, append(S, "a"))).manifest.version == 1


async def test_reads_do_not_wait_for_the_writer(driver: SqliteDriver) -> None:
    await send(driver, append(S, "a"))

    async with Gate(driver).shut():
        assert await texts(driver, S) == ["a"]
        assert (await load(driver, S, limit=0)).manifest.version == 1
