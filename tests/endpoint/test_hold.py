"""Requests are stopped by events, so that a test decides what happens during the model's call."""

import asyncio

import pytest
from openai import AsyncOpenAI

from cas_session.testing.endpoint import Fault, ResponsesEndpoint

MODEL = "gpt-5.1"


async def test_a_held_request_is_answered_after_the_release(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """It is logged on arrival, has no status while it is held, and 200 afterwards."""
    async with endpoint.hold("compact") as held:
        compaction = asyncio.create_task(client.responses.compact(model=MODEL, input="hello"))
        request = await held.arrived()
        status_while_held = request.status
        held.release()
        await compaction

    assert [request] == endpoint.requests
    assert status_while_held is None
    assert request.status == 200


async def test_every_held_request_arrives_once(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """In the order of arrival; later ones are held too until the release."""
    async with endpoint.hold("compact") as held:
        first = asyncio.create_task(client.responses.compact(model=MODEL, input="one"))
        one = await held.arrived()
        second = asyncio.create_task(client.responses.compact(model=MODEL, input="two"))
        two = await held.arrived()
        held.release()
        await asyncio.gather(first, second)

    assert [one, two] == endpoint.requests


async def test_the_other_path_is_not_held(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Runs go on during a compaction."""
    async with endpoint.hold("compact") as held:
        compaction = asyncio.create_task(client.responses.compact(model=MODEL, input="hello"))
        await held.arrived()
        response = await client.responses.create(model=MODEL, input="hello")
        held.release()
        await compaction

    assert response.output_text == "You said: hello"


async def test_the_end_of_the_block_releases(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """A test that fails inside leaves nothing hanging."""
    async with endpoint.hold("responses") as held:
        answer = asyncio.create_task(client.responses.create(model=MODEL, input="hello"))
        await held.arrived()

    assert (await answer).output_text == "You said: hello"


async def test_a_held_request_can_end_in_a_fault(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Which one is settled when it arrives."""
    endpoint.fail_next(Fault.server_error(), path="compact")

    async with endpoint.hold("compact") as held:
        compaction = asyncio.create_task(client.responses.compact(model=MODEL, input="hello"))
        request = await held.arrived()
        await client.responses.create(model=MODEL, input="hello")
    await asyncio.wait({compaction})

    assert request.status == 500


async def test_a_client_that_goes_away_ends_its_request(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """The endpoint does no work for it, and closes without waiting."""
    async with endpoint.hold("compact") as held:
        compaction = asyncio.create_task(client.responses.compact(model=MODEL, input="hello"))
        request = await held.arrived()
        compaction.cancel()
        await asyncio.wait({compaction})
        await client.responses.create(model=MODEL, input="hello")

    assert compaction.cancelled()
    assert request.status is None
    assert not request.billed


async def test_waiting_for_a_request_that_does_not_come_says_so(endpoint: ResponsesEndpoint) -> None:
    """Rather than for ever."""
    async with endpoint.hold("compact") as held:
        with pytest.raises(TimeoutError):
            await held.arrived(timeout_s=0.01)
