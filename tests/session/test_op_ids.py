"""A user's own op_id: the same write under it lands once, another write under it is a mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cas_session import CasSession, OperationMismatchError, SessionStore, Version
from tests.session.items import said, texts_of

Write = Callable[[CasSession], Awaitable[Version]]

OP = "checkout-7:turn-3"
WRITES: dict[str, Write] = {
    "append": lambda session: session.append(said("new"), op_id=OP),
    "conditional append": lambda session: session.append(said("new"), op_id=OP, expected_version=1),
    "clear": lambda session: session.clear(op_id=OP),
    "conditional clear": lambda session: session.clear(op_id=OP, expected_version=1),
    "replace": lambda session: session.replace(said("new"), op_id=OP, expected_version=1),
}


@pytest.fixture
def session(store: SessionStore) -> CasSession:
    return store.session("s")


@pytest.fixture(params=WRITES.values(), ids=WRITES.keys())
def write(request: pytest.FixtureRequest) -> Write:
    return request.param  # type: ignore[no-any-return]


async def test_a_second_sending_returns_the_first_result(
    session: CasSession, other: SessionStore, write: Write
) -> None:
    """From anywhere, whatever was written between."""
    await session.append(said("one"))
    landed = await write(session)
    await session.append(said("later"))

    again = await write(other.session("s"))

    assert (again, again.nonce) == (landed, landed.nonce)
    assert await session.version() == landed + 1
    assert texts_of((await session.snapshot()).items)[-1] == "later"


async def test_twins_at_once_land_once(session: CasSession, other: SessionStore, write: Write) -> None:
    await session.append(said("one"))

    versions = await asyncio.gather(*(write(s) for s in (session, other.session("s"), session)))

    assert set(versions) == {2}
    assert await session.version() == 2


async def test_an_op_id_outlives_a_clear(session: CasSession, other: SessionStore) -> None:
    """A re-sent write does not bring back what was erased."""
    landed = await session.append(said("secret"), op_id=OP)
    await other.session("s").clear()

    again = await session.append(said("secret"), op_id=OP)

    assert again == landed
    assert (await session.snapshot()).items == []


@pytest.mark.parametrize(
    "mistake",
    [
        lambda session: session.append(said("something else"), op_id=OP),
        lambda session: session.append(said("new", "new"), op_id=OP),
        lambda session: session.append(said("something else"), op_id=OP, expected_version=1),
        lambda session: session.clear(op_id=OP),
        lambda session: session.replace(said("new"), op_id=OP, expected_version=2),
    ],
    ids=["other items", "more items", "other items, stale", "a clear", "a replace"],
)
async def test_an_op_id_of_another_write_is_a_mismatch_and_writes_nothing(
    session: CasSession, mistake: Write
) -> None:
    await session.append(said("one"))
    landed = await session.append(said("new"), op_id=OP)

    with pytest.raises(OperationMismatchError, match="was used for") as caught:
        await mistake(session)

    assert (caught.value.session_id, caught.value.op_id) == ("s", OP)
    assert await session.version() == landed
    assert texts_of((await session.snapshot()).items) == ["one", "new"]


async def test_expected_version_is_no_part_of_the_identity(session: CasSession) -> None:
    await session.append(said("one"))
    landed = await session.append(said("new"), op_id=OP, expected_version=1)

    again = await session.append(said("new"), op_id=OP, expected_version=landed)

    assert again == landed


async def test_another_session_may_use_the_same_op_id(session: CasSession, store: SessionStore) -> None:
    await session.append(said("one"), op_id=OP)

    assert await store.session("another").append(said("two"), op_id=OP) == 1


async def test_the_operations_name_the_op_id(session: CasSession) -> None:
    await session.append(said("one"), op_id=OP)
    await session.clear()

    clear, append = await session.operations()

    assert (append.op_id, append.kind, append.manifest.version) == (OP, "append", 1)
    assert (clear.kind, clear.manifest.version) == ("clear", 2)
    assert append.worker
