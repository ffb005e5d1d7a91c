"""A context overflow: the request gets smaller once, the store never changes for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from cas_session import CompactionPolicy, CompactorError, SessionStore
from cas_session.compactors import ResponsesCompactor, SummaryCompactor
from cas_session.testing.endpoint import Fault, ResponsesEndpoint
from tests.compactors.histories import body, turn, user

LARGE = [*turn(1, "0123456789" * 3000), *turn(2, "0123456789" * 2000), *turn(3, "small")]


def sent(endpoint: ResponsesEndpoint) -> list[int]:
    """How large each request was."""
    return [len(json.dumps(body(logged))) for logged in endpoint.requests]


@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("compact", lambda client: ResponsesCompactor(model="m", client=client)),
        ("responses", lambda client: SummaryCompactor(model="m", client=client)),
        ("chat", lambda client: SummaryCompactor(model="m", client=client, api="chat")),
    ],
)
async def test_the_second_request_is_half_as_large_and_lands(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore, path: Any, make: Any
) -> None:
    """What the store keeps of the replaced version is whole."""
    session = store.session("s", compactor=make(client))
    version = await session.append(LARGE)
    endpoint.fail_next(Fault.context_too_long(), path=path)

    report = await session.compact(force=True)

    assert (report.status, report.model_calls) == ("applied", 2)
    first, second = sent(endpoint)
    assert second < first * 0.6
    assert (await session.snapshot(version=version)).items == LARGE


async def test_the_oldest_output_is_the_one_that_is_shortened(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    session = store.session("s", compactor=ResponsesCompactor(model="m", client=client))
    await session.append(LARGE)
    endpoint.fail_next(Fault.context_too_long(), path="compact")

    await session.compact(force=True)

    was, shortened = (body(logged)["input"] for logged in endpoint.requests)
    assert was == LARGE
    assert [i for i, item in enumerate(shortened) if item != LARGE[i]] == [2]


async def test_it_is_tried_once(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    """Whatever the budget is."""
    policy = CompactionPolicy(max_model_calls=9)
    session = store.session("s", compactor=ResponsesCompactor(model="m", client=client), policy=policy)
    await session.append(LARGE)
    endpoint.fail_next(Fault.context_too_long(), path="compact", times=9)

    report = await session.compact(force=True)

    assert (report.status, report.model_calls, len(endpoint.requests)) == ("failed", 2, 2)
    assert (await session.snapshot()).items == LARGE


async def test_it_stays_within_the_model_budget(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    policy = CompactionPolicy(max_model_calls=1)
    session = store.session("s", compactor=ResponsesCompactor(model="m", client=client), policy=policy)
    await session.append(LARGE)
    endpoint.fail_next(Fault.context_too_long(), path="compact")

    report = await session.compact(force=True)

    assert (report.status, len(endpoint.requests)) == ("failed", 1)


@pytest.mark.parametrize("on_error", ["report", "raise"])
async def test_without_a_large_output_there_is_no_second_request(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore, on_error: Any
) -> None:
    """The same request would fail in the same way, and may cost."""
    policy = CompactionPolicy(on_error=on_error)
    session = store.session("s", compactor=ResponsesCompactor(model="m", client=client), policy=policy)
    await session.append([user("word " * 5000)])
    endpoint.fail_next(Fault.context_too_long(), path="compact")

    if on_error == "raise":
        with pytest.raises(CompactorError, match="no large tool output") as failed:
            await session.compact(force=True)
        assert failed.value.kind == "too_large"
    else:
        report = await session.compact(force=True)
        assert (report.status, report.model_calls) == ("failed", 1)
        assert "context window" in (report.error or "")

    assert len(endpoint.requests) == 1


async def test_a_chain_that_is_too_large_goes_on_with_shorter_items(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    session = store.session("s", compactor=ResponsesCompactor(model="m", client=client))
    answer = await client.responses.create(model="m", input=LARGE)  # type: ignore[arg-type]
    await session.append([*LARGE, *(item.model_dump(exclude_unset=True) for item in answer.output)])
    endpoint.fail_next(Fault.context_too_long(), path="compact")

    report = await session.compact(force=True, response_id=answer.id, store=True)

    assert (report.status, report.mode, report.model_calls) == ("applied", "input", 2)
    chain, items = (body(logged) for logged in endpoint.compact_requests)
    assert answer.id == chain["previous_response_id"]
    assert len(json.dumps(items["input"])) < len(json.dumps(LARGE)) * 0.6
