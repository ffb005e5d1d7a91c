"""Shortening the oldest large tool outputs of a request."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cas_session import codec
from cas_session.compaction.cuts import allowed_cuts
from cas_session.compaction.shrink import shorten
from cas_session.testing.strict import check_items, check_links
from tests.compactors.histories import Item, assistant, call, result, user

LARGE = "0123456789" * 1000


def size(items: list[Item]) -> int:
    return codec.encode(items).size


def pairs(*outputs: Any) -> list[Item]:
    return [item for i, output in enumerate(outputs) for item in (call(f"c{i}"), result(f"c{i}", output))]


def test_the_oldest_large_output_goes_first_and_no_more_than_needed() -> None:
    items = pairs("small", LARGE, LARGE, LARGE)

    short = shorten(items, size(items) - 5000)

    assert size(short) <= size(items) - 5000
    assert [item == was for item, was in zip(short, items, strict=True)] == [True] * 3 + [False] + [True] * 4
    assert "[... 8000 characters left out ...]" in short[3]["output"]
    assert short[3]["output"].startswith(LARGE[:1500])
    assert short[3]["output"].endswith(LARGE[-500:])


def test_what_fits_is_left_alone() -> None:
    items = pairs(LARGE)

    assert items == shorten(items, size(items))


def test_messages_and_calls_are_never_shortened() -> None:
    items = [user(LARGE), assistant(LARGE), call("c", arguments=json.dumps({"q": LARGE})), result("c")]

    assert items == shorten(items, 100)


def test_a_second_pass_is_harder_and_comes_as_near_as_it_can() -> None:
    items = pairs(LARGE, LARGE)

    assert size(shorten(items, 2500)) <= 2500
    assert size(shorten(items, 0)) == size(shorten(items, 1))


def test_the_given_items_are_not_changed() -> None:
    parts = [{"type": "input_text", "text": LARGE}, {"type": "input_image", "image_url": f"data:,{LARGE}"}]
    items = pairs(LARGE, parts)
    before = copy.deepcopy(items)

    shorten(items, 100)

    assert before == items


@pytest.mark.parametrize(
    ("item", "kept"),
    [
        (result("c", [{"type": "input_text", "text": LARGE}]), "type"),
        (result("c", [{"type": "input_image", "image_url": f"data:image/png;base64,{LARGE}"}]), "type"),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": LARGE}, "call_id"),
        ({"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": LARGE}, "status"),
        ({"type": "local_shell_call_output", "id": "c", "output": LARGE}, "id"),
        ({"type": "program_output", "id": "o", "call_id": "c", "status": "completed", "result": LARGE}, "id"),
        (
            {
                "type": "shell_call_output",
                "call_id": "c",
                "output": [
                    {"stdout": LARGE, "stderr": LARGE, "outcome": {"type": "exit", "exit_code": 1}},
                ],
            },
            "call_id",
        ),
        (
            {
                "type": "mcp_call",
                "id": "mcp_1",
                "name": "f",
                "server_label": "s",
                "arguments": "{}",
                "output": LARGE,
            },
            "arguments",
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_every_kind_of_output_gets_shorter_and_stays_valid(item: Item, kept: str) -> None:
    (short,) = shorten([item], 100)

    check_items([short])
    assert len(json.dumps(short)) < 1000
    assert item[kept] == short[kept]
    assert list(item) == list(short)


@given(
    st.lists(st.tuples(st.text(max_size=20), st.integers(0, 3000)), min_size=1, max_size=8),
    st.integers(0, 20_000),
)
def test_a_valid_history_stays_one(outputs: list[tuple[str, int]], target: int) -> None:
    """Nothing goes, nothing grows, every call keeps its output."""
    items = pairs(*(text * times for text, times in outputs))

    short = shorten(items, target)

    check_links(short, {})
    assert size(short) <= size(items)
    assert allowed_cuts(items) == allowed_cuts(short)
    assert [item["call_id"] for item in items] == [item["call_id"] for item in short]
