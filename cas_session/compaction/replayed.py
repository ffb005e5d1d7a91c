"""Which items of a history openai-agents sends to the model, if nobody filters them. Pure.

Source: ``drop_orphan_function_calls`` and ``deduplicate_input_items_preferring_latest`` of its 0.24.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cas_session.compaction.cuts import FAMILIES, item_type
from cas_session.compaction.sendable import NO_ID
from cas_session.snapshot import Item

_OUTPUT_OF: Final = {family.call: family.output for family in FAMILIES if family.call_keys[0] == "call_id"}
_CALL_OF: Final = {output: call for call, output in _OUTPUT_OF.items()}
_NAMES: Final = ("type", "role", "id", "call_id", "approval_request_id", "caller")


def outline(item: Item) -> Item:
    """What is needed to count an item: its type and names, no content."""
    return {name: item[name] for name in _NAMES if name in item}


def count_replayed(items: Sequence[Item]) -> int:
    """How many of these items, or of their outlines, reach the model; oldest first.

    Left out are calls without output and their reasoning, what an unfinished program called, outputs without
    their call (a read limit parts them), and all but one of those with the same name.
    """
    kinds = [item_type(item) for item in items]
    lost = _without_partner(kinds, items)
    programs = {_text(items[index], "call_id") for index in lost if kinds[index] == "program"} - {None}
    owned = {index for index, item in enumerate(items) if _program_of(item) in programs}
    lost |= owned
    binds_lost = False
    for index in reversed(range(len(items))):
        if kinds[index] != "reasoning":
            binds_lost = index in owned or (index in lost and kinds[index] in _OUTPUT_OF)
        elif binds_lost:
            lost.add(index)
    names = [_name(kinds[index], item) for index, item in enumerate(items) if index not in lost]
    return names.count(None) + len(set(names) - {None})


def _without_partner(kinds: Sequence[str], items: Sequence[Item]) -> set[int]:
    """Indexes of calls without output and outputs without call; the nameless are paired in order."""
    there = {(kind, _text(item, "call_id")) for kind, item in zip(kinds, items, strict=True)}
    lost: set[int] = set()
    nameless = 0
    for index in reversed(range(len(items))):
        kind, name = kinds[index], _text(items[index], "call_id")
        partner = _OUTPUT_OF.get(kind) or _CALL_OF.get(kind)
        if name is not None or partner is None:
            if partner is not None and (partner, name) not in there:
                lost.add(index)
        elif kind == "tool_search_output":
            nameless += 1
        elif kind == "tool_search_call" and nameless:
            nameless -= 1
        elif kind in _OUTPUT_OF:
            lost.add(index)
    return lost


def _program_of(item: Item) -> str | None:
    caller = item.get("caller")
    if not isinstance(caller, Mapping) or caller.get("type") != "program":
        return None
    return _text(caller, "caller_id")


def _name(kind: str, item: Item) -> tuple[str, str] | None:
    """By what the runner takes two items for the same; None for messages and the nameless."""
    if kind == "message" or item.get("role") is not None:
        return None
    in_pair = kind in _OUTPUT_OF or kind in _CALL_OF
    keys = ("call_id", "id") if in_pair else ("id", "call_id", "approval_request_id")
    names = (_text(item, key) for key in keys)
    return next(((kind, name) for name in names if name is not None and name != NO_ID), None)


def _text(item: Mapping[str, Any], key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) else None
