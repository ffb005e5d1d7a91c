"""Optimistic concurrency: a write that expects something else changes nothing and says what came between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cas_session.driver import NO_SESSION, Chain, Driver, Kind, Write
from cas_session.errors import Change, SessionNotFoundError, VersionConflictError
from cas_session.snapshot import Version
from tests.conformance.writes import (
    KINDS,
    REWRITES,
    append,
    clear,
    delete,
    everything,
    load,
    operations,
    pop,
    replace,
    restore,
    send,
    texts,
    write,
)

Between = Callable[[Driver, str], Awaitable[object]]


async def _append(driver: Driver, s: str) -> None:
    await send(driver, append(s, "theirs"))
    await send(driver, append(s, "theirs too"))


async def _delete(driver: Driver, s: str) -> None:
    await send(driver, delete(s))


async def _delete_and_write_again(driver: Driver, s: str) -> None:
    await send(driver, delete(s))
    await send(driver, append(s, "c", "d"))


async def _delete_and_forget(driver: Driver, s: str) -> None:
    await send(driver, delete(s))
    await driver.forget(s)


def _rewrite(kind: Kind) -> Between:
    async def rewrite(driver: Driver, s: str) -> None:
        await send(driver, write(kind, await load(driver, s)))

    return rewrite


BETWEEN: dict[str, tuple[Between, Change]] = {
    "appends": (_append, "appended"),
    **{f"a {kind}": (_rewrite(kind), "rewritten") for kind in REWRITES if kind != "delete"},
    "a delete": (_delete, "deleted"),
    "a delete and an append": (_delete_and_write_again, "rewritten"),
    "a delete and a forget": (_delete_and_forget, "missing"),
}


async def conflict(driver: Driver, sent: Write) -> VersionConflictError:
    with pytest.raises(VersionConflictError) as caught:
        await send(driver, sent)
    return caught.value


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_that_expects_what_was_before_conflicts_and_changes_nothing(
    driver: Driver, s: str, kind: Kind, between: str
) -> None:
    come_between, change = BETWEEN[between]
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    await come_between(driver, s)
    before = await everything(driver, s)
    stale = write(kind, read, expected=read.manifest.version)

    if change == "missing" and kind == "restore":
        with pytest.raises((SessionNotFoundError, VersionConflictError)):
            await send(driver, stale)
        return
    first, second = await conflict(driver, stale), await conflict(driver, stale)

    actual = (await load(driver, s)).manifest.version
    for error in (first, second):
        assert (error.session_id, error.expected, error.actual, error.change) == (s, 1, actual, change)
        assert error.actual.nonce == actual.nonce
    assert await everything(driver, s) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_that_expects_the_version_that_is_there_lands(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a"))
    read = await load(driver, s)

    landed = await send(driver, write(kind, read, expected=read.manifest.version))

    assert landed.manifest.version == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_bare_number_is_checked_as_a_number(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a"))
    read = await load(driver, s)

    landed = await send(driver, write(kind, read, expected=1))

    assert landed.manifest.version == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_version_with_another_nonce_conflicts_though_the_number_matches(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a"))
    read = await load(driver, s)
    before = await everything(driver, s)

    error = await conflict(driver, write(kind, read, expected=Version(1, "0123456789abcdef")))

    assert (error.actual, error.change) == (1, "rewritten")
    assert error.actual.nonce == read.manifest.version.nonce
    assert await everything(driver, s) == before


async def test_a_version_of_another_history_was_rewritten_though_only_appends_came_after_its_number(
    driver: Driver, s: str
) -> None:
    """After a failover that lost writes its items are not those of the version with this number."""
    await send(driver, append(s, "a"))
    await send(driver, append(s, "b"))

    error = await conflict(driver, append(s, "c", expected=Version(1, "0123456789abcdef")))

    assert (error.actual, error.change) == (2, "rewritten")


@pytest.mark.parametrize("expected", [9, 2**70, -1])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_version_that_cannot_be_conflicts(driver: Driver, s: str, kind: Kind, expected: int) -> None:
    await send(driver, append(s, "a"))
    before = await everything(driver, s)

    error = await conflict(driver, write(kind, await load(driver, s), expected=expected))

    assert (error.expected, error.actual, error.change) == (expected, 1, "rewritten")
    assert await everything(driver, s) == before


@pytest.mark.parametrize("make", [append, clear, delete, replace])
async def test_expecting_0_creates_the_session_if_there_is_none(
    driver: Driver, s: str, make: Callable[..., Write]
) -> None:
    items = ("a",) if make in (append, replace) else ()

    landed = await send(driver, make(s, *items, expected=0))

    assert landed.manifest.version == 1
    assert len(await operations(driver, s)) == 1


@pytest.mark.parametrize("make", [append, clear, delete, replace])
async def test_the_version_of_a_session_that_does_not_exist_is_expected_0(
    driver: Driver, s: str, make: Callable[..., Write]
) -> None:
    items = ("a",) if make in (append, replace) else ()

    landed = await send(driver, make(s, *items, expected=NO_SESSION.version))

    assert landed.manifest.version == 1


async def test_a_pop_that_expects_0_of_a_session_that_does_not_exist_is_empty(driver: Driver, s: str) -> None:
    landed = await send(driver, pop(s, expected=0))

    assert landed.item is None
    assert landed.manifest == NO_SESSION


@pytest.mark.parametrize("kind", KINDS)
async def test_expecting_0_of_a_session_that_is_there_conflicts(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a"))
    before = await everything(driver, s)

    error = await conflict(driver, write(kind, await load(driver, s), expected=0))

    assert (error.expected, error.actual, error.change) == (0, 1, "appended")
    assert await everything(driver, s) == before


async def test_expecting_0_of_a_tombstone_conflicts(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    await send(driver, delete(s))

    error = await conflict(driver, append(s, "b", expected=0))

    assert (error.actual, error.change) == (2, "deleted")
    assert await texts(driver, s) == []


@pytest.mark.parametrize("make", [append, clear, delete, replace, pop])
async def test_a_session_that_was_never_there_is_missing(
    driver: Driver, s: str, make: Callable[..., Write]
) -> None:
    items = ("a",) if make in (append, replace) else ()

    error = await conflict(driver, make(s, *items, expected=3))

    assert (error.expected, error.actual, error.change) == (3, 0, "missing")
    assert (await load(driver, s)).row is None
    assert await operations(driver, s) == []


async def test_a_restore_of_a_session_that_was_never_there_finds_none(driver: Driver, s: str) -> None:
    with pytest.raises(SessionNotFoundError):
        await send(driver, restore(s, 1, expected=1))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_version_from_before_a_delete_never_matches_again(driver: Driver, s: str, kind: Kind) -> None:
    """Also not when the session was written again until everything countable is the same."""
    await send(driver, append(s, "a"))
    await send(driver, append(s, "b"))
    read = await load(driver, s)
    await send(driver, delete(s))
    for text in ("a", "b"):
        await send(driver, append(s, text))
        again = await load(driver, s)
        with pytest.raises(VersionConflictError):
            await send(driver, write(kind, read, expected=read.manifest.version))
        with pytest.raises(VersionConflictError):
            await send(driver, write(kind, read, expected=int(read.manifest.version)))

    assert again.manifest.item_count == read.manifest.item_count
    assert await texts(driver, s) == ["a", "b"]


@pytest.mark.parametrize("kind", ["pop", "append"])
async def test_a_conditional_write_checks_also_where_there_is_nothing_to_write(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, clear(s))
    read = await load(driver, s)
    await send(driver, clear(s))

    error = await conflict(driver, write(kind, read, expected=read.manifest.version))

    assert error.change == "rewritten"


async def test_a_tombstone_can_be_expected_by_its_version(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    deleted = await send(driver, delete(s))

    landed = await send(driver, append(s, "b", expected=deleted.manifest.version))

    assert landed.manifest.version == 3
    assert await texts(driver, s) == ["b"]


@pytest.mark.parametrize("kind", ["replace", "restore"])
async def test_a_replace_of_everything_is_never_unconditional(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a"))
    before = await everything(driver, s)

    with pytest.raises(ValueError, match="version"):
        await send(driver, write(kind, await load(driver, s), expected=None))

    assert await everything(driver, s) == before


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("kind", [append, clear, delete, replace])
async def test_a_version_0_with_a_nonce_never_was(
    driver: Driver, s: str, kind: Callable[..., Any], chained: bool
) -> None:
    if chained:
        assert await driver.record_chain(s, Chain("resp_1", epoch=0, seq=0))
    items = ("a",) if kind in (append, replace) else ()

    with pytest.raises(VersionConflictError) as caught:
        await send(driver, kind(s, *items, expected=Version(0, "5f")))

    assert (caught.value.actual, caught.value.change) == (0, "missing")
    assert await operations(driver, s) == []
