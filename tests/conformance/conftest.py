"""One fixture, every driver: whatever holds for one of them is held against all."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cas_session import schema
from cas_session.driver import Driver
from tests import postgres
from tests.conformance.database import Database

EMPTY = "; ".join(f"DELETE FROM {table.name}" for table in schema.metadata.sorted_tables)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the current schema, to copy."""
    path = tmp_path_factory.mktemp("template") / "sessions.db"

    async def migrate() -> None:
        async with Database(f"sqlite+aiosqlite:///{path}").opened():
            pass

    postgres.in_own_loop(migrate)
    return path


@pytest.fixture(scope="session")
def emptied_postgres(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A database for all tests, for making one takes longer than most of them; `database` empties it."""
    with postgres.new_database(postgres_url, template=migrated_template) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database with the current schema and no rows."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "sessions.db")
        return Database(f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}")
    url = request.getfixturevalue("emptied_postgres")
    postgres.execute(url, EMPTY)
    return Database(url)


@pytest.fixture
async def driver(database: Database) -> AsyncIterator[Driver]:
    async with database.opened() as driver:
        yield driver


@pytest.fixture
async def other(database: Database, driver: Driver) -> AsyncIterator[Driver]:
    """A second driver over the same database, as another process has it."""
    async with database.opened() as other:
        yield other


@pytest.fixture
def s() -> str:
    """The id of a session that does not exist yet."""
    return "conversation-1"
