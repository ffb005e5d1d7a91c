"""Export to JSON Lines, and import from them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cas_session import ConfigurationError, Item, SessionNotFoundError, SessionStore
from cas_session.importers import ExportReport, ImportReport, JsonLines, export_sessions, import_sessions
from tests.session.items import said, texts_of, turns
from tests.session.stores import Patched, first

STRANGE: list[Item] = [
    {"role": "user", "content": "NUL \0, line ends \u2028\u2029\x85\r\n, 🎈, a lone \ud800"},
    {"z": 1, "a": {"y": [1.5, None, True, 10**30, -0.0, 1e22], "b": ""}, "item": {}, "session_id": 7},
    json.loads('{"a":' * 200 + "1" + "}" * 200),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions.jsonl"


async def exported(store: SessionStore, file: Path, **options: Any) -> ExportReport:
    text = io.StringIO()
    report = await export_sessions(store, text.write, **options)
    put(file, text.getvalue())
    return report


def put(file: Path, content: str | bytes) -> None:
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def got(file: Path) -> str:
    return file.read_bytes().decode()


def numbers(report: ImportReport) -> tuple[int, int, int, int]:
    return report.items, report.already_there, report.rejected, report.refused


def line(session_id: Any, item: Any, **more: Any) -> str:
    return json.dumps({"session_id": session_id, "item": item, **more})


# -- there and back


async def test_what_was_exported_is_imported_as_it_was(
    store: SessionStore, sqlite_store: SessionStore, file: Path
) -> None:
    """Items, the order of their keys, owner and metadata."""
    await store.session("strange ü", owner="ann", metadata={"title": "Straße", "n": [1]}).append(STRANGE)
    await store.session("long").append(turns(200))
    await store.session("rewritten").append(said("old"))
    snapshot = await store.session("rewritten").snapshot()
    await store.session("rewritten").replace(said("new"), expected_version=snapshot.version)

    out = await exported(store, file)
    async with SessionStore("sqlite://") as empty:
        report = await import_sessions(JsonLines(file), empty)

        assert (out.sessions, out.items, out.complete) == (3, 404, True)
        assert (report.sessions, report.items, report.complete) == (3, 404, True)
        for session_id in ("strange ü", "long", "rewritten"):
            items = (await empty.session(session_id).snapshot()).items
            assert items == (await store.session(session_id).snapshot()).items
        assert [list(item) for item in (await empty.session("strange ü").snapshot()).items] == [
            list(item) for item in STRANGE
        ]
        [info] = await empty.list_sessions(owner="ann")
        assert info.metadata == {"title": "Straße", "n": [1]}


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(st.dictionaries(st.text(), any_json, max_size=4), min_size=1, max_size=4))
async def test_any_items_come_back(tmp_path: Path, items: list[Item]) -> None:
    file = tmp_path / "any.jsonl"
    async with SessionStore("sqlite://") as store, SessionStore("sqlite://") as empty:
        await store.session("talk").append(items)
        await exported(store, file)
        await import_sessions(JsonLines(file), empty)

        assert (await empty.session("talk").snapshot()).items == items


async def test_the_same_database_gives_the_same_file_newest_first(
    store: SessionStore, tmp_path: Path
) -> None:
    for session_id in ("one", "two", "three"):
        await store.session(session_id).append(said(session_id))
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]

    for file in files:
        await exported(store, file)

    newest_first = [info.session_id for info in await store.list_sessions()]
    first_file, second_file = map(got, files)

    assert first_file == second_file
    assert [json.loads(text)["session_id"] for text in first_file.splitlines()] == newest_first


async def test_a_named_session_is_exported_alone_and_must_exist(store: SessionStore, file: Path) -> None:
    await store.session("a").append(said("1"))
    await store.session("b").append(said("2"))
    await store.session("gone").append(said("3"))
    await store.session("gone").delete()

    await exported(store, file, session_ids=["b"])

    assert [json.loads(text) for text in got(file).splitlines()] == [
        {"session_id": "b", "item": said("2")[0]}
    ]
    for session_id in ("never", "gone"):
        with pytest.raises(SessionNotFoundError):
            await exported(store, file, session_ids=[session_id])


async def test_deleted_and_empty_sessions_have_no_lines(store: SessionStore, file: Path) -> None:
    await store.session("gone").append(said("1"))
    await store.session("gone").delete()
    await store.session("empty", owner="ann").append(said("1"))
    await store.session("empty").clear()

    report = await exported(store, file)

    assert (report.items, got(file)) == (0, "")


async def test_each_session_is_one_snapshot_while_others_write(
    patched: Patched, other: SessionStore, file: Path
) -> None:
    """What comes between the list and the read of a session is in it whole; a deleted one is left out."""
    for session_id in ("a", "b", "c"):
        await patched.store.session(session_id).append(said("1"))

    async def meanwhile() -> None:
        await other.session("a").append(said("2", "3"))
        await other.session("b").delete()

    patched.driver.around("load", first(meanwhile))
    report = await exported(patched.store, file)

    lines = [json.loads(text) for text in got(file).splitlines()]
    assert report.sessions == 2
    assert [(entry["session_id"], entry["item"]["content"]) for entry in lines] == [
        ("c", "1"),
        *(("a", text) for text in "123"),
    ]


async def test_pages_of_sessions_leave_none_out(
    store: SessionStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cas_session.importers.export.PAGE", 2)
    for number in range(5):
        await store.session(str(number)).append(said("x"))

    assert (await exported(store, file)).sessions == 5


async def test_a_session_with_a_corrupt_row_is_reported_and_not_written_in_part(
    store: SessionStore, database_url: str, file: Path
) -> None:
    await store.session("good").append(said("1"))
    await store.session("broken").append(said("a", "b"))
    await execute(database_url, "UPDATE cas_session_item SET data = '{\"torn\"' WHERE seq = 2")
    heard: list[Any] = []

    report = await exported(store, file, on_rejected=heard.append)

    [rejected] = report.reasons
    assert (report.sessions, report.refused, report.complete) == (1, 1, False)
    assert (rejected.session_id, rejected.row, rejected.text) == ("broken", 2, '{"torn"')
    assert heard == [rejected]
    assert "broken" not in got(file)


async def execute(database_url: str, sql: str) -> None:
    from sqlalchemy import make_url, text
    from sqlalchemy.ext.asyncio import create_async_engine

    driver = "sqlite+aiosqlite" if database_url.startswith("sqlite") else "postgresql+asyncpg"
    engine = create_async_engine(make_url(database_url).set(drivername=driver))
    async with engine.begin() as connection:
        await connection.execute(text(sql))
    await engine.dispose()


# -- again


async def test_a_newer_export_continues_an_older_one_whatever_its_order(
    store: SessionStore, sqlite_store: SessionStore, database_url: str, file: Path
) -> None:
    """Rows are counted within their conversation."""
    async with SessionStore("sqlite://") as source:
        await source.session("old").append(said("1"))
        await exported(source, file)
        before = await import_sessions(JsonLines(file), store)
        await source.session("new").append(said("a"))
        await source.session("old").append(said("2"))
        await exported(source, file)

        after = await import_sessions(JsonLines(file), store)

    assert (numbers(before), numbers(after)) == ((1, 0, 0, 0), (2, 1, 0, 0))
    assert texts_of(await store.session("old").get_items()) == ["1", "2"]


async def test_a_file_that_grows_is_continued(store: SessionStore, file: Path) -> None:
    """Also behind a last line that had no line end."""
    put(file, line("a", {"n": 1}) + "\n" + line("b", {"n": 2}))
    await import_sessions(JsonLines(file), store)
    put(file, got(file) + "\n" + line("a", {"n": 3}) + "\n")

    report = await import_sessions(JsonLines(file), store)

    assert numbers(report) == (1, 2, 0, 0)
    assert (await store.session("a").snapshot()).items == [{"n": 1}, {"n": 3}]


async def test_another_file_under_the_same_name_is_refused(store: SessionStore, file: Path) -> None:
    put(file, line("a", {"n": 1}))
    await import_sessions(JsonLines(file), store)
    put(file, line("a", {"n": 2}))

    assert numbers(await import_sessions(JsonLines(file), store, append=True)) == (0, 0, 0, 1)


# -- forms


async def test_conversations_may_be_mixed(store: SessionStore, file: Path) -> None:
    order = ["a", "b", "a", "c", "b", "a"]
    put(file, "\n".join(line(session_id, {"n": n}) for n, session_id in enumerate(order)))

    report = await import_sessions(JsonLines(file), store)

    assert (report.sessions, report.items) == (3, 6)
    for session_id in "abc":
        items = (await store.session(session_id).snapshot()).items
        assert [item["n"] for item in items] == [n for n, of in enumerate(order) if of == session_id]


async def test_bare_items_belong_to_the_session_that_is_given(store: SessionStore, file: Path) -> None:
    put(file, '{"role": "user", "content": "a"}\n{"role": "user", "content": "b"}\n')

    report = await import_sessions(JsonLines(file, session_id="talk"), store)

    assert report.items == 2
    assert texts_of(await store.session("talk").get_items()) == ["a", "b"]


async def test_lines_that_name_a_session_are_not_taken_for_bare_items(
    sqlite_store: SessionStore, file: Path
) -> None:
    put(file, line("a", {"n": 1}))

    report = await import_sessions(JsonLines(file, session_id="talk"), sqlite_store)

    assert numbers(report) == (0, 0, 1, 1)
    assert "names a conversation" in report.reasons[0].reason


async def test_byte_order_mark_blank_lines_and_carriage_returns_are_no_harm(
    sqlite_store: SessionStore, file: Path
) -> None:
    lines = ["", line("a", {"n": 1}), "  ", line("a", {"n": 2}), ""]
    put(file, "\r\n".join(lines[1:]).encode("utf-8-sig"))

    report = await import_sessions(JsonLines(file), sqlite_store)

    assert numbers(report) == (2, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"session_id": "a", "item": [1]}', "item is no JSON object"),
        ('{"session_id": "a"}', "item is no JSON object"),
        ('{"session_id": "a", "item": {}, "extra": 1}', "unknown keys: extra"),
        ('{"session_id": "a", "item": {}, "owner": 7}', "owner must be a str"),
        ('{"session_id": "a", "item": {}, "metadata": [["a", 1]]}', "metadata is no JSON object"),
        ('{"session_id": "a", "item": {"n": NaN}}', None),
        ('{"session_id": "a", "item": {"a": ' + '{"a":' * 200 + "1" + "}" * 202, "nested deeper than 200"),
    ],
)
async def test_a_line_that_holds_no_item_leaves_out_its_conversation(
    sqlite_store: SessionStore, file: Path, text: str, why: str | None
) -> None:
    """One of which nobody can tell the conversation, all of them."""
    put(file, "\n".join([line("b", {"n": 1}), line("a", {"n": 2}), "", text]))

    report = await import_sessions(JsonLines(file), sqlite_store)

    row = report.reasons[0]
    assert (row.table, row.row, row.text) == (str(file), 4, text)
    assert numbers(report) == ((1, 0, 1, 1) if why else (0, 0, 1, 1))
    assert (why or "NaN") in row.reason
    assert row.session_id == ("a" if why else None)


@pytest.mark.parametrize(
    "text", ['{"session_id": "a", "it', '"a"', '{"item": {}}', '{"session_id": 7, "item": {}}']
)
async def test_a_line_that_names_no_conversation_leaves_out_all_unless_told_otherwise(
    sqlite_store: SessionStore, file: Path, text: str
) -> None:
    put(file, "\n".join([line("a", {"n": 1}), text, line("a", {"n": 2})]))

    nothing = await import_sessions(JsonLines(file), sqlite_store)
    version = await sqlite_store.session("a").version()
    rest = await import_sessions(JsonLines(file), sqlite_store, corrupt="leave_out")

    assert (numbers(nothing), version) == ((0, 0, 1, 1), 0)
    assert numbers(rest) == (2, 0, 1, 0)
    assert not rest.complete


async def test_bytes_that_are_no_utf_8_are_reported_with_their_escapes(
    sqlite_store: SessionStore, file: Path
) -> None:
    put(file, b'{"session_id": "a", "item": {"b": "\xe9"}}\n')

    report = await import_sessions(JsonLines(file), sqlite_store)

    assert report.reasons[0].text == '{"session_id": "a", "item": {"b": "\\xe9"}}'
    assert "utf-8" in report.reasons[0].reason


@pytest.mark.parametrize("bad", ["x" * 513, "", "a\0b", "\ud800"])
async def test_an_id_that_cannot_be_stored_is_reported(
    sqlite_store: SessionStore, file: Path, bad: str
) -> None:
    put(file, "\n".join([line(bad, {"n": 1}), line("good", {"n": 2})]))

    report = await import_sessions(JsonLines(file), sqlite_store)

    assert numbers(report) == (1, 0, 0, 1)
    assert "session_id" in report.reasons[0].reason


async def test_a_report_holds_the_first_hundred_reasons_and_the_hook_hears_all(
    sqlite_store: SessionStore, file: Path
) -> None:
    put(file, "\n".join(line("a", n) for n in range(150)))
    heard: list[Any] = []

    report = await import_sessions(JsonLines(file), sqlite_store, on_rejected=heard.append)

    assert (report.rejected, len(report.reasons), len(heard)) == (150, 100, 151)


async def test_a_file_that_cannot_be_read_is_one_clear_error(
    sqlite_store: SessionStore, tmp_path: Path
) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot read"):
            await import_sessions(JsonLines(path), sqlite_store)
