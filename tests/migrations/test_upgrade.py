"""Upgrades from code: once, again, back, side by side, and inside the caller's own transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, StaticPool, create_engine, inspect, text

from cas_session import migrate, schema
from cas_session.errors import ConfigurationError, SchemaVersionError

ALL_TABLES = {*schema.metadata.tables, schema.VERSION_TABLE}


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, fresh_sqlite: str) -> str:
    """A database without tables, of each kind."""
    return fresh_sqlite if request.param == "sqlite" else str(request.getfixturevalue("empty_postgres"))


async def ask(url: str, question: Callable[[Connection], object]) -> object:
    answers: list[object] = []
    await migrate.run(url, lambda connection: answers.append(question(connection)))
    return answers[0]


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


async def test_upgrade_makes_the_tables_and_records_the_revision(empty_url: str) -> None:
    before = await ask(empty_url, migrate.current_revision)
    await migrate.run(empty_url, migrate.upgrade)

    assert before is None
    assert await ask(empty_url, tables) == ALL_TABLES
    assert await ask(empty_url, migrate.current_revision) == migrate.HEAD


async def test_upgrade_of_an_upgraded_database_keeps_what_is_there(empty_url: str) -> None:
    await migrate.run(empty_url, migrate.upgrade)
    await migrate.run(empty_url, lambda c: c.execute(text(INSERT_SESSION)))
    await migrate.run(empty_url, migrate.upgrade)

    assert await ask(empty_url, lambda c: c.scalar(text("SELECT count(*) FROM cas_session"))) == 1
    assert await ask(empty_url, migrate.current_revision) == migrate.HEAD


async def test_downgrade_takes_the_tables_and_nothing_else(empty_url: str) -> None:
    await migrate.run(empty_url, lambda c: c.execute(text("CREATE TABLE somebody_else (id integer)")))
    await migrate.run(empty_url, migrate.upgrade)
    await migrate.run(empty_url, lambda c: command.downgrade(migrate._config(c), "base"))

    assert await ask(empty_url, tables) == {"somebody_else", schema.VERSION_TABLE}
    await migrate.run(empty_url, migrate.upgrade)
    assert await ask(empty_url, tables) == ALL_TABLES | {"somebody_else"}


async def test_upgrade_that_the_caller_rolls_back_leaves_nothing(empty_url: str) -> None:
    def upgrade_and_fail(connection: Connection) -> None:
        migrate.upgrade(connection)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await migrate.run(empty_url, upgrade_and_fail)

    assert await ask(empty_url, tables) == set()


async def test_upgrade_that_is_cancelled_leaves_nothing_and_lets_the_next_one_in(empty_postgres: str) -> None:
    inside = asyncio.Event()

    def upgrade_and_wait(connection: Connection) -> None:
        migrate.upgrade(connection)
        asyncio.get_running_loop().call_soon(inside.set)
        connection.execute(text("SELECT pg_sleep(600)"))

    upgrading = asyncio.create_task(migrate.run(empty_postgres, upgrade_and_wait))
    await inside.wait()
    upgrading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upgrading

    assert await ask(empty_postgres, tables) == set()
    await migrate.run(empty_postgres, migrate.upgrade)
    assert await ask(empty_postgres, tables) == ALL_TABLES


def test_upgrade_stays_inside_the_transaction_of_a_raw_sqlite_connection(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "raw.db", isolation_level=None)
    other = sqlite3.connect(tmp_path / "raw.db", isolation_level=None, timeout=0)
    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)
    with engine.connect() as connection:
        raw.execute("BEGIN IMMEDIATE")
        with connection.begin() as transaction:
            migrate.upgrade(connection)
            seen_by_others = other.execute("SELECT count(*) FROM sqlite_master").fetchone()
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            transaction.rollback()
        left = other.execute("SELECT count(*) FROM sqlite_master").fetchone()
        raw.execute("BEGIN IMMEDIATE")
        with connection.begin():
            migrate.upgrade(connection)
    made = {name for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    raw.close()
    other.close()

    assert seen_by_others == (0,)
    assert left == (0,)
    assert made == ALL_TABLES


async def test_twelve_upgrades_at_once_make_the_tables_once(empty_url: str) -> None:
    await asyncio.gather(*(migrate.run(empty_url, migrate.upgrade) for _ in range(12)))

    assert await ask(empty_url, migrate.current_revision) == migrate.HEAD


async def test_upgrades_of_several_databases_at_once_do_not_mix(tmp_path: Path, empty_postgres: str) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two", "three")] + [empty_postgres]

    await asyncio.gather(*(migrate.run(url, migrate.upgrade) for url in urls))

    assert [await ask(url, tables) for url in urls] == [ALL_TABLES] * 4


async def test_newer_schema_that_serves_this_release_is_left_alone(empty_url: str) -> None:
    await migrate.run(empty_url, migrate.upgrade)
    await migrate.run(empty_url, lambda c: c.execute(text(SET_REVISION), {"revision": "0003_serves_0001"}))

    await migrate.run(empty_url, migrate.upgrade)

    assert await ask(empty_url, migrate.current_revision) == "0003_serves_0001"


async def test_newer_schema_that_does_not_serve_this_release_is_refused(empty_url: str) -> None:
    await migrate.run(empty_url, migrate.upgrade)
    await migrate.run(empty_url, lambda c: c.execute(text(SET_REVISION), {"revision": "0003_serves_0002"}))

    with pytest.raises(SchemaVersionError, match="0003_serves_0002"):
        await migrate.run(empty_url, migrate.upgrade)


async def test_url_of_another_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"mysql://u:\*\*\*@h/db"):
        await migrate.run("mysql://u:secret@h/db", migrate.upgrade)


SET_REVISION = "UPDATE cas_session_alembic_version SET version_num = :revision"
INSERT_SESSION = """
INSERT INTO cas_session (
    session_id, version, epoch, nonce, next_seq, base_seq, base_gen, low_seq, erased_epoch,
    item_count, byte_count, created_at, updated_at
) VALUES ('s', 1, 0, 'n', 1, 0, 0, 1, 0, 0, 0, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP)
"""
