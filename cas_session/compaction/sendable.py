"""Stored items as the request of a compaction may hold them; what is stored stays as it is. Pure.

Runners keep things with an item that only they understand, and take them off before they send it. Source of
the names: openai-agents 0.24 (``strip_internal_input_item_metadata``, and what its Responses model removes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cas_session.snapshot import Item

NO_ID: Final = "__fake_id__"  # where a provider gave none

_NOT_INPUT: Final = frozenset({"created_by", "provider_data"})  # output only; another provider's
_RUNNERS_OWN: Final = "_agents_"  # how openai-agents' own keys begin
_ABSENT_IF_NULL: Final = frozenset({"id", "status"})


def as_input(items: Iterable[Item]) -> list[Item]:
    """The items, oldest first, without what the Responses API refuses.

    Reasoning of another provider is left out. An id that was sent already is not sent a second time.
    """
    sent: set[tuple[object, str]] = set()
    result: list[Item] = []
    for item in items:
        if item.get("type") == "reasoning" and item.get("provider_data"):
            continue
        clean = {key: value for key, value in item.items() if _is_input(key, value)}
        name = clean.get("id")
        if isinstance(name, str):
            if (item.get("type"), name) in sent:
                del clean["id"]
            sent.add((item.get("type"), name))
        result.append(clean)
    return result


def _is_input(key: str, value: object) -> bool:
    if key in _NOT_INPUT or key.startswith(_RUNNERS_OWN):
        return False
    if key == "id" and value == NO_ID:
        return False
    return value is not None or key not in _ABSENT_IF_NULL
