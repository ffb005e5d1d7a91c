"""What a compactor gets, gives back, and raises."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from cas_session.errors import CompactorError
from cas_session.snapshot import Item

Mode = Literal["input", "previous_response_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """What a compactor gets: the items, or the response that stands for them.

    Attributes:
        session_id: The session.
        mode: ``input``: `items` are the history. ``previous_response_id``: the provider has it.
        items: The items to fold, oldest first, the compactor's own; [] in the other mode.
        previous_response_id: None in input mode.
        deadline_s: Seconds until the call is given up.
    """

    session_id: str
    mode: Mode
    items: list[Item] = field(default_factory=list)
    previous_response_id: str | None = None
    deadline_s: float = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compactor gives back.

    Attributes:
        output: A list of JSON objects, in the order in which they are to be stored.
        usage: Tokens as the provider counts them, such as input_tokens, output_tokens, total_tokens.
        response_id: The provider's id of the answer; it is no previous_response_id.
        model: Which model answered.
        host: Whose it is.
    """

    output: Any
    usage: Mapping[str, Any] = field(default_factory=dict)
    response_id: str | None = None
    model: str | None = None
    host: str | None = None


class Compactor(Protocol):
    """Anything that makes a history shorter. An attribute ``mode`` (auto, input, previous_response_id) is
    read if there is one; else it gets items."""

    async def compact(self, request: CompactionRequest) -> Compacted | list[Item]:
        """Fold a history.

        Raises:
            CompactorError: It failed; the error says whether trying again may help. Any other exception
                counts as permanent.
        """


CompactFunction = Callable[[CompactionRequest], Awaitable[Compacted | list[Item]]]
"""Any async callable that folds a history: what `Compactor.compact` says holds for it."""


def as_compactor(given: Compactor | CompactFunction) -> Compactor:
    """The compactor itself, or an async callable as one.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(given, type):  # a class has its methods too, without an object to call them on
        if callable(getattr(given, "compact", None)):
            return cast(Compactor, given)
        if callable(given):
            return _Calling(given)
    raise TypeError(
        f"a compactor has an async method compact(request), or is an async callable: not {given!r}"
    )


class _Calling:
    def __init__(self, function: CompactFunction) -> None:
        self._function = function

    async def compact(self, request: CompactionRequest) -> Compacted | list[Item]:
        answer = self._function(request)
        if not inspect.isawaitable(answer):
            raise CompactorError(f"{self._function!r} is no async callable: it would block the event loop")
        return await answer
