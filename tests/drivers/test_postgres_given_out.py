"""A connection that was given out: it dies before its first statement or between two units, or goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from cas_session.drivers.postgres import PostgresDriver, _check_server
from cas_session.drivers.postgres_pool import Link
from cas_session.errors import StorageUnavailableError
from tests.conformance.database import HANG_S, Database
from tests.conformance.writes import append, send
from tests.drivers.sqlite_file import turns


@pytest.fixture
async def driver(database: Database) -> AsyncIterator[PostgresDriver]:
    driver = PostgresDriver(database.url, pool_size=1)
    await driver.open()
    yield driver
    await driver.close()


@pytest.fixture
def database(fresh_postgres: str) -> Database:
    return Database(fresh_postgres)


async def dead(driver: PostgresDriver, database: Database) -> Link:
    """A connection that was given out and has died since: asyncpg's pool has it back already."""
    link = await driver._pool.take()
    await kill(link, database)
    return link


async def kill(link: Link, database: Database) -> None:
    """End a connection from the server's side, and wait until that is known here."""
    died = asyncio.Event()
    link.connection.add_termination_listener(lambda _: died.set())
    admin = await asyncpg.connect(database.url)
    await admin.execute("SELECT pg_terminate_backend($1)", link.connection.get_server_pid())
    await admin.close()
    await died.wait()


async def test_a_statement_on_it_did_not_land_and_may_be_sent_again(
    driver: PostgresDriver, database: Database
) -> None:
    link = await dead(driver, database)

    for call in (link.row("SELECT 1", op_id="op"), link.rows("SELECT 1")):
        with pytest.raises(StorageUnavailableError) as caught:
            await call
        assert caught.value.transient
    await link.give_back()

    assert (await send(driver, append("s", "a"))).manifest.version == 1


async def test_the_server_of_it_cannot_be_checked(driver: PostgresDriver, database: Database) -> None:
    """Opening a driver says that storage is unavailable, and not what asyncpg's pool calls it."""
    link = await dead(driver, database)

    with pytest.raises(StorageUnavailableError):
        await _check_server(link)
    await link.give_back()


async def test_a_transaction_on_it_did_not_begin(driver: PostgresDriver, database: Database) -> None:
    link = await dead(driver, database)

    with pytest.raises(StorageUnavailableError) as caught:
        async with link.transaction(op_id="op"):
            pytest.fail("it has begun")
    await link.give_back()

    assert caught.value.transient
    assert (await send(driver, append("s", "a"))).manifest.version == 1


async def test_a_connection_that_is_given_to_a_caller_just_cancelled_is_not_lost(
    driver: PostgresDriver,
) -> None:
    """The only one; at whatever turn."""
    for turn in range(12):
        link = await driver._pool.take()
        waiting = asyncio.create_task(driver._pool.take())
        await turns(3)
        back = asyncio.create_task(link.give_back())
        await turns(turn)
        waiting.cancel()
        (given,) = await asyncio.gather(waiting, return_exceptions=True)
        await back
        if isinstance(given, Link):
            await given.give_back()

        async with asyncio.timeout(HANG_S):
            await (await driver._pool.take()).give_back()


async def test_one_that_dies_between_two_units_costs_no_attempt(
    driver: PostgresDriver, database: Database
) -> None:
    link = await driver._pool.take()
    await link.give_back()
    await kill(link, database)

    assert (await send(driver, append("s", "a"))).manifest.version == 1
