"""Reading on from what is known: only what is new, or all of it if a rewrite or a lost write came between."""

from __future__ import annotations

import dataclasses

import pytest

from cas_session.driver import Driver, Kind, Known, Load, Loaded
from cas_session.snapshot import Version
from tests.conformance.writes import REWRITES, append, load, send, write


def known_of(loaded: Loaded) -> Known:
    manifest = loaded.manifest
    return Known(manifest.version, manifest.epoch, manifest.next_seq - 1)


async def read_on(driver: Driver, s: str, known: Known) -> Loaded:
    return await driver.load(Load(s, known=known))


async def test_nothing_new_brings_no_rows(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    before = await load(driver, s)

    loaded = await read_on(driver, s, known_of(before))

    assert loaded.extends
    assert list(loaded.rows) == []
    assert loaded.row == before.row


async def test_appends_bring_only_the_new_rows(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    before = await load(driver, s)
    await send(driver, append(s, "c"))
    await send(driver, append(s, "d", "e"))

    loaded = await read_on(driver, s, known_of(before))

    assert loaded.extends
    assert list(loaded.rows) == [(3, "c"), (4, "d"), (5, "e")]
    assert loaded.manifest.version == 3


@pytest.mark.parametrize("kind", REWRITES)
async def test_a_rewrite_brings_all_rows(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a", "b"))
    before = await load(driver, s)
    await send(driver, write(kind, before))
    await send(driver, append(s, "later"))

    loaded = await read_on(driver, s, known_of(before))

    assert not loaded.extends
    assert (await load(driver, s)).rows == loaded.rows


async def test_appends_after_a_compaction_bring_only_the_new_rows(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, write("compact", await load(driver, s), "short"))
    before = await load(driver, s)
    await send(driver, append(s, "d"))

    loaded = await read_on(driver, s, known_of(before))

    assert loaded.extends
    assert [text for _, text in loaded.rows] == ["d"]


async def test_a_version_that_a_failover_lost_brings_all_rows(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    before = known_of(await load(driver, s))
    await send(driver, append(s, "b"))
    lost = dataclasses.replace(before, version=Version(int(before.version), "0" * 16))

    loaded = await read_on(driver, s, lost)

    assert not loaded.extends
    assert [text for _, text in loaded.rows] == ["a", "b"]


async def test_a_version_ahead_of_the_session_brings_all_rows(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))

    loaded = await read_on(driver, s, Known(Version(7, "0" * 16), 0, 9))

    assert not loaded.extends
    assert [text for _, text in loaded.rows] == ["a"]


async def test_a_session_that_did_not_exist_brings_all_rows(driver: Driver, s: str) -> None:
    nothing = known_of(await load(driver, s))
    assert (await read_on(driver, s, nothing)).row is None
    await send(driver, append(s, "a"))

    loaded = await read_on(driver, s, nothing)

    assert not loaded.extends
    assert [text for _, text in loaded.rows] == ["a"]
