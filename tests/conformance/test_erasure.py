"""Erased stays erased: clear, delete, the tombstone, its revival, and what goes for good."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from cas_session.driver import (
    NO_CHAIN,
    NO_SESSION,
    Chain,
    Clear,
    Driver,
    FinishCompaction,
    Kind,
    Prune,
    Write,
)
from cas_session.errors import SessionNotFoundError, VersionConflictError
from tests.conformance.database import Database
from tests.conformance.writes import (
    append,
    begin,
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
)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ERASES = pytest.mark.parametrize("erase", [clear, delete])
Erase = Callable[[str], Clear]


async def _with_a_past(driver: Driver, s: str) -> None:
    """Items that are visible, compacted away, replaced and popped."""
    await send(driver, append(s, "compacted away", "replaced"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), "summary"))
    await send(driver, replace(s, "popped", expected=2))
    await send(driver, pop(s))
    await send(driver, append(s, "visible"))


@ERASES
async def test_remove_erased_takes_everything_from_before(
    driver: Driver, database: Database, s: str, erase: Erase
) -> None:
    await _with_a_past(driver, s)
    await send(driver, erase(s))

    await driver.remove_erased(s)

    assert await database.item_rows(s) == []
    assert await texts(driver, s) == []


@ERASES
async def test_remove_erased_leaves_what_was_written_since(
    driver: Driver, database: Database, s: str, erase: Erase
) -> None:
    await _with_a_past(driver, s)
    await send(driver, erase(s))
    await send(driver, append(s, "a", "b"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), "x"))
    await send(driver, pop(s))
    before = await everything(driver, s)

    await driver.remove_erased(s)

    assert await everything(driver, s) == before
    assert sorted(await database.item_rows(s)) == ["a", "b", "x"]


async def test_remove_erased_takes_nothing_of_a_session_that_was_never_erased(
    driver: Driver, database: Database, s: str
) -> None:
    await _with_a_past(driver, s)
    rows = await database.item_rows(s)

    await driver.remove_erased(s)
    await driver.remove_erased("conversation-2")

    assert await database.item_rows(s) == rows


async def test_remove_erased_stays_in_its_session(driver: Driver, database: Database, s: str) -> None:
    await _with_a_past(driver, "conversation-2")
    await send(driver, clear("conversation-2"))
    left = len(await database.item_rows("conversation-2"))
    await send(driver, clear(s))

    await driver.remove_erased(s)

    assert len(await database.item_rows("conversation-2")) == left > 0


@ERASES
async def test_remove_erased_takes_digests_and_texts_of_attempts_from_before(
    driver: Driver, s: str, erase: Erase
) -> None:
    landed = await send(driver, append(s, "a"))
    attempt = begin(s, landed.manifest)
    await driver.begin_compaction(attempt)
    await driver.finish_compaction(
        FinishCompaction(
            attempt_id=attempt.attempt_id,
            decision="failed",
            output_digest=b"output digest",
            error="cannot read: a",
        )
    )
    await send(driver, erase(s))

    await driver.remove_erased(s)
    (row,) = await driver.compactions(s, limit=10)

    assert (row.source_digest, row.output_digest, row.error) == (None, None, None)
    assert row.decision == "failed"


@pytest.mark.parametrize("by", ["remove_erased", "prune"])
async def test_attempts_since_the_erase_keep_their_digests_and_texts(driver: Driver, s: str, by: str) -> None:
    await send(driver, append(s, "a"))
    await send(driver, clear(s))
    landed = await send(driver, append(s, "b"))
    attempt = begin(s, landed.manifest)
    await driver.begin_compaction(attempt)
    await driver.finish_compaction(
        FinishCompaction(attempt_id=attempt.attempt_id, decision="failed", output_digest=b"d", error="why")
    )

    if by == "prune":
        await driver.prune(Prune(retain=timedelta(0), fence=timedelta(days=1)))
    else:
        await driver.remove_erased(s)
    (row,) = await driver.compactions(s, limit=10)

    assert (row.source_digest, row.output_digest, row.error) == (b"source digest", b"d", "why")


async def test_remove_erased_of_one_session_keeps_the_digests_of_another(driver: Driver, s: str) -> None:
    landed = await send(driver, append("conversation-2", "theirs"))
    await driver.begin_compaction(begin("conversation-2", landed.manifest))
    await send(driver, clear(s))

    await driver.remove_erased(s)
    (row,) = await driver.compactions("conversation-2", limit=10)

    assert row.source_digest == b"source digest"


async def test_a_delete_leaves_a_tombstone(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", owner="ann", metadata='{"title":"a"}'))
    await driver.record_chain(s, Chain(response_id="resp_1", epoch=0, seq=1))

    landed = await send(driver, delete(s))
    loaded = await load(driver, s)

    assert loaded.row is not None
    assert loaded.row.deleted_at is not None
    assert loaded.row.deleted_at.tzinfo is not None
    assert loaded.row.metadata is None
    assert loaded.chain == NO_CHAIN
    assert not loaded.rows
    assert loaded.manifest == landed.manifest
    assert (landed.manifest.version, landed.manifest.item_count) == (2, 0)


async def test_a_delete_of_a_tombstone_moves_its_version_on(driver: Driver, s: str) -> None:
    await send(driver, delete(s))

    assert (await send(driver, delete(s))).manifest.version == 2


async def test_a_clear_leaves_a_tombstone_one(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    await send(driver, delete(s))

    landed = await send(driver, clear(s))
    row = (await load(driver, s)).row

    assert landed.manifest.version == 3
    assert row is not None
    assert row.deleted_at is not None


async def test_an_append_revives_a_tombstone_with_a_new_owner(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", owner="ann", metadata='{"title":"a"}'))
    await send(driver, delete(s))

    landed = await send(driver, append(s, "b", owner="bob", metadata='{"title":"b"}'))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.deleted_at, row.owner, row.metadata) == (None, "bob", '{"title":"b"}')
    assert landed.manifest.version == 3
    assert await texts(driver, s) == ["b"]


async def test_an_append_without_an_owner_revives_a_tombstone_without_its_old_one(
    driver: Driver, s: str
) -> None:
    await send(driver, append(s, "a", owner="ann"))
    await send(driver, delete(s))
    await send(driver, append(s, "b"))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.deleted_at, row.owner, row.metadata) == (None, None, None)


@pytest.mark.parametrize("expected", [None, 0])
@pytest.mark.parametrize("chained", [False, True])
async def test_a_clear_that_creates_the_session_gives_it_its_owner(
    driver: Driver, s: str, expected: int | None, chained: bool
) -> None:
    """Emptying first and writing then is one way to begin: the session belongs to whoever began it."""
    if chained:  # a row with version 0
        assert await driver.record_chain(s, Chain("resp_1", epoch=0, seq=0))

    await send(driver, clear(s, owner="ann", metadata='{"k":1}', expected=expected))
    await send(driver, append(s, "a", owner="bob"))
    await send(driver, clear(s, owner="eve"))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.owner, row.metadata) == ("ann", '{"k":1}')


@pytest.mark.parametrize("expected", [None, 0])
async def test_a_delete_that_creates_a_tombstone_keeps_no_metadata(
    driver: Driver, s: str, expected: int | None
) -> None:
    await send(driver, delete(s, owner="ann", metadata='{"k":1}', expected=expected))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.owner, row.metadata) == ("ann", None)


@pytest.mark.parametrize("chained", [False, True])
async def test_a_replace_that_creates_the_session_gives_it_its_owner(
    driver: Driver, s: str, chained: bool
) -> None:
    if chained:
        assert await driver.record_chain(s, Chain("resp_1", epoch=0, seq=0))

    await send(driver, replace(s, "a", owner="ann", metadata='{"k":1}', expected=0))
    await send(driver, replace(s, "b", owner="bob", expected=1))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.owner, row.metadata) == ("ann", '{"k":1}')


async def test_a_replace_revives_a_tombstone_with_a_new_owner(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", owner="ann"))
    await send(driver, delete(s))
    await send(driver, replace(s, "b", owner="bob", metadata='{"k":1}', expected=2))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.deleted_at, row.owner, row.metadata) == (None, "bob", '{"k":1}')


async def test_owner_and_metadata_apply_at_creation_only(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", owner="ann", metadata='{"k":1}'))
    await send(driver, append(s, "b", owner="bob", metadata='{"k":2}'))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.owner, row.metadata) == ("ann", '{"k":1}')


@pytest.mark.parametrize("kind", ["replace", "compact", "restore"])
@pytest.mark.parametrize("items", [(), ("a",)])
async def test_any_other_write_to_a_tombstone_revives_it_too(
    driver: Driver, s: str, kind: Kind, items: tuple[str, ...]
) -> None:
    """A deleted session reads as empty: one that was written again is none."""
    await send(driver, append(s, "before", owner="ann", metadata="{}"))
    await send(driver, delete(s))
    tombstone = await load(driver, s)
    if kind == "compact":
        await send(driver, compact(s, prefix_of(tombstone, 0), *items))
    elif kind == "replace":
        await send(driver, replace(s, *items, expected=2))
    else:
        items = ()
        await send(driver, restore(s, 2, expected=2))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.deleted_at, row.metadata) == (None, None)
    assert await texts(driver, s) == list(items)


async def test_a_revived_session_counts_as_created_anew(driver: Driver, database: Database, s: str) -> None:
    await send(driver, append(s, "a"))
    await send(driver, delete(s))
    await database.set_moment(s, LONG_AGO)

    await send(driver, append(s, "b"))
    row = (await load(driver, s)).row

    assert row is not None
    assert row.created_at > LONG_AGO


async def test_forget_removes_every_row_of_a_tombstone(driver: Driver, database: Database, s: str) -> None:
    await _with_a_past(driver, s)
    await driver.begin_compaction(begin(s, (await load(driver, s)).manifest))
    await send(driver, append("conversation-2", "theirs"))
    await send(driver, delete(s))
    await database.age_attempts(s, timedelta(hours=1))

    assert await driver.forget(s)
    assert (await load(driver, s)).row is None
    assert await operations(driver, s) == []
    assert await driver.compactions(s, limit=10) == []
    assert await database.item_rows(s) == []
    assert await texts(driver, "conversation-2") == ["theirs"]


async def test_a_session_is_not_forgotten_while_a_compaction_of_it_runs(driver: Driver, s: str) -> None:
    """Planned at version 0 it could not tell the session that it meets from the one that it read."""
    attempt = begin(s, NO_SESSION)
    await driver.begin_compaction(attempt)
    await send(driver, append(s, "a"))
    await send(driver, delete(s))

    assert not await driver.forget(s)
    await driver.finish_compaction(FinishCompaction(attempt_id=attempt.attempt_id, decision="conflict"))
    assert await driver.forget(s)


async def test_forget_leaves_a_session_that_is_not_deleted(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    before = await everything(driver, s)

    assert not await driver.forget(s)
    assert not await driver.forget("conversation-2")
    assert await everything(driver, s) == before


async def test_a_session_that_was_revived_is_not_forgotten(driver: Driver, s: str) -> None:
    await send(driver, delete(s))
    await send(driver, append(s, "a"))

    assert not await driver.forget(s)
    assert await texts(driver, s) == ["a"]


async def test_a_forgotten_session_begins_anew(driver: Driver, s: str) -> None:
    sent = append(s, "a")
    await send(driver, sent)
    await send(driver, delete(s))
    await driver.forget(s)

    landed = await send(driver, append(s, "b", expected=0))

    assert landed.manifest.version == 1
    with pytest.raises(SessionNotFoundError):
        await driver.load_as_of("conversation-2", 1)


@ERASES
@pytest.mark.parametrize("kind", ["replace", "compact"])
async def test_nothing_made_from_erased_items_lands(driver: Driver, s: str, erase: Erase, kind: str) -> None:
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    made: Write = (
        replace(s, "from a and b", expected=read.manifest.version)
        if kind == "replace"
        else compact(s, prefix_of(read, 2), "from a and b")
    )
    await send(driver, erase(s))

    for _ in range(2):
        with pytest.raises(VersionConflictError):
            await send(driver, made)

    assert await texts(driver, s) == []
