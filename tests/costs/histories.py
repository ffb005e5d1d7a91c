"""The items and sessions whose costs are counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from cas_session import CasSession, Item, SessionStore
from cas_session.compactors import CompactionRequest

Compact = Callable[[CompactionRequest], Awaitable[list[Item]]]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"


def message(length: int, *, seed: int = 0) -> Item:
    """A user message whose text no compression makes shorter."""
    text = "".join(random.Random(seed).choices(_LETTERS, k=length))
    return {"role": "user", "content": text}


def turn(length: int = 480) -> list[Item]:
    """A turn of four items."""
    return [message(length, seed=at) for at in range(4)]


SUMMARY: list[Item] = [message(480, seed=at) for at in range(10)]


async def fold(request: CompactionRequest) -> list[Item]:
    """A compactor that answers with the same ten items, whatever it gets."""
    return SUMMARY


def numbered(count: int) -> list[Item]:
    """Small user messages."""
    return [{"role": "user", "content": str(at)} for at in range(count)]


def answers(count: int) -> list[Item]:
    """Answers of a model, so many that a compaction is due."""
    return [{"role": "assistant", "content": message(480, seed=at)["content"]} for at in range(count)]


async def session_of(
    store: SessionStore, session_id: str, items: list[Item], compactor: Compact = fold
) -> CasSession:
    """A session with these items, at version 1."""
    session = store.session(session_id, compactor=compactor)
    await session.append(items)
    return session


async def settled(store: SessionStore) -> None:
    """Wait for what a call left to the background, such as the removal of what was cleared."""
    while tasks := store.backend._tasks:
        await asyncio.wait(tasks)
