"""Making a session object: no I/O, no statement built, nothing that needs an open store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from cas_session import CasSession, CompactionPolicy, SessionStore
from cas_session.compactors import ResponsesCompactor
from tests.costs.histories import fold
from tests.costs.postgres_meter import CountingProxy
from tests.costs.sqlite_meter import SqliteMeter

Make = Callable[[SessionStore], CasSession]

WAYS: dict[str, Make] = {
    "by the store": lambda store: store.session("s"),
    "by its class": lambda store: CasSession(store, "s"),
    "with all options": lambda store: store.session(
        "s",
        owner="ann",
        metadata={"title": "x"},
        compactor=ResponsesCompactor(model="gpt-5.1"),
        policy=CompactionPolicy(keep_last_turns=2),
    ),
    "with a function": lambda store: store.session("s", compactor=fold),
}
DATABASE = {"aiosqlite", "asyncpg", "sqlalchemy", "sqlite3", "_sqlite3"}
WAITING = {"asyncio", "_asyncio", "socket", "_socket", "threading", "_thread", "openai"}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
async def test_a_session_object_costs_no_round_trip(fresh_postgres: str, make: Make) -> None:
    async with CountingProxy(fresh_postgres) as proxy, SessionStore(proxy.url) as store:
        await store.ping()  # prepares its statement
        before = proxy.round_trips, proxy.statements
        for _ in range(100):
            make(store)
        await store.ping()

        assert (proxy.round_trips, proxy.statements) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
async def test_a_session_object_costs_no_hop(fresh_sqlite: str, make: Make) -> None:
    async with SessionStore(fresh_sqlite) as store:
        meter = SqliteMeter(store)
        async with meter.counting():
            for _ in range(100):
                make(store)

    assert (meter.hops, meter.statements) == (0, [])


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
async def test_a_session_object_calls_nothing_that_builds_statements_or_waits(make: Make) -> None:
    """Not even an open store is needed."""
    store = SessionStore("postgresql://nobody@127.0.0.1:1/none")  # not open, and nobody is there
    make(store)  # the first one imports

    assert _called(lambda: make(store)) & (DATABASE | WAITING) == set()


def _called(work: Callable[[], object]) -> set[str]:
    """The top-level modules of all functions that run meanwhile."""
    modules: set[str] = set()

    def note(frame: FrameType, event: str, function: Any) -> None:
        module = function.__module__ if event == "c_call" else frame.f_globals.get("__name__")
        modules.add(str(module).split(".")[0])

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    assert "cas_session" in modules
    return modules
