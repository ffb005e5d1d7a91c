"""What went in comes out, through every way in and out; what is no JSON is refused with its place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cas_session import CasSession, ItemEncodingError, SessionStore
from tests.session.items import said


def nested(levels: int) -> dict[str, Any]:
    """An item so many levels deep, the item itself being the first."""
    item: Any = "leaf"
    for level in range(levels):
        item = {"in": item} if level % 2 or level == levels - 1 else [item]
    return item  # type: ignore[no-any-return]


KEPT: dict[str, dict[str, Any]] = {
    "NUL": {"content": "a\x00b", "\x00": "\x00"},
    "a lone surrogate": {"content": "\ud83d and \udc00", "\udfff": 1},
    "literal backslash-u text": {"content": r"\u0000 \ud83d \\u0041 \n"},
    "emoji": {"content": "🧊 👩‍👩‍👧 é e\u0301 \u2028"},
    "key order": {"z": 1, "a": {"y": 2, "b": 3}, "m": [{"d": 1, "c": 2}]},
    "2**70": {"n": 2**70, "m": -(2**70)},
    "1.0": {"n": [1.0, 1, 1e22, 0.1, 5e-324, 1.7976931348623157e308]},
    "-0.0": {"n": [-0.0, 0.0]},
    "5 MB": {"content": "x" * 5_000_000},
    "5 MB of emoji": {"content": "🧊" * 1_250_000},
    "200 levels": nested(200),
    "nothing": {},
    "empty values": {"a": None, "b": "", "c": [], "d": {}, "": False},
    "what looks like a parameter": {"content": "$1 :x ? %s {} '; DROP TABLE cas_session; --"},
    "4,300 digits": {"n": 10**4299},
}

REFUSED: dict[str, tuple[Any, int, str]] = {
    "NaN": ({"a": [0, {"b": math.nan}]}, 1, "a[1].b"),
    "Infinity": ({"a": math.inf}, 1, "a"),
    "-Infinity": ({"a": -math.inf}, 1, "a"),
    "bytes": ({"content": [{"data": b"x"}]}, 1, "content[0].data"),
    "a tuple": ({"a": {"b": (1, 2)}}, 1, "a.b"),
    "a number as key": ({"a": {1: "x"}}, 1, "a"),
    "None as key": ({None: "x"}, 1, ""),
    "a set": ({"a": {1, 2}}, 1, "a"),
    "an object": ({"a": object()}, 1, "a"),
    "201 levels": (nested(201), 1, ""),
    "4,301 digits": ({"n": 10**4300}, 1, "n"),
    "one character as two surrogates": ({"a": ["\ud83d\ude00"]}, 1, "a[0]"),
    "a key with two surrogates for one character": ({"a": {"\ud83d\ude00": 1}}, 1, "a"),
    "a text for an item": ("hello", 1, ""),
    "None for an item": (None, 1, ""),
    "a list for an item": ([{"a": 1}], 1, ""),
}


@pytest.fixture
def session(store: SessionStore) -> CasSession:
    return store.session("s")


@pytest.mark.parametrize("item", KEPT.values(), ids=KEPT.keys())
async def test_an_item_comes_out_as_it_went_in(
    session: CasSession, other: SessionStore, item: dict[str, Any]
) -> None:
    """Equal to the last key and sign, through another store, and through a pop."""
    await session.append([{"content": "before"}, item])
    (_, read) = (await other.session("s").snapshot()).items
    popped, _ = await session.pop()
    replaced = await session.replace([item], expected_version=3 - 1)
    (again,) = (await other.session("s").snapshot(version=replaced)).items

    # The text tells 1 from 1.0 and 0.0 from -0.0, and has the order of the keys; == does not.
    assert [json.dumps(out) for out in (read, popped, again)] == [json.dumps(item)] * 3


@pytest.mark.parametrize(("item", "index", "path"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("verb", ["append", "replace", "update"])
async def test_what_is_no_json_is_refused_with_index_and_path_and_nothing_is_stored(
    session: CasSession, verb: str, item: Any, index: int, path: str
) -> None:
    before = await session.append(said("before"))
    items = [{"fine": True}, item, {"fine": True}]
    writes: dict[str, Any] = {
        "append": lambda: session.append(items),
        "replace": lambda: session.replace(items, expected_version=before),
        "update": lambda: session.update(lambda _: items),
    }

    with pytest.raises(ItemEncodingError) as caught:
        await writes[verb]()

    assert caught.value.index == index
    if path:
        assert caught.value.path == path
    assert f"items[{index}]" in str(caught.value)
    assert (await session.snapshot()).items == said("before")
    assert await session.version() == before


@pytest.mark.parametrize("items", ["text", b"bytes", {"role": "user"}, None, 7, {1, 2}], ids=repr)
async def test_items_that_are_no_list_are_refused(session: CasSession, items: Any) -> None:
    with pytest.raises(ItemEncodingError, match="list of JSON objects"):
        await session.append(items)

    assert await session.version() == 0


async def test_the_place_in_a_deep_item_is_named(session: CasSession) -> None:
    with pytest.raises(ItemEncodingError, match="200 levels") as caught:
        await session.append([nested(201)])

    assert caught.value.path.count("in") + caught.value.path.count("[") == 200


async def test_what_was_read_may_be_changed_and_nobody_notices(session: CasSession) -> None:
    item = {"content": [{"text": "as it was"}]}
    await session.append([item])
    item["content"][0]["text"] = "changed by the writer"
    first = await session.snapshot()
    first.items[0]["content"][0]["text"] = "changed by a reader"
    first.items.clear()

    second = await session.snapshot()

    assert second.items == [{"content": [{"text": "as it was"}]}]
