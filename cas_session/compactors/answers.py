"""Reads the text of an answer of responses.create or chat.completions.create, and says if it is not whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from cas_session.compactors.client import plain_usage
from cas_session.errors import CompactorError, FailureKind

# Why a response may fail inside an HTTP 200 in a way that passes.
_PASSING: Final = frozenset({"server_error", "rate_limit_exceeded"})
# Open models behind servers without a parser for it write their thoughts in front of the answer.
_THOUGHTS: Final = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


def read_response(answer: object) -> str:
    """What the model said in a response; "" if nothing.

    Raises:
        CompactorError: It is incomplete, failed or a refusal. It carries the usage.
    """
    status, failure = field(answer, "status"), field(answer, "error")
    if status == "incomplete":
        raise _not_whole(answer, f"it is incomplete ({field(field(answer, 'incomplete_details'), 'reason')})")
    if isinstance(status, str) and status != "completed":
        passing = field(failure, "code") in _PASSING
        why = f"the response is {status} ({field(failure, 'message')})"
        raise _not_whole(answer, why, "retryable" if passing else "permanent")
    for part in _parts(answer):
        _check_refusal(answer, part)
    texts = (field(part, "text") for part in _parts(answer) if field(part, "type") == "output_text")
    return _said(texts)


def read_completion(answer: object) -> str:
    """What the model said in the first choice of a chat completion; "" if nothing.

    Raises:
        CompactorError: It is cut off, filtered or a refusal. It carries the usage.
    """
    for choice in _list(field(answer, "choices"))[:1]:
        if (reason := field(choice, "finish_reason")) in ("length", "content_filter"):
            raise _not_whole(answer, f"it is incomplete ({reason})")
        message = field(choice, "message")
        _check_refusal(answer, message)
        return _said(iter([field(message, "content")]))
    return ""


def usage_of(answer: object) -> dict[str, Any]:
    """The usage under the names of the Responses API, whichever API it is of."""
    usage = plain_usage(field(answer, "usage"))
    for chat, responses in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        if chat in usage:
            usage[responses] = usage.pop(chat)
    return usage


def field(value: object, name: str) -> Any:
    """A field of an answer, whose parts are models, or dicts where the server's shape is its own."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _parts(answer: object) -> Iterator[Any]:
    for item in _list(field(answer, "output")):
        if field(item, "type") == "message":
            yield from _list(field(item, "content"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _said(texts: Iterator[Any]) -> str:
    said = "".join(text for text in texts if isinstance(text, str))
    return _THOUGHTS.sub("", said).strip()


def _check_refusal(answer: object, part: object) -> None:
    refusal = field(part, "refusal")
    if isinstance(refusal, str) and refusal:
        raise _not_whole(answer, f"the model refused ({refusal})")


def _not_whole(answer: object, why: str, kind: FailureKind = "permanent") -> CompactorError:
    return CompactorError(f"there is no whole summary: {why}", kind=kind, usage=usage_of(answer))
