"""What POST /v1/responses returns, whole and streamed."""

import itertools
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from openai.types.responses import Response, ResponseStreamEvent

from cas_session.testing.endpoint import Reply, ResponsesEndpoint, function_call, message, reasoning

MODEL = "gpt-5.1"


def as_input(response: Response) -> list[Any]:
    return [item.model_dump(exclude_unset=True) for item in response.output]


async def streamed(client: AsyncOpenAI, text: str) -> list[ResponseStreamEvent]:
    return [event async for event in await client.responses.create(model=MODEL, input=text, stream=True)]


async def test_the_model_repeats_what_it_heard_last(client: AsyncOpenAI) -> None:
    """The default reply is deterministic."""
    response = await client.responses.create(model=MODEL, input="hello")

    assert response.output_text == "You said: hello"
    assert response.status == "completed"


async def test_scripted_replies_are_given_in_order(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """And then the default one again."""
    endpoint.reply_with(Reply.text("first"), Reply.text("second"))

    texts = [(await client.responses.create(model=MODEL, input="hello")).output_text for _ in range(3)]

    assert texts == ["first", "second", "You said: hello"]


async def test_a_refused_request_uses_up_no_reply(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """The model never saw it."""
    endpoint.reply_with(Reply.text("first"))
    with pytest.raises(BadRequestError):
        await client.responses.create(model=MODEL, input=[])

    response = await client.responses.create(model=MODEL, input="hello")

    assert response.output_text == "first"


async def test_usage_can_be_scripted(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Else it is an estimate."""
    endpoint.reply_with(Reply(output=(message("hello"),), input_tokens=120_000, output_tokens=7))

    response = await client.responses.create(model=MODEL, input="hello")

    assert response.usage is not None
    assert response.usage.input_tokens == 120_000
    assert response.usage.total_tokens == 120_007


async def test_a_whole_tool_turn_may_be_sent_again(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Reasoning, two parallel calls, their outputs, an answer: what came out is valid input."""
    endpoint.reply_with(
        Reply.calls(("add", {"a": 1}), ("add", {"a": 2}), reasoning="Two sums."),
        Reply.text("done", reasoning="Both are there."),
    )
    items: list[Any] = [{"role": "user", "content": "add"}]
    items += as_input(await client.responses.create(model=MODEL, input=items))
    calls = [item for item in items if item.get("type") == "function_call"]
    items += [{"type": "function_call_output", "call_id": call["call_id"], "output": "3"} for call in calls]
    items += as_input(await client.responses.create(model=MODEL, input=items))
    items.append({"role": "user", "content": "thanks"})

    response = await client.responses.create(model=MODEL, input=items, store=False)

    assert response.output_text == "You said: thanks"
    assert len(calls) == 2


async def test_what_follows_a_reasoning_item_is_refused_without_it(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """The server knows which reasoning led to an id; without the id the item stands alone."""
    endpoint.reply_with(Reply.text("hello", reasoning="A greeting."))
    thought, answer = as_input(await client.responses.create(model=MODEL, input="hello"))

    with pytest.raises(BadRequestError) as refused:
        await client.responses.create(model=MODEL, input=[answer, {"role": "user", "content": "and?"}])
    del answer["id"]
    await client.responses.create(model=MODEL, input=[answer, {"role": "user", "content": "and?"}])

    assert f"of type 'message' was provided without its required 'reasoning' item: '{thought['id']}'." in str(
        refused.value
    )


async def test_a_chain_remembers_the_whole_context(client: AsyncOpenAI) -> None:
    """The input of a later response alone would be an output without its call."""
    first = await client.responses.create(model=MODEL, input="one")

    second = await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)

    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens


async def test_an_item_of_the_chain_may_not_be_sent_again(client: AsyncOpenAI) -> None:
    """It would be in the context twice."""
    first = await client.responses.create(model=MODEL, input="one")

    with pytest.raises(BadRequestError, match="Duplicate item found with id msg_"):
        await client.responses.create(model=MODEL, input=as_input(first), previous_response_id=first.id)


async def test_an_unstored_response_cannot_be_continued(client: AsyncOpenAI) -> None:
    """store=False keeps nothing."""
    first = await client.responses.create(model=MODEL, input="one", store=False)

    with pytest.raises(BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)

    assert refused.value.code == "previous_response_not_found"


async def test_conversations_do_not_exist_here(client: AsyncOpenAI) -> None:
    """They are refused rather than ignored."""
    with pytest.raises(NotFoundError):
        await client.responses.create(model=MODEL, input="hello", conversation="conv_1")


async def test_a_long_context_is_compacted_in_band(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Above the threshold a compaction item comes first; it covers the context and is valid input."""
    managed: Any = [{"type": "compaction", "compact_threshold": 1000}]
    short = await client.responses.create(model=MODEL, input="short", context_management=managed)
    long = await client.responses.create(model=MODEL, input="long " * 1000, context_management=managed)
    items = as_input(long)
    del items[0]["created_by"]

    await client.responses.create(model=MODEL, input=[*items, {"role": "user", "content": "go on"}])

    assert [item.type for item in short.output] == ["message"]
    assert [item.type for item in long.output] == ["compaction", "message"]
    assert endpoint.unseal(items[0]["encrypted_content"]) == [{"role": "user", "content": "long " * 1000}]


async def test_a_trigger_at_the_end_asks_for_a_compaction_alone(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """The trigger itself is not covered, and not part of the chain."""
    said: Any = {"role": "user", "content": "hello"}
    trigger: Any = {"type": "compaction_trigger"}

    response = await client.responses.create(model=MODEL, input=[said, trigger])
    chained = await client.responses.compact(model=MODEL, previous_response_id=response.id)

    last: Any = chained.output[-1]
    assert [item.type for item in response.output] == ["compaction"]
    assert [said] == endpoint.unseal(as_input(response)[0]["encrypted_content"])
    assert [said] == endpoint.unseal(last.encrypted_content)


async def test_a_streamed_message_has_the_events_of_the_api_in_order(client: AsyncOpenAI) -> None:
    """The numbers count up by one, the deltas add up to the text."""
    events = await streamed(client, "a text that takes some deltas")

    text = "You said: a text that takes some deltas"
    kinds = [kind for kind, _ in itertools.groupby(event.type for event in events)]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert list(range(len(events))) == [event.sequence_number for event in events]
    assert len(deltas) > 1
    assert text == "".join(deltas)
    assert last.type == "response.completed"
    assert last.response.output_text == text


async def test_reasoning_and_calls_are_streamed(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Summary and arguments come in deltas; the items are empty when they are added."""
    reply = Reply.of(reasoning("I add."), function_call("add", a=1, b="a long argument"))
    endpoint.reply_with(reply)

    events = await streamed(client, "add")

    added = [event.item for event in events if event.type == "response.output_item.added"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    summary = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    assert [item.type for item in done] == ["reasoning", "function_call"]
    assert [item.id for item in done] == [item.id for item in added]
    assert reply.output[1]["arguments"] == "".join(arguments)
    assert "".join(summary) == "I add."


async def test_the_helper_that_gathers_a_stream_accepts_it(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """client.responses.stream rebuilds the response from the events."""
    endpoint.reply_with(Reply.of(reasoning("I add."), function_call("add", a=1), message("Adding.")))

    async with client.responses.stream(model=MODEL, input="add") as stream:
        response = await stream.get_final_response()

    assert [item.type for item in response.output] == ["reasoning", "function_call", "message"]
    assert response.output_text == "Adding."
