"""A write that names a version which is not there changes nothing and says what came between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from cas_session import CasSession, SessionStore, Version, VersionConflictError
from tests.session.items import said, texts_of

Write = Callable[[CasSession, int], Awaitable[object]]

CONDITIONAL: dict[str, Write] = {
    "append": lambda session, version: session.append(said("new"), expected_version=version),
    "an empty append": lambda session, version: session.append([], expected_version=version),
    "pop": lambda session, version: session.pop(expected_version=version),
    "clear": lambda session, version: session.clear(expected_version=version),
    "replace": lambda session, version: session.replace(said("new"), expected_version=version),
    "restore": lambda session, version: session.restore(1, expected_version=version),
    "delete": lambda session, version: session.delete(expected_version=version),
}


@pytest.fixture
def session(store: SessionStore) -> CasSession:
    return store.session("s")


@pytest.fixture(params=CONDITIONAL.values(), ids=CONDITIONAL.keys())
def write(request: pytest.FixtureRequest) -> Write:
    return request.param  # type: ignore[no-any-return]


async def refused(write: Awaitable[object]) -> VersionConflictError:
    with pytest.raises(VersionConflictError) as caught:
        await write
    return caught.value


async def test_a_stale_replace_conflicts_twice_in_a_row_and_changes_nothing(session: CasSession) -> None:
    stale = await session.append(said("one"))
    current = await session.append(said("two"))

    for _ in range(2):
        conflict = await refused(session.replace(said("mine"), expected_version=stale))

        assert (conflict.session_id, conflict.expected, conflict.actual) == ("s", stale, current)
        assert conflict.actual.nonce == current.nonce
        assert conflict.change == "appended"
    assert texts_of((await session.snapshot()).items) == ["one", "two"]
    assert await session.version() == current


async def test_every_conditional_write_conflicts_after_an_append(session: CasSession, write: Write) -> None:
    stale = await session.append(said("one"))
    current = await session.append(said("two"))

    conflict = await refused(write(session, stale))

    assert (conflict.expected, conflict.actual, conflict.change) == (stale, current, "appended")
    assert texts_of((await session.snapshot()).items) == ["one", "two"]
    assert await session.version() == current


async def test_every_conditional_write_conflicts_after_a_clear(session: CasSession, write: Write) -> None:
    stale = await session.append(said("one"))
    current = await session.clear()

    conflict = await refused(write(session, stale))

    assert (conflict.expected, conflict.actual, conflict.change) == (stale, current, "rewritten")
    assert await session.version() == current


async def test_every_conditional_write_conflicts_after_a_delete(session: CasSession, write: Write) -> None:
    stale = await session.append(said("one"))
    current = await session.delete()

    conflict = await refused(write(session, stale))

    assert (conflict.expected, conflict.actual, conflict.change) == (stale, current, "deleted")
    assert await session.version() == current


@pytest.mark.parametrize("name", [name for name in CONDITIONAL if name != "restore"])
async def test_every_conditional_write_conflicts_where_there_is_no_session(
    session: CasSession, name: str
) -> None:
    conflict = await refused(CONDITIONAL[name](session, 3))

    assert (conflict.expected, conflict.actual, conflict.change) == (3, 0, "missing")
    assert await session.version() == 0


@pytest.mark.parametrize("verb", ["clear", "delete"])
async def test_the_same_count_of_items_after_a_re_creation_is_no_match(
    store: SessionStore, other: SessionStore, verb: str
) -> None:
    """What a store that compares counts, or starts versions again, takes for unchanged."""
    session, foreign = store.session("s"), other.session("s")
    stale = await session.append(said("one", "two"))
    await getattr(foreign, verb)()
    current = await foreign.append(said("uno", "dos"))

    for _ in range(2):
        conflict = await refused(session.replace(said("mine"), expected_version=stale))

        assert (conflict.expected, conflict.actual, conflict.change) == (stale, current, "rewritten")
    assert texts_of((await session.snapshot()).items) == ["uno", "dos"]
    assert current == stale + 2


async def test_the_right_number_with_another_nonce_is_a_conflict(session: CasSession) -> None:
    current = await session.append(said("one"))
    foreign = Version(current, "0123456789abcdef")

    conflict = await refused(session.append(said("two"), expected_version=foreign))
    landed = await session.append(said("two"), expected_version=int(current))

    assert conflict.actual.nonce == current.nonce
    assert conflict.change == "rewritten"
    assert landed == current + 1


async def test_version_0_creates_and_creates_once(session: CasSession) -> None:
    created = await session.append(said("one"), expected_version=0)

    conflict = await refused(session.append(said("two"), expected_version=0))

    assert created == 1
    assert (conflict.expected, conflict.actual, conflict.change) == (0, created, "appended")
    assert texts_of((await session.snapshot()).items) == ["one"]


async def test_version_0_does_not_match_a_deleted_session(session: CasSession) -> None:
    await session.append(said("one"))
    tombstone = await session.delete()

    conflict = await refused(session.append(said("two"), expected_version=0))
    revived = await session.append(said("two"), expected_version=tombstone)

    assert (conflict.actual, conflict.change) == (tombstone, "deleted")
    assert revived == tombstone + 1


async def test_a_conflict_carries_the_version_to_go_on_with(session: CasSession) -> None:
    stale = await session.append(said("one"))
    await session.append(said("two"))
    conflict = await refused(session.replace(said("mine"), expected_version=stale))

    landed = await session.replace(said("mine"), expected_version=conflict.actual)

    assert landed == conflict.actual + 1
    assert texts_of((await session.snapshot()).items) == ["mine"]
