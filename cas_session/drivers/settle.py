"""Cancellation of what was begun: it is settled first, and only then the cancellation goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cas_session.driver import CancelledUnitError

_T = TypeVar("_T")


async def settle(begun: Awaitable[_T], *, withdraw: Callable[[], bool] | None = None) -> _T:
    """Wait for ``begun`` to end, however often the caller is cancelled meanwhile.

    ``begun`` itself is never cancelled from here. A coroutine is run as a task of its own.

    Args:
        withdraw: Asked at each cancellation whether ``begun`` had not been begun after all and is dropped
            now. If it says yes the cancellation goes on at once, and ``begun`` is not waited for.

    Raises:
        CancelledUnitError: The caller was cancelled, and ``begun`` has ended; it carries what that raised.
        asyncio.CancelledError: The caller was cancelled, and ``begun`` was withdrawn.
    """
    future = asyncio.ensure_future(begun)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))  # which, unlike await, leaves the future alone when cancelled
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            if withdraw is not None and withdraw():
                raise cancelled from None
    if cancelled is not None:
        raise CancelledUnitError(cancelled if future.cancelled() else future.exception()) from None
    return future.result()
