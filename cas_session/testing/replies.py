"""What the model says in tests and in the demonstration: items, replies made of them, a reply as a stream."""

import json
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from cas_session.testing.strict import Item

DELTA_CHARS = 16  # of a text in one streamed event
STREAMED = {"content", "summary", "arguments"}  # empty when an item is added, then filled by deltas


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the model says to one request: its output items, without the ids that the server gives.

    The token counts override the estimates in `usage`.
    """

    output: tuple[Item, ...]
    input_tokens: int | None = None
    output_tokens: int | None = None

    @classmethod
    def of(cls, *output: Item) -> Self:
        """Any items in this order, from the functions below or as dictionaries."""
        return cls(output=output)

    @classmethod
    def text(cls, text: str, *, reasoning: str | None = None) -> Self:
        """An assistant message, after a reasoning item if there is a summary for it."""
        return cls.of(*_thought(reasoning), message(text))

    @classmethod
    def calls(cls, *calls: tuple[str, Mapping[str, Any]], reasoning: str | None = None) -> Self:
        """Function calls, several of them in parallel: ("get_weather", {"city": "Oslo"}), ..."""
        return cls.of(*_thought(reasoning), *(function_call(name, **given) for name, given in calls))


def message(text: str) -> Item:
    """An assistant message."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "status": "completed", "role": "assistant", "content": [part]}


def function_call(name: str, /, **arguments: Any) -> Item:
    """A call of a function tool."""
    return {
        "type": "function_call",
        "status": "completed",
        "name": name,
        "arguments": json.dumps(arguments),
        "call_id": new_id("call"),
    }


def reasoning(summary: str) -> Item:
    """A reasoning item; what the model says next is bound to it."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": summary}]}


def echo(item: Item) -> Reply:
    """What the model says without being told: it repeats the last item."""
    if "output" in item:
        return Reply.text(f"The tool said: {item['output']}")
    return Reply.text(f"You said: {' '.join(str(part.get('text', '')) for part in parts_of(item))}")


def parts_of(item: Item) -> list[Item]:
    """A message's content as a list of parts."""
    content = item.get("content") or []
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


async def server_sent(response: dict[str, Any]) -> AsyncIterator[bytes]:
    """The response as the events of a stream."""
    for number, event in enumerate(_events(response)):
        data = as_json({**event, "sequence_number": number}).decode()
        yield f"event: {event['type']}\ndata: {data}\n\n".encode()


def as_json(value: object) -> bytes:
    """JSON text; a lone surrogate in it stays one."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def new_id(prefix: str) -> str:
    """An id as the API gives them."""
    return f"{prefix}_{secrets.token_hex(16)}"


def _thought(summary: str | None) -> list[Item]:
    return [] if summary is None else [reasoning(summary)]


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        yield from _item_events(item, {"output_index": index, "item_id": item["id"]})
    yield {"type": "response.completed", "response": response}


def _item_events(item: Item, place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    index = place["output_index"]
    bare = {name: type(value)() if name in STREAMED else value for name, value in item.items()}
    if "status" in bare:
        bare["status"] = "in_progress"
    yield {"type": "response.output_item.added", "output_index": index, "item": bare}
    if item["type"] == "message":
        for number, part in enumerate(item["content"]):
            at = {**place, "content_index": number}
            yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
            for delta in _deltas(part["text"]):
                yield {"type": "response.output_text.delta", **at, "delta": delta, "logprobs": []}
            yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
    elif item["type"] == "function_call":
        for delta in _deltas(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **place, "delta": delta}
        yield {
            "type": "response.function_call_arguments.done",
            **place,
            "name": item["name"],
            "arguments": item["arguments"],
        }
    elif item["type"] == "reasoning":
        for number, part in enumerate(item["summary"]):
            at = {**place, "summary_index": number}
            yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
            for delta in _deltas(part["text"]):
                yield {"type": "response.reasoning_summary_text.delta", **at, "delta": delta}
            yield {"type": "response.reasoning_summary_text.done", **at, "text": part["text"]}
            yield {"type": "response.reasoning_summary_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _deltas(text: str) -> Iterator[str]:
    for start in range(0, len(text), DELTA_CHARS):
        yield text[start : start + DELTA_CHARS]
