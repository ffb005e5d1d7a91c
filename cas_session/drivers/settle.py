"""Cancellation of what was begun: it is settled first, and only then the cancellation goes on."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

from cas_session.driver import CancelledUnitError

_T = TypeVar("_T")


async def settle(begun: Awaitable[_T], *, withdraw: Callable[[], bool] | None = None) -> _T:
    """Wait for ``begun`` to end, however often the caller is cancelled meanwhile.

    A coroutine is run as a task of its own.

    Args:
        withdraw: Asked at each cancellation whether ``begun`` had not been begun after all and is dropped
            now. If it says yes, ``begun`` is cancelled and the cancellation goes on at once. Nothing else
            cancels ``begun`` from here.

    Raises:
        CancelledUnitError: The caller was cancelled, and ``begun`` has ended; it carries what that raised.
        asyncio.CancelledError: The caller was cancelled, and ``begun`` was withdrawn.
    """
    future = asyncio.ensure_future(begun)
    held = _Held(future, withdraw)
    if not future.done():
        await held
    if held.is_withdrawn:
        raise asyncio.CancelledError
    if held.is_cancelled:
        raise CancelledUnitError(asyncio.CancelledError() if future.cancelled() else future.exception())
    return future.result()


async def settle_here(work: Coroutine[Any, Any, _T]) -> _T:
    """Run ``work`` to its end as `settle` does, inside the caller's task, which is cheaper than a new one.

    ``work`` may not bound itself by asyncio.timeout, for that cancels the task that it is in.

    Raises:
        CancelledUnitError: The caller was cancelled, and ``work`` has ended; it carries what that raised.
    """
    is_cancelled, error, result = await _drive(work)
    if is_cancelled:
        raise CancelledUnitError(error)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # there is one, for there is no error


class _Held:
    """A future as a task waits for it, out of reach for the cancellation of that task.

    A task waits for whatever looks like a future (see asyncio.isfuture). If ``cancel`` of that says no, the
    task hears of its cancellation when the future is done.
    """

    __slots__ = ("_asyncio_future_blocking", "_future", "_withdraw", "is_cancelled", "is_withdrawn")

    def __init__(self, future: asyncio.Future[Any], withdraw: Callable[[], bool] | None = None) -> None:
        self._asyncio_future_blocking = True
        self._future = future
        self._withdraw = withdraw
        self.is_cancelled = False
        self.is_withdrawn = False

    def __await__(self) -> Generator[_Held, None, None]:
        # What comes up here the future has as well, and ``is_cancelled`` tells the rest.
        with suppress(Exception, asyncio.CancelledError):
            yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._future.get_loop()

    def add_done_callback(
        self, callback: Callable[[asyncio.Future[Any]], object], *, context: Context | None = None
    ) -> None:
        self._future.add_done_callback(callback, context=context)

    def cancel(self, msg: Any = None) -> bool:
        self.is_cancelled = True
        self.is_withdrawn = self._withdraw is not None and self._withdraw()
        return self.is_withdrawn and self._future.cancel(msg)


@types.coroutine
def _drive(
    work: Coroutine[Any, Any, _T],
) -> Generator[Any, None, tuple[bool, BaseException | None, _T | None]]:
    """Take a task's place between ``work`` and what it waits for; return (cancelled, error, result)."""
    is_cancelled = False
    try:
        while True:
            future = work.send(None)
            if future is None:  # it lets others run
                try:
                    yield None
                except asyncio.CancelledError:
                    is_cancelled = True
            else:
                future._asyncio_future_blocking = False
                held = _Held(future)
                yield from held.__await__()
                is_cancelled |= held.is_cancelled
    except StopIteration as end:
        return is_cancelled, None, end.value
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # raised where ``work`` is awaited
        return is_cancelled, error, None
    finally:
        work.close()
