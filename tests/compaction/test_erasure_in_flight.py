"""What is cleared while the model is asked stays cleared, whoever did it and however its answer got lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cas_session import CasSession, CompactionPolicy, WriteOutcomeUnknownError
from cas_session.driver import NO_CHAIN
from tests.compaction.scene import PLACES, Place, Scene
from tests.conformance.database import Database
from tests.session.items import said, turns
from tests.session.stores import Around, Patched, cancel_answer, lose_answer

SKIP = CompactionPolicy(on_rewrite="skip")
STRICT = CompactionPolicy.strict()


@pytest.mark.parametrize("policy", [None, SKIP, STRICT], ids=["default", "skip", "strict"])
@pytest.mark.parametrize("verb", ["clear", "delete"])
async def test_an_erasure_in_flight_stays(scene: Scene, verb: str, policy: CompactionPolicy | None) -> None:
    session = scene.session(policy)
    await session.append(turns(12))

    report = await scene.compact_while(session, lambda: scene.write("another store", session, verb))
    snapshot = await session.snapshot()

    assert report.status == ("conflict" if policy is SKIP else "no_longer_needed")
    assert (report.landed, report.model_calls, len(scene.requests)) == (False, 1, 1)
    assert (snapshot.items, snapshot.version) == ([], 2)
    assert await scene.kinds() == ["append", verb]


@pytest.mark.parametrize("place", PLACES)
async def test_a_clear_in_flight_stays_wherever_it_came_from(scene: Scene, place: Place) -> None:
    session = scene.session()
    await session.append(turns(12))

    report = await scene.compact_while(session, lambda: scene.write(place, session, "clear"))
    snapshot = await scene.foreign.snapshot()
    (row,) = await session.compactions()

    assert (report.status, report.model_calls) == ("no_longer_needed", 1)
    assert (snapshot.items, snapshot.version) == ([], 2)
    assert (row.status, row.decision, row.target_version) == ("done", "no_longer_needed", None)


@pytest.mark.parametrize("place", PLACES)
async def test_a_clear_of_an_empty_session_in_flight_keeps_it_empty(scene: Scene, place: Place) -> None:
    """The history is with the provider only: nothing but the version tells the two empties apart."""
    session = scene.session()
    response = await scene.client.responses.create(model="gpt-5.1", input="secret")

    report = await scene.compact_while(
        session,
        lambda: scene.write(place, session, "clear"),
        response_id=response.id,
        mode="previous_response_id",
        force=True,
    )

    assert not report.landed
    assert scene.modes == ["previous_response_id"]
    assert (await scene.foreign.snapshot()).items == []
    assert await scene.chain() == NO_CHAIN


async def test_without_a_clear_a_chain_over_an_empty_session_is_compacted(scene: Scene) -> None:
    """So that the test above says something."""
    session = scene.session()
    response = await scene.client.responses.create(model="gpt-5.1", input="hello")

    report = await session.compact(response_id=response.id, mode="previous_response_id", force=True)
    items = (await session.snapshot()).items

    assert (report.status, scene.modes) == ("applied", ["previous_response_id"])
    assert items[-1]["type"] == "compaction"


@pytest.mark.parametrize("place", PLACES)
async def test_what_is_appended_behind_a_clear_in_flight_is_all_there_is(scene: Scene, place: Place) -> None:
    session = scene.session()
    await session.append(turns(12))

    async def clear_and_begin_again() -> None:
        await scene.write(place, session, "clear")
        await scene.write(place, session, "append", said("a new beginning"))

    report = await scene.compact_while(session, clear_and_begin_again)

    assert (report.status, len(scene.requests)) == ("no_longer_needed", 1)
    assert (await scene.foreign.snapshot()).items == said("a new beginning")


async def test_a_new_history_behind_a_clear_in_flight_is_compacted_by_itself(scene: Scene) -> None:
    """The second call is paid for what is there now; nothing of the old history is in it."""
    session = scene.session()
    await session.append(turns(12))
    new = turns(12, start=100)

    async def clear_and_begin_again() -> None:
        await scene.foreign.clear()
        await scene.foreign.append(new)

    report = await scene.compact_while(session, clear_and_begin_again)

    assert (report.status, report.model_calls, len(scene.requests)) == ("applied", 2, 2)
    assert scene.stands_for((await session.snapshot()).items) == new
    assert "question 0" not in str(scene.requests[1].body)


@pytest.mark.parametrize("around", [[lose_answer] * 5, [cancel_answer]], ids=["fails", "is cancelled"])
async def test_a_clear_whose_acknowledgement_gets_lost_in_flight_stays(
    scene: Scene, patched: Patched, around: list[Around]
) -> None:
    """The next append survives, and nothing stays locked."""
    session = scene.session(store=patched.store)
    await session.append(turns(12))
    patched.driver.around("clear", *around)

    async with scene.during(session.compact()) as compaction:
        await unacknowledged(session.clear)
        version = await session.append(said("next"))
    report = await compaction
    later = await session.append(turns(12))
    again = await session.compact()

    assert report.status == "no_longer_needed"
    assert (version, later) == (3, 4)
    assert again.status == "applied"
    assert scene.stands_for((await scene.foreign.snapshot()).items) == [*said("next"), *turns(12)]


@pytest.mark.parametrize("around", [[lose_answer] * 5, [cancel_answer]], ids=["fails", "is cancelled"])
async def test_a_clear_whose_acknowledgement_gets_lost_ends_the_chain(
    scene: Scene, patched: Patched, around: list[Around]
) -> None:
    session = scene.session(store=patched.store, mode="previous_response_id")
    await session.run_compaction({"response_id": "resp-old", "store": False})
    patched.driver.around("clear", *around)

    await unacknowledged(session.clear)
    with pytest.raises(ValueError, match="requires a response_id"):
        await session.run_compaction({"force": True})
    version = await session.append(said("next"))

    assert scene.requests == []
    assert await scene.chain() == NO_CHAIN
    assert version == 2
    assert (await scene.foreign.snapshot()).items == said("next")


async def unacknowledged(clear: Callable[[], Awaitable[Any]]) -> None:
    """Make the call, which lands, and get no answer."""
    task = asyncio.ensure_future(clear())
    await asyncio.wait([task])
    assert task.cancelled() or isinstance(task.exception(), WriteOutcomeUnknownError)


async def test_an_erasure_in_flight_leaves_no_trace_in_any_table(scene: Scene) -> None:
    """No row of an item, no digest and no text of the attempt."""
    session = scene.session()
    await session.append(turns(12))

    await scene.compact_while(session, scene.foreign.clear)
    await scene.other.aclose()
    (row,) = await session.compactions()

    assert (row.source_digest, row.output_digest, row.error) == (None, None, None)
    assert await Database(scene.url).item_rows("s") == []


async def test_a_compaction_that_was_planned_before_a_clear_is_not_paid(
    scene: Scene, patched: Patched
) -> None:
    """Whoever clears between plan and lease spares the call."""
    session = scene.session(store=patched.store)
    await session.append(turns(12))

    async def clear_first(verb: Around, *args: Any) -> Any:
        await scene.foreign.clear()
        return await verb(*args)

    patched.driver.around("begin_compaction", clear_first)
    report = await session.compact(force=True)

    assert report.status in ("nothing_to_compact", "no_longer_needed")
    assert (report.model_calls, scene.requests) == (0, [])
    assert (await session.snapshot()).items == []


@pytest.mark.parametrize("call", [lambda s: s.append(said("next")), lambda s: s.pop(), lambda s: s.clear()])
async def test_an_erased_session_goes_on(scene: Scene, call: Callable[[CasSession], Awaitable[Any]]) -> None:
    session = scene.session()
    await session.append(turns(12))
    await scene.compact_while(session, scene.foreign.clear)

    await call(session)
    await scene.foreign.append(turns(12))
    report = await session.compact()

    assert report.status == "applied"
