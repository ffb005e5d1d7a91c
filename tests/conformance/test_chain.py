"""The response chain in the session row: recorded by epoch, seen by every worker."""

from __future__ import annotations

import pytest

from cas_session.driver import NO_CHAIN, NO_SESSION, Chain, Driver, Kind, ListSessions
from cas_session.errors import VersionConflictError
from tests.conformance.writes import (
    REWRITES,
    append,
    clear,
    delete,
    everything,
    load,
    operations,
    send,
    write,
)

CHAIN = Chain(response_id="resp_1", stored=True, deferred_id="resp_0", epoch=0, seq=1)


@pytest.mark.parametrize("stored", [True, False, None])
async def test_a_chain_is_read_as_it_was_recorded(
    driver: Driver, other: Driver, s: str, stored: bool
) -> None:
    await send(driver, append(s, "a"))
    chain = Chain(response_id="resp_1", stored=stored, epoch=0, seq=1)

    assert await driver.record_chain(s, chain)
    assert (await load(driver, s)).chain == chain
    assert (await load(other, s)).chain == chain


async def test_recording_a_chain_writes_all_of_it(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    await driver.record_chain(s, CHAIN)

    assert await driver.record_chain(s, Chain(deferred_id="resp_2", epoch=0))
    assert (await load(driver, s)).chain == Chain(deferred_id="resp_2", epoch=0)


async def test_recording_a_chain_is_no_write_of_items(driver: Driver, s: str) -> None:
    landed = await send(driver, append(s, "a"))

    await driver.record_chain(s, CHAIN)
    loaded = await load(driver, s)

    assert loaded.manifest == landed.manifest
    assert loaded.manifest.version.nonce == landed.manifest.version.nonce
    assert len(await operations(driver, s)) == 1
    assert (await send(driver, append(s, "b", expected=landed.manifest.version))).manifest.version == 2


async def test_appends_do_not_void_a_chain_that_is_recorded_after_them(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    await send(driver, append(s, "b"))

    assert await driver.record_chain(s, CHAIN)


@pytest.mark.parametrize("kind", REWRITES)
async def test_a_chain_of_an_epoch_before_a_rewrite_is_not_recorded(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a"))
    await send(driver, write(kind, await load(driver, s)))
    before = await everything(driver, s)

    assert not await driver.record_chain(s, CHAIN)
    assert await everything(driver, s) == before


async def test_a_chain_of_an_epoch_to_come_is_not_recorded(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))

    assert not await driver.record_chain(s, Chain(response_id="resp_1", epoch=1, seq=1))
    assert (await load(driver, s)).chain == NO_CHAIN


async def test_a_chain_of_a_session_that_does_not_exist_makes_a_row_that_counts_as_none(
    driver: Driver, s: str
) -> None:
    chain = Chain(response_id="resp_1", epoch=0, seq=0)

    assert await driver.record_chain(s, chain)
    loaded = await load(driver, s)

    assert loaded.manifest == NO_SESSION
    assert loaded.chain == chain
    assert not loaded.rows
    assert await operations(driver, s) == []
    assert not await driver.forget(s)
    assert not await driver.set_metadata(s, "{}")
    assert await driver.list_sessions(ListSessions()) == []


async def test_a_chain_of_another_epoch_makes_no_row(driver: Driver, s: str) -> None:
    assert not await driver.record_chain(s, Chain(response_id="resp_1", epoch=3, seq=1))
    assert (await load(driver, s)).row is None


@pytest.mark.parametrize("expected", [None, 0, NO_SESSION.version])
async def test_a_row_that_only_holds_a_chain_becomes_version_1_by_an_append(
    driver: Driver, s: str, expected: int | None
) -> None:
    chain = Chain(response_id="resp_1", epoch=0, seq=0)
    await driver.record_chain(s, chain)

    landed = await send(driver, append(s, "a", expected=expected, owner="ann", metadata='{"k":1}'))
    row = (await load(driver, s)).row

    assert (landed.manifest.version, landed.manifest.epoch) == (1, 0)
    assert landed.chain == chain
    assert row is not None
    assert (row.owner, row.metadata) == ("ann", '{"k":1}')


async def test_a_row_that_only_holds_a_chain_is_missing_to_a_conditional_write(
    driver: Driver, s: str
) -> None:
    await driver.record_chain(s, Chain(response_id="resp_1", epoch=0, seq=0))

    with pytest.raises(VersionConflictError) as caught:
        await send(driver, append(s, "a", expected=2))

    assert (caught.value.actual, caught.value.change) == (0, "missing")


async def test_a_clear_of_a_row_that_only_holds_a_chain_moves_it_to_version_1(driver: Driver, s: str) -> None:
    await driver.record_chain(s, Chain(response_id="resp_1", epoch=0, seq=0))

    landed = await send(driver, clear(s))

    assert (landed.manifest.version, landed.manifest.epoch) == (1, 1)
    assert (await load(driver, s)).chain == NO_CHAIN


async def test_a_chain_may_be_recorded_again_by_a_run_that_read_after_the_rewrite(
    driver: Driver, s: str
) -> None:
    await send(driver, append(s, "a"))
    await send(driver, clear(s))
    chain = Chain(response_id="resp_2", epoch=1, seq=2)

    assert await driver.record_chain(s, chain)
    assert (await load(driver, s)).chain == chain


async def test_a_chain_from_before_a_delete_is_not_recorded(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    await send(driver, delete(s))

    assert not await driver.record_chain(s, CHAIN)
    assert (await load(driver, s)).chain == NO_CHAIN
