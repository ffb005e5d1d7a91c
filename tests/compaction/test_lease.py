"""The lease: one paid call for all workers, taken over from one that died, and no more than that."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cas_session import CasSession, CompactionPolicy, Item
from cas_session.compactors import CompactionRequest
from cas_session.driver import BeginCompaction, Load
from cas_session.testing.endpoint import Fault
from tests.compaction.crash import crash
from tests.compaction.scene import SESSION, Scene
from tests.compaction.team import team
from tests.conformance.database import Database

POLICY = CompactionPolicy(failure_cooldown_s=0)
TURNS: list[Item] = [
    item
    for n in range(10)
    for item in (
        {"role": "user", "content": f"question {n}"},
        {"role": "assistant", "content": f"answer {n} " + "x" * 100},
    )
]


@pytest.fixture
def database(database_url: str) -> Database:
    return Database(database_url)


async def statuses(session: CasSession) -> list[tuple[str, str | None]]:
    """Status and decision of each attempt, oldest first."""
    return [(row.status, row.decision) for row in reversed(await session.compactions())]


@pytest.mark.slow
async def test_ten_processes_cross_the_threshold_together_and_one_of_them_pays(scene: Scene) -> None:
    rounds = 20
    scene.endpoint.keep_user_messages = False  # else they outgrow what each round saves
    async with team(10, scene.url, SESSION, scene.endpoint.base_url) as workers:
        for paid in range(1, rounds + 1):
            await scene.foreign.append(TURNS)
            async with scene.endpoint.hold("compact") as hold:
                for worker in workers:
                    worker.begin()
                await hold.arrived()
                # Nine answer while the tenth still waits for the model: none of them waits for it.
                answers = [asyncio.ensure_future(worker.status()) for worker in workers]
                while sum(answer.done() for answer in answers) < 9:
                    await asyncio.wait([a for a in answers if not a.done()], return_when="FIRST_COMPLETED")
                hold.release()
                told = sorted([await answer for answer in answers])

            assert told == ["applied", *["lease_held"] * 9]
            assert len(scene.requests) == paid
    history = (await scene.foreign.snapshot()).items
    assert scene.stands_for(history) == TURNS * rounds


async def test_workers_of_two_stores_make_one_call(scene: Scene) -> None:
    session = scene.session(POLICY)
    await session.append(TURNS)

    async with scene.during(session.compact()) as compaction:
        others = await asyncio.gather(
            scene.session(POLICY, store=scene.other).compact(),
            scene.session(POLICY, store=scene.other).compact(force=True),
            scene.session(POLICY).compact(),
        )

    assert [report.status for report in others] == ["lease_held"] * 3
    assert all(report.attempt_id is None and report.model_calls == 0 for report in others)
    assert (await compaction).status == "applied"
    assert len(scene.requests) == 1


async def test_a_killed_holder_costs_at_most_its_lease(scene: Scene) -> None:
    await scene.foreign.append(TURNS)
    async with (
        team(1, scene.url, SESSION, scene.endpoint.base_url, lease_s=2) as (holder,),
        scene.endpoint.hold("compact") as hold,
    ):
        holder.begin()
        await hold.arrived()
        await holder.kill()
    next_one = scene.session(POLICY, store=scene.other)

    report = await next_one.compact()
    while report.status == "lease_held":
        await asyncio.sleep(0.1)
        report = await next_one.compact()

    assert report.status == "applied"
    assert await statuses(scene.foreign) == [("expired", None), ("done", "applied")]
    assert scene.stands_for((await scene.foreign.snapshot()).items) == TURNS


async def test_a_late_holder_does_not_overwrite_the_compaction_that_took_over(
    scene: Scene, database: Database
) -> None:
    """Its lease ends while it waits for the model; when it answers, the session is in another epoch."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: CompactionRequest) -> list[Item]:
        asked.set()
        await may_answer.wait()
        return [{"role": "user", "content": "late summary"}]

    await scene.foreign.append(TURNS)
    late = asyncio.create_task(scene.store.session(SESSION, compactor=slow).compact())
    await asked.wait()
    await database.age_attempts(SESSION, timedelta(hours=1))

    report = await scene.session(POLICY, store=scene.other).compact()
    await scene.foreign.append(TURNS[:2])
    between = await scene.foreign.snapshot()
    may_answer.set()

    assert report.status == "applied"
    assert (await late).status == "no_longer_needed"
    assert (await scene.foreign.snapshot()) == between
    assert await statuses(scene.foreign) == [("expired", "no_longer_needed"), ("done", "applied")]


async def test_a_late_holder_that_would_pay_again_stops_instead(scene: Scene, database: Database) -> None:
    """The lease spans all calls of a compaction and is renewed before each: it is another worker's now."""
    session = scene.session(CompactionPolicy.strict(failure_cooldown_s=0))
    await session.append(TURNS)
    async with scene.during(session.compact()) as compaction:
        await database.age_attempts(SESSION, timedelta(hours=1))
        taken = BeginCompaction(
            attempt_id="taken",
            session_id=SESSION,
            owner="other",
            lease=timedelta(minutes=5),
            trigger="policy",
            source=(await scene.other.backend.load(Load(SESSION, 0))).manifest,
            last_seq=len(TURNS),
            item_count=len(TURNS),
            digest=b"",
        )
        assert await scene.other.backend.driver.begin_compaction(taken) == "started"
        await scene.foreign.append(TURNS[:2])

    assert (await compaction).status == "lease_held"
    assert len(scene.requests) == 1
    assert (await scene.foreign.snapshot()).items == [*TURNS, *TURNS[:2]]


@pytest.mark.parametrize("when", ["before the replace", "after the replace"])
async def test_a_crash_beside_the_replace_leaves_the_history_right_and_the_row_after_a_takeover(
    scene: Scene, database: Database, when: str
) -> None:
    await scene.foreign.append(TURNS)
    await crash(scene.url, SESSION, scene.endpoint.base_url, when)
    landed = when == "after the replace"
    history = (await scene.foreign.snapshot()).items

    assert (history == TURNS) is not landed
    assert scene.stands_for(history) == TURNS
    assert await statuses(scene.foreign) == [("running", None)]

    await database.age_attempts(SESSION, timedelta(hours=1))
    await scene.foreign.append(TURNS)
    report = await scene.session(POLICY, store=scene.other).compact()

    assert report.status == "applied"
    assert await statuses(scene.foreign) == [("expired", None), ("done", "applied")]
    history = (await scene.foreign.snapshot()).items
    assert scene.stands_for(history) == TURNS * 2
    kinds = await scene.kinds()
    assert kinds.count("compact") == (2 if landed else 1)


async def test_a_failed_call_frees_the_lease_for_the_next_worker(scene: Scene) -> None:
    session = scene.session(CompactionPolicy(max_model_calls=1, failure_cooldown_s=0))
    await session.append(TURNS)
    scene.endpoint.fail_next(Fault.server_error(), path="compact")

    assert (await session.compact()).status == "failed"
    assert (await scene.session(POLICY, store=scene.other).compact()).status == "applied"


async def test_under_appends_strict_ends_in_conflict_within_its_budget(scene: Scene) -> None:
    """Four appends during each call: the row version has moved each time."""
    calls = 0

    async def busy(request: CompactionRequest) -> list[Item]:
        nonlocal calls
        calls += 1
        for n in range(4):
            await scene.foreign.append([{"role": "user", "content": f"more {calls} {n}"}])
        return [{"role": "user", "content": "summary"}]

    await scene.foreign.append(TURNS)
    policy = CompactionPolicy.strict(max_model_calls=3)

    report = await scene.store.session(SESSION, compactor=busy, policy=policy).compact()

    assert (report.status, report.model_calls, calls) == ("conflict", 3, 3)
    assert len((await scene.foreign.snapshot()).items) == len(TURNS) + 12
