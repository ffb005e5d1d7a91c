"""Two stores on one database, as two processes have them; the model's endpoint and its real client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from cas_session import SessionStore
from cas_session.testing.endpoint import ResponsesEndpoint
from tests.session.stores import Patched, patched_store


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
