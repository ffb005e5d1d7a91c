"""Two stores on one database, as two processes have them; the model's endpoint and its real client.

A database of its own for each of these many tests would cost minutes: they get an emptied one, or a copy.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from cas_session import SessionStore, migrate
from cas_session.testing.endpoint import ResponsesEndpoint
from tests import postgres
from tests.session.stores import Patched, patched_store

EMPTY = """
SET lock_timeout = '10s';
TRUNCATE cas_session, cas_session_item, cas_session_op, cas_session_compaction;
"""


@pytest.fixture(scope="session")
def one_postgres(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """One database for all tests of this folder."""
    with postgres.new_database(postgres_url, template=migrated_template) as url:
        yield url


@pytest.fixture
def fresh_postgres(one_postgres: str) -> str:
    postgres.execute(one_postgres, EMPTY)
    return one_postgres


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("template") / "sessions.db"
    asyncio.run(migrate.run(f"sqlite:///{file}", migrate.upgrade))
    return file


@pytest.fixture
def fresh_sqlite(migrated_file: Path, tmp_path: Path) -> str:
    file = tmp_path / "sessions.db"
    shutil.copyfile(migrated_file, file)
    return f"sqlite+aiosqlite:///{file}"


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SessionStore]:
    async with SessionStore(database_url) as store:
        yield store


@pytest.fixture
async def other(database_url: str, store: SessionStore) -> AsyncIterator[SessionStore]:
    """Another worker's store."""
    async with SessionStore(database_url) as other:
        yield other


@pytest.fixture
async def patched(database_url: str, store: SessionStore) -> AsyncIterator[Patched]:
    """A store on the same database whose calls a test can disturb."""
    async with patched_store(database_url) as patched:
        yield patched


@pytest.fixture
async def endpoint() -> AsyncIterator[ResponsesEndpoint]:
    async with ResponsesEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def client(endpoint: ResponsesEndpoint) -> AsyncIterator[AsyncOpenAI]:
    async with endpoint.client() as client:
        yield client
