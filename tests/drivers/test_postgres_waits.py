"""Writes that wait behind another transaction on the same session: each trap forced, none timed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from cas_session.driver import Driver, Kind, Landed, Prefix, Write
from cas_session.drivers.postgres import PostgresDriver
from cas_session.errors import StorageUnavailableError, VersionConflictError
from cas_session.snapshot import Version
from tests.conformance.database import Database
from tests.conformance.writes import (
    KINDS,
    append,
    clear,
    compact,
    delete,
    load,
    new_id,
    operations,
    pop,
    prefix_of,
    replace,
    restore,
    send,
    texts,
    write,
)

# An append by hand, inside a transaction of its own that is still open.
APPEND_ITEM = """
WITH s AS (
    UPDATE cas_session SET
        version = version + 1, nonce = $2, next_seq = next_seq + 1, item_count = item_count + 1,
        byte_count = byte_count + octet_length($3)
    WHERE session_id = $1 RETURNING *
),
o AS (
    INSERT INTO cas_session_op
    SELECT
        session_id, $2, version, 'append', nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, '', '', now()
    FROM s
)
INSERT INTO cas_session_item SELECT session_id, next_seq - 1, epoch, $3, NULL, now() FROM s
"""


@pytest.fixture
def database(fresh_postgres: str) -> Database:
    return Database(fresh_postgres)


@pytest.fixture
async def driver(fresh_postgres: str) -> AsyncIterator[PostgresDriver]:
    driver = PostgresDriver(fresh_postgres)
    await driver.open()
    yield driver
    await driver.close()


@contextlib.asynccontextmanager
async def open_append(database: Database, s: str, text: str) -> AsyncIterator[asyncpg.Connection]:
    """A writer that has appended ``text`` and has not committed yet."""
    connection = await asyncpg.connect(database.url)
    await connection.execute("BEGIN")
    await connection.execute(APPEND_ITEM, s, new_id(), text)
    try:
        yield connection
    finally:
        await connection.close()


async def until_waiting(database: Database, count: int = 1) -> None:
    """Return when so many backends wait for a lock."""
    async with database.held("no such session") as waiting:
        await waiting(count)


async def behind(database: Database, driver: Driver, s: str, sent: Write, end: str) -> Landed | Exception:
    """Send a write that waits behind an open append of "theirs", which then ends with ``end``."""
    async with open_append(database, s, "theirs") as other:
        call = asyncio.create_task(send(driver, sent))
        await until_waiting(database)
        await other.execute(end)
        (result,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(result, Landed | Exception)
    return result


async def test_an_append_that_waited_takes_the_seqs_behind_the_winners(
    driver: Driver, database: Database
) -> None:
    await send(driver, append("s", "a"))

    landed = await behind(database, driver, "s", append("s", "mine", "too"), "COMMIT")

    assert isinstance(landed, Landed)
    assert (landed.manifest.version, landed.manifest.next_seq) == (3, 5)
    assert (await load(driver, "s")).rows == [(1, "a"), (2, "theirs"), (3, "mine"), (4, "too")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_conditional_write_that_waited_behind_a_winner_tells_the_true_version(
    driver: Driver, database: Database, kind: Kind
) -> None:
    """Not the one of the statement's snapshot, from before the wait."""
    await send(driver, append("s", "a"))
    read = await load(driver, "s")
    sent = write(kind, read, expected=read.manifest.version)

    error = await behind(database, driver, "s", sent, "COMMIT")
    now = await load(driver, "s")

    assert isinstance(error, VersionConflictError)
    assert (error.expected, error.actual, error.change) == (1, 2, "appended")
    assert error.actual.nonce == now.manifest.version.nonce
    assert await texts(driver, "s") == ["a", "theirs"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_conditional_write_that_waited_behind_a_rollback_lands(
    driver: Driver, database: Database, kind: Kind
) -> None:
    await send(driver, append("s", "a"))
    read = await load(driver, "s")
    sent = write(kind, read, expected=read.manifest.version)

    landed = await behind(database, driver, "s", sent, "ROLLBACK")

    assert isinstance(landed, Landed)
    assert landed.manifest.version == 2


@pytest.mark.parametrize("make", [clear, delete])
async def test_nothing_that_was_committed_while_a_clear_waited_survives_it(
    driver: Driver, database: Database, make: type[Write]
) -> None:
    await send(driver, append("s", "a"))

    landed = await behind(database, driver, "s", make("s"), "COMMIT")
    await driver.remove_erased("s")

    assert isinstance(landed, Landed)
    assert landed.manifest.version == 3
    assert await texts(driver, "s") == []
    assert await database.item_rows("s") == []


async def test_a_pop_that_waited_behind_an_append_lost_the_race(driver: Driver, database: Database) -> None:
    await send(driver, append("s", "a"))

    error = await behind(database, driver, "s", pop("s"), "COMMIT")

    assert isinstance(error, StorageUnavailableError)
    assert error.transient
    assert await texts(driver, "s") == ["a", "theirs"]


async def test_a_pop_under_the_lock_takes_what_was_appended_while_it_waited(
    driver: Driver, database: Database
) -> None:
    await send(driver, append("s", "a"))

    landed = await behind(database, driver, "s", pop("s", locked=True), "COMMIT")

    assert isinstance(landed, Landed)
    assert landed.item == "theirs"
    assert await texts(driver, "s") == ["a"]


async def test_a_compaction_that_waited_behind_an_append_keeps_it(driver: Driver, database: Database) -> None:
    await send(driver, append("s", "a", "b"))
    sent = compact("s", prefix_of(await load(driver, "s"), 2), "x")

    landed = await behind(database, driver, "s", sent, "COMMIT")

    assert isinstance(landed, Landed)
    assert (landed.found_version, landed.manifest.version, landed.manifest.item_count) == (2, 3, 2)
    assert await texts(driver, "s") == ["x", "theirs"]


async def test_a_restore_that_waited_behind_an_append_changes_nothing(
    driver: Driver, database: Database
) -> None:
    await send(driver, append("s", "a"))
    await send(driver, replace("s", "x", expected=1))

    error = await behind(database, driver, "s", restore("s", 1, expected=2), "COMMIT")

    assert isinstance(error, VersionConflictError)
    assert await texts(driver, "s") == ["x", "theirs"]


async def test_a_creation_that_waited_behind_another_reads_what_its_snapshot_had_not(
    driver: Driver, database: Database
) -> None:
    """The statement itself sees no row at all: a second one reads it."""
    other = await asyncpg.connect(database.url)
    await other.execute("BEGIN")
    await other.execute(
        "INSERT INTO cas_session VALUES"
        " ('s', 1, 0, 'theirs', 1, 0, 0, 1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, now(), now())"
    )
    call = asyncio.create_task(send(driver, append("s", "mine", expected=0)))
    await until_waiting(database)
    await other.execute("COMMIT")
    await other.close()

    with pytest.raises(VersionConflictError) as caught:
        await call

    assert (caught.value.actual, caught.value.actual.nonce) == (1, "theirs")
    assert caught.value.change == "appended"


async def test_a_write_sent_before_the_version_that_it_expects_is_not_told_that_this_version_conflicts(
    driver: Driver, database: Database
) -> None:
    """Its snapshot has version 1, what it expects lands while it waits: only sending it again can tell."""
    await send(driver, append("s", "a"))

    error = await behind(database, driver, "s", append("s", "b", expected=2), "COMMIT")

    assert isinstance(error, StorageUnavailableError | VersionConflictError)
    assert not isinstance(error, VersionConflictError) or error.actual != error.expected
    assert await texts(driver, "s") == ["a", "theirs"]


async def test_a_plan_whose_version_was_lost_in_a_failover_conflicts(driver: Driver) -> None:
    """Also where the history that grew instead is too short for its prefix."""
    await send(driver, append("s", "a"))
    lost = Prefix(through=9, planned=Version(1, "lost"), epoch=0, item_count=9, byte_count=9)

    with pytest.raises(VersionConflictError) as caught:
        await send(driver, compact("s", lost, "x"))

    assert (caught.value.actual, caught.value.change) == (1, "rewritten")


async def test_a_forget_that_waited_behind_an_append_leaves_the_revived_session(
    driver: Driver, database: Database
) -> None:
    await send(driver, append("s", "a"))
    await send(driver, delete("s"))
    async with database.held("s") as waiting:
        revival = asyncio.create_task(send(driver, append("s", "b")))
        await waiting(1)
        forgotten = asyncio.create_task(driver.forget("s"))
        await waiting(2)
    await revival

    assert not await forgotten
    assert await texts(driver, "s") == ["b"]
    assert len(await operations(driver, "s")) == 3


async def test_an_append_that_waited_behind_a_forget_begins_a_new_session(
    driver: Driver, database: Database
) -> None:
    await send(driver, append("s", "a", "b"))
    await send(driver, delete("s"))
    async with database.held("s") as waiting:
        forgotten = asyncio.create_task(driver.forget("s"))
        await waiting(1)
        call = asyncio.create_task(send(driver, append("s", "c")))
        await waiting(2)
    landed = await call

    assert await forgotten
    assert landed.manifest.version == 1
    assert (await load(driver, "s")).rows == [(1, "c")]
    assert len(await operations(driver, "s")) == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("kind", KINDS)
async def test_under_another_default_isolation_a_write_that_waited_is_only_sent_again(
    driver: Driver, database: Database, kind: Kind, level: str
) -> None:
    await send(driver, append("s", "a"))
    read = await load(driver, "s")
    strict = PostgresDriver(f"{database.url}&default_transaction_isolation={level}")
    await strict.open()
    sent = write(kind, read)

    error = await behind(database, strict, "s", sent, "COMMIT")
    before = await texts(driver, "s")
    read = await load(strict, "s")
    landed = await send(strict, write(kind, read))
    await strict.close()

    assert isinstance(error, StorageUnavailableError)
    assert error.transient
    assert before == ["a", "theirs"]
    assert landed.manifest.version == 3


async def test_under_serializable_a_pop_under_the_lock_lands_at_once(
    driver: Driver, database: Database
) -> None:
    await send(driver, append("s", "a"))
    strict = PostgresDriver(f"{database.url}&default_transaction_isolation=serializable")
    await strict.open()

    landed = await behind(database, strict, "s", pop("s", locked=True), "COMMIT")
    await strict.close()

    assert isinstance(landed, Landed)
    assert landed.item == "theirs"


async def test_a_finish_that_waited_behind_a_clear_writes_no_digest(
    driver: Driver, database: Database
) -> None:
    from cas_session.driver import FinishCompaction
    from tests.conformance.writes import begin

    landed = await send(driver, append("s", "a"))
    attempt = begin("s", landed.manifest)
    await driver.begin_compaction(attempt)
    finish = FinishCompaction(
        attempt_id=attempt.attempt_id, decision="failed", output_digest=b"digest", error="text of an item"
    )
    async with database.held("s") as waiting:
        cleared = asyncio.create_task(send(driver, clear("s")))
        await waiting(1)
        finished = asyncio.create_task(driver.finish_compaction(finish))
        await waiting(2)
    await asyncio.gather(cleared, finished)
    (row,) = await driver.compactions("s", limit=9)

    assert (row.status, row.decision) == ("done", "failed")
    assert (row.source_digest, row.output_digest, row.error) == (None, None, None)
