"""Lists: op rows, sessions by age and by owner, metadata."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cas_session.driver import Driver, ListSessions, SessionRow
from tests.conformance.database import Database
from tests.conformance.writes import (
    append,
    clear,
    compact,
    delete,
    load,
    operations,
    pop,
    prefix_of,
    replace,
    restore,
    send,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def ids(rows: list[SessionRow]) -> list[str]:
    return [row.session_id for row in rows]


async def _sessions(driver: Driver, database: Database, names: str, *, owner: str | None = None) -> None:
    """Sessions named by letters, each created a minute after the one before."""
    for at, name in enumerate(names):
        await send(driver, append(name, "a", owner=owner))
        await database.set_moment(name, EPOCH + timedelta(minutes=at))


async def test_op_rows_are_listed_newest_first_with_every_kind(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", "b"))
    await send(driver, pop(s))
    await send(driver, replace(s, "c", expected=2))
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), "d"))
    await send(driver, restore(s, 1, expected=4))
    await send(driver, clear(s))
    await send(driver, delete(s))

    rows = await operations(driver, s)

    assert [row.kind for row in reversed(rows)] == [
        "append",
        "pop",
        "replace",
        "compact",
        "restore",
        "clear",
        "delete",
    ]
    assert [int(row.manifest.version) for row in rows] == [7, 6, 5, 4, 3, 2, 1]


async def test_op_rows_are_paged_by_version(driver: Driver, s: str) -> None:
    for text in "abcde":
        await send(driver, append(s, text))

    async def page(limit: int, before: int | None) -> list[int]:
        rows = await driver.operations(s, limit=limit, before=before)
        return [int(row.manifest.version) for row in rows]

    assert await page(2, None) == [5, 4]
    assert await page(2, 4) == [3, 2]
    assert await page(2, 2) == [1]
    assert await page(2, 1) == []
    assert await driver.operations("conversation-2", limit=2, before=None) == []


async def test_sessions_are_listed_newest_first(driver: Driver, database: Database) -> None:
    await _sessions(driver, database, "abc")

    assert ids(await driver.list_sessions(ListSessions())) == ["c", "b", "a"]


async def test_a_listed_session_is_its_row(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", owner="ann", metadata='{"title":"ä"}'))

    (row,) = await driver.list_sessions(ListSessions())

    assert row == (await load(driver, s)).row
    assert row.manifest.version.nonce == (await load(driver, s)).manifest.version.nonce


async def test_sessions_are_paged_without_gap_or_repeat(driver: Driver, database: Database) -> None:
    await _sessions(driver, database, "abcdefg")
    pages, after = [], None
    while page := await driver.list_sessions(ListSessions(limit=3, after=after)):
        pages.append("".join(ids(page)))
        after = (page[-1].created_at, page[-1].session_id)

    assert pages == ["gfe", "dcb", "a"]


@pytest.mark.parametrize("order", ["created", "active"])
async def test_sessions_of_one_moment_are_paged_without_gap_or_repeat(
    driver: Driver, database: Database, order: str
) -> None:
    for name in "abcdefg":
        await send(driver, append(name, "a", owner="ann"))
        await database.set_moment(name, EPOCH)
    seen: list[str] = []
    after = None
    while page := await driver.list_sessions(
        ListSessions(owner="ann", order=order, limit=2, after=after)  # type: ignore[arg-type]
    ):
        seen += ids(page)
        after = (EPOCH, page[-1].session_id)

    assert len(seen) == 7
    assert sorted(seen) == list("abcdefg")


async def test_sessions_are_listed_by_owner(driver: Driver, database: Database) -> None:
    await _sessions(driver, database, "abc", owner="ann")
    await _sessions(driver, database, "xy", owner="bob")
    await _sessions(driver, database, "z")

    assert ids(await driver.list_sessions(ListSessions(owner="ann"))) == ["c", "b", "a"]
    assert ids(await driver.list_sessions(ListSessions(owner="bob", limit=1))) == ["y"]
    assert ids(await driver.list_sessions(ListSessions(owner="eve"))) == []
    assert len(await driver.list_sessions(ListSessions())) == 6


async def test_an_owner_s_sessions_are_paged(driver: Driver, database: Database) -> None:
    await _sessions(driver, database, "abcd", owner="ann")
    await _sessions(driver, database, "wxyz", owner="bob")
    first = await driver.list_sessions(ListSessions(owner="ann", limit=3))
    after = (first[-1].created_at, first[-1].session_id)

    assert ids(await driver.list_sessions(ListSessions(owner="ann", limit=3, after=after))) == ["a"]


async def test_an_owner_s_sessions_are_listed_by_last_write(driver: Driver, database: Database) -> None:
    await _sessions(driver, database, "abcd", owner="ann")
    await _sessions(driver, database, "x", owner="bob")
    await send(driver, append("b", "again"))

    rows = await driver.list_sessions(ListSessions(owner="ann", order="active"))
    after = (rows[1].updated_at, rows[1].session_id)

    assert ids(rows) == ["b", "d", "c", "a"]
    assert ids(await driver.list_sessions(ListSessions(owner="ann", order="active", after=after))) == [
        "c",
        "a",
    ]


async def test_deleted_sessions_are_left_out_and_revived_ones_are_back(
    driver: Driver, database: Database
) -> None:
    await _sessions(driver, database, "abc", owner="ann")
    await send(driver, delete("b"))
    await send(driver, delete("c"))
    await send(driver, append("c", "again", owner="ann"))

    assert sorted(ids(await driver.list_sessions(ListSessions()))) == ["a", "c"]
    assert sorted(ids(await driver.list_sessions(ListSessions(owner="ann")))) == ["a", "c"]
    assert sorted(ids(await driver.list_sessions(ListSessions(owner="ann", order="active")))) == ["a", "c"]


async def test_a_cleared_session_is_still_listed(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))
    await send(driver, clear(s))

    assert ids(await driver.list_sessions(ListSessions())) == [s]


async def test_metadata_is_written_and_read_back(driver: Driver, s: str) -> None:
    landed = await send(driver, append(s, "a"))
    text = '{"title":"Über ☃ 🧊","z":1,"a":2}'

    assert await driver.set_metadata(s, text)
    loaded = await load(driver, s)

    assert loaded.row is not None
    assert loaded.row.metadata == text
    assert loaded.manifest == landed.manifest
    assert loaded.manifest.version.nonce == landed.manifest.version.nonce
    assert len(await operations(driver, s)) == 1


async def test_metadata_can_be_taken_away(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", metadata="{}"))

    assert await driver.set_metadata(s, None)
    row = (await load(driver, s)).row

    assert row is not None
    assert row.metadata is None


async def test_metadata_survives_a_clear(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a", owner="ann", metadata='{"k":1}'))
    await send(driver, clear(s))
    row = (await load(driver, s)).row

    assert row is not None
    assert (row.owner, row.metadata) == ("ann", '{"k":1}')


async def test_a_session_that_does_not_exist_or_is_deleted_takes_no_metadata(driver: Driver, s: str) -> None:
    assert not await driver.set_metadata(s, "{}")
    await send(driver, delete(s))

    assert not await driver.set_metadata(s, "{}")
    row = (await load(driver, s)).row
    assert row is not None
    assert row.metadata is None
