"""The turns of the demonstration, made from a seed, so that whoever counts them can make them again."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from cas_session.compaction.cuts import item_type
from cas_session.snapshot import Item

CITIES = ("Oslo", "Nagoya", "Łódź", "São Paulo", "Reykjavík", "Đà Nẵng")
GOODS = ("a kayak", "twelve ☕ grinders", "a piano", "40 kg of tulip bulbs", "a telescope", "two bicycles")
WEATHER = ("☀️ clear", "🌧️ rain", "🌨️ snow", "🌫️ fog", "⛈️ storm")
CARRIERS = ("North Line", "Kestrel 🪶 Air", "Harbour & Sons")


def turn(seed: int, author: str, number: int, *, real: bool = False) -> list[Item]:
    """One whole turn, the same for the same arguments: question, reasoning, parallel calls with their
    outputs, answer.

    Args:
        seed: Of the run.
        author: Who appends it.
        number: Counts the author's turns, from 1.
        real: For a real provider, which knows no ids and no reasoning that it did not make itself.
    """
    name = f"{author}-{number}"
    dice = random.Random(f"{seed}/{name}")
    order, city, goods = dice.randrange(10_000, 99_999), dice.choice(CITIES), dice.choice(GOODS)
    calls: list[tuple[str, dict[str, object]]] = [
        ("get_order", {"order": order}),
        ("get_weather", {"city": city}),
        ("list_carriers", {"to": city}),
    ]
    calls = calls[: dice.choice((2, 2, 3))]
    keys = [f"call_{dice.getrandbits(96):024x}" for _ in calls]
    items: list[Item] = [
        _said(f"[{name}] When does order {order} ({goods}) reach {city}?"),
        _reasoning(dice, f"Order {order}: look up the order, and the weather on the way to {city}."),
        *(_call(dice, key, tool, given) for key, (tool, given) in zip(keys, calls, strict=True)),
        *(_output(dice, key, tool, given) for key, (tool, given) in zip(keys, calls, strict=True)),
        _answer(dice, f"Order {order} reaches {city} in {dice.randrange(2, 9)} days. {dice.choice(WEATHER)}"),
    ]
    return for_real_provider(items) if real else items


def for_real_provider(items: Sequence[Item]) -> list[Item]:
    """The items without what only the provider that made them could know: reasoning, ids."""
    return [
        {key: value for key, value in item.items() if key != "id"}
        for item in items
        if item_type(item) != "reasoning"
    ]


def _said(text: str) -> Item:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _reasoning(dice: random.Random, summary: str) -> Item:
    return {
        "type": "reasoning",
        "id": f"rs_{dice.getrandbits(96):024x}",
        "summary": [{"type": "summary_text", "text": summary}],
    }


def _call(dice: random.Random, key: str, tool: str, given: dict[str, object]) -> Item:
    return {
        "type": "function_call",
        "id": f"fc_{dice.getrandbits(96):024x}",
        "call_id": key,
        "name": tool,
        "arguments": json.dumps(given, ensure_ascii=False),
        "status": "completed",
    }


def _output(dice: random.Random, key: str, tool: str, given: dict[str, object]) -> Item:
    result = {
        **given,
        "ok": True,
        "log": f"\0{tool}\0 scanner {dice.randrange(100)} says \\u0000, not NUL",
        "note": dice.choice(("left the dock 🚢", "at customs 🛃", "in the van 🚚", "👩🏽‍✈️ signed for it")),
        "carrier": dice.choice(CARRIERS),
        "weather": dice.choice(WEATHER),
    }
    # What a program printed, NUL included: not a JSON text, which would hold it escaped.
    lines = "\n".join(f"{name}: {value}" for name, value in result.items())
    return {"type": "function_call_output", "call_id": key, "output": lines}


def _answer(dice: random.Random, text: str) -> Item:
    return {
        "type": "message",
        "id": f"msg_{dice.getrandbits(96):024x}",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
