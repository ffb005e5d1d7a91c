"""A pop ends, however many writers there are beside it."""

from __future__ import annotations

import asyncio

from cas_session import SessionStore

POPS = 30


async def test_pops_beside_eight_appenders_end_and_take_each_item_once(
    store: SessionStore, other: SessionStore
) -> None:
    stop = asyncio.Event()
    appended: set[str] = set()
    # As many as are popped: an upsert loses its place behind a row lock, so the appends may come last.
    await store.session("s").append([{"n": f"first-{n}"} for n in range(POPS)])
    appended |= {f"first-{n}" for n in range(POPS)}

    async def keep_appending(name: int) -> None:
        session = (store if name % 2 else other).session("s")
        number = 0
        while not stop.is_set():
            text = f"{name}-{number}"
            await session.append([{"n": text}])
            appended.add(text)
            number += 1

    async def pop_all(times: int) -> list[str]:
        session = other.session("s")
        taken = []
        for _ in range(times):
            item, _ = await session.pop()
            assert item is not None
            taken.append(item["n"])
        return taken

    async with asyncio.TaskGroup() as group:
        for name in range(8):
            group.create_task(keep_appending(name))
        popped = await pop_all(POPS)
        stop.set()

    left = [item["n"] for item in (await store.session("s").snapshot()).items]
    assert len(set(popped)) == len(popped) == POPS
    assert sorted([*popped, *left]) == sorted(appended)
