"""Requests that the real API refuses are refused, with its words; those that it takes are taken."""

from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

MODEL = "gpt-5.1"

USER = {"role": "user", "content": "hello"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "3"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
ANSWER = {"role": "assistant", "content": "hello"}
IMAGE = {"type": "input_image", "image_url": "https://example.org/cat.png", "file_id": "file-1"}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "call_1", "name": "run", "input": "ls"}

REFUSED: dict[str, tuple[list[Any], str, str | None, str | None]] = {
    "an unknown field of an item": (
        [{**USER, "foo": 1}],
        "Unknown parameter: 'input[0].foo'.",
        "unknown_parameter",
        "input[0].foo",
    ),
    "an unknown field of a part": (
        [{"role": "user", "content": [{"type": "input_text", "text": "hello", "foo": 1}]}],
        "Unknown parameter: 'input[0].content[0].foo'.",
        "unknown_parameter",
        "input[0].content[0].foo",
    ),
    "an unknown item type": (
        [{"type": "chat_message", "text": "hello"}],
        "Invalid value: 'chat_message'. Supported values are: 'additional_tools', 'apply_patch_call', ",
        "invalid_value",
        "input[0]",
    ),
    "an output part from a user": (
        [{"role": "user", "content": [{"type": "output_text", "text": "hello"}]}],
        "Invalid value: 'output_text'. Supported values are: 'input_file', 'input_image', and 'input_text'.",
        "invalid_value",
        "input[0].content[0]",
    ),
    "an input part from the assistant": (
        [{"role": "assistant", "content": [{"type": "input_text", "text": "hello"}]}],
        "Invalid value: 'input_text'. Supported values are: 'output_text', and 'refusal'.",
        "invalid_value",
        "input[0].content[0]",
    ),
    "an unknown role": (
        [{"role": "tool", "content": "3"}],
        "Invalid value: 'tool'. Supported values are: 'assistant', 'developer', 'system', and 'user'.",
        "invalid_value",
        "input[0].role",
    ),
    "a missing field": (
        [{"type": "function_call", "call_id": "call_1", "name": "add"}, OUTPUT],
        "Missing required parameter: 'input[0].arguments'.",
        "missing_required_parameter",
        "input[0].arguments",
    ),
    "an output that names no call": (
        [CALL, {"type": "function_call_output", "output": "3"}],
        "Missing required parameter: 'input[1].call_id'.",
        "missing_required_parameter",
        "input[1].call_id",
    ),
    "null where a value has to be": (
        [{"type": "message", "role": "assistant", "id": "msg_1", "status": None, "content": []}],
        "Invalid type for 'input[0].status': expected a string, but got null instead.",
        "invalid_type",
        "input[0].status",
    ),
    "an object where a string has to be": (
        [{**CALL, "arguments": {}}, OUTPUT],
        "Invalid type for 'input[0].arguments': expected a string, but got an object instead.",
        "invalid_type",
        "input[0].arguments",
    ),
    "no object": (
        ["hello"],
        "Invalid type for 'input[0]': expected an object, but got a string instead.",
        "invalid_type",
        "input[0]",
    ),
    "an id of another kind": (
        [{**REASONING, "id": "msg_1"}, ANSWER],
        "Invalid 'input[0].id': 'msg_1'. Expected an ID that begins with 'rs'.",
        "invalid_value",
        "input[0].id",
    ),
    "an id that is too long": (
        [{**CALL, "call_id": "c" * 65}],
        "Invalid 'input[0].call_id': string too long. Expected a string with maximum length 64,"
        " but got a string with length 65 instead.",
        "string_above_max_length",
        "input[0].call_id",
    ),
    "an image given twice": (
        [{"role": "user", "content": [IMAGE]}],
        "Mutually exclusive parameters: 'input[0].content[0]'."
        " Ensure you are only providing one of: 'image_url' or 'file_id'.",
        "mutually_exclusive_parameters",
        "input[0].content[0]",
    ),
    "an orphaned output": (
        [USER, OUTPUT],
        "No tool call found for function call output with call_id call_1.",
        None,
        "input",
    ),
    "an output before its call": (
        [OUTPUT, CALL],
        "No tool call found for function call output with call_id call_1.",
        None,
        "input",
    ),
    "a second output for one call": (
        [CALL, OUTPUT, OUTPUT],
        "No tool call found for function call output with call_id call_1.",
        None,
        "input",
    ),
    "an output of another family": (
        [CUSTOM_CALL, OUTPUT],
        "No tool call found for function call output with call_id call_1.",
        None,
        "input",
    ),
    "an unanswered call": ([USER, CALL], "No tool output found for function call call_1.", None, "input"),
    "an unanswered custom call": (
        [CUSTOM_CALL, USER],
        "No tool output found for custom tool call call_1.",
        None,
        "input",
    ),
    "one of two calls unanswered": (
        [CALL, CALL, OUTPUT],
        "No tool output found for function call call_1.",
        None,
        "input",
    ),
    "an approval of nothing": (
        [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}],
        "No approval request found with id mcpr_1.",
        None,
        "input",
    ),
    "reasoning at the end": (
        [USER, REASONING],
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        None,
        "input",
    ),
    "reasoning in a row at the end": (
        [USER, REASONING, {**REASONING, "id": "rs_2"}],
        "Item 'rs_2' of type 'reasoning' was provided without its required following item.",
        None,
        "input",
    ),
    "reasoning before a user message": (
        [REASONING, USER],
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        None,
        "input",
    ),
    "an id that is there twice": (
        [REASONING, REASONING, ANSWER],
        "Duplicate item found with id rs_1. Remove duplicate items from your input and try again.",
        None,
        "input",
    ),
    "a trigger in the middle": (
        [{"type": "compaction_trigger"}, USER],
        "A compaction trigger must be the last input item.",
        None,
        "input[0]",
    ),
}

TAKEN: dict[str, list[Any]] = {
    "a message that a compaction kept": [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}],
        }
    ],
    "an assistant message without id and annotations": [
        {"role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
        USER,
    ],
    "an assistant message with its type and plain text": [{"type": "message", **ANSWER}],
    "a call id that two turns share": [CALL, OUTPUT, USER, CALL, OUTPUT],
    "parallel calls answered in the other order": [
        CALL,
        {**CALL, "call_id": "call_2"},
        {**OUTPUT, "call_id": "call_2"},
        OUTPUT,
    ],
    "several reasoning items in a row": [REASONING, {**REASONING, "id": "rs_2"}, CALL, OUTPUT],
    "reasoning without an id": [{"type": "reasoning", "summary": []}, ANSWER],
    "a local shell call named by the output's id": [
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "call_1",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "call_1", "output": "a"},
    ],
    "a tool search of the server": [
        {"type": "tool_search_call", "arguments": {}, "execution": "server"},
        {"type": "tool_search_output", "tools": [], "execution": "server"},
    ],
    "a tool search of the server without its output": [
        {"type": "tool_search_call", "arguments": {}, "execution": "server"},
    ],
    "an anonymous tool search": [
        {"type": "tool_search_call", "arguments": {}, "execution": "client"},
        {"type": "tool_search_output", "tools": [], "execution": "client"},
    ],
    "an approved call": [
        {
            "type": "mcp_approval_request",
            "id": "mcpr_1",
            "name": "f",
            "server_label": "s",
            "arguments": "{}",
        },
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    ],
    "an output of parts": [
        CALL,
        {**OUTPUT, "output": [{"type": "input_text", "text": "3"}]},
    ],
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("path", ["/responses", "/responses/compact"])
async def test_refused_on_both_paths(client: AsyncOpenAI, path: str, case: str) -> None:
    """The case's name says what; message, code and parameter are those of the API."""
    items, message, code, param = REFUSED[case]

    with pytest.raises(APIStatusError) as refused:
        await client.post(path, body={"model": MODEL, "input": items}, cast_to=object)

    error: Any = refused.value.body
    assert error["message"].startswith(message)
    assert {"code": code, "param": param} == {"code": error["code"], "param": error["param"]}
    assert error["type"] == "invalid_request_error"
    assert refused.value.status_code == 400
    assert (refused.value.request_id or "").startswith("req_")


@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize("path", ["/responses", "/responses/compact"])
async def test_taken_on_both_paths(client: AsyncOpenAI, path: str, case: str) -> None:
    """The case's name says what."""
    answer: Any = await client.post(path, body={"model": MODEL, "input": TAKEN[case]}, cast_to=object)

    assert answer["output"]


async def test_item_references_are_not_found(client: AsyncOpenAI) -> None:
    """Nothing is kept under an item's id; the API says 404 to one that it does not know."""
    reference: Any = {"type": "item_reference", "id": "msg_1"}

    with pytest.raises(APIStatusError, match="Item with id 'msg_1' not found") as refused:
        await client.responses.create(model=MODEL, input=[reference])

    assert refused.value.status_code == 404


async def test_made_up_encrypted_reasoning_is_refused(client: AsyncOpenAI) -> None:
    """Like a compaction item it is readable for its own server alone."""
    made_up: Any = [{**REASONING, "encrypted_content": "gAAAAmade-up"}, ANSWER]

    with pytest.raises(APIStatusError, match="could not be verified") as refused:
        await client.responses.create(model=MODEL, input=made_up)

    assert refused.value.code == "invalid_encrypted_content"


async def test_unknown_parameters_are_refused(client: AsyncOpenAI) -> None:
    """At the top and inside."""
    with pytest.raises(APIStatusError, match="Unknown parameter: 'foo'"):
        await client.responses.create(model=MODEL, input="hello", extra_body={"foo": 1})
    nested: Any = {"foo": 1}
    with pytest.raises(APIStatusError, match=r"Unknown parameter: 'reasoning\.foo'"):
        await client.responses.create(model=MODEL, input="hello", reasoning=nested)


async def test_the_parameters_of_responses_are_taken(client: AsyncOpenAI) -> None:
    """Those that openai-agents sends, and their nested settings."""
    response = await client.responses.create(
        model=MODEL,
        input="hello",
        instructions="Be brief.",
        tools=[
            {
                "type": "function",
                "name": "add",
                "parameters": {"type": "object", "properties": {}},
                "strict": True,
            }
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        store=True,
        include=["reasoning.encrypted_content"],
        metadata={"run": "1"},
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "text"}, "verbosity": "low"},
        prompt_cache_key="k",
        context_management=[{"type": "compaction", "compact_threshold": 100_000}],
        truncation="auto",
        max_output_tokens=100,
        temperature=1,
        top_p=0.5,
    )

    assert response.metadata == {"run": "1"}
    assert [tool.type for tool in response.tools] == ["function"]


async def test_a_body_that_is_not_json_is_refused(client: AsyncOpenAI) -> None:
    """And logged without a body."""
    with pytest.raises(APIStatusError, match="could not parse the JSON body"):
        await client.post("/responses", content=b"{", cast_to=object)
