"""A store is opened once, in one process and one loop; closing waits, and later calls are refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

import pytest

from cas_session import CasSession, SessionStore, StoreClosedError, Version
from cas_session.events import ErasureFailed, Event
from tests.conformance.database import Database
from tests.session.items import said, texts_of
from tests.session.stores import Gate, Patched, patched_store

CALLS: dict[str, Callable[[CasSession], Awaitable[Any]]] = {
    "append": lambda s: s.append(said("x")),
    "an empty append": lambda s: s.append([]),
    "pop": lambda s: s.pop(),
    "clear": lambda s: s.clear(),
    "delete": lambda s: s.delete(),
    "replace": lambda s: s.replace(said("x"), expected_version=1),
    "restore": lambda s: s.restore(1, expected_version=1),
    "update": lambda s: s.update(lambda items: items),
    "snapshot": lambda s: s.snapshot(),
    "version": lambda s: s.version(),
    "operations": lambda s: s.operations(),
    "compactions": lambda s: s.compactions(),
    "metadata": lambda s: s.metadata(),
    "get_items": lambda s: s.get_items(),
    "list_sessions": lambda s: s._store.list_sessions(),
    "ping": lambda s: s._store.ping(),
    "prune": lambda s: s._store.prune(),
    "forget": lambda s: s._store.forget("s"),
}


@pytest.fixture(params=CALLS.values(), ids=CALLS.keys())
def call(request: pytest.FixtureRequest) -> Callable[[CasSession], Awaitable[Any]]:
    return request.param  # type: ignore[no-any-return]


async def test_a_closed_store_refuses_every_call(
    database_url: str, call: Callable[[CasSession], Awaitable[Any]]
) -> None:
    async with SessionStore(database_url) as store:
        session = store.session("s")
        await session.append(said("one"))

    with pytest.raises(StoreClosedError, match="closed"):
        await call(session)


async def test_a_store_that_was_not_opened_refuses_every_call(
    database_url: str, call: Callable[[CasSession], Awaitable[Any]]
) -> None:
    with pytest.raises(StoreClosedError, match="not open"):
        await call(SessionStore(database_url).session("s"))


async def test_a_store_is_opened_once_and_may_be_closed_twice(database_url: str) -> None:
    store = SessionStore(database_url)
    await store.open()
    with pytest.raises(StoreClosedError, match="once"):
        await store.open()
    await store.aclose()
    await store.aclose()

    with pytest.raises(StoreClosedError, match="once"):
        await store.open()


async def test_making_a_session_does_no_io(database_url: str) -> None:
    """It works before the store is open."""
    store = SessionStore(database_url)
    session = store.session("s", owner="me", metadata={"title": "hello"})

    async with store:
        assert await store.list_sessions() == []
        assert await session.append(said("one")) == 1
        assert await session.metadata() == {"title": "hello"}


async def test_closing_waits_for_what_is_under_way(patched: Patched) -> None:
    """Appends that wait for one another included; a call that comes later is refused."""
    session = patched.store.session("s")
    gate = Gate()
    patched.driver.around("append", gate)
    appends = [asyncio.create_task(session.append(said(str(at)))) for at in range(5)]
    await gate.arrived.wait()

    closing = asyncio.create_task(patched.store.aclose())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosedError):
        await session.append(said("late"))
    is_closed_too_early = closing.done()
    gate.release.set()
    versions = await asyncio.gather(*appends)
    await closing

    assert not is_closed_too_early
    assert versions == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("held", ["clear", "remove_erased"])
async def test_closing_waits_for_the_removal_of_what_was_erased(database_url: str, held: str) -> None:
    """Also where the clear was still under way when it began."""
    heard: list[Event] = []
    async with patched_store(database_url, on_event=heard.append) as patched:
        session = patched.store.session("s")
        await session.append(said("secret"))
        gate = Gate()
        patched.driver.around(held, gate)
        clear = asyncio.create_task(session.clear())
        await gate.arrived.wait()
        closing = asyncio.create_task(patched.store.aclose())
        await asyncio.sleep(0)
        is_closed_too_early = closing.done()
        gate.release.set()
        await clear
        await closing

    assert not is_closed_too_early
    assert not [event for event in heard if isinstance(event, ErasureFailed)]
    assert await Database(database_url).item_rows("s") == []


async def test_a_close_that_was_cancelled_can_be_made_again(patched: Patched) -> None:
    session = patched.store.session("s")
    gate = Gate()
    patched.driver.around("append", gate)
    append = asyncio.create_task(session.append(said("one")))
    await gate.arrived.wait()
    closing = asyncio.create_task(patched.store.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    gate.release.set()
    await append

    await patched.store.aclose()

    assert ("close", None) in patched.driver.called


def test_another_event_loop_is_refused(database_url: str) -> None:
    store = SessionStore(database_url)
    session = store.session("s")

    async def use() -> Version:
        return await session.append(said("one"))

    async def main() -> None:
        async with store:
            await use()
            with pytest.raises(StoreClosedError, match="event loop"):
                await asyncio.to_thread(asyncio.run, use())
            assert await session.version() == 1

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
async def test_use_after_a_fork_is_refused(store: SessionStore) -> None:
    """In the child; the parent goes on."""
    session = store.session("s")
    await session.append(said("one"))
    append = session.append(said("two"))
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        _answer_of_child(append, writer)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = await asyncio.to_thread(answers.read)
    await asyncio.to_thread(os.waitpid, child, 0)
    version = await append

    assert "before a fork" in answer
    assert version == 2
    assert texts_of((await session.snapshot()).items) == ["one", "two"]


def _answer_of_child(append: Coroutine[Any, Any, Version], writer: int) -> NoReturn:
    try:
        append.send(None)
    except StoreClosedError as error:
        os.write(writer, str(error).encode())
    finally:
        os._exit(0)


async def test_ping_answers(store: SessionStore) -> None:
    assert await store.ping() is None  # type: ignore[func-returns-value]
