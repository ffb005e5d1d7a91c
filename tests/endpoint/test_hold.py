"""Requests are stopped by events, so that a test decides what happens during the model's call."""

import asyncio

from openai import AsyncOpenAI

from cas_session.testing.endpoint import ResponsesEndpoint


async def test_a_held_request_is_answered_after_the_release(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """It is logged on arrival, has no status while it is held, and 200 afterwards."""
    async with endpoint.hold("compact") as held:
        compaction = asyncio.create_task(client.responses.compact(model="gpt-5.1", input="hello"))
        request = await held.arrived()
        status_while_held = request.status
        held.release()
        await compaction

    assert status_while_held is None
    assert request.status == 200
