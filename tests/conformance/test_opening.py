"""Open, migrate, close; and a caller that goes away in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cas_session import schema
from cas_session.driver import CancelledUnitError, Driver, Kind
from cas_session.errors import ConfigurationError, WriteOutcomeUnknownError
from tests.conformance.database import Database
from tests.conformance.writes import KINDS, append, everything, load, operations, send, texts, write


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database(request: pytest.FixtureRequest) -> Database:
    """A database without tables."""
    name = {"sqlite": "fresh_sqlite", "postgres": "empty_postgres"}[request.param]
    return Database(request.getfixturevalue(name))


async def test_a_new_database_has_no_revision(empty_database: Database) -> None:
    driver = empty_database.new_driver()
    await driver.open()
    try:
        assert await driver.schema_revision() is None
    finally:
        await driver.close()


async def test_migrate_brings_a_database_to_the_newest_revision(empty_database: Database, s: str) -> None:
    driver = empty_database.new_driver()
    await driver.open()
    try:
        await driver.migrate()
        await driver.migrate()
        await send(driver, append(s, "a"))

        assert await driver.schema_revision() == schema.REVISION
        assert await texts(driver, s) == ["a"]
    finally:
        await driver.close()


async def test_any_number_of_workers_may_open_and_migrate_at_once(empty_database: Database) -> None:
    drivers = [empty_database.new_driver() for _ in range(6)]

    async def start(driver: Driver) -> str | None:
        await driver.open()
        await driver.migrate()
        return await driver.schema_revision()

    try:
        assert await asyncio.gather(*map(start, drivers)) == [schema.REVISION] * 6
    finally:
        await asyncio.gather(*(driver.close() for driver in drivers))


async def test_a_driver_answers_a_ping(driver: Driver) -> None:
    await driver.ping()


async def test_what_one_driver_wrote_another_reads(driver: Driver, other: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    await send(other, append(s, "b", expected=1))

    assert await everything(driver, s) == await everything(other, s)
    assert await texts(driver, s) == ["a", "b"]


async def test_what_was_written_is_there_after_opening_again(database: Database, s: str) -> None:
    async with database.opened() as driver:
        await send(driver, append(s, "a"))
    async with database.opened() as driver:
        assert await texts(driver, s) == ["a"]


async def test_close_waits_for_what_is_under_way(database: Database, driver: Driver, s: str) -> None:
    async with database.opened() as closing:
        calls = [asyncio.create_task(send(closing, append(s, str(at)))) for at in range(8)]
        await asyncio.sleep(0)  # each has begun
    landed = await asyncio.gather(*calls)

    assert sorted(int(one.manifest.version) for one in landed) == list(range(1, 9))
    assert len(await texts(driver, s)) == 8


async def test_a_file_that_cannot_be_made_is_for_a_person_to_mend(tmp_path: Path) -> None:
    driver = Database(f"sqlite+aiosqlite:///{tmp_path / 'missing' / 'folder' / 'sessions.db'}").new_driver()

    with pytest.raises(ConfigurationError):
        await driver.open()


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_whose_caller_is_cancelled_is_settled_before_the_cancellation_goes_on(
    driver: Driver, database: Database, s: str, kind: Kind, cancels: int
) -> None:
    """Old or new, never mixed; an event tells which; and the next write lands."""
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    before = await everything(driver, s)
    async with database.held(s) as waiting:
        call = asyncio.create_task(send(driver, write(kind, read)))
        await waiting(1)
        for _ in range(cancels):
            call.cancel()
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError) as caught:
        await call

    landed = await everything(driver, s) != before
    if not isinstance(caught.value, CancelledUnitError):
        assert not landed
    elif not isinstance(caught.value.error, WriteOutcomeUnknownError):
        assert landed == (caught.value.error is None)
    after = await send(driver, append(s, "c"))
    assert after.manifest.version == 2 + landed
    assert len(await operations(driver, s)) == after.manifest.version
