"""What the SDK's sessions stored, as they read it, in ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agents.extensions.memory import AdvancedSQLiteSession, EncryptedSession

from cas_session import ConfigurationError, SessionStore
from cas_session.importers import Rejected, SdkTables, import_sessions
from tests.importers.sources import SQLITE, Sdk, open_sdk
from tests.session.items import said, texts_of, turns

KEY = "Yz3Jq8Qb1uYQmXWcGvN0y9rYh6S0m7d1k3s5b8f2w4E="
STRANGE: list[Any] = [
    {"role": "user", "content": '你好 🎈 \u2028 \\ " \n'},
    {"z": 1, "a": {"y": [1.5, None, True, 10**30], "b": ""}, "content": "x"},
]


async def test_every_conversation_reads_as_the_sdk_reads_it(sdk: Sdk, store: SessionStore) -> None:
    await sdk.add("one", turns(3))
    await sdk.add("two", STRANGE)
    await sdk.add("one", said("and then"))

    report = await import_sessions(sdk.source, store)

    assert (report.sessions, report.items, report.already_there, report.complete) == (2, 9, 0, True)
    for session_id in ("one", "two"):
        imported = await store.session(session_id).get_items()
        assert imported == await sdk.session(session_id).get_items()
        assert [list(item) for item in imported] == [
            list(item) for item in await sdk.session(session_id).get_items()
        ]


async def test_the_order_is_that_of_the_sdks_reads(sdk: Sdk, store: SessionStore) -> None:
    """By time and id on SQLAlchemySession, by id on the others, whatever the times say."""
    await sdk.add("talk", said(*"abc"))
    await sdk.execute("UPDATE agent_messages SET created_at = '2001-01-01 00:00:00' WHERE id = 3")

    await import_sessions(sdk.source, store)

    imported = await store.session("talk").get_items()
    assert imported == await sdk.session("talk").get_items()
    assert texts_of(imported) == list("cab" if sdk.kind.startswith("SQLAlchemy") else "abc")


@pytest.mark.parametrize("kind", SQLITE)
async def test_an_option_decides_on_the_order(kind: str, tmp_path: Path, store: SessionStore) -> None:
    async with open_sdk(kind, f"sqlite:///{tmp_path}/theirs.db") as sdk:
        await sdk.add("talk", said(*"abc"))
        await sdk.execute("UPDATE agent_messages SET created_at = '2001-01-01' WHERE id = 3")

        for order, name in (("id", "a"), ("created_at", "b")):
            await store.forget("talk")
            await import_sessions(SdkTables(sdk.url, order=order, name=name), store)  # type: ignore[arg-type]
            read = texts_of(await store.session("talk").get_items())
            await store.session("talk").delete()

            assert read == list("abc" if order == "id" else "cab")


async def test_a_file_that_both_kinds_used_needs_the_option(tmp_path: Path, store: SessionStore) -> None:
    url = f"sqlite:///{tmp_path}/theirs.db"
    async with open_sdk("SQLAlchemySession on sqlite", url) as first:
        await first.add("talk", said("a"))
    async with open_sdk("SQLiteSession", url) as second:
        await second.add("talk", said("b"))

    with pytest.raises(ConfigurationError, match="order id or order created_at"):
        await import_sessions(SdkTables(url), store)
    report = await import_sessions(SdkTables(url, order="id"), store)

    assert report.items == 2


async def test_branches_are_not_taken_for_one_conversation(tmp_path: Path, store: SessionStore) -> None:
    session = AdvancedSQLiteSession(session_id="talk", db_path=tmp_path / "theirs.db", create_tables=True)
    await session.add_items(said("a"))  # type: ignore[arg-type]
    session.close()

    with pytest.raises(ConfigurationError, match="AdvancedSQLiteSession"):
        await import_sessions(SdkTables(f"sqlite:///{tmp_path}/theirs.db"), store)


@pytest.mark.parametrize(
    "kind", ["SQLiteSession", "SQLAlchemySession on sqlite", "SQLAlchemySession on postgres"]
)
async def test_tables_may_have_other_names(
    kind: str, tmp_path: Path, one_postgres: str, store: SessionStore
) -> None:
    url = one_postgres if kind.endswith("postgres") else f"sqlite:///{tmp_path}/theirs.db"
    async with open_sdk(kind, url, sessions_table="Chats", messages_table="Chat_Lines") as sdk:
        await sdk.add("talk", said("a", "b"))

        report = await import_sessions(sdk.source, store)

        assert report.items == 2
        with pytest.raises(ConfigurationError, match="no table 'Chat_Lin'"):
            await import_sessions(SdkTables(url, messages_table="Chat_Lin"), store)


async def test_the_source_may_share_the_database_with_ours(database_url: str, store: SessionStore) -> None:
    where = "postgres" if database_url.startswith("postgres") else "sqlite"
    async with open_sdk(f"SQLAlchemySession on {where}", database_url) as sdk:
        await sdk.add("talk", turns(4))

        report = await import_sessions(SdkTables(database_url), store)

        assert (report.items, report.complete) == (8, True)
        assert await store.session("talk").get_items() == await sdk.session("talk").get_items()


async def test_the_source_is_read_as_of_one_moment(sdk: Sdk, store: SessionStore) -> None:
    """What is written to it meanwhile is for the next run."""
    for session_id in ("a", "b"):
        await sdk.add(session_id, said("1"))
    reports: list[Any] = []

    async def grow() -> None:
        await sdk.add("b", said("2"))
        await sdk.add("c", said("3"))

    class Growing(SdkTables):
        """Its conversations grow when the first of them was read."""

        def open(self) -> Any:
            return growing(super().open(), grow)

    source = Growing(sdk.url)
    reports.append(await import_sessions(source, store))
    reports.append(await import_sessions(sdk.source, store))

    assert [(report.items, report.already_there) for report in reports] == [(2, 0), (2, 2)]
    assert texts_of(await store.session("b").get_items()) == ["1", "2"]


def growing(opening: Any, grow: Any) -> Any:
    class Opened:
        async def __aenter__(self) -> Any:
            conversations = await opening.__aenter__()
            rows, grown = conversations.rows, []

            async def rows_then_grow(session_id: str) -> Any:
                if not grown:
                    grown.append(True)
                    await grow()
                async for row in rows(session_id):
                    yield row

            conversations.rows = rows_then_grow
            return conversations

        async def __aexit__(self, *error: Any) -> Any:
            return await opening.__aexit__(*error)

    return Opened()


async def test_a_source_file_is_not_written_to(sqlite_sdk: Sdk, store: SessionStore) -> None:
    await sqlite_sdk.add("talk", turns(3))
    await sqlite_sdk.close()
    before = sqlite_sdk.content()

    await import_sessions(sqlite_sdk.source, store)

    assert sqlite_sdk.content() == before


# -- corrupt rows

CORRUPT: dict[str, tuple[Any, str]] = {
    "torn": ('{"role": "user"', "Expecting"),
    "no object": ('["role", "user"]', "a JSON list is no item"),
    "NaN": ('{"score": NaN}', "NaN"),
    "deep": ('{"a":' * 201 + "1" + "}" * 201, "nested deeper than 200"),
    "empty": ("", "Expecting"),
}


@pytest.mark.parametrize(("text", "why"), CORRUPT.values(), ids=CORRUPT)
async def test_a_conversation_with_a_corrupt_row_is_left_out_as_a_whole(
    sqlite_sdk: Sdk, sqlite_store: SessionStore, text: str, why: str
) -> None:
    """The report names table, row, reason and text; the others are imported."""
    await sqlite_sdk.add("whole", said("1", "2"))
    await sqlite_sdk.add("broken", said("a", "b", "c"))
    await sqlite_sdk.break_row(text, row=4)
    heard: list[Rejected] = []

    report = await import_sessions(sqlite_sdk.source, sqlite_store, on_rejected=heard.append)

    assert (report.sessions, report.items, report.rejected, report.refused) == (1, 2, 1, 1)
    assert not report.complete
    row, whole = report.reasons
    assert (row.table, row.session_id, row.row, row.text) == ("agent_messages", "broken", 4, text)
    assert why in row.reason
    assert (whole.session_id, whole.row) == ("broken", None)
    assert heard == list(report.reasons)
    assert await sqlite_store.session("broken").version() == 0


async def test_an_option_imports_it_without_the_row(sdk: Sdk, store: SessionStore) -> None:
    """As the SDK reads it."""
    await sdk.add("broken", said("a", "b", "c"))
    await sdk.break_row("{", row=2)

    report = await import_sessions(sdk.source, store, corrupt="leave_out")
    again = await import_sessions(sdk.source, store, corrupt="leave_out")

    assert (report.items, report.rejected, report.refused, report.complete) == (2, 1, 0, False)
    assert (again.items, again.already_there, again.rejected) == (0, 2, 1)
    assert await store.session("broken").get_items() == await sdk.session("broken").get_items()


async def test_bytes_that_are_no_text_are_reported_too(sqlite_sdk: Sdk, store: SessionStore) -> None:
    await sqlite_sdk.add("broken", said("a", "b", "c"))
    await sqlite_sdk.break_row(b"\xff\x00", row=1)
    await sqlite_sdk.execute(
        "UPDATE agent_messages SET message_data = CAST(? AS TEXT) WHERE id = 2", b'{"a": "\xe9"}'
    )

    report = await import_sessions(sqlite_sdk.source, store, corrupt="leave_out")

    assert [(row.row, row.reason, row.text) for row in report.reasons] == [
        (1, "a bytes is no text", "\\xff\x00"),
        (2, "it is no UTF-8", '{"a": "\\xe9"}'),
    ]
    assert texts_of(await store.session("broken").get_items()) == ["c"]


@pytest.mark.parametrize("bad", ["x" * 513, "", "a\0b", b"\xff", b"CAST"], ids=repr)
async def test_an_id_that_cannot_be_stored_is_reported(
    sqlite_sdk: Sdk, store: SessionStore, bad: str | bytes
) -> None:
    await sqlite_sdk.add("good", said("1"))
    insert = "INSERT INTO agent_messages (session_id, message_data) VALUES (?, '{}')"
    if bad == b"CAST":
        insert, bad = insert.replace("(?,", "(CAST(? AS TEXT),"), b"\xff"
    await sqlite_sdk.execute(insert, bad)

    report = await import_sessions(sqlite_sdk.source, store)

    [refused] = report.reasons
    assert (report.items, report.rejected, report.refused) == (1, 0, 1)
    assert "session_id" in refused.reason
    assert refused.row is None


async def test_what_was_encrypted_is_read_through_the_same_encryption(sdk: Sdk, store: SessionStore) -> None:
    theirs: Any = EncryptedSession("secret", sdk.session("secret"), KEY)
    await theirs.add_items(turns(2))

    await import_sessions(sdk.source, store)

    ours: Any = EncryptedSession("secret", store.session("secret"), KEY)  # type: ignore[arg-type]
    assert await ours.get_items() == turns(2)


# -- sources that cannot be read


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////no/such/theirs.db", "there is no file"),
        ("sqlite://", "there is no file"),
        ("postgresql://u:secret@127.0.0.1:1/d", "127.0.0.1"),
        ("mysql://u:secret@h/d", "imported from"),
    ],
)
async def test_a_source_that_cannot_be_read_is_one_clear_error(
    sqlite_store: SessionStore, url: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        await import_sessions(SdkTables(url), sqlite_store)

    assert "secret" not in str(error.value)


async def test_a_file_that_is_no_database_is_one_clear_error(
    sqlite_store: SessionStore, tmp_path: Path
) -> None:
    (tmp_path / "theirs.db").write_text("hello, this is no database at all\n" * 100)

    with pytest.raises(ConfigurationError, match="not a database"):
        await import_sessions(SdkTables(f"sqlite:///{tmp_path}/theirs.db"), sqlite_store)


async def test_a_table_of_somebody_else_is_one_clear_error(
    sqlite_store: SessionStore, fresh_sqlite: str
) -> None:
    with pytest.raises(ConfigurationError, match="'cas_session_item' has no column id, message_data"):
        await import_sessions(SdkTables(fresh_sqlite, messages_table="cas_session_item"), sqlite_store)


def test_an_order_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="order"):
        SdkTables("sqlite:///chat.db", order="newest")  # type: ignore[arg-type]


def test_the_identity_of_a_source_does_not_depend_on_who_logs_in() -> None:
    urls = [
        "postgresql://u:secret@h:5432/d?sslmode=require",
        "postgres://v@h:5432/d",
        "postgresql+asyncpg://h:5432/d?connect_timeout=5",
    ]

    assert {SdkTables(url).name for url in urls} == {"postgresql://h:5432/d#agent_messages"}
    assert SdkTables("postgresql:///d?host=/run/a").name != SdkTables("postgresql:///d?host=/run/b").name
    assert SdkTables("sqlite:///x.db").name == SdkTables("sqlite+aiosqlite:///./x.db").name
