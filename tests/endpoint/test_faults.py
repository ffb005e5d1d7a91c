"""Each fault is seen by the real client as it would see it from a real server, and then it is over."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from cas_session.testing.endpoint import Fault, ResponsesEndpoint

MODEL = "gpt-5.1"


async def test_a_fault_happens_as_often_as_asked(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """To requests on its own path, and then no more."""
    endpoint.fail_next(Fault.server_error(), path="compact", times=2)

    await client.responses.create(model=MODEL, input="hello")
    for _ in range(2):
        with pytest.raises(openai.InternalServerError):
            await client.responses.compact(model=MODEL, input="hello")
    await client.responses.compact(model=MODEL, input="hello")

    assert [request.status for request in endpoint.requests] == [200, 500, 500, 200]
    assert [request.billed for request in endpoint.compact_requests] == [False, False, True]


async def test_a_rate_limit_says_when_to_come_back(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Retry-After in seconds."""
    endpoint.fail_next(Fault.rate_limited(retry_after_s=7), path="compact")

    with pytest.raises(openai.RateLimitError) as limited:
        await client.responses.compact(model=MODEL, input="hello")

    assert limited.value.response.headers["retry-after"] == "7"


async def test_the_client_tries_again_by_itself(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Each of its tries is a request, and uses up a fault."""
    endpoint.fail_next(Fault.rate_limited(retry_after_s=0.01), path="compact", times=2)

    await client.with_options(max_retries=2).responses.compact(model=MODEL, input="hello")

    assert [request.status for request in endpoint.requests] == [429, 429, 200]


async def test_an_error_has_the_body_of_the_api(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Status, code and message as given."""
    fault = Fault.error(403, code="model_not_allowed", message="Not for you.")
    endpoint.fail_next(fault, path="responses")

    with pytest.raises(openai.PermissionDeniedError) as denied:
        await client.responses.create(model=MODEL, input="hello")

    error: Any = denied.value.body
    assert {"model_not_allowed", "Not for you."} == {error["code"], error["message"]}


async def test_a_context_that_is_too_long_has_its_own_code(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """It is what a caller has to tell from other refusals."""
    endpoint.fail_next(Fault.context_too_long(), path="compact")

    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.compact(model=MODEL, input="hello")

    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(("fault", "status"), [(Fault.not_found(), 404), (Fault.not_allowed(), 405)])
async def test_a_server_without_the_endpoint(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, fault: Fault, status: int
) -> None:
    """The body is no error object of the API."""
    endpoint.fail_next(fault, path="compact")

    with pytest.raises(openai.APIStatusError) as missing:
        await client.responses.compact(model=MODEL, input="hello")

    assert missing.value.status_code == status
    assert missing.value.code is None


@pytest.mark.parametrize(
    ("fault", "output"),
    [
        (Fault.output([]), []),
        (Fault.output(None), None),
        (Fault.output("x"), "x"),
        (Fault.empty_object(), None),
    ],
    ids=["empty", "null", "no list", "empty object"],
)
async def test_a_compaction_without_a_usable_output(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, fault: Fault, output: object
) -> None:
    """The client does not validate: it returns what came. The pass was paid for."""
    endpoint.fail_next(fault, path="compact")

    compacted = await client.responses.compact(model=MODEL, input="hello")

    assert output == getattr(compacted, "output", None)
    assert endpoint.requests[0].billed


async def test_a_body_that_is_not_json_is_no_openai_error(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """It reaches the caller as the decoder's own error."""
    endpoint.fail_next(Fault.not_json(), path="compact")

    with pytest.raises(json.JSONDecodeError):
        await client.responses.compact(model=MODEL, input="hello")


@pytest.mark.parametrize("fault", [Fault.truncated(), Fault.reset(), Fault.reset(billed=True)])
async def test_a_connection_that_breaks(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, fault: Fault
) -> None:
    """Half-way through the answer or before it; the log knows whether the work was done."""
    endpoint.fail_next(fault, path="compact")

    with pytest.raises(openai.APIConnectionError):
        await client.responses.compact(model=MODEL, input="hello")

    assert endpoint.requests[0].status is None
    assert endpoint.requests[0].billed == fault.billed


async def test_a_stream_that_breaks_half_way(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Some events arrive, the last one does not."""
    endpoint.fail_next(Fault.truncated(), path="responses")
    events: list[str] = []

    async def read() -> None:
        async for event in await client.responses.create(model=MODEL, input="hello", stream=True):
            events.append(event.type)

    with pytest.raises(openai.APIConnectionError):
        await read()

    assert "response.created" in events
    assert "response.completed" not in events


async def test_a_server_that_hangs_lets_the_client_time_out(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """The request is in the log, without an answer."""
    endpoint.fail_next(Fault.hang(), path="compact")

    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.1).responses.compact(model=MODEL, input="hello")

    assert endpoint.requests[0].status is None


async def test_an_invalid_request_is_refused_before_a_billed_fault(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """No work was done that could have been billed."""
    endpoint.fail_next(Fault.reset(billed=True), path="compact")

    with pytest.raises(openai.BadRequestError):
        await client.responses.compact(model=MODEL, input=[])

    assert not endpoint.requests[0].billed


async def test_latency_can_be_set_between_requests(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Each path has its own."""
    endpoint.compact_latency_s = 60
    await client.responses.create(model=MODEL, input="hello")

    slow = asyncio.create_task(client.responses.compact(model=MODEL, input="hello"))
    done, _ = await asyncio.wait({slow}, timeout=0.1)
    slow.cancel()

    assert not done
