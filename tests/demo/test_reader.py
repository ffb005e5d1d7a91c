"""What a writer says about the histories that it reads."""

from __future__ import annotations

import pytest

from cas_session import Item
from cas_session.cli.demo.turns import turn
from cas_session.cli.demo.writer import Reader
from tests.demo.scene import Scene

FIRST = turn(7, "w1", 1)[0]


async def test_a_good_history_has_no_fault(scene: Scene) -> None:
    """Also after a compaction, when it begins with something else."""
    reader = Reader(scene.session, FIRST)
    await scene.append(1)
    before = await reader.read()
    await scene.fold()
    after = await reader.read()

    assert (before.version, before.fault) == (1, None)
    assert (after.version, after.fault) == (2, None)


@pytest.mark.parametrize("left", [0, 1])
async def test_a_history_without_its_beginning_is_torn(scene: Scene, left: int) -> None:
    """As between the clear and the write of a rewrite by hand, with or without what others appended there."""
    reader = Reader(scene.session, FIRST)
    await scene.append(1)
    await scene.clear()
    for number in range(2, 2 + left):
        await scene.append(number)

    assert (await reader.read()).fault == "torn"


@pytest.mark.parametrize("missing", ["function_call", "function_call_output"])
async def test_a_history_that_the_api_would_refuse_is_invalid(scene: Scene, missing: str) -> None:
    items: list[Item] = [item for item in turn(7, "w1", 1) if item["type"] != missing]
    await scene.session.append(items)

    read = await Reader(scene.session, items[0]).read()

    assert read.fault == "invalid"
    assert read.detail


async def test_a_version_below_one_that_was_seen_is_stale(scene: Scene) -> None:
    reader = Reader(scene.session, FIRST)
    await scene.append(1)
    reader.newest = 2

    assert (await reader.read()).fault == "stale"
