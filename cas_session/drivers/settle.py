"""Cancellation of what was begun: it is settled first, and only then the cancellation goes on."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
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
        raise asyncio.CancelledError(*held.message)
    if held.is_cancelled:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        raise CancelledUnitError(error, *held.message)
    if held.error is not None:
        raise held.error
    return future.result()


async def settle_here(work: Coroutine[Any, Any, _T]) -> _T:
    """Run ``work`` to its end as `settle` does, inside the caller's task, which is cheaper than a new one.

    ``work`` may not bound itself by asyncio.timeout, for that cancels the task that it is in.

    Raises:
        CancelledUnitError: The caller was cancelled, and ``work`` has ended; it carries what that raised.
    """
    cancelled, error, result = await _drive(work)
    try:
        if cancelled is not None:
            raise CancelledUnitError(error, *cancelled)
        if error is not None:
            raise error
    finally:
        error = None  # its traceback holds this frame
    return result  # type: ignore[return-value]  # there is one, for there is no error


class _Held:
    """A future as a task waits for it, out of reach for the cancellation of that task.

    A task waits for whatever looks like a future (see asyncio.isfuture). If ``cancel`` of that says no, the
    task hears of its cancellation when the future is done.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_future",
        "_withdraw",
        "error",
        "is_cancelled",
        "is_withdrawn",
        "message",
    )

    def __init__(self, future: asyncio.Future[Any], withdraw: Callable[[], bool] | None = None) -> None:
        self._asyncio_future_blocking = True
        self._future = future
        self._withdraw = withdraw
        self.is_cancelled = False
        self.is_withdrawn = False
        self.message: tuple[Any, ...] = ()  # of the cancellation; others than asyncio know theirs by it
        self.error: Exception | None = None

    def __await__(self) -> Generator[_Held, None, None]:
        try:
            yield self
        except asyncio.CancelledError:
            pass  # ``is_cancelled`` tells it, or the future
        except Exception as error:  # noqa: BLE001  # the future tells it only once with its traceback
            self.error = error

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._future.get_loop()

    def add_done_callback(
        self, callback: Callable[[asyncio.Future[Any]], object], *, context: Context | None = None
    ) -> None:
        self._future.add_done_callback(callback, context=context)

    def cancel(self, msg: Any = None) -> bool:
        self.is_cancelled = True
        self.message = () if msg is None else (msg,)
        # One that is done cannot be withdrawn any more, also if a withdrawal has done it.
        if self._withdraw is None or self._future.done() or not self._withdraw():
            return False
        self.is_withdrawn = True
        return self._future.cancel(msg)


@types.coroutine
def _drive(
    work: Coroutine[Any, Any, _T],
) -> Generator[Any, None, tuple[tuple[Any, ...] | None, BaseException | None, _T | None]]:
    """Take a task's place between ``work`` and what it waits for; return (cancelled, error, result)."""
    cancelled: tuple[Any, ...] | None = None
    error: Exception | None = None
    try:
        while True:
            future = work.send(None) if error is None else work.throw(error)
            error = None
            if future is None:  # it lets others run
                try:
                    yield None
                except asyncio.CancelledError as cancellation:
                    cancelled = cancellation.args
            else:
                future._asyncio_future_blocking = False
                held = _Held(future)
                yield from held.__await__()
                error = held.error
                held.error = None
                if held.is_cancelled:
                    cancelled = held.message
    except StopIteration as end:
        return cancelled, None, end.value
    except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001  # raised where ``work`` is awaited
        return cancelled, failure, None
    finally:
        error = None
        work.close()
