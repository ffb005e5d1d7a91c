"""What goes into a compaction's request: what the runner itself would send of the same items."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.models.openai_responses import OpenAIResponsesModel
from agents.run_internal.items import (
    TOOL_CALL_SESSION_DESCRIPTION_KEY,
    TOOL_CALL_SESSION_TITLE_KEY,
    normalize_input_items_for_api,
)
from openai import AsyncOpenAI

from cas_session import CasSession, Item
from cas_session.compaction.sendable import as_input
from cas_session.testing.endpoint import ResponsesEndpoint
from tests.agents.runs import kinds, refused, sent_to_compact
from tests.session.items import said

MESSAGE: Item = {
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hello", "annotations": []}],
}
CALL: Item = {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "call_1"}
OUTPUT: Item = {"type": "function_call_output", "call_id": "call_1", "output": "3"}
THOUGHT: Item = {"type": "reasoning", "summary": []}

ITEMS: dict[str, Item] = {
    "a message as it is": MESSAGE | {"id": "msg_1"},
    "a placeholder id": MESSAGE | {"id": FAKE_RESPONSES_ID},
    "a server's mark": MESSAGE | {"id": "msg_1", "created_by": "server"},
    "another provider's data": CALL | {"id": FAKE_RESPONSES_ID, "provider_data": {"model": "other"}},
    "the runner's description": CALL
    | {TOOL_CALL_SESSION_DESCRIPTION_KEY: "adds", TOOL_CALL_SESSION_TITLE_KEY: "Add"},
    "reasoning as it is": THOUGHT | {"id": "rs_1", "encrypted_content": "gAAAA"},
    "another provider's reasoning": THOUGHT | {"id": FAKE_RESPONSES_ID, "provider_data": {"model": "other"}},
    "empty provider data": THOUGHT | {"id": "rs_1", "provider_data": {}},
    "a compaction item": {"type": "compaction", "id": "cmp_1", "encrypted_content": "x", "created_by": "y"},
}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_an_item_is_sent_as_the_runner_would_send_it(item: Item) -> None:
    model = OpenAIResponsesModel(model="gpt-5.1", openai_client=AsyncOpenAI(api_key="test"))
    theirs = normalize_input_items_for_api([copy.deepcopy(item)])  # type: ignore[list-item]
    cleaned = [model._clean_item_for_openai(entry) for entry in theirs]

    assert as_input([item]) == [entry for entry in cleaned if entry is not None]


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_what_is_stored_is_not_changed(item: Item) -> None:
    before = copy.deepcopy(item)
    as_input([item])

    assert item == before


def test_null_names_are_left_out_and_other_nulls_are_not() -> None:
    """The API takes no null for them."""
    [sent] = as_input([THOUGHT | {"id": None, "status": None, "content": None}])

    assert sent == THOUGHT | {"content": None}


def test_an_id_is_sent_once() -> None:
    """A history that has an item twice would be refused as a whole."""
    twice = [MESSAGE | {"id": "msg_1"}, *said("x"), MESSAGE | {"id": "msg_1"}]

    assert as_input(twice) == [MESSAGE | {"id": "msg_1"}, *said("x"), MESSAGE]


async def test_the_endpoint_accepts_what_the_runner_stored_of_any_provider(
    endpoint: ResponsesEndpoint, session: CasSession
) -> None:
    """And what is kept in the session is what was stored."""
    foreign: list[Any] = [
        *said("1+2"),
        ITEMS["another provider's reasoning"],
        ITEMS["another provider's data"] | {TOOL_CALL_SESSION_DESCRIPTION_KEY: "adds"},
        OUTPUT,
        ITEMS["a placeholder id"],
        ITEMS["a server's mark"],
        ITEMS["a server's mark"],
    ]
    await session.add_items(foreign)

    report = await session.compact(force=True)

    assert report.status == "applied"
    assert kinds(sent_to_compact(endpoint.compact_requests[0])) == [
        *["user", "function_call", "function_call_output"],
        *["assistant"] * 3,
    ]
    assert refused(endpoint) == []
    assert (await session.snapshot(version=1)).items == foreign
