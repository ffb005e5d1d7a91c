"""FallbackCompactor: a second compactor for servers that do not have what the first one needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Literal, cast

from cas_session.compactors.base import (
    Compacted,
    CompactFunction,
    CompactionRequest,
    Compactor,
    as_compactor,
)
from cas_session.errors import CompactorError
from cas_session.snapshot import Item

MISSING_S: Final = 3600.0  # seconds; an endpoint comes with a release of the server
BAD_GATEWAY_S: Final = 300.0  # seconds; a 502 may as well be an outage, which passes

AnyMode = Literal["auto", "input", "previous_response_id"]


class FallbackCompactor:
    """Asks the first compactor, and the second where the first one's server lacks the endpoint.

    A server says so with 404, 405 or 501 (a `CompactorError` of kind ``unsupported``), a gateway before it
    with 502. What it said is remembered for that base_url, so that it is not asked again at every compaction,
    and forgotten after a time. Every other failure of the first is the caller's.

    A chain of stored responses belongs to the first one's provider: the second always gets the items, and
    while the endpoint counts as missing `mode` is ``input``. If it turns out to be missing in chain mode,
    the failure says ``no_chain``, and the next call within the policy's budget goes to the second.

    Args:
        first: Such as a `ResponsesCompactor`.
        second: Such as a `SummaryCompactor`.
        missing_s: Seconds until the first is asked again.
        bad_gateway_s: The same after a 502.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        first: Compactor | CompactFunction,
        second: Compactor | CompactFunction,
        *,
        missing_s: float = MISSING_S,
        bad_gateway_s: float = BAD_GATEWAY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, seconds in (("missing_s", missing_s), ("bad_gateway_s", bad_gateway_s)):
            if seconds < 0:
                raise ValueError(f"{name} must be seconds, 0 or more, not {seconds!r}")
        self._first = as_compactor(first)
        self._second = as_compactor(second)
        self._missing_s = missing_s
        self._bad_gateway_s = bad_gateway_s
        self._clock = clock
        self._missing_until: dict[str | None, float] = {}

    @property
    def mode(self) -> AnyMode:
        """That of the first, or ``input`` while its endpoint counts as missing."""
        return "input" if self._is_missing() else cast(AnyMode, getattr(self._first, "mode", "input"))

    @property
    def model(self) -> str | None:
        """That of the one which would be asked now."""
        return getattr(self._second if self._is_missing() else self._first, "model", None)

    @property
    def base_url(self) -> str | None:
        """That of the first."""
        url: Any = getattr(self._first, "base_url", None)
        return url if isinstance(url, str) else None

    async def compact(self, request: CompactionRequest) -> Compacted | list[Item]:
        """Ask the first, or the second.

        Raises:
            CompactorError: The failure of the one that was asked last.
        """
        if self._is_missing():
            return await self._ask_second(request)
        try:
            return await self._first.compact(request)
        except CompactorError as error:
            seconds = self._how_long(error)
            if seconds is None:
                raise
            self._missing_until[self.base_url] = self._clock() + seconds
            return await self._ask_second(request)  # inside, so that its failure names this one, too

    async def _ask_second(self, request: CompactionRequest) -> Compacted | list[Item]:
        if request.mode != "input":
            raise CompactorError(
                f"the first compactor's endpoint is missing at {self.base_url or 'its server'}, and the "
                "second one needs the items, not the id of a response",
                kind="no_chain",
            )
        return await self._second.compact(request)

    def _how_long(self, error: CompactorError) -> float | None:
        """Seconds for which this failure says that the endpoint is missing; None if it does not say that."""
        if error.kind == "unsupported":
            return self._missing_s
        return self._bad_gateway_s if error.status == 502 else None

    def _is_missing(self) -> bool:
        until = self._missing_until.get(self.base_url)
        if until is not None and self._clock() >= until:
            del self._missing_until[self.base_url]
            until = None
        return until is not None
