"""The provider's stored responses stand for the history only while they are that history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from cas_session import CasSession, CompactionPolicy
from cas_session.driver import NO_CHAIN
from cas_session.testing.endpoint import Fault
from tests.compaction.scene import Scene
from tests.session.items import said, turns
from tests.session.stores import Around, Patched

EXPLICIT = "previous_response_id"


class Due:
    """A trigger that a test switches."""

    def __init__(self) -> None:
        self.is_due = False

    def __call__(self, _: object) -> bool:
        return self.is_due


# clear invalidates the chain


async def marked(scene: Scene, due: Due) -> CasSession:
    """A session with an unstored response and a deferred mark in its row."""
    session = scene.session(CompactionPolicy(trigger=due), mode="previous_response_id")
    await session.run_compaction({"response_id": "resp-old", "store": False})
    due.is_due = True
    await session._defer_compaction("resp-old", store=False)
    due.is_due = False
    chain = await scene.chain()
    assert (chain.response_id, chain.stored, chain.deferred_id) == ("resp-old", False, "resp-old")
    assert session._get_deferred_compaction_response_id() == "resp-old"
    assert scene.requests == []
    return session


@pytest.mark.parametrize("history", [[], said("hello")], ids=["empty", "with an item"])
@pytest.mark.parametrize("by", ["itself", "another worker"])
async def test_a_clear_invalidates_the_chain(scene: Scene, by: str, history: list[dict[str, object]]) -> None:
    """ValueError, no request, and no mark is left; a new response id works."""
    await scene.foreign.append(history)
    session = await marked(scene, Due())

    await (session if by == "itself" else scene.foreign).clear()
    with pytest.raises(ValueError, match="requires a response_id"):
        await session.run_compaction({"force": True})

    assert scene.requests == []
    assert await scene.chain() == NO_CHAIN
    assert session._get_deferred_compaction_response_id() is None

    response_id = await scene.respond(session, "a new beginning")
    report = await session.compact(response_id=response_id, force=True)

    assert (report.status, scene.modes) == ("applied", [EXPLICIT])
    assert (scene.requests[0].body or {})["previous_response_id"] == response_id
    assert len(scene.stands_for((await session.snapshot()).items)) == 2


async def test_the_value_error_comes_as_often_as_it_is_asked_for(scene: Scene) -> None:
    session = await marked(scene, Due())
    await scene.foreign.clear()

    for _ in range(3):
        with pytest.raises(ValueError, match="requires a response_id"):
            await session.compact(force=True)

    assert scene.requests == []


async def test_without_any_response_id_the_mode_is_misuse(scene: Scene) -> None:
    session = scene.session()
    await session.append(turns(12))

    with pytest.raises(ValueError, match="requires a response_id"):
        await session.run_compaction({"compaction_mode": "previous_response_id"})

    assert scene.requests == []


async def test_a_clear_between_read_and_recording_makes_the_id_void(scene: Scene) -> None:
    """The run's own append comes behind the clear, and does not renew what the run read."""
    session = scene.session(mode="previous_response_id")
    await scene.respond(session, "secret")
    await session.get_items()
    response_id = await scene.respond_without_storing("and more")
    await scene.foreign.clear()
    await session.append(said("and more"))

    report = await session.compact(response_id=response_id, force=True)
    again = await session.compact(response_id=response_id, force=True)

    assert (report.status, again.status) == ("conflict", "conflict")
    assert scene.requests == []
    assert await scene.chain() == NO_CHAIN
    assert (await session.snapshot()).items == said("and more")


async def test_a_void_id_does_not_follow_the_chain_that_another_worker_recorded_since(scene: Scene) -> None:
    session = scene.session(mode="previous_response_id")
    await scene.respond(session, "secret")
    response_id = await scene.respond_without_storing("and more")
    foreign = scene.session(store=scene.other)
    await foreign.clear()
    newer = await scene.respond(foreign, "a new beginning")
    await foreign.run_compaction({"response_id": newer})

    report = await session.compact(response_id=response_id, force=True)

    assert (report.status, scene.requests) == ("conflict", [])
    assert (await scene.chain()).response_id == newer


async def test_a_clear_between_read_and_recording_makes_auto_use_the_items(scene: Scene) -> None:
    session = scene.session()
    await scene.respond(session, "secret")
    await session.get_items()
    response_id = await scene.respond_without_storing("and more")
    await scene.foreign.clear()
    await session.append(said("and more"))

    report = await session.compact(response_id=response_id, force=True)

    assert (report.status, scene.modes) == ("applied", ["input"])
    assert (scene.requests[0].body or {})["input"] == said("and more")
    assert scene.stands_for((await session.snapshot()).items) == said("and more")


@pytest.mark.parametrize("mode", ["auto", EXPLICIT])
async def test_a_clear_between_recording_and_plan_is_no_misuse(
    scene: Scene, patched: Patched, mode: str
) -> None:
    """An id was given and a rewrite made it void: that is a conflict and no ValueError; nothing is sent."""
    session = scene.session(store=patched.store, mode=mode)  # type: ignore[arg-type]
    response_id = await scene.respond(session, "secret")
    patched.driver.around("record_chain", then(scene.foreign.clear))

    report = await session.compact(response_id=response_id, force=True)

    assert report.status == ("conflict" if mode == EXPLICIT else "nothing_to_compact")
    assert scene.requests == []
    assert (await session.snapshot()).items == []


@pytest.mark.parametrize("mode", ["auto", EXPLICIT])
async def test_a_clear_between_plan_and_lease_is_no_misuse(scene: Scene, patched: Patched, mode: str) -> None:
    session = scene.session(store=patched.store, mode=mode)  # type: ignore[arg-type]
    response_id = await scene.respond(session, "secret")
    patched.driver.around("begin_compaction", before(scene.foreign.clear))

    report = await session.compact(response_id=response_id, force=True)

    assert report.status in ("conflict", "nothing_to_compact", "no_longer_needed")
    assert scene.requests == []
    assert (await session.snapshot()).items == []


@pytest.mark.parametrize("mode", ["auto", EXPLICIT])
async def test_a_clear_before_a_second_try_is_no_misuse_and_frees_the_lease(
    scene: Scene, patched: Patched, mode: str
) -> None:
    """The first call failed in a way worth repeating; then there was nothing left to repeat it for."""
    session = scene.session(store=patched.store, mode=mode)  # type: ignore[arg-type]
    response_id = await scene.respond(session, "secret")
    scene.endpoint.fail_next(Fault.server_error(), path="compact")

    report = await scene.compact_while(session, scene.foreign.clear, response_id=response_id, force=True)
    (row,) = await session.compactions()

    assert report.status in ("conflict", "nothing_to_compact", "no_longer_needed")
    assert (row.status, row.decision) == ("done", report.status)
    assert len(scene.requests) == 1
    assert (await session.snapshot()).items == []


def then(happens: Callable[[], Awaitable[object]]) -> Around:
    async def call(verb: Around, *args: object) -> object:
        result = await verb(*args)
        await happens()
        return result

    return call


def before(happens: Callable[[], Awaitable[object]]) -> Around:
    async def call(verb: Around, *args: object) -> object:
        await happens()
        return await verb(*args)

    return call


# auto follows a stored chain


async def test_auto_follows_a_stored_chain(scene: Scene) -> None:
    """previous_response_id, and no input."""
    session = scene.session()
    response_id = await scene.respond(session, "hello")

    report = await session.compact(response_id=response_id, force=True)
    items = (await session.snapshot()).items
    body = scene.requests[0].body or {}

    assert (report.status, report.mode) == ("applied", EXPLICIT)
    assert body["previous_response_id"] == response_id
    assert "input" not in body
    assert [item["type"] for item in items] == ["message", "compaction"]
    assert await scene.chain() == NO_CHAIN


async def test_auto_follows_the_chain_that_an_earlier_turn_recorded(scene: Scene) -> None:
    session = scene.session()
    response_id = await scene.respond(session, "hello")
    await session.run_compaction({"response_id": response_id})

    report = await session.compact(force=True)

    assert report.mode == EXPLICIT


async def test_auto_follows_a_chain_whose_history_it_read(scene: Scene) -> None:
    """Another object of another worker, which read all of it."""
    await scene.respond(scene.session(), "hello")
    session = scene.session(store=scene.other)
    await session.get_items()
    response_id = await scene.respond(session, "again")

    report = await session.compact(response_id=response_id, force=True)

    assert report.mode == EXPLICIT


@pytest.mark.parametrize("mode", ["auto", EXPLICIT])
async def test_an_unstored_response_is_never_followed(scene: Scene, mode: str) -> None:
    session = scene.session(mode=mode)  # type: ignore[arg-type]
    response_id = await scene.respond(session, "hello")

    report = await session.compact(response_id=response_id, store=False, force=True)

    assert (report.status, scene.modes) == ("applied", ["input"])


async def test_unstored_is_remembered_for_a_later_compaction(scene: Scene) -> None:
    """Also on another worker."""
    session = scene.session()
    response_id = await scene.respond(session, "hello")
    await session.run_compaction({"response_id": response_id, "store": False})
    foreign = scene.session(store=scene.other)
    await foreign.get_items()

    await foreign.compact(force=True)

    assert scene.modes == ["input"]


async def recorded(scene: Scene) -> CasSession:
    """A session with a stored chain that auto would follow."""
    session = scene.session()
    await session.append(turns(5))
    response_id = await scene.respond(session, "hello")
    await session.run_compaction({"response_id": response_id})
    assert (await scene.chain()).response_id == response_id
    return session


REWRITES: dict[str, Callable[[CasSession], Awaitable[object]]] = {
    "a clear": lambda session: session.clear(),
    "a delete": lambda session: session.delete(),
    "a pop": lambda session: session.pop(),
    "a replace": lambda session: rewritten(session),
    "a restore": lambda session: restored(session),
}


async def rewritten(session: CasSession) -> None:
    snapshot = await session.snapshot()
    await session.replace(snapshot.items, expected_version=snapshot.version)


async def restored(session: CasSession) -> None:
    await session.restore(1, expected_version=await session.version())


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES.keys())
@pytest.mark.parametrize("by", ["itself", "another worker"])
async def test_after_a_rewrite_auto_compacts_from_the_current_items(
    scene: Scene, rewrite: Callable[[CasSession], Awaitable[object]], by: str
) -> None:
    """input, and no previous_response_id; the chain's columns are empty."""
    session = await recorded(scene)
    await rewrite(session if by == "itself" else scene.foreign)
    assert await scene.chain() == NO_CHAIN
    await session.append(turns(1, start=90))
    current = (await session.snapshot()).items

    report = await session.compact(force=True)

    assert (report.status, scene.modes) == ("applied", ["input"])
    assert (scene.requests[0].body or {})["input"] == current
    assert scene.stands_for((await session.snapshot()).items) == current


async def test_a_compaction_ends_the_chain_that_it_followed(scene: Scene) -> None:
    """The reply's id is no previous_response_id; the next one starts from items."""
    session = await recorded(scene)
    first = await session.compact(force=True)
    await session.append(turns(1, start=90))

    await session.compact(force=True)

    assert (first.mode, scene.modes) == (EXPLICIT, [EXPLICIT, "input"])


# auto sends the items wherever the chain is not the history


async def test_a_foreign_append_inside_the_range_forces_the_items(scene: Scene) -> None:
    """The response knows nothing of it; nothing is lost."""
    session = scene.session()
    await session.append(turns(5))
    await session.get_items()
    await scene.foreign.append(said("from another worker"))
    response_id = await scene.respond(session, "hello")
    current = (await scene.foreign.snapshot()).items

    report = await session.compact(response_id=response_id, force=True)

    assert (report.status, scene.modes) == ("applied", ["input"])
    assert (scene.requests[0].body or {})["input"] == current
    assert scene.stands_for((await session.snapshot()).items) == current


async def test_a_foreign_append_behind_the_range_forces_the_items(scene: Scene) -> None:
    session = await recorded(scene)
    await scene.foreign.append(said("from another worker"))
    current = (await scene.foreign.snapshot()).items

    await session.compact(force=True)

    assert scene.modes == ["input"]
    assert scene.stands_for((await session.snapshot()).items) == current


async def test_a_foreign_append_in_flight_stays_behind_what_the_chain_covered(scene: Scene) -> None:
    session = await recorded(scene)
    late = said("from another worker")

    report = await scene.compact_while(session, lambda: scene.foreign.append(late), force=True)

    assert (report.status, scene.modes) == ("rebased", [EXPLICIT])
    assert (await session.snapshot()).items[-1:] == late


async def test_a_foreign_append_is_kept_where_the_chain_is_forced(scene: Scene) -> None:
    """The chain covers what was there when it was recorded; what others appended stays behind it."""
    session = await recorded(scene)
    late = said("from another worker")
    await scene.foreign.append(late)

    report = await session.compact(mode=EXPLICIT, force=True)

    assert (report.status, scene.modes) == ("applied", [EXPLICIT])
    assert (await session.snapshot()).items[-1:] == late


async def test_a_limited_read_forces_the_items(scene: Scene) -> None:
    """The run's model saw less than the history; all of the history is compacted."""
    await scene.foreign.append(turns(5))
    session = scene.session()
    await session.get_items(limit=2)
    response_id = await scene.respond(session, "hello")
    current = (await scene.foreign.snapshot()).items

    await session.compact(response_id=response_id, force=True)

    assert scene.modes == ["input"]
    assert (scene.requests[0].body or {})["input"] == current


@pytest.mark.parametrize(
    "policy",
    [
        CompactionPolicy(keep_last_turns=1),
        CompactionPolicy(pinned=lambda item: item.get("content") == "question 3"),
    ],
    ids=["kept turns", "a pin"],
)
async def test_what_is_kept_forces_the_items(scene: Scene, policy: CompactionPolicy) -> None:
    session = scene.session(policy)
    await session.append(turns(5))
    response_id = await scene.respond(session, "hello")

    report = await session.compact(response_id=response_id, force=True)

    assert (report.status, scene.modes) == ("applied", ["input"])


async def test_a_session_that_read_nothing_does_not_follow_the_chain(scene: Scene) -> None:
    """It cannot know whether the response saw what is stored."""
    await recorded(scene)
    session = scene.session(store=scene.other)

    await session.compact(force=True)

    assert scene.modes == ["input"]


async def test_a_response_that_the_provider_does_not_have_falls_back_to_the_items(scene: Scene) -> None:
    session = scene.session()
    await session.append(turns(5))

    report = await session.compact(response_id="resp_gone", force=True)

    assert (report.status, report.model_calls, scene.modes) == ("applied", 2, [EXPLICIT, "input"])
    assert scene.stands_for((await session.snapshot()).items) == turns(5)


async def test_a_response_that_the_provider_does_not_have_fails_where_the_chain_is_forced(
    scene: Scene,
) -> None:
    session = scene.session(mode="previous_response_id")
    await session.append(turns(5))

    report = await session.compact(response_id="resp_gone", force=True)

    assert (report.status, report.model_calls, scene.modes) == ("failed", 1, [EXPLICIT])
    assert (await session.snapshot()).items == turns(5)


@pytest.mark.parametrize("mode", ["auto", EXPLICIT])
@pytest.mark.parametrize("conflict", ["an append", "a pop"])
async def test_after_a_conflict_the_next_attempt_sends_the_items(
    scene: Scene, mode: str, conflict: str
) -> None:
    """Also where the chain would still be good: an append does not end it."""
    policy = CompactionPolicy.strict(trigger=lambda context: True)
    session = scene.session(policy, mode=mode)  # type: ignore[arg-type]
    await session.append(turns(5))
    response_id = await scene.respond(session, "hello")

    async def write() -> None:
        await (scene.foreign.append(said("late")) if conflict == "an append" else scene.foreign.pop())

    report = await scene.compact_while(session, write, response_id=response_id)

    assert (report.status, scene.modes) == ("applied", [EXPLICIT, "input"])


async def test_the_mode_of_one_call_overrides_the_compactors(scene: Scene) -> None:
    session = await recorded(scene)

    await session.run_compaction({"force": True, "compaction_mode": "input"})

    assert scene.modes == ["input"]


# the deferred mark


async def test_a_deferred_mark_is_seen_by_another_worker_after_its_read(scene: Scene) -> None:
    due = Due()
    due.is_due = True
    session = scene.session(CompactionPolicy(trigger=due))
    await session.append(turns(1))
    await session._defer_compaction("resp_1")
    foreign = scene.session(store=scene.other)
    before_reading = foreign._get_deferred_compaction_response_id()
    await foreign.get_items()

    assert before_reading is None
    assert foreign._get_deferred_compaction_response_id() == "resp_1"


async def test_nothing_is_deferred_below_the_threshold(scene: Scene) -> None:
    session = scene.session()
    await session.append(turns(1))

    await session._defer_compaction("resp_1")

    assert session._get_deferred_compaction_response_id() is None
    assert (await scene.chain()).deferred_id is None


async def test_a_compaction_takes_the_deferred_mark_away(scene: Scene) -> None:
    session = scene.session(CompactionPolicy(trigger=lambda context: True))
    await session.append(turns(5))
    await session._defer_compaction("resp_1", store=False)

    await session.compact(force=True)

    assert session._get_deferred_compaction_response_id() is None
    assert await scene.chain() == NO_CHAIN


async def test_deferring_without_a_compactor_does_nothing(scene: Scene) -> None:
    session = scene.store.session("s")
    await session.append(turns(12))

    await session._defer_compaction("resp_1")

    assert await scene.chain() == NO_CHAIN
