"""What stays as it is: open calls, dead calls, pins, the last turns; and what is in the way of any cut."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cas_session import CompactionPolicy, Item, SessionStore
from cas_session.events import CompactionFinished, Event
from tests.compaction.scene import SESSION, Scene
from tests.conformance.database import Database

POLICY = CompactionPolicy(failure_cooldown_s=0)
CALL: Item = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT: Item = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


def turns(count: int, start: int = 0) -> list[Item]:
    return [
        item
        for n in range(start, start + count)
        for item in (
            {"role": "user", "content": f"question {n}"},
            {"role": "assistant", "content": f"answer {n} " + "x" * 200},
        )
    ]


async def test_an_open_call_is_in_the_way_and_named(scene: Scene) -> None:
    session = scene.session(POLICY)
    await session.append([CALL])

    report = await session.compact(force=True)

    assert (report.status, report.blockers, report.model_calls) == ("open_call", (0,), 0)
    assert report.attempt_id is None
    assert (await session.snapshot()).items == [CALL]


async def test_what_lies_before_an_open_call_is_compacted_and_its_output_finds_it(scene: Scene) -> None:
    session = scene.session(POLICY)
    question: Item = {"role": "user", "content": "go on"}
    await session.append([*turns(12), question, CALL])

    report = await session.compact()
    await session.append([OUTPUT])
    items = (await session.snapshot()).items

    assert report.status == "applied"
    assert items[-3:] == [question, CALL, OUTPUT]
    assert scene.stands_for(items) == [*turns(12), question, CALL, OUTPUT]


async def test_an_output_without_its_call_allows_no_cut(scene: Scene) -> None:
    session = scene.session(POLICY)
    await session.append([OUTPUT, *turns(12)])

    report = await session.compact()

    assert (report.status, report.blockers, report.model_calls) == ("no_safe_cut", (0,), 0)
    assert (await session.snapshot()).items == [OUTPUT, *turns(12)]


async def test_a_dead_call_is_not_sent_and_stays_and_is_named(scene: Scene, database_url: str) -> None:
    database = Database(database_url)
    session = scene.session(POLICY)
    await session.append([*turns(1), CALL, *turns(12, start=1)])
    await database.age_items(SESSION, timedelta(days=2))

    report = await session.compact()
    items = (await session.snapshot()).items

    assert (report.status, report.dead) == ("applied", (2,))
    assert CALL not in scene.requests[0].body["input"]  # type: ignore[index]
    assert items[-1] == CALL
    assert scene.stands_for(items[:-1]) == turns(13)


async def test_a_dead_call_does_not_block_the_next_compaction(scene: Scene, database_url: str) -> None:
    """Kept behind the output it looks new again; what a compaction wrote counts by its own age no more."""
    database = Database(database_url)
    session = scene.session(POLICY)
    await session.append([*turns(1), CALL, *turns(12, start=1)])
    await database.age_items(SESSION, timedelta(days=2))
    await session.compact()
    await session.append(turns(12, start=13))

    report = await session.compact()

    assert report.status == "applied"
    assert [item for item in (await session.snapshot()).items if item == CALL] == [CALL]


async def test_pinned_items_stay_verbatim_behind_the_output(scene: Scene) -> None:
    rule: Item = {"role": "developer", "content": "never forget this"}
    session = scene.session(CompactionPolicy(pinned=lambda item: item.get("role") == "developer"))
    await session.append([rule, *turns(12)])

    report = await session.compact()
    items = (await session.snapshot()).items

    assert report.status == "applied"
    assert items[-1] == rule
    assert rule not in scene.requests[0].body["input"]  # type: ignore[index]


@pytest.mark.parametrize("kept", [1, 3])
async def test_the_last_turns_stay_as_they_are(scene: Scene, kept: int) -> None:
    session = scene.session(CompactionPolicy(keep_last_turns=kept))
    await session.append(turns(12))

    report = await session.compact()
    items = (await session.snapshot()).items

    assert report.status == "applied"
    assert items[-2 * kept :] == turns(kept, start=12 - kept)
    assert scene.stands_for(items) == turns(12)


async def test_a_type_that_nobody_knows_is_compacted_and_named(scene: Scene) -> None:
    session = scene.store.session(SESSION, compactor=_short, policy=POLICY)
    await session.append([{"type": "hologram", "id": "h_1"}, *turns(12)])

    report = await session.compact()

    assert (report.status, report.unknown) == ("applied", ("hologram",))


async def test_switched_off_is_a_status(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAS_SESSION_COMPACTION", "off")
    heard: list[Event] = []
    async with SessionStore(database_url, on_event=heard.append) as store:
        session = store.session(SESSION, compactor=_short)
        await session.append(turns(12))
        await session.run_compaction()
        by_hand = await session.compact()

    assert [event.report.status for event in heard if isinstance(event, CompactionFinished)] == [
        "disabled",
        "applied",
    ]
    assert by_hand.status == "applied"


async def _short(request: object) -> list[Item]:
    return [{"role": "user", "content": "summary"}]
