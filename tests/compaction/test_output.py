"""What compactors return becomes what the next request may hold."""

from __future__ import annotations

import copy
import json
import warnings
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.types.responses import CompactedResponse
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from pydantic import TypeAdapter

from cas_session.compaction.output import OutputRejected, holds_envelope, normalise_output

Item = dict[str, Any]

# As it comes over the wire: nulls for what is not there, input parts in output messages.
WIRE: list[Item] = [
    {
        "type": "message",
        "role": "user",
        "id": "msg_1",
        "status": "completed",
        "content": [
            {"type": "input_text", "text": "look", "annotations": None, "logprobs": None},
            {"type": "input_image", "image_url": "https://x/y.png", "file_id": None, "detail": "low"},
            {
                "type": "input_file",
                "file_id": "file_1",
                "file_url": None,
                "file_data": None,
                "filename": "a.pdf",
            },
        ],
    },
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA", "created_by": "somebody"},
]
NORMAL: list[Item] = [
    {
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
            {"type": "input_file", "file_id": "file_1", "filename": "a.pdf"},
        ],
    },
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"},
]


def message(*parts: Item, role: str = "user", **more: Any) -> Item:
    return {"type": "message", "role": role, "content": list(parts), **more}


def parsed(output: list[Item]) -> list[Any]:
    """The output as the openai client parses it, which validates nothing."""
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    reply = {"id": "r", "created_at": 1, "object": "response.compaction", "output": output, "usage": usage}
    response = construct_type(value=reply, type_=CompactedResponse)
    assert isinstance(response, CompactedResponse)
    return response.output


def rejection(output: object) -> str:
    with pytest.raises(OutputRejected) as caught:
        normalise_output(output)
    return caught.value.reason


@pytest.mark.parametrize("output", [WIRE, parsed(WIRE), tuple(WIRE)], ids=["dicts", "models", "tuple"])
def test_output_becomes_valid_input(output: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        items = normalise_output(output)

    assert items == NORMAL
    for item in items:
        TypeAdapter(ResponseInputItemParam).validate_python(item)


def test_normal_output_is_left_as_it_is_to_the_byte() -> None:
    once = normalise_output(WIRE)

    assert json.dumps(once) == json.dumps(normalise_output(once))


def test_what_was_given_is_not_changed() -> None:
    given_items = copy.deepcopy(WIRE)
    normalise_output(given_items)

    assert given_items == WIRE


def test_the_order_is_kept_as_given() -> None:
    items = [
        WIRE[1],
        message({"type": "input_text", "text": "a"}),
        message({"type": "input_text", "text": "b"}),
    ]

    assert items[1:] == normalise_output(items)[1:]


@pytest.mark.parametrize(
    ("part", "normal"),
    [
        ({"image_url": "u", "file_id": "f"}, {"image_url": "u"}),
        ({"image_url": None, "file_id": "f", "detail": None}, {"file_id": "f"}),
        ({"image_url": "", "file_id": "f", "detail": "high"}, {"file_id": "f", "detail": "high"}),
    ],
)
def test_an_image_has_one_source(part: Item, normal: Item) -> None:
    [item] = normalise_output([message({"type": "input_image", **part})])

    assert [{"type": "input_image", **normal}] == item["content"]


@pytest.mark.parametrize(
    ("part", "normal"),
    [
        ({"file_id": "f", "file_url": "u", "file_data": "d"}, {"file_data": "d"}),
        ({"file_id": "f", "file_url": "u"}, {"file_url": "u"}),
        (
            {"file_id": "f", "filename": "n", "detail": "low"},
            {"file_id": "f", "filename": "n", "detail": "low"},
        ),
    ],
)
def test_a_file_has_one_source(part: Item, normal: Item) -> None:
    [item] = normalise_output([message({"type": "input_file", **part})])

    assert [{"type": "input_file", **normal}] == item["content"]


def test_parts_of_tool_outputs_are_normalised_too() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    image = {"type": "input_image", "image_url": "u", "file_id": None}
    answer = {"type": "function_call_output", "call_id": "c", "output": [image], "status": None}
    shell = {"type": "shell_call", "call_id": "s", "action": {"commands": []}, "created_by": "x"}
    chunk = {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}
    ran = {"type": "shell_call_output", "call_id": "s", "output": [chunk | {"created_by": "x"}]}

    assert [
        call,
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": "u"}],
        },
        {"type": "shell_call", "call_id": "s", "action": {"commands": []}},
        {"type": "shell_call_output", "call_id": "s", "output": [chunk]},
    ] == normalise_output([call, answer, shell, ran])


def test_text_of_the_assistant_keeps_its_annotations() -> None:
    cited = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    items = normalise_output(
        [
            message(
                {"type": "output_text", "text": "a", "annotations": [cited], "logprobs": None},
                role="assistant",
            ),
            message({"type": "output_text", "text": "b", "annotations": None}, role="assistant", phase=None),
        ]
    )

    assert [
        message({"type": "output_text", "text": "a", "annotations": [cited]}, role="assistant"),
        message({"type": "output_text", "text": "b", "annotations": []}, role="assistant"),
    ] == items


def test_a_message_keeps_its_id_only_right_behind_its_reasoning() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    first, second = (message(role="assistant", id=f"msg_{n}") for n in (1, 2))
    items = normalise_output([thought, first, second])

    assert [item.get("id") for item in items] == ["rs_1", "msg_1", None]


def test_nulls_that_input_must_have_stay() -> None:
    image = {"type": "image_generation_call", "id": "ig", "status": "failed", "result": None, "error": None}
    code = {"type": "code_interpreter_call", "id": "ci", "code": None, "outputs": None, "container_id": "c"}

    assert [{k: v for k, v in image.items() if k != "error"}, code] == normalise_output([image, code])


def test_an_unknown_type_passes_as_it_is() -> None:
    item = {"type": "x_summary", "text": None, "content": [{"type": "input_image"}]}

    assert [item] == normalise_output([item])


def test_plain_messages_pass_as_they_are() -> None:
    items = [{"role": "assistant", "content": "summary"}, {"role": "user", "content": "hello"}]

    assert items == normalise_output(items)


@pytest.mark.parametrize("output", [None, [], (), {}, {"output": []}, "text", 7, [None], ["text"], [[]]])
def test_what_is_no_list_of_objects_is_an_empty_output(output: object) -> None:
    assert rejection(output) == "empty_output"


def test_a_mock_that_was_not_set_up_is_an_empty_output() -> None:
    assert rejection(AsyncMock().compact.output) == "empty_output"


@pytest.mark.parametrize(
    "output",
    [
        [{"type": "function_call", "call_id": "c"}],
        [{"type": "function_call_output", "call_id": "c"}],
        [{"type": "compaction"}, {"type": "reasoning", "id": "rs"}],
        [{"type": "item_reference", "id": "i"}],
        [message({"type": "input_image", "image_url": None})],
        [message({"type": "input_file", "filename": "n"})],
    ],
)
def test_output_that_the_provider_would_refuse_is_rejected(output: list[Item]) -> None:
    assert rejection(output) == "invalid_output"


def test_envelopes_of_a_wrapping_session_are_recognised() -> None:
    envelope = {"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": "gAAA"}

    assert holds_envelope([WIRE[0], envelope])
    assert not holds_envelope(WIRE)
    assert rejection([envelope]) == "envelope"


KEYS = ["type", "role", "id", "call_id", "content", "output", "caller", "text", "image_url"]
WORDS = ["message", "reasoning", "function_call", "input_image", "output_text", "user", "program"]
values: st.SearchStrategy[Any] = st.sampled_from(
    [*WORDS, None, True, 7, "", [], {}, [None], [[]], {"type": "program"}]
)
parts = st.lists(st.dictionaries(st.sampled_from(KEYS), values, max_size=3), max_size=2)
objects = st.dictionaries(st.sampled_from(KEYS), values | parts, max_size=4)


@given(st.lists(objects, max_size=5))
def test_any_json_is_normalised_or_rejected_and_nothing_else(output: list[Item]) -> None:
    try:
        items = normalise_output(output)
    except OutputRejected:
        return

    assert items == normalise_output(items)
