"""A store on SQLite, the local endpoint, and the real client that talks to it over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from cas_session import SessionStore
from cas_session.testing.endpoint import ResponsesEndpoint


@pytest.fixture
async def endpoint() -> AsyncIterator[ResponsesEndpoint]:
    async with ResponsesEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def client(endpoint: ResponsesEndpoint) -> AsyncIterator[AsyncOpenAI]:
    async with endpoint.client() as client:
        yield client


@pytest.fixture
async def store(fresh_sqlite: str) -> AsyncIterator[SessionStore]:
    async with SessionStore(fresh_sqlite) as store:
        yield store
