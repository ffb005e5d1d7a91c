"""How often each call of a session waits for the database, and how many statements that takes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from cas_session import CasSession, SessionStore, VersionConflictError
from tests.costs.histories import SUMMARY, answers, session_of, settled, turn
from tests.costs.postgres_meter import CountingProxy
from tests.costs.sqlite_meter import SqliteMeter

Call = Callable[[SessionStore, CasSession], Awaitable[object]]
"""Gets a session of 40 answers, at version 1."""


@dataclass(frozen=True)
class Cost:
    """What a call waits for.

    Attributes:
        waits: Round trips to Postgres, each of one statement; on SQLite, hops to a connection's thread.
        statements: On SQLite at most, BEGIN and COMMIT included, each item that is written counted as one.
        waits_behind: What is left to the background.
    """

    waits: int
    statements: int
    waits_behind: int = 0


async def _conflict(session: CasSession) -> None:
    with pytest.raises(VersionConflictError):
        await session.append(turn(), expected_version=9)


async def _compact(session: CasSession, *, force: bool) -> None:
    report = await session.compact(force=force)
    assert report.landed


CALLS: dict[str, tuple[Call, Cost]] = {
    "append": (lambda _, s: s.append(turn()), Cost(1, 9)),
    "append to a new session": (lambda st, s: st.session(f"{s.session_id}-new").append(turn()), Cost(1, 9)),
    "append by a new object": (lambda st, s: st.session(s.session_id).append(turn()), Cost(1, 9)),
    "conditional append": (lambda _, s: s.append(turn(), expected_version=1), Cost(1, 9)),
    "conditional append that conflicts": (lambda _, s: _conflict(s), Cost(1, 4)),
    "append under an op_id of one's own": (lambda _, s: s.append(turn(), op_id="turn-1"), Cost(1, 10)),
    "append of nothing": (lambda _, s: s.append([]), Cost(1, 4)),
    "pop": (lambda _, s: s.pop(), Cost(1, 7)),
    "clear": (lambda _, s: s.clear(), Cost(1, 5, waits_behind=1)),
    "delete": (lambda _, s: s.delete(), Cost(1, 5, waits_behind=1)),
    "replace": (lambda _, s: s.replace(SUMMARY, expected_version=1), Cost(1, 15)),
    "restore": (lambda _, s: s.restore(1, expected_version=1), Cost(1, 7)),
    "update": (lambda _, s: s.update(lambda items: items[-10:]), Cost(2, 19)),
    "update that changes nothing": (lambda _, s: s.update(lambda items: items), Cost(1, 4)),
    "get_items": (lambda _, s: s.get_items(), Cost(1, 4)),
    "get_items of the newest 20": (lambda _, s: s.get_items(20), Cost(1, 4)),
    "snapshot of an earlier version": (lambda _, s: s.snapshot(version=1), Cost(1, 5)),
    "version": (lambda _, s: s.version(), Cost(1, 4)),
    "metadata": (lambda _, s: s.metadata(), Cost(1, 4)),
    "set_metadata": (lambda _, s: s.set_metadata({"title": "x"}), Cost(1, 3)),
    "operations": (lambda _, s: s.operations(), Cost(1, 3)),
    "list_sessions": (lambda st, _: st.list_sessions(), Cost(1, 3)),
    "ping": (lambda st, _: st.ping(), Cost(1, 3)),
    "a plan of a compaction": (lambda _, s: s.plan_compaction(), Cost(1, 4)),
    # Read, rest, lease; the model's answer; replace, finish. Forced, it does not ask whether to rest.
    "compact": (lambda _, s: _compact(s, force=False), Cost(5, 31)),
    "forced compact": (lambda _, s: _compact(s, force=True), Cost(4, 28)),
    "run_compaction of a runner": (lambda _, s: s.run_compaction(), Cost(5, 31)),
}
POSTGRES_WAITS = {"pop": 2}  # it reads the item, then hides it


@pytest.fixture
async def proxy(fresh_postgres: str) -> AsyncIterator[CountingProxy]:
    async with CountingProxy(fresh_postgres) as proxy:
        yield proxy


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_waits_for_postgres_this_often(proxy: CountingProxy, name: str) -> None:
    call, cost = CALLS[name]
    waits = POSTGRES_WAITS.get(name, cost.waits)
    async with SessionStore(proxy.url, pool_size=1) as store:
        first, session = [await session_of(store, f"s{at}", answers(40)) for at in range(2)]
        await call(store, first)  # prepares its statements
        await settled(store)
        before = proxy.round_trips, proxy.statements
        await call(store, session)
        after = proxy.round_trips, proxy.statements
        await settled(store)
        behind = proxy.round_trips, proxy.statements

    assert (after[0] - before[0], after[1] - before[1]) == (waits, waits)
    assert (behind[0] - after[0], behind[1] - after[1]) == (cost.waits_behind, cost.waits_behind)


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_hops_to_the_threads_of_sqlite_this_often(fresh_sqlite: str, name: str) -> None:
    call, cost = CALLS[name]
    async with SessionStore(fresh_sqlite) as store:
        session = await session_of(store, "s", answers(40))
        meter = SqliteMeter(store)
        async with meter.counting():
            await call(store, session)
            hops, statements = meter.hops, list(meter.statements)
            await settled(store)

    assert hops == cost.waits
    assert meter.hops - hops == cost.waits_behind
    assert len(statements) <= cost.statements, statements


async def test_reading_again_asks_only_for_what_is_new(proxy: CountingProxy) -> None:
    """In one round trip, whatever came between; a turn that is new is the only rows."""
    async with SessionStore(proxy.url, pool_size=1) as store:
        session = await session_of(store, "s", answers(40))
        await session.get_items()
        await session.get_items()
        before = proxy.round_trips
        await session.append(turn())
        again = await session.get_items()

        assert proxy.round_trips - before == 2
        assert len(again) == 44
