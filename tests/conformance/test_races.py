"""Many writers at once, on two drivers over one database: what holds whatever the order."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from cas_session.driver import Driver, Kind, Landed, Prune, Write
from cas_session.errors import VersionConflictError
from tests.conformance.database import Database
from tests.conformance.writes import (
    KINDS,
    append,
    clear,
    compact,
    delete,
    load,
    operations,
    pop,
    prefix_of,
    replace,
    resent,
    send,
    texts,
    until_landed,
    write,
)


async def all_at_once(drivers: Sequence[Driver], writes: Sequence[Write]) -> list[Landed]:
    """Send all writes at once, in turn on each driver; each until it landed."""
    return await asyncio.gather(
        *(until_landed(drivers[at % len(drivers)], sent) for at, sent in enumerate(writes))
    )


async def outcomes(calls: Sequence[Awaitable[Landed]]) -> tuple[list[Landed], list[VersionConflictError]]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    landed = [result for result in results if isinstance(result, Landed)]
    conflicts = [result for result in results if isinstance(result, VersionConflictError)]
    assert len(landed) + len(conflicts) == len(results), results
    return landed, conflicts


async def versions_of_ops(driver: Driver, s: str) -> list[int]:
    return [int(row.manifest.version) for row in reversed(await operations(driver, s))]


@pytest.mark.parametrize("exists", [False, True])
async def test_concurrent_appends_all_land_with_versions_and_blocks_of_their_own(
    driver: Driver, other: Driver, s: str, exists: bool
) -> None:
    if exists:
        await send(driver, append(s, "before"))
    blocks = [[f"{writer}.{at}" for at in range(3)] for writer in range(40)]

    landed = await all_at_once((driver, other), [append(s, *block) for block in blocks])
    rows = dict((await load(driver, s)).rows)

    assert sorted(int(one.manifest.version) for one in landed) == list(range(1 + exists, 41 + exists))
    assert await versions_of_ops(driver, s) == list(range(1, 41 + exists))
    for one, block in zip(landed, blocks, strict=True):
        end = one.manifest.next_seq
        assert [rows[seq] for seq in range(end - 3, end)] == block
    assert len(rows) == 120 + exists


async def test_concurrent_groups_land_whole_and_in_order(driver: Driver, other: Driver, s: str) -> None:
    await send(driver, append(s, "before"))
    groups = [[append(s, f"{group}.{member}") for member in range(5)] for group in range(12)]

    answers = await asyncio.gather(
        *((driver, other)[at % 2].append(group) for at, group in enumerate(groups))
    )
    read = await texts(driver, s)

    for answer in answers:
        first = int(answer[0].manifest.version)
        assert [int(one.manifest.version) for one in answer] == list(range(first, first + 5))
    for group in range(12):
        start = read.index(f"{group}.0")
        assert read[start : start + 5] == [f"{group}.{member}" for member in range(5)]
    assert await versions_of_ops(driver, s) == list(range(1, 62))


@pytest.mark.parametrize("kind", KINDS)
async def test_of_concurrent_conditional_writes_exactly_one_lands(
    driver: Driver, other: Driver, database: Database, s: str, kind: Kind
) -> None:
    await send(driver, append(s, "a", "b"))
    read = await load(driver, s)
    async with database.held(s) as waiting:
        calls = [
            asyncio.create_task(
                send(
                    (driver, other)[at % 2], write(kind, read, expected=read.manifest.version, fenced=at > 3)
                )
            )
            for at in range(8)
        ]
        await waiting(8)
    landed, conflicts = await outcomes(calls)

    assert len(landed) == 1
    assert {(int(error.actual), error.expected) for error in conflicts} == {(2, 1)}
    assert await versions_of_ops(driver, s) == [1, 2]


@pytest.mark.parametrize("kind", ["append", "clear", "delete", "replace"])
async def test_of_concurrent_creations_exactly_one_lands(
    driver: Driver, other: Driver, s: str, kind: str
) -> None:
    makes: dict[str, Callable[[int], Write]] = {
        "append": lambda at: append(s, f"a{at}", expected=0),
        "clear": lambda _: clear(s, expected=0),
        "delete": lambda _: delete(s, expected=0),
        "replace": lambda at: replace(s, f"a{at}", expected=0),
    }
    make = makes[kind]

    landed, conflicts = await outcomes([send((driver, other)[at % 2], make(at)) for at in range(12)])

    assert (len(landed), len(conflicts)) == (1, 11)
    assert {int(error.actual) for error in conflicts} == {1}
    assert await versions_of_ops(driver, s) == [1]


async def test_one_op_id_sent_many_times_at_once_lands_once(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "before"))
    sent = append(s, "a", "b")
    async with database.held(s) as waiting:
        calls = [
            asyncio.create_task(until_landed((driver, other)[at % 2], resent(sent, fenced=at > 3)))
            for at in range(8)
        ]
        await waiting(8)
    landed = await asyncio.gather(*calls)

    assert {one.manifest for one in landed} == {landed[0].manifest}
    assert {one.manifest.version.nonce for one in landed} == {landed[0].manifest.version.nonce}
    assert await texts(driver, s) == ["before", "a", "b"]


async def test_one_op_id_that_creates_the_session_lands_once(driver: Driver, other: Driver, s: str) -> None:
    sent = append(s, "a", "b")

    landed = await all_at_once((driver, other), [resent(sent, fenced=at > 5) for at in range(12)])

    assert {int(one.manifest.version) for one in landed} == {1}
    assert await texts(driver, s) == ["a", "b"]


async def test_a_conditional_write_that_waits_behind_its_own_first_sending_has_landed(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "before"))
    sent = append(s, "a", expected=1)
    async with database.held(s) as waiting:
        first = asyncio.create_task(send(driver, sent))
        await waiting(1)
        again = asyncio.create_task(send(other, resent(sent)))
        await waiting(2)
    # Nobody hears the first sending: where it comes second it takes its own twin for a conflict.
    _, resent_one = await asyncio.gather(first, again, return_exceptions=True)

    assert isinstance(resent_one, Landed)
    assert resent_one.manifest.version == 2
    assert await texts(driver, s) == ["before", "a"]


@pytest.mark.parametrize("erase", [clear, delete])
async def test_what_is_visible_beside_clears_is_what_was_appended_after_the_last_one(
    driver: Driver, other: Driver, s: str, erase: type
) -> None:
    await send(driver, append(s, "before"))
    writes = [erase(s) if at % 7 == 3 else append(s, f"{at}.0", f"{at}.1") for at in range(42)]

    landed = await all_at_once((driver, other), writes)
    pairs = sorted((int(one.manifest.version), at) for at, one in enumerate(landed))
    last = max(version for version, at in pairs if at % 7 == 3)
    after = [text for version, at in pairs if version > last for text in (f"{at}.0", f"{at}.1")]

    assert [version for version, _ in pairs] == list(range(2, 44))
    assert await texts(driver, s) == after


@pytest.mark.parametrize("erase", [clear, delete])
async def test_an_append_that_landed_while_a_clear_waited_is_cleared(
    driver: Driver, other: Driver, database: Database, s: str, erase: type
) -> None:
    """A clear by DELETE in one statement leaves it: it scans with the snapshot from before the wait."""
    await send(driver, append(s, "before"))
    async with database.held(s) as waiting:
        appending = asyncio.create_task(send(driver, append(s, "meanwhile")))
        await waiting(1)
        clearing = asyncio.create_task(send(other, erase(s)))
        await waiting(2)
    appended, cleared = await asyncio.gather(appending, clearing)

    if appended.manifest.version < cleared.manifest.version:
        assert await texts(driver, s) == []
    else:
        assert await texts(driver, s) == ["meanwhile"]
    assert (await load(driver, s)).manifest.item_count == len(await texts(driver, s))


@pytest.mark.parametrize("locked", [False, True])
async def test_nothing_is_popped_twice_beside_appends(
    driver: Driver, other: Driver, s: str, locked: bool
) -> None:
    await send(driver, append(s, *(f"before.{at}" for at in range(5))))
    appends = [append(s, f"{at}.0", f"{at}.1") for at in range(12)]
    pops = [pop(s, locked=locked) for _ in range(12)]

    landed = await all_at_once((driver, other), [*appends, *pops])
    popped = [one.item for one in landed[len(appends) :]]
    left = await texts(driver, s)

    assert sorted([*map(str, popped), *left]) == sorted(
        [f"before.{at}" for at in range(5)] + [f"{at}.{n}" for at in range(12) for n in range(2)]
    )
    assert (await load(driver, s)).manifest.item_count == len(left)


async def test_a_pop_that_waited_behind_an_append_takes_the_newest_item_or_lost_the_race(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "a"))
    async with database.held(s) as waiting:
        appending = asyncio.create_task(send(driver, append(s, "b")))
        await waiting(1)
        popping = asyncio.create_task(until_landed(other, pop(s)))
        await waiting(2)
    appended, popped = await asyncio.gather(appending, popping)

    if appended.manifest.version < popped.manifest.version:
        assert popped.item == "b"
    else:
        assert popped.item == "a"


async def test_more_pops_than_items_leave_an_empty_session(driver: Driver, other: Driver, s: str) -> None:
    await send(driver, append(s, *"abcde"))

    landed = await all_at_once((driver, other), [pop(s) for _ in range(12)])
    popped = [one.item for one in landed if one.item is not None]

    assert sorted(popped) == list("abcde")
    assert await texts(driver, s) == []
    assert (await load(driver, s)).manifest.version == 6


async def test_everything_appended_beside_a_compaction_survives_behind_its_output(
    driver: Driver, other: Driver, s: str
) -> None:
    summary: list[str] = []
    for turn in range(6):
        appends = [append(s, f"{turn}.{at}") for at in range(8)]
        read = await load(driver, s)
        compaction: list[Write] = []
        if read.row is not None:
            summary = [f"summary {turn}"]
            compaction = [compact(s, prefix_of(read, len(read.rows)), *summary)]

        landed = await all_at_once((driver, other), [*appends[:4], *compaction, *appends[4:]])
        landed_appends = landed[:4] + landed[-4:]
        order = sorted(
            (int(one.manifest.version), sent.texts[0])
            for one, sent in zip(landed_appends, appends, strict=True)
        )

        assert await texts(driver, s) == [*summary, *(text for _, text in order)]


async def test_an_append_that_landed_while_a_compaction_waited_survives(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "a", "b"))
    planned = compact(s, prefix_of(await load(driver, s), 2), "x")
    async with database.held(s) as waiting:
        appending = asyncio.create_task(send(driver, append(s, "meanwhile")))
        await waiting(1)
        compacting = asyncio.create_task(send(other, planned))
        await waiting(2)
    appended, compacted = await asyncio.gather(appending, compacting)

    assert await texts(driver, s) == ["x", "meanwhile"]
    assert {int(appended.manifest.version), int(compacted.manifest.version)} == {2, 3}
    assert compacted.found_version == compacted.manifest.version - 1


async def test_a_compaction_that_waited_behind_a_clear_conflicts(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "a", "b"))
    planned = compact(s, prefix_of(await load(driver, s), 2), "made of a and b")
    async with database.held(s) as waiting:
        clearing = asyncio.create_task(send(driver, clear(s)))
        await waiting(1)
        compacting = asyncio.create_task(send(other, planned))
        await waiting(2)
    landed, _ = await outcomes([clearing, compacting])

    assert landed
    assert await texts(driver, s) == []


async def test_of_concurrent_compactions_of_one_plan_exactly_one_lands(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    await send(driver, append(s, "a", "b"))
    planned = prefix_of(await load(driver, s), 2)
    async with database.held(s) as waiting:
        calls = [
            asyncio.create_task(send((driver, other)[at % 2], compact(s, planned, f"summary {at}")))
            for at in range(6)
        ]
        await waiting(6)
    landed, conflicts = await outcomes(calls)

    assert (len(landed), len(conflicts)) == (1, 5)
    assert len(await texts(driver, s)) == 1


async def test_prune_beside_compactions_never_takes_what_is_visible(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    """Also not what a later compaction wrote below the base_seq that prune has read."""
    done = asyncio.Event()

    async def compact_on() -> list[str]:
        items = ["0"]
        await send(driver, append(s, *items))
        for turn in range(1, 26):
            read = await load(driver, s)
            new = [f"{turn}.{at}" for at in range(turn % 4)]
            await send(driver, compact(s, prefix_of(read, len(read.rows)), *new))
            await send(driver, append(s, f"{turn}"))
            items = [*new, f"{turn}"]
            assert await texts(driver, s) == items
        done.set()
        return items

    async def prune_on() -> None:
        while not done.is_set():
            await other.prune(Prune(retain=timedelta(0), fence=timedelta(days=1), batch=2))
            await asyncio.sleep(0)

    items, _ = await asyncio.gather(compact_on(), prune_on())
    while await other.prune(Prune(retain=timedelta(0), fence=timedelta(days=1))):
        pass

    assert await texts(driver, s) == items
    assert sorted(await database.item_rows(s)) == sorted(items)


async def test_a_removal_beside_appends_leaves_what_came_after_the_clear(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    kept: list[str] = []
    for turn in range(10):
        await send(driver, append(s, f"{turn}.before"))
        cleared = asyncio.create_task(until_landed(other, clear(s)))
        landed, _, one = await asyncio.gather(
            all_at_once((driver, other), [append(s, f"{turn}.{at}") for at in range(4)]),
            other.remove_erased(s),
            cleared,
        )
        after = sorted(
            (int(append.manifest.version), f"{turn}.{at}")
            for at, append in enumerate(landed)
            if append.manifest.version > one.manifest.version
        )
        kept = [text for _, text in after]
        assert await texts(driver, s) == kept
    await other.remove_erased(s)

    assert sorted(await database.item_rows(s)) == sorted(kept)


async def test_a_forget_beside_an_append_takes_all_or_nothing(
    driver: Driver, other: Driver, database: Database, s: str
) -> None:
    for turn in range(6):
        await until_landed(driver, append(s, "old"))
        await until_landed(driver, delete(s))
        tombstone = (await load(driver, s)).manifest.version
        async with database.held(s) as waiting:
            forgetting = asyncio.create_task(other.forget(s))
            if turn % 2:
                await waiting(1)
            appending = asyncio.create_task(until_landed(driver, append(s, "new")))
            await waiting(2)
        forgotten, landed = await asyncio.gather(forgetting, appending)

        assert landed.manifest.version == (1 if forgotten else tombstone + 1)
        assert await texts(driver, s) == ["new"]
        assert len(await operations(driver, s)) == landed.manifest.version


async def test_a_reader_beside_writers_sees_whole_versions_only(
    driver: Driver, other: Driver, s: str
) -> None:
    """Each write leaves all items with its own mark: a torn read would mix two."""
    await send(driver, append(s, "0", "0", "0"))
    done = asyncio.Event()

    async def read() -> int:
        reads = 0
        while not done.is_set() or not reads:
            loaded = await load(other, s)
            assert len({text for _, text in loaded.rows}) == 1
            assert len(loaded.rows) == loaded.manifest.item_count == 3
            assert loaded.rows[0][1] == str(loaded.manifest.version - 1)
            reads += 1
        return reads

    async def rewrite() -> None:
        for version in range(1, 41):
            await send(driver, replace(s, *[str(version)] * 3, expected=version))
        done.set()

    reads, _ = await asyncio.gather(read(), rewrite())

    assert reads > 0


async def test_writers_in_two_processes_share_one_gapless_history(
    driver: Driver, database: Database, s: str
) -> None:
    count = 40
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.conformance.worker", database.url, s, str(count)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"ready\n"
    answers = await asyncio.gather(*(worker.communicate(b"go\n") for worker in workers))
    written = sorted(json.loads(line) for out, _ in answers for line in out.splitlines())

    assert [version for version, _ in written] == list(range(1, 2 * count + 1))
    assert await versions_of_ops(driver, s) == list(range(1, 2 * count + 1))
    assert await texts(driver, s) == [text for _, block in written for text in block]
