"""A connection that was given out: it dies before its first statement or between two units, or goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from cas_session.drivers import postgres_units as units
from cas_session.drivers.postgres import PostgresDriver, _check_server
from cas_session.drivers.postgres_pool import Link, OwnPool
from cas_session.errors import CasSessionError, StorageUnavailableError
from tests.conformance.database import HANG_S, Database
from tests.conformance.writes import append, pop, send, texts, until_landed
from tests.drivers.postgres_proxy import Proxy
from tests.drivers.sqlite_file import turns

SHORT_S = 0.3  # for a call that nobody answers


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


@pytest.fixture
async def proxy(database: Database) -> AsyncIterator[Proxy]:
    async with Proxy(database.url) as proxy:
        yield proxy


@pytest.fixture(params=["url", "engine"])
async def short(request: pytest.FixtureRequest, proxy: Proxy) -> AsyncIterator[PostgresDriver]:
    """A driver with one connection through the proxy, whose calls have little time."""
    url = proxy.url.replace("postgresql://", "postgresql+asyncpg://").replace("?sslmode", "?ssl")
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    given = engine if request.param == "engine" else proxy.url
    driver = PostgresDriver(given, pool_size=1)
    await driver.open()
    await send(driver, append("s", "a"))
    driver._pool._call_timeout_s = SHORT_S  # type: ignore[attr-defined]  # not for the connecting before
    if isinstance(driver._pool, OwnPool):
        await driver._pool._return_all()  # asyncpg keeps the time with which a connection was taken
    yield driver
    proxy.flowing.set()
    await driver.close()
    await engine.dispose()


async def ended(call: Coroutine[Any, Any, Any]) -> object:
    """What the call returned or raised. It ends by itself: nobody answers it, and nobody cancels it."""
    task = asyncio.create_task(call)
    done, _ = await asyncio.wait([task], timeout=HANG_S)
    assert done
    (result,) = await asyncio.gather(task, return_exceptions=True)
    return result


async def test_a_transaction_that_began_unheard_does_not_hold_the_next_units(
    short: PostgresDriver, proxy: Proxy, database: Database
) -> None:
    proxy.flowing.clear()
    call = asyncio.create_task(ended(send(short, pop("s", locked=True))))
    await proxy.answered.wait()  # BEGIN was carried out
    assert isinstance(await call, StorageUnavailableError)
    proxy.flowing.set()

    assert await until_landed(short, append("s", "b"))
    async with database.opened() as other:
        assert await texts(other, "s") == ["a", "b"]


async def test_a_write_behind_a_read_that_was_cancelled_has_its_own_time(
    short: PostgresDriver, proxy: Proxy
) -> None:
    """Also when the server does not answer the cancellation."""
    proxy.flowing.clear()
    read = asyncio.create_task(texts(short, "s"))
    await proxy.answered.wait()
    read.cancel()
    await asyncio.wait([read], timeout=HANG_S)

    assert isinstance(await ended(send(short, append("s", "b"))), CasSessionError)


async def test_a_transaction_ends_in_its_time_though_nobody_answers(
    short: PostgresDriver, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: object, **__: object) -> Awaitable[None]:
        proxy.flowing.clear()
        return link_row(*_, **__)

    link_row = units._pop
    monkeypatch.setattr(units, "_pop", unanswered)

    assert isinstance(await ended(send(short, pop("s", locked=True))), StorageUnavailableError)
