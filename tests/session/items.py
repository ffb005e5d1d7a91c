"""The items that the tests store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cas_session import Item


def said(*texts: str) -> list[Item]:
    """User messages."""
    return [{"role": "user", "content": text} for text in texts]


def texts_of(items: Sequence[Any]) -> list[Any]:
    return [item["content"] for item in items]


def turns(count: int, *, start: int = 0) -> list[Item]:
    """Whole turns: a question and an answer long enough to be worth a compaction."""
    items: list[Item] = []
    for number in range(start, start + count):
        items.append({"role": "user", "content": f"question {number}"})
        items.append({"role": "assistant", "content": f"answer {number}: " + "word " * 50})
    return items
