"""The endpoint and the real client that talks to it over a socket."""

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from cas_session.testing.endpoint import ResponsesEndpoint


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


@pytest.fixture
async def endpoint() -> AsyncIterator[ResponsesEndpoint]:
    async with ResponsesEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def client(endpoint: ResponsesEndpoint) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=endpoint.base_url, api_key="test", max_retries=0, timeout=5) as client:
        yield client
