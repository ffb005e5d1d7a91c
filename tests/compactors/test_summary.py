"""SummaryCompactor over both APIs, with the real client, and through a session."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from openai import AsyncOpenAI
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses import AsyncResponses

from cas_session import CompactionPolicy, CompactorError, RetryPolicy, SessionStore
from cas_session.compactors import SummaryCompactor, summary
from cas_session.testing.endpoint import Fault, Reply, ResponsesEndpoint
from cas_session.testing.strict import check_items
from tests.compactors.histories import (
    CHAIN,
    assistant,
    body,
    paths,
    request,
    sealed,
    thought,
    turn,
    user,
)

APIS: Any = pytest.mark.parametrize("api", ["responses", "chat"])
PATHS = {"responses": "responses", "chat": "chat/completions"}


def summary_item(text: str) -> dict[str, Any]:
    return {"role": "user", "content": summary.HEADING + text}


def completion(*, finish_reason: str = "stop", **message: Any) -> Fault:
    """A chat completion with this message."""
    answer = {
        "id": "chatcmpl_1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }
    return Fault(body=json.dumps(answer).encode(), billed=True)


def response(*parts: dict[str, Any], **more: Any) -> Fault:
    """A response with one message of these parts."""
    answer = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "content": list(parts)}],
        "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9},
        **more,
    }
    return Fault(body=json.dumps(answer).encode(), billed=True)


def said(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


# -- through a session


@APIS
async def test_a_history_becomes_one_message_in_one_call(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore, api: Any
) -> None:
    session = store.session("s", compactor=SummaryCompactor(model="m", client=client, api=api))
    await session.append([*turn(1), thought("rs_1"), *turn(2)[1:], {"type": "not_yet_invented", "x": 1}])
    endpoint.reply_with(Reply(output=Reply.text("They asked for tea.").output, input_tokens=90))

    report = await session.compact(force=True)

    assert (report.status, report.model_calls, len(endpoint.requests)) == ("applied", 1, 1)
    assert report.usage["input_tokens"] == 90
    assert [summary_item("They asked for tea.")] == (await session.snapshot()).items
    assert paths(endpoint) == [PATHS[api]]
    (row,) = await session.compactions()
    assert (row.model, row.host) == ("m", "127.0.0.1")


@APIS
async def test_the_instructions_and_the_transcript_are_sent_apart(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, api: Any
) -> None:
    """The one speaks to the model, the other is material."""
    compactor = SummaryCompactor(model="m", client=client, api=api, instructions="Be brief.", temperature=0)

    await compactor.compact(request([user("hello"), assistant("hi")]))

    told = {"role": "user", "content": "[1] user\n  hello\n[2] assistant\n  hi"}
    expected: dict[str, Any] = {
        "responses": {"instructions": "Be brief.", "input": [told], "store": False},
        "chat": {"messages": [{"role": "system", "content": "Be brief."}, told]},
    }
    assert {"model": "m", "temperature": 0, **expected[api]} == body(endpoint.requests[0])


@APIS
async def test_a_summary_is_folded_into_the_next_one(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore, api: Any
) -> None:
    """Through many compactions there is one summary, at the beginning."""
    session = store.session("s", compactor=SummaryCompactor(model="m", client=client, api=api))
    endpoint.reply_with(*(Reply.text(f"summary {n}") for n in range(3)))

    for n in range(3):
        await session.append(turn(n))
        assert (await session.compact(force=True)).landed

    assert [summary_item("summary 2")] == (await session.snapshot()).items
    assert "summary 1" in json.dumps(body(endpoint.requests[-1]))


async def test_the_summary_is_input_for_both_apis_and_counts_as_nothing_new(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    session = store.session("s", compactor=SummaryCompactor(model="m", client=client))
    await session.append(turn(1))
    await session.compact(force=True)
    items: Any = (await session.snapshot()).items

    check_items(items)
    await client.responses.create(model="m", input=items)
    await client.chat.completions.create(model="m", messages=items)

    assert (await session.compact(force=True)).status == "nothing_to_compact"


async def test_kept_turns_follow_the_summary(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    policy = CompactionPolicy(keep_last_turns=1)
    session = store.session("s", compactor=SummaryCompactor(model="m", client=client), policy=policy)
    await session.append([*turn(1), *turn(2)])
    endpoint.reply_with(Reply.text("one"))

    await session.compact(force=True)

    assert [summary_item("one"), *turn(2)] == (await session.snapshot()).items


async def test_appends_that_come_in_between_stay_behind_the_summary(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, store: SessionStore
) -> None:
    session = store.session("s", compactor=SummaryCompactor(model="m", client=client, api="chat"))
    await session.append(turn(1))
    endpoint.reply_with(Reply.text("one"))

    async with endpoint.hold("chat") as hold:
        compaction = asyncio.create_task(session.compact(force=True))
        await hold.arrived()
        await session.append([user("wait")])
        hold.release()
        report = await compaction

    assert (report.status, len(endpoint.requests)) == ("rebased", 1)
    assert [summary_item("one"), user("wait")] == (await session.snapshot()).items


@APIS
@pytest.mark.parametrize(
    ("fault", "status", "requests"),
    [
        (Fault.not_found(), "unsupported", 1),
        (Fault.error(400), "failed", 1),
        (Fault.server_error(), "applied", 2),
        (Fault.rate_limited(retry_after_s=0), "applied", 2),
        (Fault.reset(billed=True), "applied", 2),
        (Fault.not_json(), "applied", 2),
        (Fault.empty_object(), "empty_output", 1),
        (Fault(body=b"<html>", content_type="text/html"), "empty_output", 1),
    ],
    ids=["404", "400", "500", "429", "reset", "no json", "empty", "html"],
)
async def test_a_failure_has_its_status_and_leaves_the_history(
    endpoint: ResponsesEndpoint,
    store: SessionStore,
    client: AsyncOpenAI,
    api: Any,
    fault: Fault,
    status: str,
    requests: int,
) -> None:
    policy = CompactionPolicy(model_retry=RetryPolicy(max_attempts=2, wait_initial_s=0))
    session = store.session("s", compactor=SummaryCompactor(model="m", client=client, api=api), policy=policy)
    await session.append(turn(1))
    endpoint.fail_next(fault, path="chat" if api == "chat" else "responses")

    report = await session.compact(force=True)

    assert (status, requests) == (report.status, len(endpoint.requests))
    assert report.landed or turn(1) == (await session.snapshot()).items


# -- answers


@pytest.mark.parametrize(
    ("api", "fault", "words"),
    [
        ("chat", completion(content="half of", finish_reason="length"), r"incomplete \(length\)"),
        ("chat", completion(content="", finish_reason="content_filter"), r"incomplete \(content_filter\)"),
        ("chat", completion(content=None, refusal="I cannot."), r"refused \(I cannot\.\)"),
        (
            "responses",
            response(said("half"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            r"incomplete \(max_output_tokens\)",
        ),
        ("responses", response({"type": "refusal", "refusal": "I cannot."}), r"refused \(I cannot\.\)"),
        (
            "responses",
            response(status="failed", error={"code": "invalid_prompt", "message": "Bad."}),
            r"failed \(Bad\.\)",
        ),
    ],
    ids=["length", "filter", "refusal", "incomplete", "refused part", "failed"],
)
async def test_a_summary_that_is_not_whole_is_refused_and_paid(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI, api: Any, fault: Fault, words: str
) -> None:
    """Half of a summary would lose the other half of the history."""
    session = store.session("s", compactor=SummaryCompactor(model="m", client=client, api=api))
    await session.append(turn(1))
    endpoint.fail_next(fault, path=api)

    report = await session.compact(force=True)

    assert report.status == "failed"
    assert re.search(words, report.error or "")
    assert report.usage == {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    assert turn(1) == (await session.snapshot()).items
    assert len(endpoint.requests) == 1


async def test_a_response_that_failed_on_the_server_is_worth_another_call(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    error = {"code": "server_error", "message": "Sorry."}
    endpoint.fail_next(response(status="failed", error=error), path="responses")

    with pytest.raises(CompactorError) as failed:
        await SummaryCompactor(model="m", client=client).compact(request([user("hello")]))

    assert failed.value.kind == "retryable"


@pytest.mark.parametrize(
    ("api", "fault"),
    [
        ("chat", completion(content="  \n")),
        ("chat", completion(content=None)),
        ("chat", Fault(body=b'{"choices": []}')),
        ("chat", Fault(body=b'{"choices": null}')),
        ("responses", response(said(" "))),
        ("responses", response(output=None)),
        ("responses", response(output=[{"type": "web_search_call", "id": "ws_1"}])),
    ],
)
async def test_an_answer_without_text_is_an_empty_output(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, api: Any, fault: Fault
) -> None:
    endpoint.fail_next(fault, path=api)

    answer = await SummaryCompactor(model="m", client=client, api=api).compact(request([user("hello")]))

    assert answer.output == []


@pytest.mark.parametrize("fault", [completion(content="<think>\nHm.\n</think>\n\nTea.")])
async def test_thoughts_in_front_of_the_answer_are_no_part_of_it(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, fault: Fault
) -> None:
    """Open models write them where the server has no parser for them."""
    endpoint.fail_next(fault, path="chat")

    answer = await SummaryCompactor(model="m", client=client, api="chat").compact(request([user("hello")]))

    assert [summary_item("Tea.")] == answer.output


# -- what cannot be summarised


@APIS
async def test_a_sealed_item_is_refused_without_a_call(
    endpoint: ResponsesEndpoint, store: SessionStore, client: AsyncOpenAI, api: Any
) -> None:
    session = store.session("s", compactor=SummaryCompactor(model="m", client=client, api=api))
    await session.append([user("hello"), sealed(), *turn(1)])

    report = await session.compact(force=True)

    assert report.status == "failed"
    assert "sealed" in (report.error or "")
    assert endpoint.requests == []


async def test_a_server_that_made_the_sealed_items_gets_the_newest_as_it_is(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    compactor = SummaryCompactor(model="m", client=client, reads_sealed=True)
    older, newer = sealed(endpoint.seal([user("a")])), sealed(endpoint.seal([user("b")])) | {"id": "cmp_2"}

    await compactor.compact(request([older, user("hello"), newer, user("again")]))

    told = {"role": "user", "content": "[1] user\n  hello\n[2] user\n  again"}
    assert [newer, told] == body(endpoint.requests[0])["input"]


async def test_another_servers_sealed_item_is_permanent(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    compactor = SummaryCompactor(model="m", client=client, reads_sealed=True)

    with pytest.raises(CompactorError) as refused:
        await compactor.compact(request([sealed(), user("hello")]))

    assert refused.value.kind == "permanent"


async def test_a_chain_is_no_input(client: AsyncOpenAI) -> None:
    """The engine sends the items then."""
    with pytest.raises(CompactorError) as refused:
        await SummaryCompactor(model="m", client=client).compact(CHAIN)

    assert refused.value.kind == "no_chain"


async def test_items_that_say_nothing_cost_nothing(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    answer = await SummaryCompactor(model="m", client=client).compact(request([thought("rs_1")]))

    assert answer.output == []
    assert endpoint.requests == []


# -- the client


@APIS
async def test_exactly_the_named_attribute_of_a_given_client_is_awaited(api: Any) -> None:
    """So that users' own mocks work, whatever they return."""
    client = AsyncMock()
    message = {"type": "message", "content": [{"type": "output_text", "text": "Tea."}]}
    client.responses.create.return_value = SimpleNamespace(output=[message], usage={"input_tokens": 3})
    choice = {"message": {"content": "Tea."}}
    client.chat.completions.create.return_value = SimpleNamespace(
        choices=[choice], usage={"prompt_tokens": 3}
    )

    answer = await SummaryCompactor(model="m", client=client, api=api).compact(request([user("hello")]))

    assert [summary_item("Tea.")] == answer.output
    assert answer.usage == {"input_tokens": 3}
    assert len(client.mock_calls) == 1


async def test_without_a_client_one_is_made_that_does_not_try_again(
    endpoint: ResponsesEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy's budget counts the calls."""
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    compactor = SummaryCompactor(model="m")
    endpoint.fail_next(Fault.server_error(), path="responses")
    before = compactor.base_url

    with pytest.raises(CompactorError):
        await compactor.compact(request([user("hello")]))

    assert (None, f"{endpoint.base_url}/") == (before, compactor.base_url)
    assert len(endpoint.requests) == 1


async def test_without_a_client_and_without_a_key_the_failure_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(CompactorError, match="OPENAI_API_KEY"):
        await SummaryCompactor(model="m").compact(request([user("hello")]))


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": ""}, "model"),
        ({"api": "completions"}, "api is responses or chat"),
        ({"api": "chat", "reads_sealed": True}, "reads_sealed"),
        ({"stream": True}, r"takes no \['stream'\]"),
        ({"api": "chat", "max_output_tokens": 5}, r"takes no \['max_output_tokens'\]"),
        ({"max_tokens": 5}, r"takes no \['max_tokens'\]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
def test_wrong_arguments_are_refused_when_it_is_built(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SummaryCompactor(**{"model": "m", **arguments})


@pytest.mark.parametrize(
    ("api", "method"), [("responses", AsyncResponses.create), ("chat", AsyncCompletions.create)]
)
def test_every_option_is_one_of_the_installed_client(api: Any, method: Any) -> None:
    assert summary._OPTIONS[api] <= inspect.signature(method).parameters.keys()
