"""Round trips, counted between driver and server: what waits for the network, and how often."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from cas_session.driver import Chain, Driver, Load
from cas_session.drivers.postgres import PostgresDriver
from cas_session.errors import VersionConflictError
from tests.conformance.writes import (
    append,
    begin,
    clear,
    compact,
    delete,
    load,
    pop,
    prefix_of,
    replace,
    resent,
    restore,
    send,
)
from tests.drivers.postgres_proxy import Proxy

Call = Callable[[Driver, str], Awaitable[object]]
"""Gets a session that has the items a and b, at version 1."""


@pytest.fixture
async def proxy(fresh_postgres: str) -> AsyncIterator[Proxy]:
    async with Proxy(fresh_postgres) as proxy:
        yield proxy


@pytest.fixture(params=["url", "engine"])
async def driver(request: pytest.FixtureRequest, proxy: Proxy) -> AsyncIterator[PostgresDriver]:
    """A driver with one connection."""
    url = proxy.url.replace("postgresql://", "postgresql+asyncpg://").replace("?sslmode", "?ssl")
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    driver = PostgresDriver(engine if request.param == "engine" else proxy.url, pool_size=1)
    await driver.open()
    yield driver
    await driver.close()
    await engine.dispose()


async def _compact(driver: Driver, s: str) -> object:
    read = await load(driver, s)
    return await send(driver, compact(s, prefix_of(read, 2), "x"))


async def _conflict(driver: Driver, s: str) -> object:
    with pytest.raises(VersionConflictError) as caught:
        await send(driver, append(s, "c", expected=9))
    return caught.value


async def _resent(driver: Driver, s: str) -> object:
    sent = append(s, "c")
    await send(driver, sent)
    return await send(driver, resent(sent))


CALLS: dict[str, tuple[Call, int]] = {
    "append": (lambda d, s: send(d, append(s, "c")), 1),
    "append to a new session": (lambda d, s: send(d, append(f"{s}-new", "c")), 1),
    "append that expects a new session": (lambda d, s: send(d, append(f"{s}-new", "c", expected=0)), 1),
    "conditional append": (lambda d, s: send(d, append(s, "c", expected=1)), 1),
    "conditional append that conflicts": (_conflict, 1),
    "group of appends": (lambda d, s: d.append([append(s, "c"), append(s, "d", "e")]), 1),
    "large append": (lambda d, s: send(d, append(s, *(["c"] * 40_000))), 1),
    "pop": (lambda d, s: send(d, pop(s)), 2),
    "pop under the lock": (lambda d, s: send(d, pop(s, locked=True)), 5),
    "clear": (lambda d, s: send(d, clear(s)), 1),
    "delete": (lambda d, s: send(d, delete(s)), 1),
    "replace": (lambda d, s: send(d, replace(s, "x", expected=1)), 1),
    "load and compact": (_compact, 2),
    "restore": (lambda d, s: send(d, restore(s, 1, expected=1)), 1),
    "load": (lambda d, s: d.load(Load(s)), 1),
    "load of a tail": (lambda d, s: d.load(Load(s, limit=1)), 1),
    "load with ages": (lambda d, s: d.load(Load(s, ages=True)), 1),
    "load of an earlier version": (lambda d, s: d.load_as_of(s, 1), 1),
    "append and its second sending": (_resent, 3),
    "chain": (lambda d, s: d.record_chain(s, Chain(response_id="r", epoch=0, seq=2)), 1),
    "ping": (lambda d, s: d.ping(), 1),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_waits_for_the_network_this_often(driver: Driver, proxy: Proxy, name: str) -> None:
    call, expected = CALLS[name]
    for at in range(2):
        await send(driver, append(f"s{at}", "a", "b"))
    await call(driver, "s0")  # prepares its statements
    before = proxy.round_trips

    await call(driver, "s1")

    assert proxy.round_trips - before == expected


async def test_a_lease_is_one_round_trip(driver: Driver, proxy: Proxy) -> None:
    trips = []
    for at in range(2):
        landed = await send(driver, append(f"s{at}", "a"))
        before = proxy.round_trips
        await driver.begin_compaction(begin(f"s{at}", landed.manifest))
        trips.append(proxy.round_trips - before)

    assert trips[-1] == 1
