"""What is appended while the model is asked is there afterwards, behind the compacted output, verbatim."""

from __future__ import annotations

import asyncio

import pytest

from tests.compaction.scene import PLACES, Place, Scene
from tests.session.items import said, turns

LATE = [
    {"role": "user", "content": "meanwhile 🧊 \x00 \ud800 \\u0041", "z": 1, "a": {"n": -0.0}},
    {"role": "assistant", "content": "so it was"},
]


@pytest.mark.parametrize("place", PLACES)
async def test_an_append_in_flight_stays_behind_the_output_verbatim(scene: Scene, place: Place) -> None:
    """One model call; the report and the row say that it was rebased."""
    session = scene.session()
    history = turns(12)
    before = await session.append(history)

    report = await scene.compact_while(session, lambda: scene.write(place, session, "append", LATE))
    snapshot = await scene.foreign.snapshot()
    (row,) = await session.compactions()

    assert (report.status, report.landed, report.model_calls) == ("rebased", True, 1)
    assert (report.version_before, report.version_after, report.appended_during) == (before, 3, 2)
    assert snapshot.version == report.version_after
    assert snapshot.items[-2:] == LATE
    assert [list(item) for item in snapshot.items[-2:]] == [list(item) for item in LATE]
    assert len(snapshot.items) == report.items_after < len(history)
    assert scene.stands_for(snapshot.items) == [*history, *LATE]
    assert scene.modes == ["input"]
    assert await scene.kinds() == ["append", "append", "compact"]
    assert (row.decision, row.found_version, row.target_version, row.appended_during) == ("rebased", 2, 3, 2)


async def test_appends_from_everywhere_at_once_stay_in_the_order_in_which_they_landed(scene: Scene) -> None:
    session = scene.session()
    await session.append(turns(12))
    writers = [session, scene.store.session("s"), scene.foreign]

    async def appends() -> None:
        await asyncio.gather(
            *(
                writer.append(said(f"{at}.{number}"))
                for number in range(5)
                for at, writer in enumerate(writers)
            )
        )

    async with scene.during(session.compact()) as compaction:
        await appends()
        landed = (await session.snapshot()).items[-15:]
    report = await compaction

    assert (report.status, report.appended_during, report.model_calls) == ("rebased", 15, 1)
    assert (await session.snapshot()).items[-15:] == landed


async def test_appends_return_while_the_model_is_asked(scene: Scene) -> None:
    """Nothing is held: writes and reads of everybody are over before the model answers."""
    session = scene.session()
    history = turns(12)
    await session.append(history)

    async with scene.during(session.compact()) as compaction:
        version = await session.append(said("late"))
        seen = await scene.foreign.snapshot()
        is_answered = compaction.done()
    report = await compaction

    assert not is_answered
    assert (version, seen.version) == (2, 2)
    assert seen.items == [*history, *said("late")]
    assert report.status == "rebased"


async def test_a_reader_sees_all_of_the_replace_or_none_of_it(scene: Scene) -> None:
    session = scene.session()
    history = turns(12)
    await session.append(history)
    seen = []

    async def read() -> None:
        while not compaction.done():
            seen.append(await scene.foreign.snapshot())

    async with scene.during(session.compact()) as compaction:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
    await reading

    after = (await session.snapshot()).items
    assert {snapshot.version: snapshot.items for snapshot in seen}.items() <= {1: history, 2: after}.items()
    assert all(snapshot.items in (history, after) for snapshot in seen)


async def test_an_append_in_flight_is_compacted_by_the_next_compaction(scene: Scene) -> None:
    session = scene.session()
    history = turns(12)
    await session.append(history)
    late = turns(1, start=12)
    await scene.compact_while(session, lambda: scene.foreign.append(late))

    report = await session.compact(force=True)
    items = (await session.snapshot()).items

    assert (report.status, report.model_calls) == ("applied", 1)
    assert [item.get("type") for item in items].count("compaction") == 1
    assert items[-1]["type"] == "compaction"
    assert scene.stands_for(items) == [*history, *late]


async def test_the_output_of_an_open_call_may_arrive_in_flight(scene: Scene) -> None:
    """The cut stopped before the call, so both are there."""
    session = scene.session()
    history = turns(12)
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "3"}
    await session.append([*history, *said("add"), call])

    report = await scene.compact_while(session, lambda: scene.foreign.append([output]))
    items = (await session.snapshot()).items

    assert (report.status, report.appended_during) == ("rebased", 1)
    assert items[-2:] == [call, output]
    assert scene.stands_for(items) == [*history, *said("add"), call, output]


async def test_twenty_busy_compactions_take_twenty_model_calls(scene: Scene) -> None:
    """Four appends during each call: the paid answer is never thrown away."""
    scene.endpoint.keep_user_messages = False
    session = scene.session()
    everything = turns(12)
    await session.append(everything)

    for number in range(20):
        late = [turns(3, start=100 * number + at) for at in range(4)]
        async with scene.during(session.compact()) as compaction:
            for items in late:
                await scene.foreign.append(items)
        report = await compaction
        everything += [item for items in late for item in items]
        assert (report.status, report.model_calls) == ("rebased", 1)

    assert len(scene.requests) == 20
    assert scene.stands_for((await session.snapshot()).items) == everything
