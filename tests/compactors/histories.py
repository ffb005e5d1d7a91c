"""Histories and requests for the tests."""

from __future__ import annotations

from typing import Any

from cas_session.compactors import CompactionRequest
from cas_session.testing.endpoint import LoggedRequest, ResponsesEndpoint

Item = dict[str, Any]

LONG = "It was a long story, and every word of it mattered to somebody. " * 40


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def assistant(text: str) -> Item:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


def call(call_id: str, name: str = "look_up", arguments: str = '{"q":"tea"}') -> Item:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def result(call_id: str, output: Any = "green") -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def thought(name: str, summary: str = "") -> Item:
    parts = [{"type": "summary_text", "text": summary}] if summary else []
    return {"type": "reasoning", "id": name, "summary": parts, "encrypted_content": "gAAAAAsealed"}


def sealed(content: str = "gAAAAAelsewhere") -> Item:
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": content}


def turn(number: int, text: str = LONG) -> list[Item]:
    """A user's question, a tool call with its output, and an answer."""
    name = f"call_{number}"
    return [user(f"question {number}"), call(name), result(name, text), assistant(f"answer {number}")]


def request(items: list[Item]) -> CompactionRequest:
    return CompactionRequest(session_id="s", mode="input", items=items)


CHAIN = CompactionRequest(session_id="s", mode="previous_response_id", previous_response_id="resp_1")


def paths(endpoint: ResponsesEndpoint) -> list[str]:
    """Where the requests went, in order."""
    return [logged.path.removeprefix("/v1/") for logged in endpoint.requests]


def body(logged: LoggedRequest) -> dict[str, Any]:
    assert logged.body is not None
    return logged.body
