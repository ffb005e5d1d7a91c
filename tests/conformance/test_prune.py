"""Retention: prune takes what nobody may read any more, in batches, and never what is visible."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cas_session.driver import NO_SESSION, Driver, FinishCompaction, Prune
from cas_session.errors import OperationMismatchError, VersionConflictError, VersionNotRetainedError
from cas_session.maintenance import NO_ONES_SESSION
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
    resent,
    restore,
    send,
    texts,
    texts_of,
)

NOTHING, WEEK, MONTH, YEAR = timedelta(0), timedelta(days=7), timedelta(days=30), timedelta(days=365)
LONG_AGO = timedelta(days=40)


async def prune(
    driver: Driver, *, retain: timedelta = MONTH, fence: timedelta = WEEK, batch: int = 1000
) -> int:
    """Prune until nothing is left to prune, and count the rows."""
    total = 0
    while removed := await driver.prune(Prune(retain=retain, fence=fence, batch=batch)):
        assert removed <= batch
        total += removed
    return total


async def _with_a_past(driver: Driver, s: str) -> None:
    """Versions 1..6: compacted, replaced and popped items behind two that are visible."""
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x1", "x2", "x3"))
    await send(driver, append(s, "d"))
    await send(driver, pop(s))
    await send(driver, replace(s, "y", expected=4))
    await send(driver, append(s, "e"))


async def test_prune_of_an_empty_database_removes_nothing(driver: Driver) -> None:
    assert await driver.prune(Prune(retain=NOTHING, fence=NOTHING)) == 0


async def test_prune_takes_nothing_that_is_still_retained(driver: Driver, database: Database, s: str) -> None:
    await _with_a_past(driver, s)
    rows = await database.item_rows(s)
    before = await everything(driver, s)

    assert await prune(driver) == 0
    assert await everything(driver, s) == before
    assert await database.item_rows(s) == rows


async def test_a_retain_of_0_takes_everything_hidden_at_once(
    driver: Driver, database: Database, s: str
) -> None:
    await _with_a_past(driver, s)
    before = await everything(driver, s)

    assert await prune(driver, retain=NOTHING) == 7
    assert sorted(await database.item_rows(s)) == ["e", "y"]
    assert await everything(driver, s) == before


async def test_pruned_versions_are_refused_whole(driver: Driver, s: str) -> None:
    await _with_a_past(driver, s)
    await prune(driver, retain=NOTHING)

    for version in (1, 2, 3, 4):
        with pytest.raises(VersionNotRetainedError) as read:
            await driver.load_as_of(s, version)
        with pytest.raises(VersionNotRetainedError) as restored:
            await send(driver, restore(s, version, expected=6))
        for error in (read.value, restored.value):
            assert (error.session_id, error.version, error.reason) == (s, version, "pruned")
    assert texts_of(await driver.load_as_of(s, 5)) == ["y"]
    assert texts_of(await driver.load_as_of(s, 6)) == ["y", "e"]


@pytest.mark.parametrize("old", range(1, 6))
async def test_retain_counts_from_the_hiding(driver: Driver, database: Database, s: str, old: int) -> None:
    """What was hidden long ago goes; what was visible since stays, however long ago it was written.

    Version ``old`` was current until the write after it, so its items and its op row, the key to them, stay.
    """
    await _with_a_past(driver, s)
    kept = {version: texts_of(await driver.load_as_of(s, version)) for version in range(old, 7)}
    await database.age_writes(s, LONG_AGO, through=old)

    await prune(driver)

    for version, items in kept.items():
        assert texts_of(await driver.load_as_of(s, version)) == items
    for version in range(1, old):
        with pytest.raises(VersionNotRetainedError) as caught:
            await driver.load_as_of(s, version)
        assert caught.value.reason == "pruned"


async def test_a_conversation_that_rested_longer_than_retain_can_be_restored_after_its_compaction(
    driver: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "a", "b", "c"))
    await database.age_writes(s, LONG_AGO, through=1)
    await send(driver, compact(s, prefix_of(await load(driver, s), 3), "short"))

    await prune(driver)
    await send(driver, restore(s, 1, expected=2))

    assert await texts(driver, s) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("old", "left"),
    [
        (1, ["a", "b", "c", "d", "e", "x1", "x2", "x3", "y"]),
        (2, ["c", "d", "e", "x1", "x2", "x3", "y"]),
        (3, ["c", "d", "e", "x1", "x2", "x3", "y"]),
        (4, ["c", "e", "x1", "x2", "x3", "y"]),
        (5, ["e", "y"]),
    ],
)
async def test_prune_takes_exactly_what_was_hidden_long_ago(
    driver: Driver, database: Database, s: str, old: int, left: list[str]
) -> None:
    await _with_a_past(driver, s)
    await database.age_writes(s, LONG_AGO, through=old)

    await prune(driver)

    assert sorted(await database.item_rows(s)) == left


async def test_the_output_of_a_later_compaction_below_an_old_base_seq_stays(
    driver: Driver, database: Database, s: str
) -> None:
    """Removal names rows by what an old rewrite hid, not by ``gen <> base_gen``: that would name these."""
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 3), "x"))
    await database.age_writes(s, LONG_AGO, through=2)
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), "y1", "y2", "y3", "y4"))

    await prune(driver)

    assert await texts(driver, s) == ["y1", "y2", "y3", "y4"]
    assert sorted(await database.item_rows(s)) == ["x", "y1", "y2", "y3", "y4"]


async def test_erased_items_go_whatever_retain_says(driver: Driver, database: Database, s: str) -> None:
    """A crash between a clear and its removal left them."""
    await _with_a_past(driver, s)
    await send(driver, clear(s))
    await send(driver, append(s, "new"))

    assert await prune(driver, retain=YEAR, fence=YEAR) == 9
    assert await database.item_rows(s) == ["new"]
    assert await texts(driver, s) == ["new"]


async def test_prune_never_takes_session_rows(driver: Driver, database: Database, s: str) -> None:
    await _with_a_past(driver, s)
    await send(driver, delete(s))
    await database.age_writes(s, YEAR, through=7)

    await prune(driver, retain=NOTHING, fence=NOTHING)
    loaded = await load(driver, s)

    assert loaded.row is not None
    assert loaded.row.deleted_at is not None
    assert loaded.manifest.version == 7
    assert (await send(driver, append(s, "a"))).manifest.version == 8


@pytest.mark.parametrize(("retain", "fence"), [(NOTHING, WEEK), (WEEK, timedelta(days=1)), (WEEK, WEEK)])
async def test_op_rows_live_for_the_longer_of_fence_and_retain(
    driver: Driver, database: Database, s: str, retain: timedelta, fence: timedelta
) -> None:
    await _with_a_past(driver, s)
    await database.age_writes(s, timedelta(days=6), through=6)
    await prune(driver, retain=retain, fence=fence)
    young = [int(row.manifest.version) for row in await operations(driver, s)]
    await database.age_writes(s, timedelta(days=2), through=3)
    await prune(driver, retain=retain, fence=fence)
    old = [int(row.manifest.version) for row in await operations(driver, s)]

    assert young == [6, 5, 4, 3, 2, 1]
    assert old == [6, 5, 4, 3]  # version 3 was current until the young version 4


async def test_the_newest_op_row_of_a_session_always_stays(
    driver: Driver, database: Database, s: str
) -> None:
    await _with_a_past(driver, s)
    await send(driver, append("conversation-2", "a"))
    await database.age_writes(s, YEAR, through=6)
    await database.age_writes("conversation-2", YEAR, through=1)

    await prune(driver, retain=NOTHING, fence=timedelta(days=1))

    assert [int(row.manifest.version) for row in await operations(driver, s)] == [6]
    assert len(await operations(driver, "conversation-2")) == 1
    assert await texts(driver, s) == ["y", "e"]
    assert (await send(driver, append(s, "f", expected=6))).manifest.version == 7


async def test_a_running_attempt_keeps_the_op_row_that_it_needs(
    driver: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    await driver.begin_compaction(begin(s, read.manifest))
    for text in "cde":
        await send(driver, append(s, text))
    await database.age_writes(s, YEAR, through=3)

    await prune(driver)
    landed = await send(driver, compact(s, prefix_of(read, 2), "x"))

    assert [int(row.manifest.version) for row in await operations(driver, s)] == [5, 4, 3, 1]
    assert landed.found_version == 4
    assert await texts(driver, s) == ["x", "c", "d", "e"]


async def test_a_plan_whose_op_row_was_pruned_conflicts(driver: Driver, database: Database, s: str) -> None:
    """Nobody can tell any more that it is an ancestor."""
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    await send(driver, append(s, "c"))
    await database.age_writes(s, YEAR, through=2)
    await prune(driver)
    before = await everything(driver, s)

    with pytest.raises(VersionConflictError) as caught:
        await send(driver, compact(s, prefix_of(read, 2), "x"))

    assert (caught.value.expected, caught.value.actual, caught.value.change) == (1, 2, "rewritten")
    assert await everything(driver, s) == before


async def test_what_came_after_a_version_whose_op_row_was_pruned_counts_as_a_rewrite(
    driver: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "a"))
    await send(driver, append(s, "b"))
    await database.age_writes(s, YEAR, through=2)
    await prune(driver)

    with pytest.raises(VersionConflictError) as caught:
        await send(driver, append(s, "c", expected=1))

    assert (caught.value.actual, caught.value.change) == (2, "rewritten")


async def test_a_write_within_the_fence_is_known_again_after_prune(driver: Driver, s: str) -> None:
    sent = append(s, "a", op_id="turn-1")
    first = await send(driver, sent)
    await send(driver, replace(s, "x", expected=1))

    await prune(driver, retain=NOTHING, fence=WEEK)

    assert (await send(driver, resent(sent))).manifest == first.manifest
    with pytest.raises(OperationMismatchError):
        await send(driver, append(s, "other", op_id="turn-1"))
    assert await texts(driver, s) == ["x"]


@pytest.mark.parametrize("batch", [1, 2, 3])
async def test_prune_works_in_bounded_batches(driver: Driver, database: Database, s: str, batch: int) -> None:
    for name in (s, "conversation-2", "conversation-3"):
        await _with_a_past(driver, name)
    await send(driver, clear("conversation-3"))

    first = await driver.prune(Prune(retain=NOTHING, fence=WEEK, batch=batch))
    total = first + await prune(driver, retain=NOTHING, batch=batch)

    assert 0 < first <= batch
    assert total == 7 + 7 + 9
    assert sorted(await database.item_rows(s)) == ["e", "y"]
    assert sorted(await database.item_rows("conversation-2")) == ["e", "y"]
    assert await database.item_rows("conversation-3") == []


@pytest.mark.parametrize("batch", [1, 3, 1000])
async def test_nothing_hidden_stays_behind_when_its_op_row_goes_in_the_same_run(
    driver: Driver, database: Database, s: str, batch: int
) -> None:
    await _with_a_past(driver, s)
    await database.age_writes(s, YEAR, through=6)

    await prune(driver, batch=batch)

    assert sorted(await database.item_rows(s)) == ["e", "y"]
    assert len(await operations(driver, s)) == 1


async def test_digests_and_texts_of_attempts_from_before_an_erase_go_whatever_retain_says(
    driver: Driver, s: str
) -> None:
    landed = await send(driver, append(s, "a"))
    attempt = begin(s, landed.manifest)
    await driver.begin_compaction(attempt)
    await driver.finish_compaction(
        FinishCompaction(attempt_id=attempt.attempt_id, decision="failed", output_digest=b"d", error="a")
    )
    await send(driver, clear(s))

    await prune(driver, retain=YEAR, fence=YEAR)
    (row,) = await driver.compactions(s, limit=10)

    assert (row.source_digest, row.output_digest, row.error) == (None, None, None)


async def test_old_attempts_of_maintenance_go_which_have_no_session_row(
    driver: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "a"))
    for _ in range(3):
        attempt = begin(NO_ONES_SESSION, NO_SESSION)
        assert await driver.begin_compaction(attempt) == "started"
        await driver.finish_compaction(FinishCompaction(attempt_id=attempt.attempt_id, decision="pruned 0"))
    await database.age_attempts(NO_ONES_SESSION, LONG_AGO)
    young = begin(NO_ONES_SESSION, NO_SESSION)
    await driver.begin_compaction(young)

    assert await prune(driver, batch=2) == 3

    assert [row.attempt_id for row in await driver.compactions(NO_ONES_SESSION, limit=10)] == [
        young.attempt_id
    ]
    await driver.finish_compaction(FinishCompaction(attempt_id=young.attempt_id, decision="pruned 3"))


@pytest.mark.parametrize(("age", "left"), [(timedelta(days=29), 2), (timedelta(days=31), 1)])
async def test_finished_attempts_live_as_long_as_op_rows_and_running_ones_longer(
    driver: Driver, database: Database, s: str, age: timedelta, left: int
) -> None:
    landed = await send(driver, append(s, "a"))
    finished, running = begin(s, landed.manifest), begin(s, landed.manifest, lease=YEAR)
    await driver.begin_compaction(finished)
    await driver.finish_compaction(FinishCompaction(attempt_id=finished.attempt_id, decision="applied"))
    await driver.begin_compaction(running)
    await database.age_attempts(s, age)

    await prune(driver, retain=MONTH, fence=WEEK)

    assert len(await driver.compactions(s, limit=10)) == left
    assert await driver.begin_compaction(begin(s, landed.manifest)) == "held"


async def test_each_batch_leaves_every_session_as_it_is_read(driver: Driver, s: str) -> None:
    for name in (s, "conversation-2"):
        await _with_a_past(driver, name)
    before = [await everything(driver, name) for name in (s, "conversation-2")]

    while await driver.prune(Prune(retain=NOTHING, fence=WEEK, batch=1)):
        assert [await everything(driver, name) for name in (s, "conversation-2")] == before


async def test_a_history_goes_on_after_prune(driver: Driver, s: str) -> None:
    await _with_a_past(driver, s)
    await prune(driver, retain=NOTHING)
    await send(driver, append(s, "f"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "z1", "z2", "z3"))
    await send(driver, pop(s))

    assert await texts(driver, s) == ["z1", "z2", "z3"]
    assert texts_of(await driver.load_as_of(s, 7)) == ["y", "e", "f"]


async def test_a_pop_whose_item_was_pruned_sent_again_is_still_known(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    sent = pop(s)
    await send(driver, sent)
    await prune(driver, retain=NOTHING)

    again = await send(driver, resent(sent))

    assert again.manifest.version == 2
    assert await texts(driver, s) == ["a"]
