"""An op_id lands at most once: sending it again gives the first result, whatever came after."""

from __future__ import annotations

import itertools

import pytest

from cas_session.driver import Driver, Kind
from cas_session.errors import OperationMismatchError, VersionConflictError
from tests.conformance.writes import (
    KINDS,
    UNCONDITIONAL,
    append,
    clear,
    compact,
    everything,
    load,
    new_id,
    operations,
    pop,
    prefix_of,
    resent,
    send,
    texts,
    write,
)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_sent_again_returns_its_first_result(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a", "b"))
    sent = write(kind, await load(driver, s))
    first = await send(driver, sent)
    before = await everything(driver, s)

    again = await send(driver, resent(sent))

    assert again.manifest == first.manifest
    assert again.manifest.version.nonce == sent.nonce
    assert (again.item, again.found_version) == (first.item, first.found_version)
    assert await everything(driver, s) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_a_first_sending_that_says_it_may_have_landed_lands(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a", "b"))

    landed = await send(driver, write(kind, await load(driver, s), fenced=True))

    assert landed.manifest.version == 2


@pytest.mark.parametrize("kind", UNCONDITIONAL)
async def test_an_op_id_used_twice_lands_once_also_unfenced(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a", "b"))
    sent = write(kind, await load(driver, s))
    first = await send(driver, sent)
    before = await everything(driver, s)

    again = await send(driver, resent(sent, fenced=False))

    assert again.manifest == first.manifest
    assert again.manifest.version.nonce == sent.nonce
    assert again.item == first.item
    assert await everything(driver, s) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_sent_again_after_writes_of_others_returns_its_first_result(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a", "b"))
    sent = write(kind, await load(driver, s))
    first = await send(driver, sent)
    await send(driver, append(s, "theirs"))
    await send(driver, pop(s))
    await send(driver, append(s, "theirs too"))
    before = await everything(driver, s)

    again = await send(driver, resent(sent))

    assert again.manifest == first.manifest
    assert again.manifest.version.nonce == sent.nonce
    assert again.item == first.item
    assert await everything(driver, s) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_sent_again_after_a_clear_brings_nothing_back(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a", "b"))
    sent = write(kind, await load(driver, s))
    first = await send(driver, sent)
    await send(driver, clear(s))
    before = await everything(driver, s)

    again = await send(driver, resent(sent))

    assert again.manifest == first.manifest
    assert again.item is None
    assert await everything(driver, s) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_a_conditional_write_sent_again_has_landed_and_does_not_conflict_with_itself(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    sent = write(kind, read, expected=read.manifest.version)
    first = await send(driver, sent)

    again = await send(driver, resent(sent))

    assert again.manifest == first.manifest
    assert again.item == first.item


@pytest.mark.parametrize("kind", KINDS)
async def test_a_conditional_write_sent_again_that_had_not_landed_conflicts(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    await send(driver, clear(s))
    await send(driver, append(s, "theirs"))
    before = await everything(driver, s)

    with pytest.raises(VersionConflictError):
        await send(driver, resent(write(kind, read, expected=read.manifest.version)))

    assert await everything(driver, s) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_the_expected_version_is_no_part_of_what_an_op_id_names(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a", "b"))
    sent = write(kind, await load(driver, s))
    first = await send(driver, sent)

    again = await send(driver, resent(sent, expected=first.manifest.version))

    assert again.manifest == first.manifest


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize(("kind", "other"), list(itertools.permutations(KINDS, 2)))
async def test_an_op_id_of_another_kind_is_refused(
    driver: Driver, s: str, kind: Kind, other: Kind, fenced: bool
) -> None:
    await send(driver, append(s, "a", "b"))
    op_id = new_id()
    await send(driver, write(other, await load(driver, s), op_id=op_id))
    await send(driver, append(s, "c"))
    before = await everything(driver, s)

    with pytest.raises(OperationMismatchError) as caught:
        await send(driver, write(kind, await load(driver, s), op_id=op_id, fenced=fenced))

    assert (caught.value.session_id, caught.value.op_id) == (s, op_id)
    assert await everything(driver, s) == before


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("kind", ["append", "replace", "compact"])
async def test_an_op_id_with_other_items_is_refused(driver: Driver, s: str, kind: Kind, fenced: bool) -> None:
    await send(driver, append(s, "a", "b"))
    op_id = new_id()
    await send(driver, write(kind, await load(driver, s), "mine", op_id=op_id))
    before = await everything(driver, s)

    with pytest.raises(OperationMismatchError):
        await send(driver, write(kind, await load(driver, s), "other", op_id=op_id, fenced=fenced))

    assert await everything(driver, s) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_an_op_id_with_other_items_is_refused_before_a_conflict_is_told(
    driver: Driver, s: str, kind: Kind
) -> None:
    """A retry with the wrong items must not be told to load and decide again: it would never land."""
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    op_id = new_id()
    await send(driver, append(s, "c", op_id=op_id))

    with pytest.raises(OperationMismatchError):
        await send(
            driver,
            write(kind, read, "other", op_id=op_id, fenced=True, expected=read.manifest.version),
        )


async def test_op_ids_belong_to_their_session(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", op_id="checkout-7:turn-3"))

    landed = await send(driver, append("conversation-2", "b", op_id="checkout-7:turn-3"))

    assert landed.manifest.version == 1
    assert await texts(driver, "conversation-2") == ["b"]


async def test_an_append_sent_again_after_a_clear_does_not_come_back(driver: Driver, s: str) -> None:
    sent = append(s, "a")
    await send(driver, sent)
    await send(driver, clear(s))

    again = await send(driver, resent(sent))

    assert again.manifest.version == 1
    assert await texts(driver, s) == []


@pytest.mark.parametrize("removed", [False, True])
async def test_a_pop_sent_again_after_a_clear_does_not_bring_its_item_back(
    driver: Driver, s: str, removed: bool
) -> None:
    await send(driver, append("conversation-2", "never erased"))
    await send(driver, append(s, "secret"))
    sent = pop(s)
    await send(driver, sent)
    await send(driver, clear(s))
    if removed:
        await driver.remove_erased(s)

    again = await send(driver, resent(sent))

    assert again.manifest.version == 2
    assert again.item is None


async def test_the_last_pop_sent_again_finds_its_item_though_the_session_is_empty(
    driver: Driver, s: str
) -> None:
    await send(driver, append(s, "only"))
    sent = pop(s)
    await send(driver, sent)

    assert (await send(driver, resent(sent))).item == "only"
    assert len(await operations(driver, s)) == 2


async def test_a_pop_that_found_nothing_may_land_when_it_is_sent_again(driver: Driver, s: str) -> None:
    sent = pop(s)
    await send(driver, sent)
    await send(driver, append(s, "a"))

    again = await send(driver, resent(sent))

    assert again.item == "a"
    assert again.manifest.version == 2


async def test_a_compaction_sent_again_says_which_version_it_had_found(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    sent = compact(s, prefix_of(await load(driver, s), 2), "x")
    await send(driver, append(s, "c"))
    first = await send(driver, sent)
    await send(driver, append(s, "d"))

    again = await send(driver, resent(sent))

    assert (first.found_version, again.found_version) == (2, 2)
    assert again.manifest == first.manifest
    assert await texts(driver, s) == ["x", "c", "d"]


async def test_a_landed_write_is_found_by_its_op_id(driver: Driver, s: str) -> None:
    sent = append(s, "a", op_id="turn-1")
    landed = await send(driver, sent)

    found = await driver.find_op(s, "turn-1")

    assert found is not None
    assert (found.op_id, found.kind, found.digest) == ("turn-1", "append", sent.digest)
    assert found.manifest == landed.manifest
    assert await driver.find_op(s, "turn-2") is None
    assert await driver.find_op("conversation-2", "turn-1") is None
