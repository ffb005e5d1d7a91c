"""Earlier versions: read as of then, restored, or refused whole."""

from __future__ import annotations

import pytest

from cas_session.driver import NO_SESSION, Chain, Driver, Kind
from cas_session.errors import SessionNotFoundError, VersionNotRetainedError
from tests.conformance.writes import (
    KINDS,
    append,
    clear,
    compact,
    delete,
    everything,
    load,
    pop,
    prefix_of,
    replace,
    restore,
    send,
    texts,
    texts_of,
    write,
)

HISTORY = [
    [],
    ["a", "b", "c"],
    ["a", "b", "c", "d"],
    ["a", "b", "c"],
    ["x1", "x2", "x3", "c"],
    ["x1", "x2", "x3", "c", "e"],
    ["y", "z"],
    ["y", "z", "f"],
    ["w", "z", "f"],
    ["w", "z"],
    [],
    ["g"],
]
"""The items at each version of `_history`."""


async def _history(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, append(s, "d"))
    await send(driver, pop(s))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x1", "x2", "x3"))
    await send(driver, append(s, "e"))
    await send(driver, replace(s, "y", "z", expected=5))
    await send(driver, append(s, "f"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), "w"))
    await send(driver, pop(s))
    await send(driver, replace(s, expected=9))
    await send(driver, append(s, "g"))


async def test_every_earlier_version_reads_as_it_was(driver: Driver, s: str) -> None:
    await _history(driver, s)
    ops = {int(row.manifest.version): row for row in await driver.operations(s, limit=100, before=None)}

    for version in range(1, len(HISTORY)):
        loaded = await driver.load_as_of(s, version)

        assert texts_of(loaded) == HISTORY[version]
        assert loaded.manifest == ops[version].manifest
        assert loaded.manifest.version.nonce == ops[version].manifest.version.nonce


@pytest.mark.parametrize("version", range(1, len(HISTORY)))
async def test_every_earlier_version_can_be_restored(driver: Driver, s: str, version: int) -> None:
    await _history(driver, s)

    landed = await send(driver, restore(s, version, expected=11))

    assert landed.manifest.version == 12
    assert landed.manifest.item_count == len(HISTORY[version])
    assert landed.manifest.byte_count == sum(map(len, HISTORY[version]))
    assert await texts(driver, s) == HISTORY[version]
    assert texts_of(await driver.load_as_of(s, 11)) == ["g"]


async def test_a_restored_history_is_written_on_as_any_other(driver: Driver, s: str) -> None:
    await _history(driver, s)
    await send(driver, restore(s, 4, expected=11))
    await send(driver, append(s, "h"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "v"))

    assert await texts(driver, s) == ["v", "x3", "c", "h"]
    assert (await send(driver, pop(s))).item == "h"


async def test_the_current_version_reads_as_the_session_does(driver: Driver, s: str) -> None:
    await _history(driver, s)

    loaded, now = await driver.load_as_of(s, 11), await load(driver, s)

    assert loaded.manifest == now.manifest
    assert list(loaded.rows) == list(now.rows)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_version_before_a_write_stays_readable_unless_it_erased(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a", "b"))
    await send(driver, write(kind, await load(driver, s)))
    await send(driver, append(s, "c"))

    if kind in ("clear", "delete"):
        with pytest.raises(VersionNotRetainedError):
            await driver.load_as_of(s, 1)
    else:
        assert texts_of(await driver.load_as_of(s, 1)) == ["a", "b"]


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("make", [clear, delete])
async def test_a_version_from_before_a_clear_or_delete_is_refused_as_erased(
    driver: Driver, s: str, make: type, removed: bool
) -> None:
    """Whether or not the rows are gone: a crash may have left them."""
    await _history(driver, s)
    await send(driver, make(s))
    if removed:
        await driver.remove_erased(s)
    await send(driver, append(s, "h"))
    before = await everything(driver, s)

    for version in (1, 4, 8, 11):
        with pytest.raises(VersionNotRetainedError) as read:
            await driver.load_as_of(s, version)
        with pytest.raises(VersionNotRetainedError) as restored:
            await send(driver, restore(s, version, expected=13))

        for error in (read.value, restored.value):
            assert (error.session_id, error.version, error.reason) == (s, version, "erased")
    assert await everything(driver, s) == before
    assert texts_of(await driver.load_as_of(s, 12)) == []
    assert texts_of(await driver.load_as_of(s, 13)) == ["h"]


@pytest.mark.parametrize("make", [clear, delete])
async def test_also_a_version_that_was_empty_is_refused_after_a_clear_or_delete(
    driver: Driver, s: str, make: type
) -> None:
    await send(driver, append(s, "a"))
    await send(driver, pop(s))
    await send(driver, make(s))

    with pytest.raises(VersionNotRetainedError) as read:
        await driver.load_as_of(s, 2)
    with pytest.raises(VersionNotRetainedError) as restored:
        await send(driver, restore(s, 2, expected=3))

    assert (read.value.reason, restored.value.reason) == ("erased", "erased")


async def test_version_0_is_the_session_before_its_first_write(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))

    loaded = await driver.load_as_of(s, 0)
    landed = await send(driver, restore(s, 0, expected=1))

    assert loaded.manifest == NO_SESSION
    assert texts_of(loaded) == []
    assert (landed.manifest.version, landed.manifest.item_count) == (2, 0)
    assert await texts(driver, s) == []


async def test_a_compaction_output_made_from_erased_items_is_erased_too(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "summary of a and b"))
    await send(driver, clear(s))

    with pytest.raises(VersionNotRetainedError):
        await driver.load_as_of(s, 2)


@pytest.mark.parametrize("version", [12, 99, 2**70, -1])
async def test_a_version_that_was_not_written_yet_is_a_value_error(
    driver: Driver, s: str, version: int
) -> None:
    await _history(driver, s)

    with pytest.raises(ValueError, match=str(version)):
        await driver.load_as_of(s, version)
    with pytest.raises(ValueError, match=str(version)):
        await send(driver, restore(s, version, expected=11))

    assert await texts(driver, s) == ["g"]


async def test_the_past_of_a_session_that_does_not_exist_is_not_found(driver: Driver, s: str) -> None:
    with pytest.raises(SessionNotFoundError):
        await driver.load_as_of(s, 1)
    with pytest.raises(SessionNotFoundError):
        await send(driver, restore(s, 1, expected=0))


async def test_a_row_that_only_holds_a_chain_has_no_past(driver: Driver, s: str) -> None:
    await driver.record_chain(s, Chain(response_id="resp_1", epoch=0, seq=0))

    with pytest.raises(SessionNotFoundError):
        await driver.load_as_of(s, 1)
    with pytest.raises(SessionNotFoundError):
        await send(driver, restore(s, 1, expected=0))
