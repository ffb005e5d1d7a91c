"""The endpoint starts at once, closes at once, and logs what it got."""

import asyncio
import time

import openai
import pytest
from openai import AsyncOpenAI

from cas_session.testing.endpoint import Fault, ResponsesEndpoint

MODEL = "gpt-5.1"


async def test_closing_does_not_wait_for_requests_under_way() -> None:
    """Hanging and slow ones: their connections are cut."""
    async with ResponsesEndpoint(compact_latency_s=3600) as endpoint:
        client = AsyncOpenAI(base_url=endpoint.base_url, api_key="test", max_retries=0)
        endpoint.fail_next(Fault.hang(), path="responses")
        async with endpoint.hold("responses") as first, endpoint.hold("compact") as second:
            hanging = asyncio.create_task(client.responses.create(model=MODEL, input="hello"))
            slow = asyncio.create_task(client.responses.compact(model=MODEL, input="hello"))
            await first.arrived()
            await second.arrived()
        started = time.monotonic()
    took_s = time.monotonic() - started
    errors = await asyncio.gather(hanging, slow, return_exceptions=True)
    await client.close()

    assert [openai.APIConnectionError] * 2 == [type(error) for error in errors]
    assert took_s < 5


async def test_a_closed_endpoint_refuses_connections() -> None:
    """The way to test a provider that is not there."""
    async with ResponsesEndpoint() as endpoint:
        pass

    async with AsyncOpenAI(base_url=endpoint.base_url, api_key="test", max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.responses.create(model=MODEL, input="hello")


async def test_requests_are_logged_with_path_body_and_headers(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """Those to unknown paths too."""
    await client.responses.compact(model=MODEL, input="hello")
    with pytest.raises(openai.NotFoundError, match=r"Invalid URL \(POST /v1/embeddings\)"):
        await client.embeddings.create(model=MODEL, input="hello")

    compaction, other = endpoint.requests
    assert [compaction] == endpoint.compact_requests
    assert compaction.path == "/v1/responses/compact"
    assert compaction.body == {"model": MODEL, "input": "hello"}
    assert compaction.headers["authorization"] == "Bearer test"
    assert other.status == 404


async def test_its_client_goes_past_a_proxy(
    endpoint: ResponsesEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the environment names would not know the way to loopback."""
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    async with endpoint.client() as client:
        response = await client.responses.create(model=MODEL, input="hello")

    assert response.output_text == "You said: hello"


async def test_two_endpoints_live_side_by_side(endpoint: ResponsesEndpoint) -> None:
    """Each with its own port, log and key."""
    async with ResponsesEndpoint() as other:
        assert other.base_url != endpoint.base_url
        assert other.seal([]) != endpoint.seal([])
