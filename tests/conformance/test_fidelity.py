"""What went in comes out: texts, ids, sizes, limits, moments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from cas_session.codec import decode, encode
from cas_session.driver import Append, Driver
from tests.conformance.writes import append, compact, load, operations, pop, prefix_of, replace, send, texts

TEXTS = {
    "an escaped NUL": r'{"content":"a\u0000b"}',
    "an escaped lone surrogate": r'{"content":"\ud800 \udfff"}',
    "emoji": '{"content":"🧊 👩‍👩‍👧 é e\u0301"}',
    "keys out of order and twice": '{"z":1,"a":2,"z":3}',
    "numbers as written": '{"n":[1e22,-0.0,1.10,123456789012345678901234567890]}',
    "white space": '{"a" :\t"  \n" }\u2028\u2029',
    "what looks like SQL": "'; DROP TABLE cas_session_item; --",
    "what looks like a parameter": "$1 :name ? %s %(x)s {} \\",
    "braces, commas and NULL of an array": '{NULL,"a","b\\"c"},NULL',
    "a byte order mark": "\ufeff{}",
    "the last code point": "\U0010ffff",
    "nothing": "",
}

IDS = {
    "512 bytes": "s" * 512,
    "512 bytes of emoji": "🧊" * 128,
    "quotes": """a'b"c`d\\e""",
    "what looks like SQL": "x'; DELETE FROM cas_session; --",
    "wildcards": "%_*?[a]",
    "white space": " a\tb\n ",
    "another case": "Ünïcode/ÄÖ:user@example.com",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_a_text_comes_out_as_it_went_in(driver: Driver, s: str, text: str) -> None:
    landed = await send(driver, append(s, text, "between", text))
    await send(driver, append(s, "popped", text))
    popped = await send(driver, pop(s))
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), text, text))

    assert await texts(driver, s) == [text, text, "between", text, "popped"]
    assert popped.item == text
    assert landed.manifest.byte_count == 2 * len(text.encode()) + 7


async def test_items_come_out_of_the_codec_as_they_went_in(driver: Driver, s: str) -> None:
    items: list[dict[str, Any]] = [
        {"z": 1, "a": {"\x00": "\ud83d", "": None}, "m": [True, 0.1, -0.0, 10**40, "🧊"]},
        {"content": "\ud800" * 3 + "é\u2028"},
    ]
    encoded = encode(items)
    head = append(s, *encoded.texts)
    assert isinstance(head, Append)
    assert head.sizes == encoded.sizes

    landed = await send(driver, head)
    loaded = await load(driver, s)
    read = decode(s, loaded.rows)

    assert read == items
    assert list(read[0]) == ["z", "a", "m"]
    assert landed.manifest.byte_count == encoded.size


@pytest.mark.parametrize("name", IDS.values(), ids=IDS.keys())
async def test_a_session_is_found_by_its_id_to_the_byte(driver: Driver, name: str) -> None:
    await send(driver, append(name, "a", op_id=name, owner=name, worker=name))
    for near in (name.upper(), name.strip(), name + " ", name[:-1] + "x"):
        if near != name:
            assert (await load(driver, near)).row is None
    loaded = await load(driver, name)
    (row,) = await operations(driver, name)

    assert loaded.row is not None
    assert (loaded.row.session_id, loaded.row.owner) == (name, name)
    assert (row.op_id, row.worker) == (name, name)
    assert await texts(driver, name) == ["a"]
    assert await driver.find_op(name, name) is not None


async def test_byte_count_counts_utf_8_bytes(driver: Driver, s: str) -> None:
    appended = await send(driver, append(s, "é", "🧊", "a"))
    compacted = await send(driver, compact(s, prefix_of(await load(driver, s), 2), "ß"))
    popped = await send(driver, pop(s))
    replaced = await send(driver, replace(s, "🧊🧊", expected=popped.manifest.version))

    assert [landed.manifest.byte_count for landed in (appended, compacted, popped, replaced)] == [7, 3, 2, 8]


async def test_an_item_of_5_megabytes_comes_back(driver: Driver, s: str) -> None:
    text = '{"data":"' + "0123456789abcdé🧊" * 300_000 + '"}'
    landed = await send(driver, append(s, text))

    assert len(text.encode()) > 5_000_000
    assert await texts(driver, s) == [text]
    assert landed.manifest.byte_count == len(text.encode())
    assert (await send(driver, pop(s))).item == text


async def test_20_000_items_are_written_at_once(driver: Driver, s: str) -> None:
    """More than a statement has parameters, in an append, a replace and a prefix replace."""
    many = [f'{{"n":{at}}}' for at in range(20_000)]
    appended = await send(driver, append(s, *many))
    read_appended = await texts(driver, s)
    replaced = await send(driver, replace(s, *reversed(many), expected=1))
    read_replaced = await texts(driver, s)
    await send(driver, compact(s, prefix_of(await load(driver, s), 19_999), *many))

    assert read_appended == many
    assert read_replaced == many[::-1]
    assert await texts(driver, s) == [*many, many[0]]
    assert (appended.manifest.item_count, replaced.manifest.item_count) == (20_000, 20_000)


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, "abcde"), (0, ""), (1, "e"), (3, "cde"), (5, "abcde"), (2**70, "abcde")]
)
async def test_a_limit_gives_the_newest_oldest_first(
    driver: Driver, s: str, limit: int | None, expected: str
) -> None:
    landed = await send(driver, append(s, *"abcde"))

    loaded = await load(driver, s, limit=limit)

    assert [text for _, text in loaded.rows] == list(expected)
    assert loaded.manifest == landed.manifest


async def test_a_limit_counts_what_is_visible(driver: Driver, s: str) -> None:
    await send(driver, append(s, *"abcd"))
    await send(driver, pop(s))
    await send(driver, compact(s, prefix_of(await load(driver, s), 2), "x", "y", "z"))

    loaded = await load(driver, s, limit=3)

    assert [text for _, text in loaded.rows] == ["y", "z", "c"]


@pytest.mark.parametrize("limit", [None, 0, 2])
async def test_ages_give_a_moment_for_each_row(driver: Driver, s: str, limit: int | None) -> None:
    await send(driver, append(s, "a", "b"))
    await send(driver, append(s, "c"))

    loaded = await load(driver, s, limit=limit, ages=True)

    assert len(loaded.created_at) == len(loaded.rows) == (3 if limit is None else limit)
    assert list(loaded.created_at) == sorted(loaded.created_at)
    assert loaded.row is not None
    for moment in loaded.created_at:
        assert moment.tzinfo is not None
        assert abs(moment - loaded.row.updated_at) < timedelta(hours=1)


@pytest.mark.parametrize("limit", [None, 0, 2, 9])
async def test_a_read_with_ages_gives_the_same_rows(driver: Driver, s: str, limit: int | None) -> None:
    await send(driver, append(s, "a", "b", "c"))
    await send(driver, pop(s))
    await send(driver, compact(s, prefix_of(await load(driver, s), 1), "x", "y"))
    await send(driver, append(s, "d", "e"))
    await send(driver, pop(s))

    plain, aged = await load(driver, s, limit=limit), await load(driver, s, limit=limit, ages=True)

    assert (aged.row, list(aged.rows)) == (plain.row, list(plain.rows))
    assert len(aged.created_at) == len(aged.rows)


async def test_ages_of_a_session_that_does_not_exist_are_none(driver: Driver, s: str) -> None:
    loaded = await load(driver, s, ages=True)

    assert (loaded.row, list(loaded.rows), list(loaded.created_at)) == (None, [], [])


async def test_a_read_without_ages_has_none(driver: Driver, s: str) -> None:
    await send(driver, append(s, "a"))

    assert not (await load(driver, s)).created_at
