"""A history as plain text, which every model can read, whatever its items are and whoever made them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from textwrap import indent
from typing import Any, Final

from cas_session.compaction.cuts import FAMILIES, SETTINGS, item_type
from cas_session.compaction.output import holds_envelope
from cas_session.errors import CompactorError
from cas_session.snapshot import Item

OPAQUE_CHARS: Final = 1000  # a longer text without any space is data, which a summary has no use for

# They say what the model may do, not what happened; those in force stay in the history by themselves.
_LEFT_OUT: Final = SETTINGS | {"mcp_list_tools"}
_CALL_TEXTS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_RESULTS: Final = frozenset(family.output for family in FAMILIES)
_NOT_SAID: Final = frozenset({"type", "status", "encrypted_content", "created_by"})


def transcript(items: Iterable[Item]) -> str:
    """The items as numbered entries, oldest first; "" if nothing in them can be told.

    An entry's heading starts its line and what was said is indented, so that no text in a conversation can
    pass for an entry. Images, files and other data are named, not copied.

    Raises:
        CompactorError: An item is sealed or encrypted: leaving it out would lose what it stands for.
    """
    told = [entry for item in items for entry in _entries(item)]
    lines = (f"[{number}] {heading}\n{indent(body, '  ')}" for number, (heading, body) in enumerate(told, 1))
    # A lone surrogate cannot be sent.
    return "\n".join(lines).encode(errors="replace").decode()


def _entries(item: Item) -> Iterator[tuple[str, str]]:
    """The heading and the body of what the item says, if it says anything."""
    kind = item_type(item)
    if kind in _LEFT_OUT:
        return
    if kind == "message":
        yield _heading(item), _said(item)
    elif kind == "reasoning":
        if thought := _text_of(item.get("summary") or item.get("content") or ""):
            yield "assistant, thinking", thought
    elif (sealed := _why_unreadable(item, kind)) is not None:
        raise CompactorError(sealed)
    elif kind in _CALL_TEXTS:
        yield f"assistant calls {item.get('name')} ({_key(item)})", _text_of(item.get(_CALL_TEXTS[kind]))
    elif kind in _RESULTS and "output" in item:
        yield f"result of ({_key(item)})", _text_of(item["output"])
    else:
        yield kind or "item", _json({k: v for k, v in item.items() if k not in _NOT_SAID and v is not None})


def _heading(item: Item) -> str:
    role = str(item.get("role"))
    return f"{role} ({item['tool_call_id']})" if "tool_call_id" in item else role


def _said(item: Item) -> str:
    """A message's text, and the calls that the Chat Completions API keeps in its messages."""
    content, calls = item.get("content"), item.get("tool_calls")
    told = (_text_of(content) if content is not None else "", _json(calls) if calls else "")
    return "\n".join(text for text in told if text)


def _why_unreadable(item: Item, kind: str) -> str | None:
    if kind == "compaction" or item.get("encrypted_content") is not None:
        return (
            f"the history holds an item of type {kind!r} that its provider sealed, so that no other model "
            "can read it: compact this history with that provider, or drop what it stands for"
        )
    if holds_envelope([item]):
        return "the history holds items that a wrapping session encrypted: no model can read them"
    return None


def _key(item: Item) -> str:
    return str(item.get("call_id") or item.get("id") or "no id")


def _text_of(content: Any) -> str:
    """Message content, a summary or a tool's output: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text_of_part(part) for part in content)
    return _json(content)


def _text_of_part(part: Any) -> str:
    if isinstance(part, dict):
        texts = (part.get(key) for key in ("text", "refusal"))
        return next((text for text in texts if isinstance(text, str)), None) or _json(part)
    return part if isinstance(part, str) else _json(part)


def _json(value: Any) -> str:
    return json.dumps(_without_data(value), ensure_ascii=False)


def _without_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_data(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_data(inner) for inner in value]
    if isinstance(value, str) and _is_data(value):
        return f"[{len(value)} characters of data]"
    return value


def _is_data(text: str) -> bool:
    """Base64 and the like; texts of languages that write without spaces are not ASCII."""
    return len(text) > OPAQUE_CHARS and text.isascii() and " " not in text
