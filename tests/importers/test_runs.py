"""Runs that are made again, broken off, made at once, or meet what others wrote."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from cas_session import SessionStore, StorageUnavailableError
from cas_session.importers import ImportReport, SdkTables, import_sessions, run
from tests.conformance.database import Database
from tests.importers.sources import Sdk
from tests.session.items import said, texts_of
from tests.session.stores import Around, Patched, cancel_answer, first, lose_answer, lose_request

LONG_AGO = timedelta(days=100)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CHUNK_ITEMS", 3)


async def counts(store: SessionStore, session_id: str = "talk") -> list[int]:
    """How many items each write left, oldest first."""
    operations = await store.session(session_id).operations()
    return [operation.manifest.item_count for operation in reversed(operations)]


def numbers(report: ImportReport) -> tuple[int, int, int, int]:
    return report.items, report.already_there, report.rejected, report.refused


async def refuse_for_good(verb: Around, *args: Any) -> Any:
    raise StorageUnavailableError("the disk is full", transient=False)


# -- again


async def test_a_second_run_writes_nothing(sdk: Sdk, store: SessionStore) -> None:
    await sdk.add("talk", said(*"abc"))
    first_run = await import_sessions(sdk.source, store)
    version = await store.session("talk").version()

    second_run = await import_sessions(sdk.source, store)

    assert numbers(first_run) == (3, 0, 0, 0)
    assert numbers(second_run) == (0, 3, 0, 0)
    assert second_run.sessions == 0
    assert await store.session("talk").version() == version


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("begun_with", [1, 2, 3, 4, 6, 7])
async def test_a_source_that_has_grown_is_continued(
    sqlite_sdk: Sdk, store: SessionStore, begun_with: int
) -> None:
    """Behind a chunk that was full, and behind one that was not."""
    texts = list("abcdefghij")
    await sqlite_sdk.add("talk", said(*texts[:begun_with]))
    await import_sessions(sqlite_sdk.source, store)
    await sqlite_sdk.add("talk", said(*texts[begun_with:]))
    await sqlite_sdk.add("new", said("x"))

    report = await import_sessions(sqlite_sdk.source, store)
    again = await import_sessions(sqlite_sdk.source, store)

    assert numbers(report) == (11 - begun_with, begun_with, 0, 0)
    assert numbers(again) == (0, 11, 0, 0)
    assert texts_of(await store.session("talk").get_items()) == texts


async def test_a_source_that_grows_is_continued_from_each_of_its_kinds(sdk: Sdk, store: SessionStore) -> None:
    for number in range(4):
        await sdk.add("talk", said(f"{number}a", f"{number}b"))
        assert numbers(await import_sessions(sdk.source, store)) == (2, 2 * number, 0, 0)

    assert await store.session("talk").get_items() == await sdk.session("talk").get_items()


@pytest.mark.usefixtures("small_chunks")
async def test_a_long_conversation_is_written_in_bounded_chunks(sqlite_sdk: Sdk, store: SessionStore) -> None:
    await sqlite_sdk.add("talk", said(*"abcdefgh"))

    await import_sessions(sqlite_sdk.source, store)

    assert await counts(store) == [3, 6, 8]


async def test_a_chunk_is_bounded_in_bytes_as_well(
    sqlite_sdk: Sdk, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item that is larger than a chunk is one of its own."""
    monkeypatch.setattr(run, "CHUNK_BYTES", 200)
    await sqlite_sdk.add("talk", said("a" * 60, "b" * 60, "c" * 60, "d" * 500, "e", "f"))

    await import_sessions(sqlite_sdk.source, store)
    again = await import_sessions(sqlite_sdk.source, store)

    assert await counts(store) == [2, 3, 4, 6]
    assert numbers(again) == (0, 6, 0, 0)


async def test_two_sources_are_told_apart_by_their_names(sqlite_sdk: Sdk, store: SessionStore) -> None:
    await sqlite_sdk.add("talk", said("a"))
    await import_sessions(SdkTables(sqlite_sdk.url, name="here"), store)

    other = await import_sessions(SdkTables(sqlite_sdk.url, name="there"), store)
    same = await import_sessions(SdkTables(sqlite_sdk.url, name="here"), store)

    assert numbers(other) == (0, 0, 0, 1)
    assert numbers(same) == (0, 1, 0, 0)


async def test_a_dry_run_says_what_would_be_and_writes_nothing(sdk: Sdk, store: SessionStore) -> None:
    await sdk.add("talk", said(*"abc"))
    await sdk.add("theirs", said("x"))
    await store.session("theirs").append(said("y"))

    dry = await import_sessions(sdk.source, store, dry_run=True)
    versions = [await store.session(session_id).version() for session_id in ("talk", "theirs")]
    wet = await import_sessions(sdk.source, store)

    assert versions == [0, 1]
    assert (dry.dry_run, wet.dry_run) == (True, False)
    assert numbers(dry) == numbers(wet) == (3, 0, 0, 1)
    assert (dry.sessions, dry.reasons) == (wet.sessions, wet.reasons)


async def test_progress_is_told_after_each_conversation(sqlite_sdk: Sdk, store: SessionStore) -> None:
    for session_id in ("a", "b", "c"):
        await sqlite_sdk.add(session_id, said("1", "2"))
    seen: list[int] = []

    await import_sessions(sqlite_sdk.source, store, on_progress=lambda report: seen.append(report.items))

    assert seen == [2, 4, 6]


# -- broken off


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("fault", [lose_answer, lose_request], ids=["answer lost", "request lost"])
async def test_a_write_of_which_nobody_heard_is_there_once(
    sqlite_sdk: Sdk, patched: Patched, fault: Around
) -> None:
    await sqlite_sdk.add("talk", said(*"abcdefg"))
    patched.driver.around("append", fault, fault, fault)

    report = await import_sessions(sqlite_sdk.source, patched.store)

    assert numbers(report) == (7, 0, 0, 0)
    assert texts_of(await patched.store.session("talk").get_items()) == list("abcdefg")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("chunk", [1, 2, 3])
async def test_a_run_that_failed_is_finished_by_the_next(
    sqlite_sdk: Sdk, patched: Patched, other: SessionStore, chunk: int
) -> None:
    """Also after the source has grown."""
    await sqlite_sdk.add("talk", said(*"abcdefg"))

    async def land(verb: Around, *args: Any) -> Any:
        return await verb(*args)

    patched.driver.around("append", *[land] * (chunk - 1), refuse_for_good)
    with pytest.raises(StorageUnavailableError, match="disk"):
        await import_sessions(sqlite_sdk.source, patched.store)
    await sqlite_sdk.add("talk", said("h"))

    report = await import_sessions(sqlite_sdk.source, other)

    there = 3 * (chunk - 1)
    assert numbers(report) == (8 - there, there, 0, 0)
    assert texts_of(await other.session("talk").get_items()) == list("abcdefgh")


@pytest.mark.usefixtures("small_chunks")
async def test_a_run_that_was_cancelled_is_finished_by_the_next(
    sqlite_sdk: Sdk, patched: Patched, other: SessionStore
) -> None:
    """The cancelled write had landed."""
    await sqlite_sdk.add("talk", said(*"abcdefg"))
    patched.driver.around("append", cancel_answer)
    running = asyncio.create_task(import_sessions(sqlite_sdk.source, patched.store))
    with pytest.raises(asyncio.CancelledError):
        await running

    report = await import_sessions(sqlite_sdk.source, other)

    assert numbers(report) == (4, 3, 0, 0)
    assert texts_of(await other.session("talk").get_items()) == list("abcdefg")


@pytest.mark.usefixtures("small_chunks")
async def test_two_runs_at_once_write_everything_once(
    sdk: Sdk, store: SessionStore, other: SessionStore
) -> None:
    for session_id in ("one", "two"):
        await sdk.add(session_id, said(*"abcdefg"))

    await asyncio.gather(*(import_sessions(sdk.source, each) for each in (store, other)))

    for session_id in ("one", "two"):
        assert texts_of(await store.session(session_id).get_items()) == list("abcdefg")
    assert numbers(await import_sessions(sdk.source, store)) == (0, 14, 0, 0)


async def test_a_run_beside_one_that_saw_less_is_told_so(
    sqlite_sdk: Sdk, patched: Patched, other: SessionStore
) -> None:
    """The op_id is the same, the items are not: nothing is written."""
    await sqlite_sdk.add("talk", said("a", "b"))

    async def meanwhile() -> None:
        await sqlite_sdk.execute("DELETE FROM agent_messages WHERE id = 2")
        await import_sessions(sqlite_sdk.source, other)

    patched.driver.around("append", first(meanwhile))
    report = await import_sessions(sqlite_sdk.source, patched.store)

    assert numbers(report) == (0, 0, 0, 1)
    assert "during the import" in report.reasons[0].reason
    assert texts_of(await other.session("talk").get_items()) == ["a"]


# -- what others wrote


async def test_a_session_of_somebody_else_is_left_as_it_is(sdk: Sdk, store: SessionStore) -> None:
    await sdk.add("free", said("a"))
    await sdk.add("talk", said("b"))
    await store.session("talk").append(said("mine"))

    report = await import_sessions(sdk.source, store)

    [refused] = report.reasons
    assert numbers(report) == (1, 0, 0, 1)
    assert (refused.session_id, refused.row) == ("talk", None)
    assert "exists already, at version 1" in refused.reason
    assert texts_of(await store.session("talk").get_items()) == ["mine"]


async def test_append_imports_behind_it_once(sdk: Sdk, store: SessionStore) -> None:
    await sdk.add("talk", said("b"))
    await store.session("talk").append(said("mine"))

    reports = [await import_sessions(sdk.source, store, append=True) for _ in range(2)]
    await store.session("talk").append(said("mine too"))
    await sdk.add("talk", said("c"))
    refused = await import_sessions(sdk.source, store)
    reports.append(await import_sessions(sdk.source, store, append=True))

    assert [numbers(report) for report in reports] == [(1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0)]
    assert numbers(refused) == (0, 0, 0, 1)
    assert texts_of(await store.session("talk").get_items()) == ["mine", "b", "mine too", "c"]


@pytest.mark.parametrize("how", ["clear", "delete"])
async def test_what_was_erased_since_its_import_stays_erased(
    sqlite_sdk: Sdk, store: SessionStore, how: str
) -> None:
    await sqlite_sdk.add("talk", said("secret"))
    await import_sessions(sqlite_sdk.source, store)
    await getattr(store.session("talk"), how)()

    same = await import_sessions(sqlite_sdk.source, store)
    await sqlite_sdk.add("talk", said("more"))
    grown = await import_sessions(sqlite_sdk.source, store)

    assert numbers(same) == (0, 1, 0, 0)
    assert numbers(grown) == (0, 0, 0, 1)
    assert await store.session("talk").get_items() == []


@pytest.mark.parametrize("how", ["clear", "delete"])
async def test_a_session_that_was_erased_before_its_import_is_left_as_it_is(
    sqlite_sdk: Sdk, store: SessionStore, how: str
) -> None:
    """Nobody can tell that what was erased is not what would be imported."""
    await sqlite_sdk.add("talk", said("secret"))
    await getattr(store.session("talk"), how)()

    assert numbers(await import_sessions(sqlite_sdk.source, store)) == (0, 0, 0, 1)
    assert await store.session("talk").get_items() == []


async def test_others_may_go_on_with_what_was_imported(sqlite_sdk: Sdk, store: SessionStore) -> None:
    """As long as the source has no more, a further run finds everything there; then it needs append."""
    await sqlite_sdk.add("talk", said("a"))
    await import_sessions(sqlite_sdk.source, store)
    await store.session("talk").append(said("mine"))

    same = await import_sessions(sqlite_sdk.source, store)
    await sqlite_sdk.add("talk", said("b"))
    grown = await import_sessions(sqlite_sdk.source, store)

    assert numbers(same) == (0, 1, 0, 0)
    assert numbers(grown) == (0, 0, 0, 1)
    assert "others wrote to the session since" in grown.reasons[0].reason
    assert texts_of(await store.session("talk").get_items()) == ["a", "mine"]


async def test_a_write_that_comes_between_the_look_and_the_import_is_seen(
    sqlite_sdk: Sdk, patched: Patched, other: SessionStore
) -> None:
    await sqlite_sdk.add("talk", said("a"))
    patched.driver.around("append", first(lambda: other.session("talk").append(said("theirs"))))

    report = await import_sessions(sqlite_sdk.source, patched.store)

    assert numbers(report) == (0, 0, 0, 1)
    assert "during the import" in report.reasons[0].reason
    assert texts_of(await other.session("talk").get_items()) == ["theirs"]


@pytest.mark.usefixtures("small_chunks")
async def test_a_write_in_the_middle_of_an_import_does_not_leave_half_of_it(
    sqlite_sdk: Sdk, patched: Patched, other: SessionStore
) -> None:
    await sqlite_sdk.add("talk", said(*"abcd"))

    async def land(verb: Around, *args: Any) -> Any:
        return await verb(*args)

    patched.driver.around("append", land, first(lambda: other.session("talk").append(said("theirs"))))

    report = await import_sessions(sqlite_sdk.source, patched.store)

    assert numbers(report) == (4, 0, 0, 0)
    assert texts_of(await other.session("talk").get_items()) == [*"abc", "theirs", "d"]
    assert numbers(await import_sessions(sqlite_sdk.source, other)) == (0, 4, 0, 0)


# -- sources that changed


async def test_a_conversation_that_was_popped_in_the_source_is_refused(sdk: Sdk, store: SessionStore) -> None:
    await sdk.add("talk", said(*"abc"))
    await import_sessions(sdk.source, store)
    await sdk.session("talk").pop_item()
    shorter = await import_sessions(sdk.source, store)
    await sdk.add("talk", said("d", "e"))
    longer = await import_sessions(sdk.source, store, append=True)

    assert numbers(shorter) == numbers(longer) == (0, 0, 0, 1)
    assert "popped" in longer.reasons[0].reason
    assert texts_of(await store.session("talk").get_items()) == list("abc")


async def test_a_conversation_that_began_again_in_the_source_is_refused(
    sdk: Sdk, store: SessionStore
) -> None:
    await sdk.add("talk", said(*"abc"))
    await import_sessions(sdk.source, store)
    await sdk.session("talk").clear_session()
    await sdk.add("talk", said("d"))

    assert numbers(await import_sessions(sdk.source, store, append=True)) == (0, 0, 0, 1)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("row", [2, 4])
async def test_a_row_that_is_repaired_after_it_was_left_out_is_not_put_behind(
    sqlite_sdk: Sdk, store: SessionStore, row: int
) -> None:
    """Neither in a chunk nor between two of them."""
    await sqlite_sdk.add("talk", said(*"abcdefg"))
    await sqlite_sdk.break_row("{", row=row)
    await import_sessions(sqlite_sdk.source, store, corrupt="leave_out")
    await sqlite_sdk.break_row('{"content": "repaired"}', row=row)

    report = await import_sessions(sqlite_sdk.source, store, corrupt="leave_out", append=True)

    assert numbers(report) == (0, 0, 0, 1)
    assert len(await store.session("talk").get_items()) == 6


# -- pruned op rows


async def prune_all(database_url: str, store: SessionStore) -> None:
    await Database(database_url).age_writes("talk", LONG_AGO, through=100)
    async with SessionStore(database_url, retain=timedelta(0), fence=timedelta(days=1)) as pruning:
        await pruning.prune()


async def test_a_conversation_that_rested_is_known_however_old_its_import_is(
    sqlite_sdk: Sdk, store: SessionStore, database_url: str
) -> None:
    """The newest op row of a session is not pruned."""
    await sqlite_sdk.add("talk", said(*"abc"))
    await import_sessions(sqlite_sdk.source, store)
    await prune_all(database_url, store)
    await sqlite_sdk.add("talk", said("d"))

    assert numbers(await import_sessions(sqlite_sdk.source, store)) == (1, 3, 0, 0)


@pytest.mark.usefixtures("small_chunks")
async def test_without_its_op_rows_a_conversation_is_refused_and_not_imported_twice(
    sqlite_sdk: Sdk, store: SessionStore, database_url: str
) -> None:
    await sqlite_sdk.add("talk", said(*"abcdefg"))
    await import_sessions(sqlite_sdk.source, store)
    await prune_all(database_url, store)
    await sqlite_sdk.add("talk", said("h"))
    some_left = await import_sessions(sqlite_sdk.source, store, append=True)
    await store.session("talk").append(said("mine"))
    await prune_all(database_url, store)
    none_left = await import_sessions(sqlite_sdk.source, store)

    assert numbers(some_left) == numbers(none_left) == (0, 0, 0, 1)
    assert texts_of(await store.session("talk").get_items()) == [*"abcdefg", "mine"]


async def test_many_writes_by_others_hide_no_import(
    sqlite_sdk: Sdk, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in pages."""
    monkeypatch.setattr("cas_session.importers.known.OPS_PAGE", 2)
    await sqlite_sdk.add("talk", said("a", "b"))
    await store.session("talk").append(said("mine"))
    await import_sessions(sqlite_sdk.source, store, append=True)
    for number in range(5):
        await store.session("talk").append(said(str(number)))

    assert numbers(await import_sessions(sqlite_sdk.source, store)) == (0, 2, 0, 0)


async def test_what_to_do_with_corrupt_rows_is_one_of_two(sqlite_sdk: Sdk, store: SessionStore) -> None:
    with pytest.raises(ValueError, match="corrupt"):
        await import_sessions(sqlite_sdk.source, store, corrupt="skip")  # type: ignore[arg-type]
