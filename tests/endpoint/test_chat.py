"""POST /v1/chat/completions as the real client sees it."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from cas_session.testing.endpoint import Fault, Reply, ResponsesEndpoint

MODEL = "llama"
HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


async def test_it_says_what_it_was_told_to_say(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """And without being told it repeats what it heard last."""
    endpoint.reply_with(Reply.text("Good day."))

    first = await client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    second = await client.chat.completions.create(model=MODEL, messages=HELLO)

    assert [first.choices[0].message.content, second.choices[0].message.content] == [
        "Good day.",
        "You said: hello",
    ]
    assert first.usage is not None
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert [request.billed for request in endpoint.requests] == [True, True]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty array"),
        ("hello", "expected an array"),
        ([{"role": "robot", "content": "x"}], "'robot'"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": "x", "type": "message"}], "messages[0].type"),
        ([{"type": "reasoning", "summary": []}], "messages[0].type"),
    ],
)
async def test_messages_are_checked(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI, messages: Any, words: str
) -> None:
    """Items of the Responses API are no messages."""
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=MODEL, messages=messages)

    assert words in str(refused.value)
    assert not endpoint.requests[0].billed


@pytest.mark.parametrize("extra", [{"stream": True}, {"max_output_tokens": 9}, {"input": "hello"}])
async def test_parameters_of_the_other_api_and_streams_are_refused(
    client: AsyncOpenAI, extra: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=extra)


async def test_faults_have_their_own_path(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    endpoint.fail_next(Fault.rate_limited(), path="chat")

    await client.responses.create(model=MODEL, input="hello")
    with pytest.raises(openai.RateLimitError):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    await client.chat.completions.create(model=MODEL, messages=HELLO)

    assert [request.status for request in endpoint.requests] == [200, 429, 200]
