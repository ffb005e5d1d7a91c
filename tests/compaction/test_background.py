"""Compaction in the background, and with little of everything: it holds nothing that others need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from cas_session import CompactionPolicy, Item, SessionStore
from cas_session.compactors import CompactionRequest
from cas_session.events import CompactionFinished, Event
from tests.compaction.scene import SESSION
from tests.compaction.test_lease import TURNS

BACKGROUND = CompactionPolicy(background=True)
STATES = """
SELECT a.state, l.mode
FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
"""
SHORT: list[Item] = [{"role": "user", "content": "summary"}]


class Model:
    """A compactor that answers when it is told to."""

    def __init__(self, answer: object = SHORT) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.calls = 0
        self._answer = answer

    async def __call__(self, request: CompactionRequest) -> list[Item]:
        self.calls += 1
        self.asked.set()
        await self.may_answer.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]


class Heard:
    """A hook that waits for reports."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, event: Event) -> None:
        if isinstance(event, CompactionFinished):
            self.reports.put_nowait(event.report.status)


async def test_run_compaction_returns_at_once_and_the_store_finishes_it(database_url: str) -> None:
    model, heard = Model(), Heard()
    async with SessionStore(database_url, on_event=heard) as store:
        session = store.session(SESSION, compactor=model, policy=BACKGROUND)
        await session.append(TURNS)

        await session.run_compaction()
        await model.asked.wait()
        await session.append(TURNS[:1])
        model.may_answer.set()

        assert await heard.reports.get() == "rebased"
        assert (await session.snapshot()).items == [*SHORT, *TURNS[:1]]


async def test_a_second_trigger_in_the_same_store_does_not_call_again(database_url: str) -> None:
    model, heard = Model(), Heard()
    async with SessionStore(database_url, on_event=heard) as store:
        session = store.session(SESSION, compactor=model, policy=BACKGROUND)
        await session.append(TURNS)
        await session.run_compaction()
        await model.asked.wait()

        await session.run_compaction()
        await store.session(SESSION, compactor=model, policy=BACKGROUND).run_compaction()

        assert [await heard.reports.get(), await heard.reports.get()] == ["lease_held"] * 2
        model.may_answer.set()
        assert await heard.reports.get() == "applied"
        assert model.calls == 1


async def test_closing_waits_for_it(database_url: str) -> None:
    model = Model()
    async with SessionStore(database_url) as store:
        session = store.session(SESSION, compactor=model, policy=BACKGROUND)
        await session.append(TURNS)
        await session.run_compaction()
        await model.asked.wait()
        closing = asyncio.create_task(store.aclose())
        await asyncio.sleep(0)
        model.may_answer.set()
        await closing

    async with SessionStore(database_url) as store:
        assert (await store.session(SESSION).snapshot()).items == SHORT


async def test_closing_does_not_wait_for_ever(database_url: str) -> None:
    """A model that does not answer gets as long as a call may take; the history stays as it was."""
    model, heard = Model(), Heard()
    async with SessionStore(database_url, on_event=heard, call_timeout_s=0.5) as store:
        session = store.session(SESSION, compactor=model, policy=BACKGROUND)
        await session.append(TURNS)
        await session.run_compaction()
        await model.asked.wait()

    assert await heard.reports.get() == "cancelled"
    async with SessionStore(database_url) as store:
        session = store.session(SESSION)
        assert (await session.snapshot()).items == TURNS
        assert [row.decision for row in await session.compactions()] == ["cancelled"]


@pytest.mark.parametrize("failure", [RuntimeError("broken"), ValueError("wrong")])
async def test_a_failure_is_an_event_and_no_lost_exception(database_url: str, failure: Exception) -> None:
    model, heard = Model(failure), Heard()
    model.may_answer.set()
    policy = CompactionPolicy(background=True, on_error="raise")
    async with SessionStore(database_url, on_event=heard) as store:
        session = store.session(SESSION, compactor=model, policy=policy)
        await session.append(TURNS)
        await session.run_compaction()

        assert await heard.reports.get() == "failed"
        assert (await session.snapshot()).items == TURNS


async def test_misuse_in_the_background_is_an_event(database_url: str) -> None:
    heard = Heard()
    async with SessionStore(database_url, on_event=heard) as store:
        session = store.session(SESSION, compactor=Model(), policy=BACKGROUND)
        await session.append(TURNS)
        await session.run_compaction({"compaction_mode": "previous_response_id"})

        assert await heard.reports.get() == "failed"


async def test_one_connection_serves_reads_and_writes_while_the_model_is_asked(database_url: str) -> None:
    model = Model()
    async with SessionStore(database_url, pool_size=1) as store:
        session = store.session(SESSION, compactor=model)
        await session.append(TURNS)
        compaction = asyncio.create_task(session.compact())
        await model.asked.wait()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: session.append(TURNS[:1]),
            session.snapshot,
            session.version,
            store.list_sessions,
            store.ping,
        ]
        for call in calls * 3:
            await call()
        model.may_answer.set()

        assert (await compaction).status == "rebased"
        assert len((await session.snapshot()).items) == 4


async def test_nothing_is_open_in_the_server_while_the_model_is_asked(fresh_postgres: str) -> None:
    model = Model()
    async with SessionStore(fresh_postgres) as store:
        session = store.session(SESSION, compactor=model)
        await session.append(TURNS)
        compaction = asyncio.create_task(session.compact())
        await model.asked.wait()
        await session.append(TURNS[:1])

        watcher = await asyncpg.connect(fresh_postgres)
        held = await watcher.fetch(STATES)
        await watcher.close()
        model.may_answer.set()
        await compaction

    assert {tuple(row) for row in held} == {("idle", None)}
