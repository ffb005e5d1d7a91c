"""Every short history, made by a real driver: the rules in its SQL are the rules of the design."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from cas_session.driver import Driver, Prune
from tests.conformance.database import Database
from tests.model.manifest import Rules
from tests.model.replay import FENCE, RETAIN, Replay
from tests.model.search import Node, Step, compaction, follow, histories, planned

RULES = Rules()
AT_ONCE = 16  # sessions


@pytest.fixture
def database(database_url: str) -> Database:
    return Database(database_url)


@pytest.fixture
async def driver(database: Database) -> AsyncIterator[Driver]:
    async with database.opened() as driver:
        yield driver


async def test_every_short_history_reads_as_its_list_model(driver: Driver, database: Database) -> None:
    await _replay_all(driver, database, _ends(3, Node()))


async def test_every_short_history_after_a_compaction_reads_as_its_list_model(
    driver: Driver, database: Database
) -> None:
    await _replay_all(driver, database, _ends(2, _compacted()))


def _ends(depth: int, start: Node) -> list[Node]:
    """The histories of exactly so many steps; each shorter one is the beginning of one of them."""
    steps = len(start.path) + depth
    return [node for node in histories(RULES, depth, start) if len(node.path) == steps]


def _compacted() -> Node:
    """Two items, compacted to one more than they were, one of them compacted again, and a tail."""
    node = Node()
    for step in (
        Step("append", ("0a", "0b")),
        partial(compaction, cut=2, new=("1a", "1b")),
        Step("append", ("2a",)),
        partial(compaction, cut=1, new=("3a", "3b")),
        Step("append", ("4a", "4b")),
        Step("pop"),
    ):
        node = planned(RULES, node)
        after = follow(RULES, node, step if isinstance(step, Step) else step(RULES, node))
        assert after is not None
        node = after
    return planned(RULES, node)


async def _replay_all(driver: Driver, database: Database, ends: Sequence[Node]) -> None:
    sessions = [(Replay(driver, database, f"session-{at}"), end, end.path) for at, end in enumerate(ends)]
    for turn in range(len(sessions[0][2])):
        await _few_at_once(replay.take(path[turn]) for replay, _, path in sessions)
        # One prune for all: only the writes of the sessions whose step it is were made to look old.
        while await driver.prune(Prune(retain=RETAIN, fence=FENCE)):
            pass
    await _few_at_once(replay.check(end) for replay, end, _ in sessions)


async def _few_at_once(steps: Iterable[Coroutine[Any, Any, None]]) -> None:
    few = asyncio.Semaphore(AT_ONCE)

    async def one(step: Coroutine[Any, Any, None]) -> None:
        async with few:
            await step

    await asyncio.gather(*(one(step) for step in steps))
