"""Items to JSON text and back: the only JSON of stored items. What went in comes out, or is refused."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jiter
import orjson

from cas_session.errors import ItemDecodingError, ItemEncodingError
from cas_session.snapshot import Item

MAX_DEPTH = 200  # levels, the item itself is the first
DIGEST_BYTES = 16
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")  # as escapes they are one character

_PLAIN = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_dump_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_dump_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Encoded:
    """Items as the database keeps them.

    Attributes:
        texts: One JSON object each, valid UTF-8, no raw NUL.
        sizes: The UTF-8 bytes of each text.
    """

    texts: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """UTF-8 bytes of all texts together."""
        return sum(self.sizes)


def encode(items: Sequence[Item]) -> Encoded:
    """Encode a list of JSON objects, keys in their order.

    Raises:
        ItemEncodingError: It is no list, or an item is not a JSON object: the index and the path say which.
    """
    if not isinstance(items, list | tuple):
        raise ItemEncodingError(0, "", f"items must be a list of JSON objects, not {type(items).__name__}")
    encoded = [_encode_one(index, item) for index, item in enumerate(items)]
    return Encoded(tuple(map(bytes.decode, encoded)), tuple(map(len, encoded)))


def decode(session_id: str, rows: Iterable[tuple[int, str]]) -> list[Item]:
    """Decode stored rows of (seq, text).

    Raises:
        ItemDecodingError: A row is no JSON object. None is skipped.
    """
    items: list[Item] = []
    for seq, text in rows:
        try:
            item = _parse(text.encode())
        except (ValueError, RecursionError) as error:
            raise ItemDecodingError(session_id, seq, str(error)) from error
        if not isinstance(item, dict):
            raise ItemDecodingError(session_id, seq, f"a JSON {type(item).__name__} is no item")
        items.append(item)
    return items


def sizes_of(texts: Iterable[str]) -> tuple[int, ...]:
    """The UTF-8 bytes of each text."""
    return tuple(len(text) if text.isascii() else len(text.encode()) for text in texts)


def digest(texts: Iterable[str], *, key: str) -> bytes:
    """The SHA-256 digest, cut, of encoded items, keyed so that equal items of two writes differ."""
    state = hashlib.sha256(key.encode())
    for text in texts:
        state.update(b"\0")  # no text holds a raw NUL
        state.update(text.encode())
    return state.digest()[:DIGEST_BYTES]


def _parse(encoded: bytes) -> Any:
    try:
        return jiter.from_json(encoded, allow_inf_nan=False)
    except ValueError:  # a lone surrogate, depth or a long number, which only the slower decoder takes
        return _load(encoded.decode())


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_load = json.JSONDecoder(parse_constant=_no_number).decode


def _encode_one(index: int, item: Any) -> bytes:
    if not isinstance(item, dict):
        raise ItemEncodingError(index, "", f"an item is a JSON object (a dict), not {type(item).__name__}")
    try:
        encoded = _dump(item)
        # Tuples become lists, keys strings, NaN null: what does not come back equal is refused.
        comes_back = _parse(encoded) == item
        if not comes_back or _may_be_deep(encoded):
            _refuse(index, item)
        if not comes_back:
            raise ItemEncodingError(index, "", "what is read back is not equal to it")
    except (TypeError, ValueError, RecursionError) as error:
        if not isinstance(error, ItemEncodingError):
            _refuse(index, item, error)
        raise
    return encoded


def _dump(item: Item) -> bytes:
    try:
        return orjson.dumps(item, option=_PLAIN)
    except TypeError:  # as in `_parse`, and what no encoder takes
        text = _dump_text(item)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8, its escape has
        return _dump_ascii(item).encode()


def _may_be_deep(encoded: bytes) -> bool:
    return encoded.count(b"{") + encoded.count(b"[") > MAX_DEPTH


def _refuse(index: int, item: Item, error: Exception | None = None) -> None:
    """Find what is wrong and raise; return if a closer look finds nothing (braces inside strings)."""
    for path, why in _faults(item):
        raise ItemEncodingError(index, path, why) from error
    if error is not None:
        raise ItemEncodingError(index, "", str(error)) from error


def _faults(item: Item) -> Iterator[tuple[str, str]]:
    todo: list[tuple[str, Any, int]] = [("", item, 1)]
    while todo:
        path, value, depth = todo.pop()
        if isinstance(value, dict | list) and depth > MAX_DEPTH:
            yield path, f"nested deeper than {MAX_DEPTH} levels"
        elif isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str):
                    yield path, f"the key {key!r} is {type(key).__name__}, JSON keys are strings"
                elif _PAIR.search(key):
                    yield path, f"the key {key!a} holds {_HALVES}"
                todo.append((f"{path}.{key}" if path else str(key), inner, depth + 1))
        elif isinstance(value, list):
            todo.extend((f"{path}[{at}]", inner, depth + 1) for at, inner in enumerate(value))
        elif isinstance(value, float):
            if value != value or value in (float("inf"), float("-inf")):
                yield path, f"{value} is no JSON number"
        elif isinstance(value, int):
            if why := _unprintable(value):
                yield path, why
        elif isinstance(value, str):
            if _PAIR.search(value):
                yield path, f"the text holds {_HALVES}"
        elif value is not None:
            yield path, f"{type(value).__name__} is no JSON value"


_HALVES = "one character as two surrogates, which JSON reads back as one: join them before it is stored"


def _unprintable(number: int) -> str | None:
    try:
        str(number)
    except ValueError as error:
        return str(error)
    return None
