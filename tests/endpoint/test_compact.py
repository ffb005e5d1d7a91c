"""What POST /v1/responses/compact returns, and that every item is accounted for in it."""

from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import CompactedResponse

from cas_session.testing.endpoint import Reply, ResponsesEndpoint
from cas_session.testing.strict import InvalidRequestError

MODEL = "gpt-5.1"


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


def as_input(compacted: CompactedResponse) -> list[Any]:
    """The output as it may be sent again."""
    items = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
    return [{name: value for name, value in item.items() if name != "created_by"} for item in items]


def covered_by(endpoint: ResponsesEndpoint, compacted: CompactedResponse) -> list[Any]:
    """The items that are folded into the compaction item at the end."""
    return endpoint.unseal(as_input(compacted)[-1]["encrypted_content"])


async def test_user_messages_stay_and_one_compaction_item_follows(client: AsyncOpenAI) -> None:
    """Their texts are kept verbatim and in order."""
    compacted = await client.responses.compact(
        model=MODEL, input=[user("one"), assistant("1"), user("two"), assistant("2")]
    )

    messages, last = as_input(compacted)[:-1], compacted.output[-1]
    assert [message["content"][0]["text"] for message in messages] == ["one", "two"]
    assert [message["role"] for message in messages] == ["user", "user"]
    assert last.type == "compaction"
    assert last.id.startswith("cmp_")
    assert compacted.object == "response.compaction"


async def test_the_opaque_content_covers_every_item(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """The server, and so a test, can say what was folded into it."""
    items = [user("one"), assistant("1"), user("two"), assistant("2")]

    compacted = await client.responses.compact(model=MODEL, input=items)

    assert items == covered_by(endpoint, compacted)


async def test_a_second_compaction_covers_what_the_first_one_covered(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """Kept user messages count once, also when a user says the same thing twice."""
    first = [user("yes"), assistant("1"), user("yes"), assistant("2")]
    second = [user("yes"), assistant("3")]
    compacted = await client.responses.compact(model=MODEL, input=first)

    again = await client.responses.compact(model=MODEL, input=[*as_input(compacted), *second])

    assert [*first, *second] == covered_by(endpoint, again)
    assert [item["content"][0]["text"] for item in as_input(again)[:-1]] == ["yes", "yes", "yes"]


async def test_the_compaction_item_alone_when_user_messages_are_not_kept(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """As some providers do."""
    endpoint.keep_user_messages = False
    items = [user("one"), assistant("1")]

    compacted = await client.responses.compact(model=MODEL, input=items)

    assert [item.type for item in compacted.output] == ["compaction"]
    assert items == covered_by(endpoint, compacted)


async def test_padding_makes_the_output_larger_than_the_input(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """So that a compaction saves nothing; the content can still be read."""
    endpoint.padding_bytes = 10_000

    compacted = await client.responses.compact(model=MODEL, input=[user("one"), assistant("1")])

    content = as_input(compacted)[-1]["encrypted_content"]
    assert len(content) > 10_000
    assert len(endpoint.unseal(content)) == 2


async def test_usage_is_there_and_the_same_each_time(client: AsyncOpenAI) -> None:
    """It is an estimate, and deterministic."""
    first = await client.responses.compact(model=MODEL, input="hello")
    second = await client.responses.compact(model=MODEL, input="hello")

    assert first.usage == second.usage
    assert first.usage.input_tokens > 0
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens


async def test_images_come_back_with_both_keys_and_are_refused_like_that(client: AsyncOpenAI) -> None:
    """A client has to reduce them to one before it sends them again."""
    image: Any = {"type": "input_image", "image_url": "https://example.org/cat.png"}
    compacted = await client.responses.compact(
        model=MODEL,
        input=[{"role": "user", "content": [image]}],
    )
    returned = as_input(compacted)

    with pytest.raises(BadRequestError, match="Ensure you are only providing one of") as refused:
        await client.responses.compact(model=MODEL, input=returned)

    assert {"file_id", "image_url"} <= returned[0]["content"][0].keys()
    assert refused.value.param == "input[0].content[0]"


async def test_an_image_that_was_reduced_is_still_known_as_the_same_message(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """The keys that a compaction fills in make no second message of it."""
    image: Any = {"type": "input_image", "image_url": "https://example.org/cat.png"}
    items: list[Any] = [{"role": "user", "content": [image]}, assistant("A cat.")]
    returned = as_input(await client.responses.compact(model=MODEL, input=items))
    del returned[0]["content"][0]["file_id"]

    again = await client.responses.compact(model=MODEL, input=returned)

    assert items == covered_by(endpoint, again)


async def test_created_by_is_refused_on_input(client: AsyncOpenAI) -> None:
    """It is output only."""
    compacted = await client.responses.compact(model=MODEL, input="hello")
    items: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]

    with pytest.raises(BadRequestError, match=r"Unknown parameter: 'input\[1\]\.created_by'\.") as refused:
        await client.responses.compact(model=MODEL, input=items)

    assert refused.value.code == "unknown_parameter"


async def test_content_of_another_server_is_refused(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """So is content that was tampered with."""
    async with ResponsesEndpoint() as other:
        foreign = other.seal([user("hello")])
    own = endpoint.seal([user("hello")])

    for content in (foreign, own.replace("gAAAAA", "gAAAAB")):
        item: Any = {"type": "compaction", "encrypted_content": content}
        with pytest.raises(BadRequestError, match="could not be verified") as refused:
            await client.responses.compact(model=MODEL, input=[item])
        assert refused.value.code == "invalid_encrypted_content"
        with pytest.raises(InvalidRequestError):
            endpoint.unseal(content)


async def test_a_chain_is_folded_as_a_whole(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """previous_response_id alone names everything that the stored responses saw and said."""
    first = await client.responses.create(model=MODEL, input="one")
    second = await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)

    compacted = await client.responses.compact(model=MODEL, previous_response_id=second.id)

    covered = endpoint.unseal(as_input(compacted)[-1]["encrypted_content"])
    assert [item["role"] for item in covered] == ["user", "assistant", "user", "assistant"]
    assert [message["content"][0]["text"] for message in as_input(compacted)[:-1]] == ["one", "two"]


async def test_input_goes_behind_the_chain(endpoint: ResponsesEndpoint, client: AsyncOpenAI) -> None:
    """Both may be given."""
    first = await client.responses.create(model=MODEL, input="one")

    compacted = await client.responses.compact(model=MODEL, input="two", previous_response_id=first.id)

    assert [message["content"][0]["text"] for message in as_input(compacted)[:-1]] == ["one", "two"]


async def test_an_unknown_or_unstored_response_is_no_chain(client: AsyncOpenAI) -> None:
    """Neither is the id of a compaction."""
    unstored = await client.responses.create(model=MODEL, input="one", store=False)
    compacted = await client.responses.compact(model=MODEL, input="one")

    for previous in ("resp_unknown", unstored.id, compacted.id):
        with pytest.raises(
            BadRequestError, match=f"Previous response with id '{previous}' not found"
        ) as refused:
            await client.responses.compact(model=MODEL, previous_response_id=previous)
        assert refused.value.code == "previous_response_not_found"


async def test_nothing_to_compact_is_refused(client: AsyncOpenAI) -> None:
    """Empty input, and no chain."""
    with pytest.raises(BadRequestError) as refused:
        await client.responses.compact(model=MODEL, input=[])

    assert refused.value.code == "missing_required_parameter"


async def test_a_call_that_waits_for_its_output_is_refused(
    endpoint: ResponsesEndpoint, client: AsyncOpenAI
) -> None:
    """Also when it is the last item, and also in a chain."""
    endpoint.reply_with(Reply.calls(("add", {"a": 1})))
    calling = await client.responses.create(model=MODEL, input="add")
    call: Any = calling.output[0].model_dump(exclude_unset=True)

    with pytest.raises(BadRequestError, match=f"No tool output found for function call {call['call_id']}"):
        await client.responses.compact(model=MODEL, input=[user("add"), call])
    with pytest.raises(BadRequestError, match="No tool output found"):
        await client.responses.compact(model=MODEL, previous_response_id=calling.id)


@pytest.mark.parametrize(
    "parameter", ["tools", "store", "stream", "metadata", "include", "max_output_tokens"]
)
async def test_parameters_of_responses_are_unknown_to_compact(client: AsyncOpenAI, parameter: str) -> None:
    """It takes its own alone."""
    with pytest.raises(BadRequestError, match=f"Unknown parameter: '{parameter}'.") as refused:
        await client.responses.compact(model=MODEL, input="hello", extra_body={parameter: None})

    assert refused.value.code == "unknown_parameter"


async def test_the_parameters_of_compact_are_taken(client: AsyncOpenAI) -> None:
    """Those that the client's types list."""
    compacted = await client.responses.compact(
        model=MODEL,
        input="hello",
        instructions="Be brief.",
        prompt_cache_key="k" * 64,
        service_tier="auto",
    )

    assert len(compacted.output) == 2


async def test_the_model_has_to_be_named(client: AsyncOpenAI) -> None:
    """It is the only required parameter."""
    with pytest.raises(BadRequestError, match="Missing required parameter: 'model'"):
        await client.post("/responses/compact", body={"input": "hello"}, cast_to=object)
