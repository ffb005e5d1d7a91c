"""What the tests of the demonstration share."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable

import pytest
from sqlalchemy import make_url

from cas_session import SessionStore
from cas_session.compactors import ResponsesCompactor
from cas_session.testing.endpoint import ResponsesEndpoint
from tests.demo.scene import Scene


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with (
        ResponsesEndpoint() as endpoint,
        endpoint.client() as client,
        SessionStore(database_url) as store,
    ):
        yield Scene(store, endpoint, ResponsesCompactor(model="gpt-5.1", client=client))


@pytest.fixture
def tamper(fresh_sqlite: str) -> Callable[..., None]:
    """Changes the database's file behind the store's back."""

    def execute(sql: str, *values: object) -> None:
        with contextlib.closing(sqlite3.connect(str(make_url(fresh_sqlite).database))) as connection:
            assert connection.execute(sql, values).rowcount > 0
            connection.commit()

    return execute
