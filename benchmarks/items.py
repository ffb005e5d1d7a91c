"""Turns of a conversation as the Responses API has them, of realistic sizes, made from a seed.

A question has some 200 bytes as JSON, an answer 1.5 KB, a call with its output 2 KB, reasoning 4 KB; a turn
of four items has 5 KB on average.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import NamedTuple

from cas_session.snapshot import Item

TURN_ITEMS = 4
POOL_TURNS = 64  # made once; a turn is one of them with ids of its own
TAG = "x_tag"  # a field of ours, which every store keeps
WORDS = (
    "account",
    "address",
    "because",
    "customer",
    "invoice",
    "order",
    "refund",
    "report",
    "status",
    "today",
)


class Turn(NamedTuple):
    """The items of one turn, and their JSON texts."""

    items: list[Item]
    texts: list[str]


class Conversation:
    """An endless conversation; each turn has ids of its own."""

    def __init__(self, seed: int = 1) -> None:
        dice = random.Random(seed)
        self._pool = [[make(dice) for make in _KINDS[number % 2]] for number in range(POOL_TURNS)]
        self._number = 0

    def turn(self, tag: str | None = None) -> list[Item]:
        """The next turn; with a tag each item carries ``tag:position``."""
        name = tag or f"t{self._number}"
        items = [dict(item) for item in self._pool[self._number % POOL_TURNS]]
        self._number += 1
        for position, item in enumerate(items):
            if "id" in item:
                item["id"] = f"{item['id']}_{name}_{position}"
            if "call_id" in item:
                item["call_id"] = f"call_{name}"
            if tag is not None:
                item[TAG] = f"{tag}:{position}"
        return items

    def history(self, count: int) -> list[Turn]:
        """``count`` items, in turns."""
        turns = (self.turn() for _ in range(count // TURN_ITEMS))
        return [Turn(items, [text_of(item) for item in items]) for items in turns]

    def summary(self, count: int = 10) -> list[Item]:
        """What a long history is replaced by."""
        return [item for turn in self.history(count + TURN_ITEMS) for item in turn.items][:count]


def text_of(item: Item) -> str:
    return json.dumps(item, separators=(",", ":"))


def large(size: int) -> Item:
    """One item of so many bytes, such as a message with a picture in it."""
    return {"role": "user", "content": [{"type": "input_image", "image_url": "data:," + "A" * size}]}


def _words(dice: random.Random, size: int) -> str:
    return " ".join(dice.choices(WORDS, k=size // 5))[:size]


def _question(dice: random.Random) -> Item:
    return {"role": "user", "content": _words(dice, 165)}


def _reasoning(dice: random.Random) -> Item:
    sealed = base64.urlsafe_b64encode(dice.randbytes(2900)).decode()
    return {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": sealed}


def _call(dice: random.Random) -> Item:
    arguments = json.dumps({"query": _words(dice, 120), "limit": 20})
    return {
        "type": "function_call",
        "id": "fc",
        "call_id": "call",
        "name": "search_orders",
        "arguments": arguments,
        "status": "completed",
    }


def _output(dice: random.Random) -> Item:
    rows = [
        {
            "order": dice.randrange(10**8),
            "status": dice.choice(WORDS),
            "note": _words(dice, 60),
            "amount": round(dice.random() * 500, 2),
        }
        for _ in range(13)
    ]
    return {"type": "function_call_output", "call_id": "call", "output": json.dumps(rows)}


def _answer(dice: random.Random) -> Item:
    text = {"type": "output_text", "text": _words(dice, 1330), "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [text]}


_KINDS: tuple[tuple[Callable[[random.Random], Item], ...], ...] = (
    (_question, _reasoning, _call, _output),
    (_question, _call, _output, _answer),
)
