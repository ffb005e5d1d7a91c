"""update(fn): read, decide, replace; again from the current state when another write came between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cas_session import CasSession, Item, RetryPolicy, SessionStore, VersionConflictError
from tests.session.items import said, texts_of
from tests.session.stores import Patched, first


@pytest.fixture
def session(store: SessionStore) -> CasSession:
    return store.session("s")


def shout(items: list[Item]) -> list[Item]:
    for item in items:
        item["content"] = item["content"].upper()
    return items


async def test_the_function_may_change_the_items_in_place(session: CasSession) -> None:
    before = await session.append(said("one", "two"))

    after = await session.update(shout)

    assert texts_of(after.items) == ["ONE", "TWO"]
    assert after.version == before + 1
    assert await session.snapshot() == after


async def test_the_function_may_return_another_list(session: CasSession) -> None:
    await session.append(said("one", "two"))

    after = await session.update(lambda items: items[1:] + said("three"))

    assert texts_of(after.items) == ["two", "three"]
    assert await session.snapshot() == after


async def test_the_function_may_be_async_and_nothing_is_held_meanwhile(
    session: CasSession, other: SessionStore
) -> None:
    """Another session of the same store and another store's write go on while it thinks."""
    await session.append(said("one"))

    async def slow(items: list[Item]) -> list[Item]:
        await other.session("elsewhere").append(said("x"))
        await asyncio.sleep(0)
        return shout(items)

    after = await session.update(slow)

    assert texts_of(after.items) == ["ONE"]


async def test_after_a_conflict_it_is_called_again_with_fresh_items(
    session: CasSession, other: SessionStore
) -> None:
    await session.append(said("one"))
    seen: list[list[Any]] = []

    async def redact(items: list[Item]) -> list[Item]:
        seen.append(texts_of(items))
        if len(seen) == 1:
            await other.session("s").append(said("two"))
        return shout(items)

    after = await session.update(redact)

    assert seen == [["one"], ["one", "two"]]
    assert texts_of(after.items) == ["ONE", "TWO"]
    assert after.version == 3


async def test_a_clear_meanwhile_stays_cleared(session: CasSession, other: SessionStore) -> None:
    await session.append(said("one"))
    calls = 0

    async def redact(items: list[Item]) -> list[Item]:
        nonlocal calls
        calls += 1
        if calls == 1:
            await other.session("s").clear()
        return shout(items)

    after = await session.update(redact)

    assert (after.items, after.version, calls) == ([], 2, 2)
    assert (await session.snapshot()).items == []


@pytest.mark.parametrize("unchanged", [lambda items: items, lambda items: [dict(item) for item in items]])
async def test_an_unchanged_list_writes_nothing(session: CasSession, unchanged: Any) -> None:
    before = await session.append(said("one"))

    after = await session.update(unchanged)

    assert after.version == before
    assert after.items == said("one")
    assert len(await session.operations()) == 1


async def test_a_session_that_does_not_exist_is_created(session: CasSession) -> None:
    nothing = await session.update(lambda items: items)
    after = await session.update(lambda items: [*items, *said("one")])

    assert nothing.version == 0
    assert after.version == 1
    assert texts_of((await session.snapshot()).items) == ["one"]


@pytest.mark.parametrize("result", [None, (), "text", {"role": "user"}], ids=repr)
async def test_a_function_that_returns_no_list_is_a_type_error(session: CasSession, result: Any) -> None:
    before = await session.append(said("one"))

    with pytest.raises(TypeError, match="must return the list"):
        await session.update(lambda _: result)

    assert await session.version() == before


async def test_what_the_function_raises_goes_through_and_writes_nothing(session: CasSession) -> None:
    before = await session.append(said("one"))
    calls = 0

    def fail(_: list[Item]) -> list[Item]:
        nonlocal calls
        calls += 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await session.update(fail)

    assert calls == 1
    assert await session.version() == before


async def test_a_spent_budget_raises_the_conflict_with_a_note(patched: Patched, other: SessionStore) -> None:
    """It counts calls of the function, and nothing of it was written."""
    session, foreign = patched.store.session("s"), other.session("s")
    await session.append(said("one"))
    patched.driver.around("replace", *[first(lambda: foreign.append(said("more")))] * 10)

    with pytest.raises(VersionConflictError) as caught:
        await session.update(shout, retry=RetryPolicy(max_attempts=3))

    assert caught.value.change == "appended"
    assert len(patched.driver.sent("replace")) == 3
    assert any("3 attempts" in note for note in caught.value.__notes__)
    assert texts_of((await session.snapshot()).items) == ["one", "more", "more", "more"]


async def test_the_default_budget_is_eight_calls(patched: Patched, other: SessionStore) -> None:
    session, foreign = patched.store.session("s"), other.session("s")
    await session.append(said("one"))
    patched.driver.around("replace", *[first(foreign.clear)] * 7)

    await session.append(said("two"))
    after = await session.update(lambda items: [*items, *said("kept")])

    assert len(patched.driver.sent("replace")) == 8
    assert texts_of(after.items) == ["kept"]
    assert len(patched.time.slept) == 7


async def test_two_updates_at_once_are_both_applied(session: CasSession, other: SessionStore) -> None:
    await session.append(said("0"))

    def count(items: list[Item]) -> list[Item]:
        return said(str(int(items[0]["content"]) + 1))

    await asyncio.gather(*(s.update(count) for s in (session, other.session("s")) for _ in range(3)))

    assert texts_of((await session.snapshot()).items) == ["6"]


async def test_an_update_that_creates_the_session_gives_it_its_owner(store: SessionStore) -> None:
    session = store.session("s", owner="ann", metadata={"k": 1})

    await session.update(lambda items: said("one"))

    assert [info.session_id for info in await store.list_sessions(owner="ann")] == ["s"]
    assert await session.metadata() == {"k": 1}
