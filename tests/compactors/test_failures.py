"""Every way in which a server fails, and what is to be done about it, through the real client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from cas_session import CompactorError
from cas_session.compactors import Compactor, ResponsesCompactor, SummaryCompactor
from cas_session.testing.endpoint import Fault, ResponsesEndpoint
from tests.compactors.histories import request, user

MAKE: dict[str, Callable[[AsyncOpenAI], Compactor]] = {
    "compact": lambda client: ResponsesCompactor(model="m", client=client),
    "responses": lambda client: SummaryCompactor(model="m", client=client),
    "chat": lambda client: SummaryCompactor(model="m", client=client, api="chat"),
}


def refusal(status: int, **error: Any) -> Fault:
    """An error body of another server."""
    body = {"error": {"message": "No.", "type": None, "param": None, "code": None} | error}
    return Fault(status=status, body=json.dumps(body).encode())


@pytest.mark.parametrize("path", ["compact", "responses", "chat"])
@pytest.mark.parametrize(
    ("fault", "kind", "status"),
    [
        (Fault.not_found(), "unsupported", 404),
        (Fault.not_allowed(), "unsupported", 405),
        (Fault.error(501), "unsupported", 501),
        (Fault.error(404, message="Invalid URL (POST /v1/responses/compact)"), "unsupported", 404),
        (Fault.error(502), "retryable", 502),
        (Fault.error(503), "retryable", 503),
        (Fault.server_error(), "retryable", 500),
        (Fault.rate_limited(retry_after_s=7), "retryable", 429),
        (Fault.error(408), "retryable", 408),
        (Fault.error(429, code="insufficient_quota"), "permanent", 429),
        (Fault.error(404, code="model_not_found"), "permanent", 404),
        (Fault.error(404, code="DeploymentNotFound"), "permanent", 404),
        (refusal(404, message="Item with id 'rs_1' not found.", param="input"), "permanent", 404),
        (refusal(404, type="NotFoundError", param="model", code=404), "permanent", 404),
        (Fault.context_too_long(), "too_large", 400),
        (refusal(400, type="exceed_context_size_error", code=400), "too_large", 400),
        (refusal(400, type="BadRequestError", param="input_tokens", code=400), "too_large", 400),
        (Fault(status=413, body=b"too large", content_type="text/plain"), "too_large", 413),
        (Fault.error(400, code="previous_response_not_found"), "no_chain", 400),
        (Fault.error(400, code="invalid_encrypted_content"), "permanent", 400),
        (Fault.error(401, code="invalid_api_key"), "permanent", 401),
        (Fault.error(400), "permanent", 400),
        (Fault.not_json(), "retryable", None),
        (Fault.reset(), "retryable", None),
        (Fault.truncated(), "retryable", None),
    ],
    ids=lambda value: value.body[:60].decode() or value.cut if isinstance(value, Fault) else None,
)
async def test_a_failure_is_sorted_by_what_to_do_next(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, path: Any, fault: Fault, kind: str, status: int | None
) -> None:
    """The same for each of the three calls, and with one request each."""
    endpoint.fail_next(fault, path=path)

    with pytest.raises(CompactorError) as failed:
        await MAKE[path](client).compact(request([user("hello")]))

    assert (kind, status) == (failed.value.kind, failed.value.status)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("path", ["compact", "responses", "chat"])
async def test_a_hanging_server_is_retryable_when_the_clients_own_timeout_ends_it(
    endpoint: ResponsesEndpoint, path: Any
) -> None:
    endpoint.fail_next(Fault.hang(), path=path)

    async with endpoint.client(timeout_s=0.1) as client:
        with pytest.raises(CompactorError) as failed:
            await MAKE[path](client).compact(request([user("hello")]))

    assert failed.value.kind == "retryable"


async def test_retry_after_is_told_in_seconds(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    endpoint.fail_next(Fault.rate_limited(retry_after_s=7), path="chat")

    with pytest.raises(CompactorError) as limited:
        await MAKE["chat"](client).compact(request([user("hello")]))

    assert limited.value.retry_after_s == 7
