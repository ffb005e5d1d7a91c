"""Two stores append and pop at once: replayed in the order of their versions, everything adds up."""

from __future__ import annotations

import asyncio
import random

from cas_session import CasSession, Item, SessionStore, Version
from tests.session.items import said, texts_of

WRITES = 50  # of each store
MOST = 4  # items in a batch


async def write(
    session: CasSession, name: str, is_pop: bool, size: int
) -> tuple[Version, list[Item] | Item | None]:
    """One write; what it appended or popped. A pop of nothing is no write."""
    if is_pop:
        item, version = await session.pop()
        return version, item
    batch = said(*(f"{name}.{at}" for at in range(size)))
    return await session.append(batch), batch


async def test_two_stores_of_fifty_mixed_appends_and_pops_lose_and_double_nothing(
    store: SessionStore, other: SessionStore
) -> None:
    chance = random.Random(2)
    sessions = [store.session("s"), other.session("s")]
    calls = [
        write(session, f"{worker}/{number}", chance.random() < 0.4, chance.randint(1, MOST))
        for worker, session in enumerate(sessions)
        for number in range(WRITES)
    ]

    done = await asyncio.gather(*calls)
    snapshot = await store.session("s").snapshot()
    kinds = [row.kind for row in reversed(await store.session("s").operations(limit=1000))]

    effective = {int(version): what for version, what in done if what is not None}
    assert sorted(effective) == list(range(1, len(effective) + 1))
    assert len(effective) == sum(what is not None for _, what in done)
    assert snapshot.version == len(effective)
    model: list[Item] = []
    for version, kind in enumerate(kinds, start=1):
        what = effective[version]
        if isinstance(what, list):
            assert kind == "append"
            model += what  # contiguous, and in the order of the versions
        else:
            assert kind == "pop"
            assert model.pop() == what
    assert texts_of(snapshot.items) == texts_of(model)


async def test_pops_at_once_hand_out_each_item_once(store: SessionStore, other: SessionStore) -> None:
    sessions = [store.session("s"), other.session("s")]
    names = [f"item {number}" for number in range(20)]
    await sessions[0].append(said(*names))

    popped = await asyncio.gather(*(sessions[at % 2].pop() for at in range(25)))

    items = [item["content"] for item, _ in popped if item is not None]
    assert sorted(items) == sorted(names)
    versions = {item["content"]: int(version) for item, version in popped if item is not None}
    assert [versions[name] for name in reversed(names)] == list(range(2, 22))
    assert (await sessions[0].snapshot()).items == []
