"""A write that is cancelled, at whatever moment: it landed or it did not, and nothing stays locked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cas_session import CasSession, RetryPolicy, SessionStore
from cas_session.events import CancelledWrite, Event
from tests.conformance.database import Database
from tests.session.items import said, texts_of
from tests.session.stores import Gate, cancel_answer, lose_answer, patched_store

Write = Callable[[CasSession], Awaitable[Any]]

TURNS = (*range(20), 30, 50, 100, 200)  # of the loop, before the cancellation
SOON_S = 10  # a lock that is left behind shows as a call that takes longer

WRITES: dict[str, tuple[Write, list[str]]] = {
    "append": (lambda s: s.append(said("three", "four")), ["one", "two", "three", "four"]),
    "pop": (lambda s: s.pop(), ["one"]),
    "clear": (lambda s: s.clear(), []),
    "delete": (lambda s: s.delete(), []),
    "replace": (lambda s: s.replace(said("new"), expected_version=2), ["new"]),
    "restore": (lambda s: s.restore(1, expected_version=2), ["one"]),
    "update": (lambda s: s.update(lambda _: said("new")), ["new"]),
}


async def cancelled(call: Awaitable[object], *, turns: int, times: int = 1) -> None:
    """Cancel the call after so many turns of the loop, and wait until it has ended."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("write", "after"), WRITES.values(), ids=WRITES.keys())
async def test_a_write_cancelled_at_any_turn_is_whole_or_not_there(
    store: SessionStore, other: SessionStore, write: Write, after: list[str]
) -> None:
    """And the next write, of this worker and of another, goes through."""
    for turns in TURNS:
        session = store.session(f"after {turns} turns")
        await session.append(said("one"))
        await session.append(said("two"))
        await cancelled(write(session), turns=turns, times=1 + turns % 2)

        left = await session.snapshot()
        assert (texts_of(left.items), left.version) in [(["one", "two"], 2), (after, 3)]
        async with asyncio.timeout(SOON_S):
            again = await session.append(said("next"))
            foreign = await other.session(session.session_id).append(said("foreign"))
        assert (again, foreign) == (left.version + 1, left.version + 2)
        assert texts_of((await session.snapshot()).items) == [*texts_of(left.items), "next", "foreign"]


async def test_many_writes_cancelled_at_once_leave_a_store_that_works(store: SessionStore) -> None:
    """More than there are connections, each at another turn."""
    session = store.session("s")

    await asyncio.gather(*(cancelled(session.append(said(str(at))), turns=at % 25) for at in range(100)))
    texts = texts_of((await session.snapshot()).items)
    async with asyncio.timeout(SOON_S):
        version = await session.append(said("next"))

    assert len(texts) == len(set(texts)) == version - 1


@pytest.mark.parametrize("verb", ["append", "pop", "clear", "delete", "replace", "restore"])
async def test_a_hook_hears_what_became_of_a_write_that_was_begun(database_url: str, verb: str) -> None:
    """It waits for another writer when it is cancelled, twice; it is settled before that goes on."""
    heard: list[Event] = []
    write, after = WRITES[verb]
    async with SessionStore(database_url, on_event=heard.append) as store:
        session = store.session("s")
        await session.append(said("one"))
        await session.append(said("two"))
        async with Database(database_url).held("s") as waiting:
            task = asyncio.ensure_future(write(session))
            await waiting(1)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
        await asyncio.wait([task])
        left = await session.snapshot()

    (event,) = [event for event in heard if isinstance(event, CancelledWrite)]
    assert task.cancelled()
    assert (event.session_id, event.kind) == ("s", verb)
    assert (event.outcome, texts_of(left.items)) in [("landed", after), ("not_landed", ["one", "two"])]


async def test_a_cancelled_clear_is_settled_before_the_cancellation_goes_on(database_url: str) -> None:
    async with patched_store(database_url) as patched:
        session = patched.store.session("s")
        await session.append(said("secret"))
        patched.driver.around("clear", cancel_answer)

        task = asyncio.create_task(session.clear())
        await asyncio.wait([task])
        async with asyncio.timeout(SOON_S):
            version = await session.append(said("next"))

        assert task.cancelled()
        assert version == 3
        assert texts_of((await session.snapshot()).items) == ["next"]


async def test_a_write_cancelled_while_it_waits_for_its_next_sending_is_not_sent_again(
    database_url: str,
) -> None:
    async with patched_store(database_url) as patched:
        session = patched.store.session("s")
        gate = Gate()
        patched.driver.around("append", lose_answer, gate)

        task = asyncio.create_task(session.append(said("one")))
        await gate.arrived.wait()
        task.cancel()
        await asyncio.wait([task])
        version = await session.append(said("two"), retry=RetryPolicy(max_attempts=1))

        assert task.cancelled()
        assert version == 2
        assert texts_of((await session.snapshot()).items) == ["one", "two"]


async def test_a_timeout_around_a_write_is_a_timeout(store: SessionStore) -> None:
    """asyncio.timeout of Python 3.11 turns a CancelledError into a TimeoutError, but no subclass of it."""
    session = store.session("s")
    await session.append([{"n": 1}])

    async def without_time(write: Callable[[], Awaitable[Any]]) -> None:
        async with asyncio.timeout(0):
            await write()
            await asyncio.sleep(60)

    for write in (lambda: session.append([{"n": 2}]), session.pop, session.clear, session.delete):
        with pytest.raises(TimeoutError):
            await without_time(write)
