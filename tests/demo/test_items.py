"""The shipped conversation, the made-up turns, and conversations from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cas_session import Item
from cas_session.cli.demo.files import InputFileError, read_file, resealed, shipped
from cas_session.cli.demo.turns import for_real_provider, turn
from cas_session.testing.endpoint import ResponsesEndpoint
from cas_session.testing.strict import check_items, check_links

EXAMPLES = Path(__file__).parents[2] / "examples"


def outputs(items: list[Item]) -> str:
    return "".join(item["output"] for item in items if item["type"] == "function_call_output")


def kinds(items: list[Item]) -> list[str]:
    return [item["type"] for item in items]


def test_the_shipped_conversation_is_realistic_and_valid() -> None:
    """Parallel calls after one reasoning item, emoji and NUL in what tools gave."""
    items = read_file(shipped())

    assert {"message", "reasoning", "function_call", "function_call_output"} == set(kinds(items))
    assert "reasoning,function_call,function_call,function_call,function_call_output" in ",".join(
        kinds(items)
    )
    assert "\0" in outputs(items)
    assert "🛃" in outputs(items)


def test_the_example_is_the_shipped_conversation() -> None:
    assert shipped().read_bytes() == (EXAMPLES / "conversation.jsonl").read_bytes()


async def test_the_endpoint_compacts_the_shipped_conversation() -> None:
    async with ResponsesEndpoint() as endpoint, endpoint.client() as client:
        answer = await client.responses.compact(model="gpt-5.1", input=read_file(shipped()))  # type: ignore[arg-type]

    assert answer.output[-1].type == "compaction"


@pytest.mark.parametrize("real", [False, True])
def test_a_turn_is_whole_and_valid(real: bool) -> None:
    """One question, parallel calls with their outputs, one answer; reasoning unless for a real provider."""
    for number in range(1, 50):
        items = turn(0, "w1", number, real=real)
        check_items(items)
        check_links(items, {})

        assert kinds(items).count("function_call") >= 2
        assert kinds(items).count("reasoning") == (not real)
        assert "\0" in outputs(items)
        assert not outputs(items).isascii()


def test_a_turn_is_the_same_each_time_and_unlike_any_other() -> None:
    turns = [turn(seed, author, n) for seed in (0, 1) for author in ("w1", "w2") for n in (1, 2)]

    assert turn(1, "w2", 2) == turns[-1]
    assert len({json.dumps(items) for items in turns}) == len(turns)


def test_a_real_provider_gets_no_ids_and_no_reasoning_that_it_did_not_make() -> None:
    items = for_real_provider(read_file(shipped()))
    check_links(items, {})

    assert not [item for item in items if "id" in item or item["type"] == "reasoning"]


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ('{"role": "user", "content": "hi"}\n\n{"role": ', ":3: ", "no JSON"),
        ('{"role": "user", "content": "hi"}\n[1]\n', ":2: ", "an item is a JSON object"),
        ('{"role": "user", "content": "hi", "extra": 1}\n', ":1: ", "Unknown parameter: 'extra'"),
        ('{"type": "no_such"}\n', ":1: ", "Invalid value: 'no_such'"),
        ('{"type": "compaction_trigger"}\n', ":1: ", "belongs to a request"),
        ('{"type": "function_call_output", "call_id": "c", "output": ""}\n', ": ", "No tool call found"),
        ("\n\n", ": ", "holds no items"),
    ],
)
def test_a_bad_file_is_named_with_the_line(tmp_path: Path, text: str, place: str, why: str) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(text)

    with pytest.raises(InputFileError, match=r"chat\.jsonl") as error:
        read_file(file)

    assert str(error.value).startswith(f"{file}{place}")
    assert why in str(error.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_bytes(b'{"role": "user", "content": "\xff"}')

    for path in (file, tmp_path, tmp_path / "missing"):
        with pytest.raises(InputFileError, match="cannot be read"):
            read_file(path)


def test_line_separators_inside_of_texts_are_no_ends_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"role": "user", "content": "a\u2028b\x85c"}\r\n', newline="")

    assert read_file(file) == [{"role": "user", "content": "a\u2028b\x85c"}]


async def test_opaque_content_of_another_server_is_sealed_anew() -> None:
    """Else this endpoint would refuse what it did not make."""
    foreign: list[Item] = [
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAAforeign"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAAforeign"},
        {"type": "message", "role": "assistant", "content": "hello"},
    ]
    endpoint = ResponsesEndpoint()

    items, count = resealed(foreign, endpoint.seal)

    assert count == 2
    assert endpoint.unseal(items[0]["encrypted_content"]) == []
    assert items[2] is foreign[2]
