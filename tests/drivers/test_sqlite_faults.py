"""What SQLite reports when the disk, the file or another process fails, and what is true of the data then."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cas_session.driver import GroupRefusedError
from cas_session.drivers.sqlite import SqliteDriver
from cas_session.drivers.sqlite_errors import translate
from cas_session.drivers.sqlite_link import Turn
from cas_session.errors import (
    ItemDecodingError,
    StorageUnavailableError,
    WriteOutcomeUnknownError,
)
from tests.conformance.writes import append, clear, load, pop, resent, send, texts
from tests.drivers.sqlite_file import (
    Gate,
    check_gapless,
    connected,
    on_writer,
    opened,
    turns,
    writer_link,
)

S = "conversation-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
async def driver(path: Path) -> AsyncIterator[SqliteDriver]:
    async with opened(path) as driver:
        yield driver


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """The operating system refuses to write behind that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def wal_size(path: Path) -> int:
    return path.with_name("chat.db-wal").stat().st_size


async def test_a_full_disk_is_named_and_nothing_lands(driver: SqliteDriver) -> None:
    await send(driver, append(S, "a"))
    (pages,) = await on_writer(driver, "PRAGMA page_count")
    await on_writer(driver, f"PRAGMA max_page_count={pages}")

    with pytest.raises(StorageUnavailableError, match=r"disk is full.*SQLITE_FULL") as caught:
        await send(driver, append(S, "x" * 100_000))
    await on_writer(driver, "PRAGMA max_page_count=1000000")

    assert not caught.value.transient
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert await texts(driver, S) == ["a"]
    assert (await send(driver, append(S, "b"))).manifest.version == 2


async def test_in_a_group_a_full_disk_hits_only_those_that_did_not_fit(driver: SqliteDriver) -> None:
    await send(driver, append(S, "a"))
    (pages,) = await on_writer(driver, "PRAGMA page_count")
    await on_writer(driver, f"PRAGMA max_page_count={pages}")
    async with Gate(driver).shut():
        sending = asyncio.gather(
            *(send(driver, append(S, text)) for text in ("b", "x" * 100_000, "c")), return_exceptions=True
        )
        await turns(3)
    first, full, last = await sending
    await on_writer(driver, "PRAGMA max_page_count=1000000")

    assert isinstance(full, StorageUnavailableError)
    assert (first.manifest.version, last.manifest.version) == (2, 3)
    assert await texts(driver, S) == ["a", "b", "c"]


async def test_a_commit_that_the_disk_refuses_is_an_unknown_outcome_and_resolves_by_sending_again(
    driver: SqliteDriver, path: Path
) -> None:
    await send(driver, append(S, "a"))
    sent = append(S, "b")
    with files_no_longer_than(wal_size(path)), pytest.raises(WriteOutcomeUnknownError) as caught:
        await send(driver, sent)
    again = await send(driver, resent(sent))

    assert caught.value.op_id == sent.op_id
    assert again.manifest.version == 2
    assert await texts(driver, S) == ["a", "b"]
    await check_gapless(driver, S, 2)


async def test_a_group_whose_commit_the_disk_refuses_is_unknown_for_each_that_would_have_landed(
    driver: SqliteDriver, path: Path
) -> None:
    await send(driver, append(S, "a"))
    sent = [append(S, "b"), append(S, "stale", expected=7), append(S, "c")]
    with files_no_longer_than(wal_size(path)):
        async with Gate(driver).shut():
            sending = asyncio.gather(*(send(driver, one) for one in sent), return_exceptions=True)
            await turns(3)
        first, stale, last = await sending
    again = [await send(driver, resent(one)) for one in (sent[0], sent[2])]

    assert isinstance(first, WriteOutcomeUnknownError)
    assert first.op_id == sent[0].op_id
    assert isinstance(last, WriteOutcomeUnknownError)
    assert last.op_id == sent[2].op_id
    assert isinstance(stale, StorageUnavailableError)
    assert [int(one.manifest.version) for one in again] == [2, 3]
    await check_gapless(driver, S, 3)


async def test_a_commit_of_a_call_without_op_id_may_be_sent_again(driver: SqliteDriver, path: Path) -> None:
    await send(driver, append(S, "a"))
    with files_no_longer_than(wal_size(path)), pytest.raises(StorageUnavailableError, match="COMMIT failed"):
        await driver.set_metadata(S, '{"a":1}')

    assert await driver.set_metadata(S, '{"a":1}')


async def test_a_damaged_file_is_named_and_no_retry_is_promised(path: Path) -> None:
    async with opened(path) as driver:
        for at in range(50):
            await send(driver, append(S, f"{at}" * 1000))
    with path.open("r+b") as file:
        file.seek(8 * 4096)
        file.write(os.urandom(20 * 4096))
    async with opened(path) as driver:
        with pytest.raises(StorageUnavailableError, match="damaged") as caught:
            await load(driver, S)

    assert not caught.value.transient


async def test_a_migration_that_the_disk_refuses_leaves_nothing(path: Path) -> None:
    driver = SqliteDriver(str(path))
    await driver.open()
    await on_writer(driver, "PRAGMA max_page_count=5")
    with pytest.raises(StorageUnavailableError, match="SQLITE_FULL"):
        await driver.migrate()
    before = await driver.schema_revision()
    await on_writer(driver, "PRAGMA max_page_count=1000000")
    await driver.migrate()
    await driver.close()

    assert before is None


async def test_missing_tables_are_no_transient_error(path: Path) -> None:
    driver = SqliteDriver(str(path))
    await driver.open()
    with pytest.raises(StorageUnavailableError, match="no such table") as caught:
        await send(driver, append(S, "a"))
    await driver.close()

    assert not caught.value.transient


async def test_an_item_larger_than_sqlite_takes_is_refused_and_the_rest_of_its_group_is_not(
    driver: SqliteDriver,
) -> None:
    link = writer_link(driver)
    raw = link.raw
    assert raw is not None
    await link.hop(lambda: raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000))

    with pytest.raises(GroupRefusedError):
        await driver.append([append(S, "a"), append(S, "x" * 20_000)])
    with pytest.raises(StorageUnavailableError, match="larger than SQLite takes") as caught:
        await send(driver, append(S, "x" * 20_000))

    assert not caught.value.transient
    assert (await load(driver, S)).row is None


async def test_a_row_that_is_no_text_is_named_and_not_quoted(driver: SqliteDriver, path: Path) -> None:
    await send(driver, append(S, "a", "secret", "c"))
    with connected(path) as raw:
        raw.execute("UPDATE cas_session_item SET data = CAST(x'736563726574ff' AS TEXT) WHERE seq = 2")

    with pytest.raises(ItemDecodingError) as caught:
        await load(driver, S)
    with pytest.raises(ItemDecodingError) as past:
        await driver.load_as_of(S, 1)
    await send(driver, pop(S))
    with pytest.raises(ItemDecodingError) as popped:
        await send(driver, pop(S))

    assert (caught.value.session_id, caught.value.seq) == (S, 2)
    assert past.value.seq == popped.value.seq == 2
    assert "secret" not in str(caught.value)


def test_what_is_no_database_error_is_left_as_it_is() -> None:
    error = ValueError("mine")

    assert translate(error) is error


async def test_a_busy_database_is_transient_and_the_write_lands_afterwards(path: Path) -> None:
    async with opened(path, busy_timeout_s=0.05) as driver:
        await send(driver, append(S, "a"))
        with connected(path) as raw:
            raw.execute("BEGIN IMMEDIATE")
            outcomes = await asyncio.gather(
                send(driver, append(S, "b")),
                send(driver, append(S, "c")),
                send(driver, pop(S)),
                send(driver, clear(S)),
                return_exceptions=True,
            )
            seen = await texts(driver, S)
            raw.execute("ROLLBACK")

        assert all(isinstance(one, StorageUnavailableError) and one.transient for one in outcomes)
        assert seen == ["a"]
        assert (await send(driver, append(S, "b"))).manifest.version == 2


async def test_a_write_waits_for_another_process_within_its_bound(driver: SqliteDriver, path: Path) -> None:
    with connected(path) as raw:
        raw.execute("BEGIN IMMEDIATE")
        sending = asyncio.create_task(send(driver, append(S, "a")))
        await turns(20)
        waits = not sending.done()
        raw.execute("ROLLBACK")

    assert waits
    assert (await sending).manifest.version == 1


# The turn between processes


@pytest.fixture
def lock_file(path: Path) -> Path:
    return path.with_name("chat.db-lock")


@contextmanager
def held(lock_file: Path) -> Iterator[int]:
    """The turn, taken by somebody else."""
    with lock_file.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


async def test_writers_wait_for_their_turn(driver: SqliteDriver, lock_file: Path) -> None:
    with held(lock_file) as descriptor:
        sending = asyncio.create_task(send(driver, append(S, "a")))
        await asyncio.sleep(0.02)
        waits = not sending.done()
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        landed = await sending

    assert waits
    assert landed.manifest.version == 1


async def test_readers_do_not_wait_for_a_turn(driver: SqliteDriver, lock_file: Path) -> None:
    await send(driver, append(S, "a"))

    with held(lock_file):
        assert await texts(driver, S) == ["a"]


async def test_who_does_not_get_a_turn_in_time_goes_on_without(path: Path, lock_file: Path) -> None:
    async with opened(path, busy_timeout_s=0.05) as driver:
        with held(lock_file):
            assert (await send(driver, append(S, "a"))).manifest.version == 1


async def test_the_turn_is_given_back_also_after_an_error(driver: SqliteDriver, lock_file: Path) -> None:
    with pytest.raises(ValueError, match="negative"):
        await driver._write(lambda raw: int("negative"))

    with lock_file.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_two_drivers_of_one_process_take_turns_too(driver: SqliteDriver, path: Path) -> None:
    async with opened(path) as other:
        async with Gate(other).shut():
            sending = asyncio.create_task(send(driver, append(S, "a")))
            await asyncio.sleep(0.02)
            waits = not sending.done()
        await sending

    assert waits


@pytest.fixture
def folder_in_the_way(lock_file: Path) -> Path:
    lock_file.mkdir()
    return lock_file


@pytest.mark.usefixtures("folder_in_the_way")
async def test_a_lock_file_that_cannot_be_had_is_done_without(path: Path) -> None:
    async with opened(path) as driver:
        assert (await send(driver, append(S, "a"))).manifest.version == 1


def test_a_turn_is_never_taken_on_the_database_itself(path: Path, lock_file: Path) -> None:
    """Closing another descriptor of the database would drop SQLite's own locks on it."""
    turn = Turn(str(path), bound_s=1)
    with turn:
        made = sorted(file.name for file in path.parent.iterdir())
    turn.close()

    assert made == [lock_file.name]
