"""A connection that dies after the pool gave it out, and before its first statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from cas_session.drivers.postgres import PostgresDriver, _check_server
from cas_session.drivers.postgres_pool import Link
from cas_session.errors import StorageUnavailableError
from tests.conformance.database import Database
from tests.conformance.writes import append, send


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
    died = asyncio.Event()
    link.connection.add_termination_listener(lambda _: died.set())
    admin = await asyncpg.connect(database.url)
    await admin.execute("SELECT pg_terminate_backend($1)", link.connection.get_server_pid())
    await admin.close()
    await died.wait()
    return link


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
