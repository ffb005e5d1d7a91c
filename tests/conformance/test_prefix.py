"""Prefix replace, the write of a compaction: only appends may have come between, and the tail stays."""

from __future__ import annotations

import dataclasses

import pytest

from cas_session.driver import NO_SESSION, Chain, Driver, Kind, Prefix
from cas_session.errors import VersionConflictError
from cas_session.snapshot import Version
from tests.conformance.writes import (
    REWRITES,
    append,
    clear,
    compact,
    everything,
    load,
    pop,
    prefix_of,
    replace,
    send,
    texts,
    write,
)


async def test_a_prefix_replace_leaves_the_tail_untouched(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "bb", "ccc"))

    landed = await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x"))

    assert (await load(driver, s)).rows == [(2, "x"), (3, "ccc")]
    assert (landed.manifest.base_seq, landed.manifest.low_seq, landed.manifest.next_seq) == (2, 2, 4)
    assert (landed.manifest.base_gen, landed.manifest.erased_epoch) == (1, 0)
    assert (landed.manifest.item_count, landed.manifest.byte_count) == (2, 4)


async def test_items_appended_since_the_plan_stay_behind_the_output(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    planned = prefix_of(await load(driver, s), 2)
    await send(driver, append(s, "c"))
    await send(driver, append(s, "d"))

    landed = await send(driver, compact(s, planned, "x"))

    assert await texts(driver, s) == ["x", "c", "d"]
    assert landed.found_version == 3
    assert landed.manifest.version == 4
    assert (landed.manifest.item_count, landed.manifest.byte_count) == (3, 3)


async def test_a_prefix_replace_says_which_version_it_found(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))

    landed = await send(driver, compact(s, prefix_of(await load(driver, s), 1), "x"))

    assert landed.found_version == 1


@pytest.mark.parametrize("count", [0, 1, 2, 5])
async def test_an_output_of_any_length_replaces_the_prefix(driver: Driver, s: str, count: int) -> None:
    """More items than the prefix had go to seqs below 1."""
    await send(driver, append(s, "a", "b", "c"))
    new = [f"x{at}" for at in range(count)]

    landed = await send(driver, compact(s, prefix_of(await load(driver, s), 2), *new))

    assert await texts(driver, s) == [*new, "c"]
    assert landed.manifest.low_seq == 3 - count
    assert landed.manifest.item_count == count + 1
    assert [seq for seq, _ in (await load(driver, s)).rows] == [*range(3 - count, 3), 3]


async def test_a_compacted_history_is_compacted_again(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x1", "x2", "x3"))
    await send(driver, append(s, "c", "d"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 4), "y"))

    assert await texts(driver, s) == ["y", "d"]


async def test_a_cut_inside_what_a_compaction_wrote_sends_the_kept_items_again(
    driver: Driver, s: str
) -> None:
    await send(driver, append(s, "a", "b"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x1", "x2"))
    await send(driver, append(s, "c"))
    loaded = await load(driver, s)
    through_base = Prefix(
        through=loaded.manifest.base_seq,
        planned=loaded.manifest.version,
        epoch=loaded.manifest.epoch,
        item_count=2,
        byte_count=4,
    )

    landed = await send(driver, compact(s, through_base, "y", "x2"))

    assert await texts(driver, s) == ["y", "x2", "c"]
    assert landed.manifest.base_seq == loaded.manifest.base_seq


async def test_a_prefix_of_no_items_puts_the_output_in_front(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))

    landed = await send(driver, compact(s, prefix_of(await load(driver, s), 0), "x", "y"))

    assert await texts(driver, s) == ["x", "y", "a"]
    assert landed.manifest.item_count == 3


async def test_an_empty_history_is_compacted_to_the_output(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    await send(driver, clear(s))

    landed = await send(driver, compact(s, prefix_of(await load(driver, s), 0), "x", "y"))
    await send(driver, append(s, "c"))

    assert (await load(driver, s)).rows == [(1, "x"), (2, "y"), (3, "c")]
    assert (landed.manifest.item_count, landed.manifest.base_seq) == (2, 2)


async def test_popped_items_stay_hidden_when_the_prefix_in_front_of_them_is_replaced(
    driver: Driver, s: str
) -> None:
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, pop(s))

    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x"))
    await send(driver, append(s, "d"))

    assert await texts(driver, s) == ["x", "d"]


@pytest.mark.parametrize("kind", REWRITES)
async def test_a_prefix_planned_before_a_rewrite_conflicts_and_changes_nothing(
    driver: Driver, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    await send(driver, write(kind, read))
    await send(driver, append(s, "c"))
    before = await everything(driver, s)

    for _ in range(2):
        with pytest.raises(VersionConflictError) as caught:
            await send(driver, compact(s, prefix_of(read, 2), "x"))

        assert (caught.value.expected, caught.value.actual, caught.value.change) == (1, 3, "rewritten")
    assert await everything(driver, s) == before


async def test_a_clear_of_an_empty_session_voids_a_plan(driver: Driver, s: str) -> None:
    """A compaction of a response chain over empty storage must not bring back what the clear erased."""
    await send(driver, clear(s))
    planned = prefix_of(await load(driver, s), 0)
    await send(driver, clear(s))

    with pytest.raises(VersionConflictError):
        await send(driver, compact(s, planned, "from the chain"))

    assert await texts(driver, s) == []


async def test_a_plan_whose_version_has_another_nonce_conflicts(driver: Driver, s: str) -> None:
    """After a failover the number and the epoch may match a history that is another one."""
    await send(driver, append(s, "a", "b"))
    planned = dataclasses.replace(prefix_of(await load(driver, s), 2), planned=Version(1, "0123456789abcdef"))
    await send(driver, append(s, "c"))
    before = await everything(driver, s)

    with pytest.raises(VersionConflictError) as caught:
        await send(driver, compact(s, planned, "x"))

    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert await everything(driver, s) == before


async def test_a_plan_of_a_version_that_was_never_written_conflicts(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    before = await everything(driver, s)
    planned = dataclasses.replace(prefix_of(await load(driver, s), 1), planned=Version(7, "0123456789abcdef"))

    with pytest.raises(VersionConflictError):
        await send(driver, compact(s, planned, "x"))

    assert await everything(driver, s) == before


async def test_an_expected_version_makes_a_prefix_replace_strict(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    read = await load(driver, s)
    await send(driver, append(s, "b"))
    before = await everything(driver, s)

    with pytest.raises(VersionConflictError) as caught:
        await send(driver, compact(s, prefix_of(read, 1), "x", expected=read.manifest.version))

    assert caught.value.change == "appended"
    assert await everything(driver, s) == before


async def test_a_plan_from_before_a_rewrite_conflicts_though_the_expected_version_is_there(
    driver: Driver, s: str
) -> None:
    await send(driver, append(s, "a"))
    read = await load(driver, s)
    now = await send(driver, clear(s))

    with pytest.raises(VersionConflictError) as caught:
        await send(driver, compact(s, prefix_of(read, 1), "x", expected=now.manifest.version))

    assert (caught.value.expected, caught.value.actual, caught.value.change) == (1, 2, "rewritten")


@pytest.mark.parametrize("through", [1, 0, -1, 4, 9])
async def test_a_prefix_that_ends_below_base_seq_or_behind_the_history_is_refused(
    driver: Driver, s: str, through: int
) -> None:
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x"))
    before = await everything(driver, s)
    planned = dataclasses.replace(prefix_of(await load(driver, s), 1), through=through)

    with pytest.raises(ValueError, match=r"."):
        await send(driver, compact(s, planned, "y"))

    assert await everything(driver, s) == before


async def test_a_prefix_may_end_at_base_seq_and_at_the_end_of_the_history(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x"))
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), "y"))
    at_base = await texts(driver, s)
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "z"))

    assert at_base == ["y", "c"]
    assert await texts(driver, s) == ["z"]


async def test_the_same_plan_lands_once(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    planned = prefix_of(await load(driver, s), 2)
    await send(driver, compact(s, planned, "x"))

    with pytest.raises(VersionConflictError):
        await send(driver, compact(s, planned, "y"))

    assert await texts(driver, s) == ["x"]


async def test_a_history_of_replaces_and_compactions_reads_as_written(driver: Driver, s: str) -> None:
    written = await send(driver, append(s, "a"))
    await send(driver, replace(s, "b", "c", expected=written.manifest.version))
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), "x1", "x2", "x3", "x4"))
    await send(driver, append(s, "d"))
    await send(driver, pop(s))
    await send(driver, append(s, "e"))

    assert await texts(driver, s) == ["x1", "x2", "x3", "x4", "c", "e"]


async def test_a_session_that_holds_only_a_chain_is_compacted_to_its_output(driver: Driver, s: str) -> None:
    """Over empty storage the chain is all there is; its row has version 0 and no op row."""
    await driver.record_chain(s, Chain(response_id="resp_1", stored=True, epoch=0, seq=0))

    landed = await send(driver, compact(s, prefix_of(await load(driver, s), 0), "x"))

    assert await texts(driver, s) == ["x"]
    assert (landed.manifest.version, landed.manifest.epoch, landed.found_version) == (1, 1, 0)


async def test_a_session_that_does_not_exist_is_compacted_by_who_expects_0(driver: Driver, s: str) -> None:
    prefix = Prefix(through=0, planned=NO_SESSION.version, epoch=0, item_count=0, byte_count=0)

    landed = await send(driver, compact(s, prefix, "x", expected=0))

    assert await texts(driver, s) == ["x"]
    assert (landed.manifest.version, landed.manifest.epoch, landed.found_version) == (1, 1, 0)
