"""The write table: what each write does to version, epoch, chain, op rows and what is visible."""

from __future__ import annotations

import pytest

from cas_session.driver import NO_CHAIN, NO_SESSION, Chain, Driver, Kind
from tests.conformance.writes import (
    KINDS,
    REWRITES,
    append,
    clear,
    compact,
    delete,
    everything,
    load,
    operations,
    pop,
    prefix_of,
    replace,
    restore,
    send,
    texts,
    write,
)


async def test_a_session_that_does_not_exist_loads_as_empty_with_version_0(driver: Driver, s: str) -> None:
    loaded = await load(driver, s)

    assert loaded.row is None
    assert loaded.manifest == NO_SESSION
    assert not loaded.rows
    assert loaded.chain == NO_CHAIN


@pytest.mark.parametrize("kind", KINDS)
async def test_every_write_moves_the_version_by_1(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a", "b"))

    landed = await send(driver, write(kind, await load(driver, s)))

    assert landed.manifest.version == 2
    assert (await load(driver, s)).manifest == landed.manifest


@pytest.mark.parametrize("kind", KINDS)
async def test_every_write_leaves_its_nonce_in_the_version(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a"))
    sent = write(kind, await load(driver, s))

    landed = await send(driver, sent)

    assert landed.manifest.version.nonce == sent.nonce
    assert (await load(driver, s)).manifest.version.nonce == sent.nonce


async def test_an_append_keeps_the_epoch(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    landed = await send(driver, append(s, "b"))

    assert landed.manifest.epoch == 0


@pytest.mark.parametrize("kind", REWRITES)
async def test_every_rewrite_moves_the_epoch_by_1(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a"))

    landed = await send(driver, write(kind, await load(driver, s)))

    assert landed.manifest.epoch == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_every_write_leaves_one_op_row(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a"))
    sent = write(kind, await load(driver, s), worker="worker-7")

    landed = await send(driver, sent)
    newest, first = await operations(driver, s)

    assert (newest.op_id, newest.kind, newest.digest, newest.worker) == (
        sent.op_id,
        kind,
        sent.digest,
        "worker-7",
    )
    assert newest.manifest == landed.manifest
    assert newest.manifest.version.nonce == sent.nonce
    assert newest.created_at.tzinfo is not None
    assert first.kind == "append"


async def test_an_append_keeps_the_chain(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    chain = Chain(response_id="resp_1", stored=True, deferred_id="resp_0", epoch=0, seq=1)
    await driver.record_chain(s, chain)

    landed = await send(driver, append(s, "b"))

    assert landed.chain == chain
    assert (await load(driver, s)).chain == chain


@pytest.mark.parametrize("kind", REWRITES)
async def test_every_rewrite_resets_the_chain(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a"))
    await driver.record_chain(s, Chain(response_id="resp_1", stored=True, deferred_id="r", epoch=0, seq=1))

    landed = await send(driver, write(kind, await load(driver, s)))

    assert landed.chain == NO_CHAIN
    assert (await load(driver, s)).chain == NO_CHAIN


async def test_an_append_puts_its_items_behind_what_is_there(driver: Driver, s: str) -> None:
    first = await send(driver, append(s, "a"))
    second = await send(driver, append(s, "b", "c"))

    assert (await load(driver, s)).rows == [(1, "a"), (2, "b"), (3, "c")]
    assert (first.manifest.item_count, first.manifest.byte_count) == (1, 1)
    assert (second.manifest.item_count, second.manifest.byte_count) == (3, 3)
    assert (second.manifest.next_seq, second.manifest.base_seq, second.manifest.low_seq) == (4, 0, 1)


async def test_a_pop_hides_the_last_item_and_returns_it(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "bb"))

    landed = await send(driver, pop(s))

    assert landed.item == "bb"
    assert await texts(driver, s) == ["a"]
    assert (landed.manifest.item_count, landed.manifest.byte_count) == (1, 1)


@pytest.mark.parametrize("locked", [False, True])
async def test_pops_return_every_item_newest_first(driver: Driver, s: str, locked: bool) -> None:
    await send(driver, append(s, "a", "b"))
    await send(driver, append(s, "c"))

    popped = [(await send(driver, pop(s, locked=locked))).item for _ in range(3)]

    assert popped == ["c", "b", "a"]
    assert await texts(driver, s) == []


async def test_a_pop_never_gives_its_seq_to_another_item(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    popped = await send(driver, pop(s))
    await send(driver, append(s, "c"))

    assert popped.manifest.next_seq == 3
    assert (await load(driver, s)).rows == [(1, "a"), (3, "c")]


async def test_a_pop_takes_what_a_replace_wrote(driver: Driver, s: str) -> None:
    written = await send(driver, append(s, "a", "b"))
    await send(driver, replace(s, "x", "y", expected=written.manifest.version))

    assert (await send(driver, pop(s))).item == "y"
    assert (await send(driver, pop(s))).item == "x"
    assert (await send(driver, pop(s))).item is None


async def test_a_pop_takes_what_a_compaction_wrote(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x"))

    assert [(await send(driver, pop(s))).item for _ in range(3)] == ["c", "x", None]


@pytest.mark.parametrize("locked", [False, True])
async def test_a_pop_of_an_empty_session_writes_nothing(driver: Driver, s: str, locked: bool) -> None:
    await send(driver, append(s, "a"))
    await send(driver, clear(s))
    before = await everything(driver, s)

    landed = await send(driver, pop(s, locked=locked))

    assert landed.item is None
    assert landed.manifest == (await load(driver, s)).manifest
    assert landed.manifest.version.nonce == (await load(driver, s)).manifest.version.nonce
    assert await everything(driver, s) == before


@pytest.mark.parametrize("locked", [False, True])
async def test_a_pop_of_a_session_that_does_not_exist_writes_nothing(
    driver: Driver, s: str, locked: bool
) -> None:
    landed = await send(driver, pop(s, locked=locked))

    assert landed.item is None
    assert landed.manifest == NO_SESSION
    assert (await load(driver, s)).row is None


async def test_a_clear_hides_every_item(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))

    landed = await send(driver, clear(s))

    assert await texts(driver, s) == []
    assert (landed.manifest.item_count, landed.manifest.byte_count) == (0, 0)
    assert (landed.manifest.next_seq, landed.manifest.base_seq, landed.manifest.low_seq) == (3, 2, 3)
    assert (landed.manifest.base_gen, landed.manifest.erased_epoch) == (1, 1)


async def test_clear_of_an_empty_session_moves_version_and_epoch(driver: Driver, s: str) -> None:
    await send(driver, clear(s))
    landed = await send(driver, clear(s))

    assert (landed.manifest.version, landed.manifest.epoch) == (2, 2)


async def test_clear_of_a_session_that_does_not_exist_moves_its_version_to_1(driver: Driver, s: str) -> None:
    landed = await send(driver, clear(s))
    loaded = await load(driver, s)

    assert (landed.manifest.version, landed.manifest.epoch) == (1, 1)
    assert loaded.manifest == landed.manifest
    assert loaded.row is not None
    assert loaded.row.deleted_at is None
    assert (await send(driver, append(s, "a"))).manifest.version == 2


async def test_delete_of_a_session_that_does_not_exist_leaves_a_tombstone_of_version_1(
    driver: Driver, s: str
) -> None:
    landed = await send(driver, delete(s))
    row = (await load(driver, s)).row

    assert (landed.manifest.version, landed.manifest.epoch, landed.manifest.erased_epoch) == (1, 1, 1)
    assert row is not None
    assert row.deleted_at is not None


async def test_a_replace_leaves_exactly_the_new_items(driver: Driver, s: str) -> None:
    before = await send(driver, append(s, "a", "b", "c"))

    landed = await send(driver, replace(s, "x", "yy", expected=before.manifest.version))

    assert (await load(driver, s)).rows == [(4, "x"), (5, "yy")]
    assert (landed.manifest.item_count, landed.manifest.byte_count) == (2, 3)
    assert (landed.manifest.next_seq, landed.manifest.base_seq, landed.manifest.low_seq) == (6, 3, 4)
    assert (landed.manifest.base_gen, landed.manifest.erased_epoch) == (1, 0)


async def test_a_replace_by_nothing_leaves_an_empty_session(driver: Driver, s: str) -> None:
    before = await send(driver, append(s, "a"))

    landed = await send(driver, replace(s, expected=before.manifest.version))

    assert await texts(driver, s) == []
    assert (landed.manifest.version, landed.manifest.item_count, landed.manifest.byte_count) == (2, 0, 0)


async def test_appends_go_on_behind_a_replace(driver: Driver, s: str) -> None:
    before = await send(driver, append(s, "a"))
    await send(driver, replace(s, "x", expected=before.manifest.version))
    await send(driver, append(s, "b"))

    assert await texts(driver, s) == ["x", "b"]


async def test_a_replace_that_expects_0_creates_the_session(driver: Driver, s: str) -> None:
    landed = await send(driver, replace(s, "x", "y", expected=0))

    assert (landed.manifest.version, landed.manifest.epoch) == (1, 1)
    assert await texts(driver, s) == ["x", "y"]


async def test_a_restore_is_a_rewrite_with_the_items_of_then(driver: Driver, s: str) -> None:
    old = await send(driver, append(s, "a", "b"))
    new = await send(driver, replace(s, "x", expected=old.manifest.version))

    landed = await send(driver, restore(s, 1, expected=new.manifest.version))

    assert await texts(driver, s) == ["a", "b"]
    assert (landed.manifest.version, landed.manifest.epoch, landed.manifest.item_count) == (3, 2, 2)
    assert (landed.manifest.next_seq, landed.manifest.base_seq) == (6, 3)


@pytest.mark.parametrize("kind", KINDS)
async def test_no_write_touches_another_session(driver: Driver, s: str, kind: Kind) -> None:
    for name in (s, "conversation-2", "conversation"):
        await send(driver, append(name, "a", "b"))
    before = [await everything(driver, name) for name in ("conversation-2", "conversation")]

    await send(driver, write(kind, await load(driver, s)))

    assert [await everything(driver, name) for name in ("conversation-2", "conversation")] == before


@pytest.mark.parametrize("kind", KINDS)
async def test_updated_at_never_goes_back_and_created_at_stays(driver: Driver, s: str, kind: Kind) -> None:
    await send(driver, append(s, "a"))
    before = (await load(driver, s)).row
    assert before is not None

    await send(driver, write(kind, await load(driver, s)))
    after = (await load(driver, s)).row

    assert after is not None
    assert after.created_at == before.created_at
    assert after.updated_at >= before.updated_at
    assert after.created_at.tzinfo is not None
    assert after.updated_at.tzinfo is not None
