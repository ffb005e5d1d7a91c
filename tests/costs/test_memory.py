"""What a store keeps in memory: what it has read, within cache_bytes, and nothing of sessions."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import Literal

import pytest

from cas_session import CasSession, Item, SessionStore
from tests.costs.histories import message, numbered

LIMIT = 1_000_000  # bytes
SESSIONS = 15
PARTS = 15  # in which a session is read when it grows turn by turn

CONVERSATIONS: dict[str, list[Item]] = {
    "messages": [message(500, seed=at) for at in range(200)],
    "long messages": [message(20_000, seed=at) for at in range(5)],
    "messages in another script": [{"role": "user", "content": "漢字かな" * 75} for _ in range(200)],
}
UNUSUAL: dict[str, list[Item]] = {
    "small items": numbered(2_000),
    "empty items": [{} for _ in range(2_000)],
    "nested arrays": [{"a": [[[]] * 10] * 10} for _ in range(200)],
    "numbers": [{"a": [at * 1000.5 + each for each in range(50)]} for at in range(200)],
    "messages with an emoji": [{"role": "user", "content": "🧊" + "x" * 500} for _ in range(200)],
}
MANNERS: tuple[Literal["once", "again", "turn by turn"], ...] = ("once", "again", "turn by turn")


@pytest.mark.parametrize("items", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("manner", MANNERS)
async def test_a_store_keeps_no_more_than_cache_bytes(
    database_url: str, items: list[Item], shared: bool, manner: str
) -> None:
    """However many sessions are read; beside the texts there is a little for each item."""
    async with SessionStore(database_url, cache_bytes=LIMIT) as store:
        for at in range(SESSIONS):
            await _read(store.session(f"s{at}"), items, shared, manner)
        kept = size_of(store.backend.cache)

    assert 0.2 * LIMIT < kept < 1.3 * LIMIT


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("items", UNUSUAL.values(), ids=UNUSUAL)
async def test_a_store_keeps_no_more_than_cache_bytes_of_items_with_little_text(
    fresh_sqlite: str, items: list[Item], shared: bool, manner: str
) -> None:
    async with SessionStore(fresh_sqlite, cache_bytes=LIMIT) as store:
        for at in range(SESSIONS):
            await _read(store.session(f"s{at}"), items, shared, manner)

        assert size_of(store.backend.cache) < 1.3 * LIMIT


async def _read(session: CasSession, items: list[Item], shared: bool, manner: str) -> None:
    step = -(-len(items) // PARTS) if manner == "turn by turn" else len(items)
    for at in range(0, len(items), step):
        await session.append(items[at : at + step])
        for _ in range(2 if manner == "again" else 1):
            await session.snapshot(shared=shared)


async def test_a_store_keeps_no_session_object(fresh_sqlite: str) -> None:
    async with SessionStore(fresh_sqlite) as store:
        sessions = [store.session(f"s{at}") for at in range(100)]
        for session in sessions:
            await session.append(numbered(1))
            await session.snapshot()
        kept = weakref.WeakSet(sessions)
        del session, sessions
        gc.collect()

        assert len(kept) == 0


def size_of(root: object) -> int:
    """Bytes of everything that is reachable from an object, code aside."""
    seen = {id(root)}
    todo, size = [root], 0
    while todo:
        here = todo.pop()
        size += sys.getsizeof(here)
        for there in gc.get_referents(here):
            if id(there) not in seen and not isinstance(there, type | types.ModuleType | types.FunctionType):
                seen.add(id(there))
                todo.append(there)
    return size
