"""One fixture, every driver: whatever holds for one of them is held against all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cas_session.driver import Driver
from tests.conformance.database import Database


@pytest.fixture
def database(database_url: str) -> Database:
    return Database(database_url)


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
