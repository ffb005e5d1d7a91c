"""Reading again through one store: always what a fresh store reads, whatever callers do to what they got."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from cas_session import CasSession, ItemDecodingError, SessionStore
from cas_session.cache import MANY_PARTS
from tests.session.items import said
from tests.session.stores import Around, Patched


async def test_what_callers_do_to_items_is_not_read_by_others(store: SessionStore) -> None:
    session = store.session("s")
    await session.append([{"content": [{"text": "a"}]}])
    for _ in range(4):
        snapshot = await session.snapshot()
        assert snapshot.items == [{"content": [{"text": "a"}]}]
        snapshot.items[0]["content"][0]["text"] = "changed"
        snapshot.items.append({"more": 1})


async def test_shared_items_are_the_same_objects_in_lists_of_their_own(store: SessionStore) -> None:
    session = store.session("s")
    await session.append([{"n": 1}])
    first = await session.snapshot(shared=True)
    await session.append([{"n": 2}])
    second = await session.snapshot(shared=True)

    assert second.items == [{"n": 1}, {"n": 2}]
    assert first.items[0] is second.items[0]
    assert first.items == [{"n": 1}]


async def test_a_reader_that_changes_items_does_not_reach_the_shared_ones(store: SessionStore) -> None:
    session = store.session("s")
    await session.append([{"n": 1}])
    shared = await session.snapshot(shared=True)
    for _ in range(3):
        (await session.snapshot()).items[0]["n"] = "changed"

    assert shared.items == [{"n": 1}]
    assert (await session.snapshot(shared=True)).items == [{"n": 1}]


async def test_a_long_conversation_is_read_turn_by_turn(store: SessionStore, other: SessionStore) -> None:
    session, fresh = store.session("s"), other.session("s")
    for turn in range(3 * MANY_PARTS):
        await session.append([{"turn": turn}])
        assert (await session.snapshot()).items == [{"turn": n} for n in range(turn + 1)]
    assert (await session.snapshot()).items == (await fresh.snapshot()).items


async def test_overlapping_reads_never_mix(store: SessionStore, other: SessionStore) -> None:
    session, writer = store.session("s"), other.session("s")
    await writer.append([{"n": 0}])

    async def read(times: int) -> None:
        for _ in range(times):
            snapshot = await session.snapshot(shared=random.random() < 0.3)
            assert snapshot.items == [{"n": n} for n in range(len(snapshot.items))]
            assert len(snapshot.items) == int(snapshot.version)

    async def write() -> None:
        for n in range(1, 40):
            await writer.append([{"n": n}])

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        for _ in range(4):
            group.create_task(read(20))


@pytest.mark.parametrize("seed", range(5))
async def test_any_writes_read_as_by_a_store_without_memory(
    store: SessionStore, other: SessionStore, seed: int
) -> None:
    chance = random.Random(seed)
    session, fresh = store.session("s"), other.session("s")
    for step in range(40):
        await one_write(chance, chance.choice([session, fresh]), step)
        read = await session.snapshot(shared=chance.random() < 0.5)
        other.backend.cache.drop("s")
        expected = await fresh.snapshot()

        assert expected.items == read.items
        assert expected.version == read.version


async def one_write(chance: random.Random, session: CasSession, step: int) -> None:
    kind = chance.choice(["append"] * 6 + ["pop", "clear", "replace", "restore"])
    version = await session.version()
    if kind == "append":
        await session.append([{"step": step, "n": n} for n in range(chance.randint(1, 3))])
    elif kind == "pop":
        await session.pop()
    elif kind == "clear":
        await session.clear()
    elif kind == "replace":
        await session.replace([{"replaced": step}], expected_version=version)
    elif version:
        await session.restore(int(version), expected_version=version)


@pytest.mark.parametrize("shared", [False, True])
async def test_a_row_that_was_repaired_is_read_again(patched: Patched, shared: bool) -> None:
    session = patched.store.session("s")
    await session.append(said("one"))
    await session.snapshot(shared=shared)
    await session.append(said("two"))

    async def damaged(verb: Around, load: Any) -> Any:
        loaded = await verb(load)
        return replace(loaded, rows=[*loaded.rows[:-1], (loaded.rows[-1][0], "{")])

    patched.driver.around("load", damaged)
    with pytest.raises(ItemDecodingError):
        await session.snapshot(shared=shared)

    assert (await session.snapshot(shared=shared)).items == said("one", "two")


async def test_memory_is_bounded(database_url: str) -> None:
    async with SessionStore(database_url, cache_bytes=50_000) as store:
        for n in range(20):
            session = store.session(f"s{n}")
            await session.append([{"text": "x" * 10_000}])
            await session.snapshot()
            await session.snapshot()
        held = [n for n in range(20) if store.backend.cache.get(f"s{n}") is not None]

        assert held == [16, 17, 18, 19]


async def test_without_memory_nothing_is_held(database_url: str) -> None:
    async with SessionStore(database_url, cache_bytes=0) as store:
        session = store.session("s")
        await session.append([{"n": 1}])

        assert (await session.snapshot(shared=True)).items == [{"n": 1}]
        assert store.backend.cache.get("s") is None
