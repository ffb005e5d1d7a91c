"""Opening and closing a SQLite file: what is set, what is refused and how it is said, what is left behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from cas_session import schema
from cas_session.drivers import sqlite_link
from cas_session.drivers.sqlite import SqliteDriver
from cas_session.drivers.sqlite_lane import Unit
from cas_session.errors import ConfigurationError, StorageUnavailableError, StoreClosedError
from tests.conformance.writes import append, load, send, texts
from tests.drivers.sqlite_file import (
    GIVE_UP_S,
    Gate,
    connected,
    more_and_more,
    on_writer,
    opened,
    turns,
    writer_lane,
)

S = "conversation-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


def database_descriptors(path: Path) -> list[str]:
    """Open descriptors of this process on the database and the files beside it."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith(str(path)):
            found.append(target)
    return found


def end_of(threads: set[threading.Thread]) -> list[threading.Thread]:
    """Those that do not end."""
    for thread in threads:
        thread.join(GIVE_UP_S)
    return [thread for thread in threads if thread.is_alive()]


async def test_the_pragmas_are_set(path: Path) -> None:
    async with opened(path) as full, opened(path, synchronous="NORMAL", busy_timeout_s=1.5) as normal:
        assert await on_writer(full, "PRAGMA journal_mode") == ("wal",)
        assert await on_writer(full, "PRAGMA synchronous") == (2,)
        assert await on_writer(full, "PRAGMA busy_timeout") == (5000,)
        assert await on_writer(normal, "PRAGMA synchronous") == (1,)
        assert await on_writer(normal, "PRAGMA busy_timeout") == (1500,)


async def test_no_call_waits_longer_for_others_than_its_own_time(path: Path) -> None:
    async with opened(path, call_timeout_s=2) as driver:
        assert await on_writer(driver, "PRAGMA busy_timeout") == (2000,)


@pytest.mark.parametrize("options", [{"synchronous": "OFF"}, {"readers": 0}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SqliteDriver("chat.db", **options)


async def test_readers_cannot_write(path: Path) -> None:
    async with opened(path) as driver:
        with pytest.raises(StorageUnavailableError):
            await driver._read(lambda raw: raw.execute("DELETE FROM cas_session"))


async def test_the_schema_is_made_once(path: Path) -> None:
    driver = SqliteDriver(str(path))
    await driver.open()
    before = await driver.schema_revision()
    await driver.migrate()
    await driver.migrate()
    after = await driver.schema_revision()
    await driver.close()

    assert before is None
    assert after == schema.REVISION


async def test_memory_is_one_connection_for_everything() -> None:
    async with opened(":memory:") as driver, opened(":memory:") as other:
        await asyncio.gather(*(send(driver, append(S, str(at))) for at in range(20)))
        reads = await asyncio.gather(*(load(driver, S) for _ in range(5)))

        assert {len(read.rows) for read in reads} == {20}
        assert await driver.schema_revision() == schema.REVISION
        assert (await load(other, S)).row is None


async def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the folder .*/missing' is missing"):
        await SqliteDriver(str(tmp_path / "missing" / "chat.db")).open()


async def test_a_path_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it is a folder"):
        await SqliteDriver(str(tmp_path)).open()


@pytest.fixture
def diary(path: Path) -> Path:
    path.write_text("dear diary, " * 1000)
    return path


async def test_a_file_that_is_no_database(diary: Path) -> None:
    with pytest.raises(ConfigurationError, match="no SQLite database") as caught:
        await SqliteDriver(str(diary)).open()
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    assert database_descriptors(diary) == []


OPEN_AS_SOMEBODY_ELSE = """
import asyncio, os, sys
from cas_session.drivers.sqlite import SqliteDriver
from cas_session.drivers.sqlite_lane import Unit
os.getuid() or os.setuid(65534)
try:
    asyncio.run(SqliteDriver(sys.argv[1]).open())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("file", "folder", "why"),
    [
        (0o444, 0o777, "chat.db' cannot be written"),
        (0o666, 0o555, "' cannot be written"),
        (0o666, 0o600, "Permission denied"),
    ],
)
def test_a_file_that_may_not_be_written(file: int, folder: int, why: str) -> None:
    """In a process of a user to whom that matters: root may everything."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "chat.db"
        with connected(path) as raw:
            raw.execute("CREATE TABLE t (a)")
        path.chmod(file)
        path.parent.chmod(folder)
        try:
            done = subprocess.run(
                [sys.executable, "-c", OPEN_AS_SOMEBODY_ELSE, str(path)],
                capture_output=True,
                text=True,
                timeout=GIVE_UP_S,
            )
        finally:
            path.parent.chmod(0o700)

    assert done.stdout.startswith("ConfigurationError"), done.stderr
    assert why in done.stdout


async def test_a_file_that_becomes_unwritable_is_an_error_that_says_what_to_do(path: Path) -> None:
    async with opened(path) as driver:
        await on_writer(driver, "PRAGMA query_only=ON")
        with pytest.raises(StorageUnavailableError, match="SQLITE_READONLY") as caught:
            await send(driver, append(S, "a"))

    assert not caught.value.transient


async def test_an_open_while_another_connection_holds_everything_is_transient(path: Path) -> None:
    with connected(path) as raw:
        raw.execute("CREATE TABLE t (a)")
        raw.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageUnavailableError, match="locked") as caught:
            await SqliteDriver(str(path), busy_timeout_s=0.05).open()

    assert caught.value.transient
    assert database_descriptors(path) == []


async def test_an_open_waits_for_who_writes_while_the_log_is_not_yet_turned_on(path: Path) -> None:
    """SQLite itself does not: its busy timeout is no help to a connection that reads and wants to write."""
    with connected(path) as raw:
        raw.execute("CREATE TABLE t (a)")
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"), connected(path) as other:
            other.execute("PRAGMA journal_mode=WAL")

        driver = SqliteDriver(str(path))
        opening = asyncio.create_task(driver.open())
        done, _ = await asyncio.wait([opening], timeout=0.2)
        assert not done
        raw.execute("COMMIT")
        await opening

    await driver.close()


async def test_an_aiosqlite_without_its_private_method_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(aiosqlite.Connection, "_execute")

    with pytest.raises(ConfigurationError, match="_execute"):
        await SqliteDriver(str(path)).open()


async def test_a_sqlite_that_is_too_old_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_link, "OLDEST_SQLITE", (99, 0, 0))

    with pytest.raises(ConfigurationError, match="too old"):
        await SqliteDriver(str(path)).open()


async def test_close_leaves_no_thread_and_no_file(path: Path) -> None:
    before = set(threading.enumerate())
    async with opened(path) as driver:
        await send(driver, append(S, "a"))
        begun = set(threading.enumerate()) - before

    assert len(begun) >= 4
    assert end_of(begun) == []
    assert database_descriptors(path) == []


@pytest.mark.parametrize("name", ["chat.db", ":memory:"])
async def test_close_waits_for_what_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    driver = SqliteDriver(name)
    await driver.open()
    await driver.migrate()
    async with Gate(driver).shut() as gate:
        sending = asyncio.gather(*(send(driver, append(S, str(at))) for at in range(5)))
        await turns(3)
        closing = asyncio.create_task(driver.close())
        await turns(5)
        waits = not closing.done()
        with pytest.raises(StoreClosedError):
            await send(driver, append(S, "late"))
        gate.open()
        landed = await sending
        await closing
    await driver.close()

    assert waits
    assert [int(one.manifest.version) for one in landed] == [1, 2, 3, 4, 5]
    with pytest.raises(StoreClosedError):
        await load(driver, S)
    with pytest.raises(StoreClosedError):
        await send(driver, append(S, "late"))


async def test_a_cancelled_close_has_closed(path: Path) -> None:
    driver = SqliteDriver(str(path))
    await driver.open()
    closing = asyncio.create_task(driver.close())
    await turns(1)
    closing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await closing
    assert database_descriptors(path) == []


async def test_a_closed_driver_may_be_opened_again(path: Path) -> None:
    driver = SqliteDriver(str(path))
    for expected in (1, 2):
        await driver.open()
        await driver.migrate()
        assert (await send(driver, append(S, "a"))).manifest.version == expected
        await driver.close()

    assert database_descriptors(path) == []


async def test_a_driver_that_was_never_opened_says_so() -> None:
    driver = SqliteDriver("chat.db")

    with pytest.raises(StoreClosedError, match="not open"):
        await load(driver, S)
    with pytest.raises(StoreClosedError, match="not open"):
        await send(driver, append(S, "a"))
    await driver.close()


async def test_a_cancelled_open_leaves_no_thread_and_no_connection(path: Path) -> None:
    """At each turn of the loop, until one comes through."""
    before = set(threading.enumerate())
    for wait in more_and_more():
        driver = SqliteDriver(str(path))
        opening = asyncio.create_task(driver.open())
        await turns(wait)
        if not opening.cancel():
            await driver.close()
            return
        with pytest.raises(asyncio.CancelledError) as caught:
            await opening
        assert type(caught.value) is asyncio.CancelledError
        assert end_of(set(threading.enumerate()) - before) == []
        assert database_descriptors(path) == []
    pytest.fail("no open came through")


def test_a_process_that_forgot_to_close_ends(path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from cas_session.drivers.sqlite import SqliteDriver\n"
        "async def main():\n"
        "    driver = SqliteDriver(sys.argv[1])\n"
        "    await driver.open()\n"
        "    await driver.migrate()\n"
        "    print(await driver.schema_revision())\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=GIVE_UP_S
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == schema.REVISION


def _open_and_append(path: str, barrier: Barrier) -> int:
    async def main() -> int:
        async with opened(path) as driver:
            return int((await send(driver, append(S, str(os.getpid())))).manifest.version)

    barrier.wait(GIVE_UP_S)
    return asyncio.run(main())


async def test_twelve_processes_may_open_and_migrate_a_fresh_file_at_once(path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.drivers.sqlite_file", "alembic.command"])
    with context.Manager() as manager, context.Pool(12) as pool:
        barrier: Any = manager.Barrier(12)
        work = pool.starmap_async(_open_and_append, [(str(path), barrier)] * 12)
        versions = await asyncio.to_thread(work.get, 60)

    async with opened(path) as driver:
        assert sorted(versions) == list(range(1, 13))
        assert len(await texts(driver, S)) == 12


async def test_units_of_a_lane_that_is_closed_are_refused(path: Path) -> None:
    async with opened(path) as driver:
        lane = writer_lane(driver)

    with pytest.raises(StoreClosedError):
        await lane.run(Unit(lambda raw: None, begin="BEGIN"))
