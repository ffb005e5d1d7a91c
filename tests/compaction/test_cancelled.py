"""A compaction that is cancelled or cut off: the history is old or new, and the next may begin at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cas_session import CompactionPolicy, Item, SessionStore, WriteOutcomeUnknownError
from cas_session.compactors import CompactionRequest
from cas_session.events import CompactionFinished, Event
from tests.compaction.scene import Scene
from tests.session.items import said, turns
from tests.session.stores import (
    Around,
    Gate,
    Patched,
    cancel_answer,
    lose_answer,
    lose_request,
    patched_store,
    refuse,
)

TURNS = (*range(0, 40, 2), 60, 100, 200)
FOLDED = said("folded")


async def fold(request: CompactionRequest) -> list[Item]:
    await asyncio.sleep(0)
    return list(FOLDED)


class Context:
    """A run's context, of which only the mark is looked at."""

    _session_compaction_completed = False


async def test_a_compaction_cancelled_at_any_turn_is_whole_or_not_there(
    store: SessionStore, other: SessionStore
) -> None:
    """And no lease is left behind: another worker compacts right away."""
    history = turns(12)
    for count in TURNS:
        session = store.session(f"after {count} turns", compactor=fold)
        await session.append(history)
        task = asyncio.create_task(session.compact(force=True))
        for _ in range(count):
            await asyncio.sleep(0)
        for _ in range(1 + count % 4 // 2):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])

        left = await session.snapshot()
        assert (left.items, left.version) in [(history, 1), (FOLDED, 2)]
        await session.append(history)
        report = await other.session(session.session_id, compactor=fold).compact(force=True)
        assert report.status == "applied", (count, await session.compactions())
        assert all(row.status != "running" for row in await session.compactions())


@pytest.mark.parametrize("verb", ["begin_compaction", "replace", "finish_compaction"])
async def test_a_cancellation_after_a_step_landed_leaves_no_lease(patched: Patched, verb: str) -> None:
    """The step is done, and its caller is cancelled before it hears of it."""
    session = patched.store.session("s", compactor=fold)
    await session.append(turns(12))
    patched.driver.around(verb, cancel_answer)

    task = asyncio.create_task(session.compact(force=True))
    await asyncio.wait([task])
    await session.append(turns(12))
    report = await session.compact(force=True)

    assert report.status == "applied"
    assert all(row.status != "running" for row in await session.compactions())


async def test_a_cancellation_while_the_model_is_asked_ends_the_request(
    database_url: str, scene: Scene
) -> None:
    heard: list[Event] = []
    async with patched_store(database_url, on_event=heard.append) as patched:
        session = scene.session(store=patched.store)
        await session.append(turns(12))
        async with scene.during(session.compact()) as compaction:
            compaction.cancel()
            await asyncio.wait([compaction])
        (row,) = await session.compactions()
        again = await session.compact(force=True)

    assert compaction.cancelled()
    (report, *_) = [event.report for event in heard if isinstance(event, CompactionFinished)]
    assert (report.status, report.model_calls, report.landed) == ("cancelled", 1, False)
    assert (row.status, row.decision) == ("done", "cancelled")
    assert (scene.requests[0].status, scene.requests[0].billed) == (None, False)
    assert again.status == "applied"


async def test_a_replace_that_was_begun_lands_before_the_cancellation_goes_on(patched: Patched) -> None:
    """And the run's context knows, so that a resumed run does not look for its old items."""
    session = patched.store.session("s", compactor=fold)
    await session.append(turns(12))
    gate = Gate()
    patched.driver.around("replace", gate)
    context = Context()

    task = asyncio.create_task(session.run_compaction(wrapper=context))
    await gate.arrived.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    is_over_too_early = task.done()
    gate.release.set()
    await asyncio.wait([task])
    (row,) = await session.compactions()

    assert not is_over_too_early
    assert task.cancelled()
    assert context._session_compaction_completed
    assert (await session.snapshot()).items == FOLDED
    assert (row.status, row.decision) == ("done", "applied")


async def test_the_context_of_a_run_is_told_only_of_what_landed(patched: Patched) -> None:
    session = patched.store.session("s", compactor=fold, policy=CompactionPolicy(on_append="skip"))
    await session.append(turns(12))
    other = patched.store.session("s")

    async def append_first(verb: Around, *args: Any) -> Any:
        await other.append(said("late"))
        return await verb(*args)

    patched.driver.around("replace", append_first)
    context = Context()
    await session.run_compaction(wrapper=context)

    assert not context._session_compaction_completed


@pytest.mark.parametrize("loss", [lose_answer, lose_request, refuse])
async def test_a_replace_whose_answer_is_lost_lands_once(patched: Patched, loss: Around) -> None:
    """The answer was paid: it is not asked for again."""
    calls = 0

    async def counted(request: CompactionRequest) -> list[Item]:
        nonlocal calls
        calls += 1
        return list(FOLDED)

    session = patched.store.session("s", compactor=counted)
    await session.append(turns(12))
    patched.driver.around("replace", loss)

    report = await session.compact()
    (row,) = await session.compactions()

    assert (report.status, report.version_after, calls) == ("applied", 2, 1)
    assert (row.decision, row.found_version, row.target_version) == ("applied", 1, 2)
    assert (await session.snapshot()).items == FOLDED
    assert [op.kind for op in await session.operations()] == ["compact", "append"]


@pytest.mark.parametrize("loss", [lose_answer, lose_request, refuse])
async def test_an_append_behind_a_replace_whose_answer_is_lost_stays(
    patched: Patched, other: SessionStore, loss: Around
) -> None:
    session = patched.store.session("s", compactor=fold)
    await session.append(turns(12))

    async def append_first(verb: Around, *args: Any) -> Any:
        await other.session("s").append(said("late"))
        return await verb(*args)

    patched.driver.around("replace", loss, append_first)
    report = await session.compact()

    assert report.landed
    assert (await session.snapshot()).items == [*FOLDED, *said("late")]


async def test_a_clear_behind_a_replace_whose_answer_is_lost_stays(
    patched: Patched, other: SessionStore
) -> None:
    session = patched.store.session("s", compactor=fold)
    await session.append(turns(12))

    async def clear_first(verb: Around, *args: Any) -> Any:
        await other.session("s").clear()
        return await verb(*args)

    patched.driver.around("replace", lose_answer, clear_first)
    await session.compact()

    assert (await session.snapshot()).items == []


@pytest.mark.parametrize("verb", ["load", "compactions", "begin_compaction", "replace"])
async def test_a_database_that_stays_away_ends_in_the_report(
    database_url: str, patched: Patched, verb: str
) -> None:
    """No turn fails for it, and the next compaction may begin."""
    session = patched.store.session("s", compactor=fold)
    await session.append(turns(12))
    patched.driver.around(verb, *[refuse] * 8)

    report = await session.compact()
    again = await session.compact(force=True)

    assert (report.status, report.landed) == ("failed", False)
    assert again.status == "applied"


async def test_a_record_that_cannot_be_written_does_not_undo_what_landed(patched: Patched) -> None:
    session = patched.store.session("s", compactor=fold)
    await session.append(turns(12))
    patched.driver.around("finish_compaction", *[refuse] * 8)

    report = await session.compact()

    assert report.status == "applied"
    assert (await session.snapshot()).items == FOLDED


@pytest.mark.parametrize("verb", ["begin_compaction", "record_chain", "finish_compaction"])
@pytest.mark.parametrize("loss", ["answer", "request"])
async def test_a_step_of_unknown_outcome_is_sent_again(patched: Patched, verb: str, loss: str) -> None:
    """Each of them does no harm twice, and no lease is left behind."""
    session = patched.store.session("s", compactor=fold)
    await session.append(turns(12))

    async def lose(call: Around, *args: Any) -> Any:
        if loss == "answer":
            await call(*args)
        raise WriteOutcomeUnknownError("the connection was lost", op_id="")

    patched.driver.around(verb, lose)
    report = await session.compact(response_id="resp_1", store=False)
    (row,) = await session.compactions()

    assert report.status == "applied"
    assert (row.status, row.decision) == ("done", "applied")
