"""Bad input: one clear typed error each, which names what to do; nothing half written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from cas_session import (
    CasSession,
    CompactionPolicy,
    ConfigurationError,
    SchemaVersionError,
    SessionNotFoundError,
    SessionStore,
    StorageUnavailableError,
    Version,
    VersionNotRetainedError,
)
from cas_session.compactors import ResponsesCompactor
from tests.session.items import said

BAD_IDS: dict[str, Any] = {
    "empty": "",
    "over-long": "x" * 513,
    "over-long in UTF-8": "🧊" * 129,
    "NUL": "a\0b",
    "a lone surrogate": "a\ud800",
    "None": None,
    "bytes": b"user-42",
    "a number": 42,
}
BAD_VERSIONS = [-1, "1", 1.0, True]
BAD_LIMITS = [-1, "1", 1.5, True]


@pytest.fixture
def session(store: SessionStore) -> CasSession:
    return store.session("s")


# Names and numbers


@pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS.keys())
def test_a_session_id_that_cannot_be_stored_is_refused(store: SessionStore, bad: Any) -> None:
    with pytest.raises(ValueError, match="session_id"):
        store.session(bad)


@pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS.keys())
async def test_an_owner_or_op_id_that_cannot_be_stored_is_refused(store: SessionStore, bad: Any) -> None:
    if bad is not None:  # which is no owner, and no op_id of one's own
        with pytest.raises(ValueError, match="owner"):
            store.session("s", owner=bad)
        with pytest.raises(ValueError, match="op_id"):
            await store.session("s").append(said("one"), op_id=bad)

    assert await store.list_sessions() == []


@pytest.mark.parametrize("size", [1, 512])
async def test_ids_up_to_512_bytes_are_taken(store: SessionStore, size: int) -> None:
    long = "é" * (size // 2) if size > 1 else "x"
    session = store.session(long, owner=long)

    await session.append(said("one"), op_id=long)
    (info,) = await store.list_sessions(owner=long)

    assert (info.session_id, info.owner) == (long, long)


@pytest.mark.parametrize("limit", BAD_LIMITS, ids=repr)
@pytest.mark.parametrize("verb", ["snapshot", "get_items", "operations", "compactions"])
async def test_a_limit_that_is_no_count_is_refused(session: CasSession, verb: str, limit: Any) -> None:
    await session.append(said("one"))

    with pytest.raises(ValueError, match="limit must be"):
        await getattr(session, verb)(limit=limit)


@pytest.mark.parametrize("verb", ["operations", "compactions"])
async def test_a_list_of_rows_has_a_limit(session: CasSession, verb: str) -> None:
    await session.append(said("one"))

    with pytest.raises(ValueError, match="limit must be"):
        await getattr(session, verb)(limit=None)


@pytest.mark.parametrize("before", BAD_LIMITS, ids=repr)
async def test_a_place_to_list_from_that_is_no_version_is_refused(session: CasSession, before: Any) -> None:
    await session.append(said("one"))

    with pytest.raises(ValueError, match="before must be"):
        await session.operations(before=before)


async def test_a_limit_beyond_64_bit_is_none(store: SessionStore, session: CasSession) -> None:
    await session.append(said("one"))

    assert [row.kind for row in await session.operations(limit=2**70, before=2**70)] == ["append"]
    assert await session.compactions(limit=2**70) == []
    assert [info.session_id for info in await store.list_sessions(limit=2**70)] == ["s"]


@pytest.mark.parametrize(
    "text", ['"\u0663"', '"-1"', "7", '"7-5F"', '"7-"', '"7";', "", "*", '"7" "8"'], ids=ascii
)
def test_an_etag_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no etag"):
        Version.from_etag(text)


@pytest.mark.parametrize("text", ['"7-5f"', 'W/"7-5f"', ' "7-5f" '], ids=ascii)
def test_an_etag_is_read_back_with_its_nonce(text: str) -> None:
    read = Version.from_etag(text)

    assert (read, read.nonce, read.etag) == (7, "5f", '"7-5f"')


@pytest.mark.parametrize(("limit", "read"), [(None, "abc"), (0, ""), (2, "bc"), (3, "abc"), (2**70, "abc")])
async def test_a_limit_gives_the_newest_items_oldest_first(
    session: CasSession, limit: int | None, read: str
) -> None:
    await session.append(said(*"abc"))
    await session.append(said("d"))
    await session.pop()

    now = await session.snapshot(limit=limit)
    then = await session.snapshot(limit=limit, version=1)

    assert "".join(item["content"] for item in now.items) == read
    assert (now.version, then.version, then.items) == (3, 1, now.items)


@pytest.mark.parametrize("bad", BAD_VERSIONS, ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda session, bad: session.append(said("x"), expected_version=bad),
        lambda session, bad: session.append([], expected_version=bad),
        lambda session, bad: session.pop(expected_version=bad),
        lambda session, bad: session.clear(expected_version=bad),
        lambda session, bad: session.delete(expected_version=bad),
        lambda session, bad: session.replace(said("x"), expected_version=bad),
        lambda session, bad: session.restore(bad, expected_version=1),
        lambda session, bad: session.restore(1, expected_version=bad),
        lambda session, bad: session.snapshot(version=bad),
    ],
)
async def test_a_version_that_is_no_count_is_refused(
    session: CasSession, call: Callable[..., Any], bad: Any
) -> None:
    await session.append(said("one"))

    with pytest.raises(ValueError, match="version"):
        await call(session, bad)

    assert await session.version() == 1


@pytest.mark.parametrize("verb", ["replace", "restore"])
async def test_a_rewrite_without_a_version_is_refused(session: CasSession, verb: str) -> None:
    """There is no blind replace."""
    await session.append(said("one"))
    what: Any = said("two") if verb == "replace" else 1

    with pytest.raises(ValueError, match="needs expected_version"):
        await getattr(session, verb)(what, expected_version=None)
    with pytest.raises(TypeError, match="expected_version"):
        await getattr(session, verb)(what)

    assert await session.version() == 1


@pytest.mark.parametrize("version", [7, 2**70])
async def test_a_version_that_was_not_written_yet_is_refused(session: CasSession, version: int) -> None:
    await session.append(said("one"))

    with pytest.raises(ValueError, match="version"):
        await session.snapshot(version=version)
    with pytest.raises(ValueError, match="version"):
        await session.restore(version, expected_version=1)

    assert await session.version() == 1


async def test_an_erased_version_is_not_retained(session: CasSession) -> None:
    await session.append(said("secret"))
    await session.clear()

    with pytest.raises(VersionNotRetainedError, match="erased") as caught:
        await session.snapshot(version=1)
    with pytest.raises(VersionNotRetainedError):
        await session.restore(1, expected_version=2)

    assert (caught.value.session_id, caught.value.version, caught.value.reason) == ("s", 1, "erased")


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.operations(),
        lambda session: session.compactions(),
        lambda session: session.metadata(),
        lambda session: session.set_metadata({"a": 1}),
        lambda session: session.restore(1, expected_version=1),
        lambda session: session.snapshot(version=1),
    ],
    ids=["operations", "compactions", "metadata", "set_metadata", "restore", "snapshot"],
)
async def test_what_needs_a_session_says_that_there_is_none(
    session: CasSession, call: Callable[[CasSession], Any]
) -> None:
    with pytest.raises(SessionNotFoundError, match="'s'"):
        await call(session)

    assert await session.version() == 0


@pytest.mark.parametrize("bad", [{"a": b"x"}, {1: 2}, "text", [1], {"a": {1, 2}}], ids=repr)
async def test_metadata_that_is_no_json_object_is_refused(session: CasSession, bad: Any) -> None:
    await session.append(said("one"))
    await session.set_metadata({"title": "as it was"})

    with pytest.raises(ValueError, match="metadata"):
        await session.set_metadata(bad)
    with pytest.raises(ValueError, match="metadata"):
        session._store.session("t", metadata=bad)

    assert await session.metadata() == {"title": "as it was"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"limit": -1}, "limit"),
        ({"limit": None}, "limit"),
        ({"order": "size"}, "order"),
        ({"order": "active"}, "owner"),
        ({"owner": ""}, "owner"),
    ],
    ids=repr,
)
async def test_a_list_that_cannot_be_had_is_refused(
    store: SessionStore, query: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        await store.list_sessions(**query)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"retain": timedelta(seconds=-1)}, "retain"),
        ({"fence": timedelta(hours=1)}, "fence must be at least 1 day"),
        ({"pool_size": 0}, "pool_size"),
        ({"worker": "a\0b"}, "worker"),
        ({"worker": "a\ud800"}, "worker"),
        ({"worker": 7}, "worker"),
    ],
    ids=repr,
)
def test_an_option_of_the_store_that_makes_no_sense_is_refused(option: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SessionStore("sqlite://", **option)


@pytest.mark.parametrize(
    "option",
    [
        {"trigger": 10},
        {"keep_last_turns": -1},
        {"keep_last_turns": True},
        {"pinned": "user"},
        {"min_savings": 1},
        {"min_savings": -0.1},
        {"deadline_s": 0},
        {"lease_s": 300},
        {"open_call_age_s": 0},
        {"cooldown_s": -1},
        {"max_model_calls": 0},
        {"max_model_tokens": 0},
        {"on_append": "merge"},
        {"on_rewrite": "rebase"},
        {"on_error": "ignore"},
    ],
    ids=repr,
)
def test_a_policy_field_that_makes_no_sense_is_named(option: dict[str, Any]) -> None:
    (name,) = option

    with pytest.raises(ValueError, match=rf"CompactionPolicy\.{name} must be"):
        CompactionPolicy(**option)


@pytest.mark.parametrize(
    "option",
    [{"model": ""}, {"model": None}, {"model": "m", "mode": "both"}, {"model": "m", "tools": []}],
    ids=repr,
)
def test_a_compactor_that_could_not_work_is_refused_when_it_is_made(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"model|mode|tools"):
        ResponsesCompactor(**option)


async def test_compacting_without_a_compactor_says_where_to_give_one(session: CasSession) -> None:
    with pytest.raises(ConfigurationError, match="has no compactor"):
        await session.compact()


async def test_an_unknown_mode_is_refused(store: SessionStore) -> None:
    session = store.session("s", compactor=ResponsesCompactor(model="m"))

    with pytest.raises(ValueError, match="mode"):
        await session.compact(mode="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode"):
        await session.run_compaction({"compaction_mode": "both"})  # type: ignore[typeddict-item]


# Databases


@pytest.mark.parametrize(
    "url",
    ["mysql://u@h/db", "mongodb://h", "http://h", "chat.db", "", "postgresql", "://", 42, None, b"sqlite://"],
    ids=repr,
)
def test_a_url_that_no_driver_serves_names_those_that_are(url: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///chat\.db or postgresql://"):
        SessionStore(url)


async def test_a_port_that_is_no_number_is_a_mistake_in_the_url() -> None:
    with pytest.raises(ConfigurationError, match="port"):
        await SessionStore("postgresql://app@127.0.0.1:port/db").open()


def test_a_url_may_name_several_hosts_with_their_ports() -> None:
    assert SessionStore("postgresql://app:hush@one:5432,two:5433/db")


def test_a_synchronous_engine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="AsyncEngine"):
        SessionStore(create_engine("sqlite://"))  # type: ignore[arg-type]


def test_a_setting_in_the_url_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="synchronous"):
        SessionStore("sqlite:///x.db?synchronous=SOMETIMES")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def test_an_unreachable_server_is_unavailable() -> None:
    """With the place that does not answer, and without the password."""
    port = free_port()
    store = SessionStore(f"postgresql://app:hush@127.0.0.1:{port}/db", connect_timeout_s=2)

    with pytest.raises(StorageUnavailableError) as caught:
        await store.open()

    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is not None


async def test_a_server_that_goes_on_saying_nothing_is_unavailable() -> None:
    """It takes the connection and never answers: the time for connecting ends it."""
    server = await asyncio.start_server(lambda reader, writer: asyncio.Event().wait(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = SessionStore(f"postgresql://app@127.0.0.1:{port}/db", connect_timeout_s=0.2)

    with pytest.raises(StorageUnavailableError):
        await store.open()
    server.close()


async def test_a_database_that_is_not_there_is_named(fresh_postgres: str) -> None:
    url = make_url(fresh_postgres).set(database="no_such_database")

    with pytest.raises(ConfigurationError, match="no_such_database"):
        await SessionStore(url).open()


async def test_missing_tables_say_the_command_that_makes_them(empty_postgres: str) -> None:
    with pytest.raises(SchemaVersionError, match="cas-session migrate") as caught:
        await SessionStore(empty_postgres).open()

    async with SessionStore(empty_postgres, migrate=True) as store:
        assert await store.session("s").append(said("one")) == 1
    assert isinstance(caught.value, ConfigurationError)


async def test_a_file_that_must_not_be_migrated_says_the_command_too(tmp_path: Path) -> None:
    with pytest.raises(SchemaVersionError, match=r"cas-session migrate .*new\.db"):
        await SessionStore(f"sqlite:///{tmp_path / 'new.db'}", migrate=False).open()


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As somebody to whom permissions apply."""
    if os.getuid():
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
async def written() -> AsyncIterator[Path]:
    """A database, in a folder that anybody can reach."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sessions.db"
        file.parent.chmod(0o755)
        async with SessionStore(f"sqlite:///{file}") as store:
            await store.session("s").append(said("one"))
        yield file
        file.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("place", "mode"),
    [("sessions.db", 0o444), (".", 0o555), (".", 0o000)],
    ids=["a file", "a folder", "a folder that cannot be entered"],
)
async def test_what_cannot_be_written_is_named_and_left_as_it_is(
    written: Path, place: str, mode: int
) -> None:
    before = _content(written.parent)
    (written.parent / place).chmod(mode)

    with without_rights(), pytest.raises(ConfigurationError, match="cannot use") as caught:
        await SessionStore(f"sqlite:///{written}").open()
    written.parent.chmod(0o755)

    assert str(written) in str(caught.value)
    assert _content(written.parent) == before


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no/such/folder.db", "missing"),
        ("", "folder"),
        ("text.txt", "no SQLite database"),
        ("text.txt/x.db", "missing"),
    ],
)
async def test_a_path_that_is_no_database_is_named(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "text.txt").write_text("not a database, but somebody's letter\n" * 100)
    before = _content(tmp_path)

    with pytest.raises(ConfigurationError, match=words) as caught:
        await SessionStore(f"sqlite:///{tmp_path / path}").open()

    assert str(tmp_path / path) in str(caught.value)
    assert _content(tmp_path) == before


def _content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("option", ["synchronus=NORMAL", "mode=ro", "uri=true", "synchronous=OFF"])
def test_an_option_that_a_sqlite_url_does_not_have_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match="synchronous"):
        SessionStore(f"sqlite:///chat.db?{option}")


def test_an_engine_over_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give its URL"):
        SessionStore(create_async_engine("sqlite+aiosqlite://"))
