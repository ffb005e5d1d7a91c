"""Lost answers, cut connections, killed backends, full pools, cancelled callers: the outcome is known or said
to be unknown, sending again is safe, and the next call works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from cas_session.driver import CancelledUnitError, Driver, Kind, Load
from cas_session.drivers.postgres import PostgresDriver
from cas_session.errors import (
    CasSessionError,
    StorageUnavailableError,
    StoreClosedError,
    WriteOutcomeUnknownError,
)
from tests.conformance.database import Database
from tests.conformance.writes import (
    KINDS,
    append,
    everything,
    load,
    operations,
    resent,
    send,
    texts,
    until_landed,
    write,
)
from tests.drivers.postgres_proxy import Proxy

GIVE_UP_S = 30
SESSIONS = """
SELECT pid, state FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@pytest.fixture
def database(fresh_postgres: str) -> Database:
    return Database(fresh_postgres)


@pytest.fixture
async def proxy(fresh_postgres: str) -> AsyncIterator[Proxy]:
    async with Proxy(fresh_postgres) as proxy:
        yield proxy


@pytest.fixture(params=["url", "engine"])
async def driver(request: pytest.FixtureRequest, proxy: Proxy) -> AsyncIterator[PostgresDriver]:
    """A driver with one connection, through the proxy."""
    url = proxy.url.replace("postgresql://", "postgresql+asyncpg://").replace("?sslmode", "?ssl")
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    driver = PostgresDriver(engine if request.param == "engine" else proxy.url, pool_size=1)
    await driver.open()
    yield driver
    await driver.close()
    await engine.dispose()


@pytest.fixture
async def admin(fresh_postgres: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(fresh_postgres)
    yield connection
    await connection.close()


async def outcome(call: asyncio.Task[object]) -> object:
    """What a call returned or raised."""
    try:
        return await call
    except BaseException as error:  # noqa: BLE001  # a cancellation, too; gather would make a new one
        return error


# Answers that nobody hears


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_whose_answer_is_lost_is_unknown_and_lands_once(
    driver: Driver, proxy: Proxy, kind: Kind
) -> None:
    for s in ("prepares the statements", "s"):
        await send(driver, append(s, "a", "b"))
        read = await load(driver, s)
        sent = write(kind, read, expected=read.manifest.version)
        if s != "s":
            await send(driver, sent)
    proxy.loses_answers = kind != "pop"
    call = asyncio.create_task(send(driver, sent))
    if kind == "pop":
        await _lose_second_answer(proxy)
    await proxy.answered.wait()
    proxy.cut()
    error = await outcome(call)
    proxy.loses_answers = False

    again = await send(driver, resent(sent))

    assert isinstance(error, WriteOutcomeUnknownError)
    assert error.op_id == sent.op_id
    assert again.manifest.version == 2
    assert len(await operations(driver, "s")) == 2
    assert again.manifest.version.nonce == sent.nonce


async def _lose_second_answer(proxy: Proxy) -> None:
    """The first round trip of a pop only reads."""
    before = proxy.round_trips
    while proxy.round_trips == before:  # noqa: ASYNC110  # the loop's next turns bring the answer
        await asyncio.sleep(0)
    proxy.loses_answers = True


async def test_a_request_that_is_delayed_lands_once(proxy: Proxy, database: Database) -> None:
    """Cut off while it waits for the row lock, it is not there when one looks, and it lands later."""
    driver = PostgresDriver(proxy.url)
    await driver.open()
    await send(driver, append("s", "a"))
    sent = append("s", "b")
    async with database.held("s") as waiting:
        call = asyncio.create_task(send(driver, sent))
        await waiting(1)
        proxy.cut()
        error = await outcome(call)
        looked = await driver.find_op("s", sent.op_id)
        again = asyncio.create_task(send(driver, resent(sent)))
        await waiting(2)
    landed = await again
    await driver.close()

    assert isinstance(error, WriteOutcomeUnknownError)
    assert looked is None
    assert landed.manifest.version == 2
    async with database.opened() as other:
        assert await texts(other, "s") == ["a", "b"]
        assert len(await operations(other, "s")) == 2


async def test_a_read_whose_answer_is_lost_may_be_made_again(driver: Driver, proxy: Proxy) -> None:
    await send(driver, append("s", "a"))
    await driver.load(Load("s"))  # prepares the statement
    proxy.loses_answers = True
    call = asyncio.create_task(driver.load(Load("s")))
    await proxy.answered.wait()
    proxy.cut()
    error = await outcome(call)
    proxy.loses_answers = False

    assert isinstance(error, StorageUnavailableError)
    assert error.transient
    assert await texts(driver, "s") == ["a"]


async def test_a_group_whose_answer_is_lost_is_unknown_and_each_member_is_found(
    driver: Driver, proxy: Proxy
) -> None:
    await driver.append([append("prepares the statement", "a"), append("prepares the statement", "b")])
    await send(driver, append("s", "before"))
    group = [append("s", text, text) for text in "abc"]
    proxy.loses_answers = True
    call = asyncio.create_task(driver.append(group))
    await proxy.answered.wait()
    proxy.cut()
    error = await outcome(call)
    proxy.loses_answers = False

    again = [(await send(driver, resent(member))).manifest for member in group]

    assert isinstance(error, WriteOutcomeUnknownError)
    assert [int(manifest.version) for manifest in again] == [2, 3, 4]
    assert [(manifest.next_seq, manifest.item_count) for manifest in again] == [(4, 3), (6, 5), (8, 7)]
    assert await texts(driver, "s") == ["before", *"aabbcc"]


async def test_a_write_that_gets_no_answer_in_time_is_unknown(proxy: Proxy, database: Database) -> None:
    driver = PostgresDriver(proxy.url, pool_size=1, call_timeout_s=0.3)
    await driver.open()
    await send(driver, append("s", "a"))
    sent = append("s", "b")
    async with database.held("s"):
        with pytest.raises(WriteOutcomeUnknownError):
            await send(driver, sent)
    landed = await send(driver, resent(sent))
    await driver.close()

    assert landed.manifest.version == 2


# Dead connections


async def test_a_backend_killed_while_idle_is_replaced(driver: Driver, admin: asyncpg.Connection) -> None:
    await send(driver, append("s", "a"))
    for at in range(3):
        (victim,) = await admin.fetch(SESSIONS)
        await admin.fetchval("SELECT pg_terminate_backend($1, 5000)", victim["pid"])
        sent = append("s", str(at))
        try:
            await until_landed(driver, sent)
        except WriteOutcomeUnknownError:  # it met the dying connection
            await send(driver, resent(sent))

    assert await texts(driver, "s") == ["a", "0", "1", "2"]
    assert len(await operations(driver, "s")) == 4


async def test_a_backend_killed_at_work_leaves_an_unknown_outcome(
    driver: Driver, database: Database, admin: asyncpg.Connection
) -> None:
    await send(driver, append("s", "a"))
    sent = append("s", "b")
    async with database.held("s") as waiting:
        call = asyncio.create_task(send(driver, sent))
        await waiting(1)
        await admin.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        error = await outcome(call)
    again = await send(driver, resent(sent))

    assert isinstance(error, WriteOutcomeUnknownError)
    assert again.manifest.version == 2
    assert await texts(driver, "s") == ["a", "b"]


async def test_a_statement_cancelled_at_the_server_did_not_land(
    driver: Driver, database: Database, admin: asyncpg.Connection
) -> None:
    await send(driver, append("s", "a"))
    async with database.held("s") as waiting:
        call = asyncio.create_task(send(driver, append("s", "b")))
        await waiting(1)
        await admin.fetch(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        error = await outcome(call)

    assert isinstance(error, StorageUnavailableError)
    assert error.transient
    assert await texts(driver, "s") == ["a"]


async def test_a_connection_to_a_server_that_turned_read_only_is_not_used_again(
    driver: Driver, admin: asyncpg.Connection
) -> None:
    """A primary that became a standby: a new connection may reach the new primary."""
    await send(driver, append("s", "a"))
    (before,) = await admin.fetch(SESSIONS)
    name = await admin.fetchval("SELECT current_database()")
    await admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await admin.execute("SELECT pg_terminate_backend($1, 5000)".replace("$1", str(before["pid"])))
    for _ in range(2):
        with pytest.raises(CasSessionError):
            await send(driver, append("s", "b"))
    await admin.execute(f"SET default_transaction_read_only = off; ALTER DATABASE {name} RESET ALL")

    landed = await send(driver, append("s", "c"))

    assert landed.manifest.version == 2


async def test_a_changed_table_does_not_confuse_the_statements_that_were_prepared(
    driver: Driver, admin: asyncpg.Connection
) -> None:
    await send(driver, append("s", "a"))
    await admin.execute("ALTER TABLE cas_session ADD COLUMN later text")

    for text in "bc":
        await until_landed(driver, append("s", text))

    assert await texts(driver, "s") == ["a", "b", "c"]


# Pools


async def test_waiting_for_a_connection_is_bounded(fresh_postgres: str) -> None:
    driver = PostgresDriver(fresh_postgres, pool_size=1, call_timeout_s=0.1)
    await driver.open()
    taken = await driver._pool.take()
    with pytest.raises(StorageUnavailableError) as caught:
        await send(driver, append("s", "a"))
    await taken.give_back()

    assert caught.value.transient
    assert (await send(driver, append("s", "b"))).manifest.version == 1
    await driver.close()


async def test_a_caller_cancelled_while_it_waits_for_a_connection_goes_at_once(
    driver: Driver, database: Database
) -> None:
    await send(driver, append("s", "a"))
    async with database.held("s") as waiting:
        first = asyncio.create_task(send(driver, append("s", "b")))
        await waiting(1)
        second = asyncio.create_task(send(driver, append("s", "never")))
        await asyncio.sleep(0)
        second.cancel()
        error = await outcome(second)
    await first

    assert type(error) is asyncio.CancelledError
    assert await texts(driver, "s") == ["a", "b"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_cancelled_at_each_turn_is_settled_and_its_connection_is_clean(
    driver: Driver, admin: asyncpg.Connection, kind: Kind
) -> None:
    """Old or new, never mixed, and nothing is left in a transaction."""
    for turn in range(40):
        s = f"s{turn}"
        await send(driver, append(s, "a", "b"))
        before = await everything(driver, s)
        call = asyncio.create_task(send(driver, write(kind, await load(driver, s))))
        for _ in range(turn):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        error = await outcome(call)
        landed = await everything(driver, s) != before
        after = await send(driver, append(s, "c"))

        assert after.manifest.version == 2 + landed
        if isinstance(error, CancelledUnitError) and error.error is None:
            assert landed
        if type(error) is asyncio.CancelledError:
            assert not landed
        assert [row["state"] for row in await admin.fetch(SESSIONS)] == ["idle"]


async def test_a_cancelled_read_leaves_a_clean_connection(driver: Driver, admin: asyncpg.Connection) -> None:
    await send(driver, append("s", *"abc" * 100))
    for turn in range(30):
        call = asyncio.create_task(driver.load(Load("s")))
        for _ in range(turn):
            await asyncio.sleep(0)
        call.cancel()
        await outcome(call)

        assert len(await texts(driver, "s")) == 300
        async with asyncio.timeout(GIVE_UP_S):  # the backend of a connection that was cut ends by itself
            while [row["state"] for row in await admin.fetch(SESSIONS)] != ["idle"]:
                await admin.execute("SELECT pg_sleep(0.01)")


@pytest.mark.parametrize("turn", range(0, 40, 3))
async def test_a_cancelled_open_leaves_no_connection(
    proxy: Proxy, admin: asyncpg.Connection, turn: int
) -> None:
    driver = PostgresDriver(proxy.url)
    call = asyncio.create_task(driver.open())
    for _ in range(turn):
        await asyncio.sleep(0)
    call.cancel()
    if await outcome(call) is None:
        await driver.close()
    while await admin.fetch(SESSIONS):  # noqa: ASYNC110  # the server notices a closed socket by itself
        await asyncio.sleep(0.005)

    with pytest.raises(StoreClosedError):
        await driver.ping()


async def test_a_failed_open_leaves_no_connection(empty_postgres: str) -> None:
    admin = await asyncpg.connect(empty_postgres)
    drivers = [PostgresDriver(f"{empty_postgres}&no_such_setting=1") for _ in range(3)]
    for driver in drivers:
        with pytest.raises(CasSessionError):
            await driver.open()
    left = await admin.fetch(SESSIONS)
    await admin.close()

    assert left == []


async def test_nothing_is_held_between_two_calls(driver: Driver, admin: asyncpg.Connection) -> None:
    await send(driver, append("s", "a", "b"))
    for kind in KINDS:
        await send(driver, write(kind, await load(driver, "s")))
        (row,) = await admin.fetch(SESSIONS)
        locks = await admin.fetchval("SELECT count(*) FROM pg_locks WHERE pid = $1", row["pid"])

        assert (row["state"], locks) == ("idle", 0)


async def test_a_call_after_close_is_refused(fresh_postgres: str) -> None:
    driver = PostgresDriver(fresh_postgres)
    with pytest.raises(StoreClosedError):
        await driver.ping()
    await driver.open()
    await driver.close()
    await driver.close()

    with pytest.raises(StoreClosedError):
        await send(driver, append("s", "a"))


async def test_an_engine_migrates_and_is_left_open(empty_postgres: str) -> None:
    url = empty_postgres.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    driver = PostgresDriver(engine)
    await driver.open()
    await driver.migrate()
    await driver.migrate()
    await send(driver, append("s", "a"))
    await driver.close()

    async with engine.connect() as connection:
        result = await connection.exec_driver_sql("SELECT version FROM cas_session")
        assert result.scalar() == 1
    await engine.dispose()
