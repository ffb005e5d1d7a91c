"""What a store shares with its sessions: the open driver, the way in, the budgets, the background tasks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import lru_cache
from types import TracebackType
from typing import Any, TypeVar

from cas_session import events
from cas_session.cache import ReadCache, Reading
from cas_session.driver import Append, CancelledUnitError, Driver, Kind, Landed, Load, Loaded, Pop, Write
from cas_session.errors import StorageUnavailableError, StoreClosedError, WriteOutcomeUnknownError
from cas_session.retry import RetryPolicies, RetryPolicy, Timing, retry
from cas_session.snapshot import Item
from cas_session.writes import Writer

T = TypeVar("T")
W = TypeVar("W", bound=Write)


class Backend:
    """An open driver and the rules for using it. Calls are counted, so that closing waits for them."""

    def __init__(
        self,
        driver: Driver,
        *,
        policies: RetryPolicies,
        call_timeout_s: float,
        cache_bytes: int,
        worker: str,
        timing: Timing,
        hook: events.Hook | None,
    ) -> None:
        self.driver = driver
        self.policies = policies
        self.worker = worker
        self.timing = timing
        self.hook = hook
        self.cache = ReadCache(cache_bytes)
        self._call_timeout_s = call_timeout_s
        self._writer = Writer(driver, timing=timing, hook=hook)
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Driver:
        """Begin a call.

        Raises:
            StoreClosedError: The store belongs to another process or event loop.
        """
        if os.getpid() != self._pid:
            raise StoreClosedError("the store was opened before a fork: open one in each process")
        if asyncio.get_running_loop() is not self._loop:
            raise StoreClosedError("the store belongs to another event loop: open one in each loop")
        self._calls += 1
        self._idle.clear()
        return self.driver

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()
        if isinstance(exc, CancelledUnitError):
            # Its outcome was told as an event. asyncio.timeout of Python 3.11 knows no subclass.
            raise asyncio.CancelledError(*exc.args) from None

    async def call(self, verb: Callable[[Driver], Awaitable[T]], policies: RetryPolicies | None = None) -> T:
        """Make a call that may be made again: a read, or a write that has no op_id and does no harm twice.

        Raises:
            StorageUnavailableError: The transient budget is spent.
            WriteOutcomeUnknownError: The outcome budget is.
        """
        budgets = policies or self.policies

        def budget_of(error: Exception) -> RetryPolicy | None:
            if isinstance(error, WriteOutcomeUnknownError):
                return budgets.outcome
            return (
                budgets.transient if isinstance(error, StorageUnavailableError) and error.transient else None
            )

        with self as driver:
            return await retry(lambda: verb(driver), budget_of, timing=self.timing)

    async def read_all(
        self, session_id: str, *, shared: bool, policies: RetryPolicies | None = None
    ) -> tuple[Loaded, list[Item]]:
        """Read a session's version and all its items; what this store has read before is not read again."""
        before = self.cache.get(session_id)
        load = Load(session_id, known=before.known if before is not None else None)
        loaded = await self.load(load, policies)
        reading = Reading(session_id, loaded, before if loaded.extends else None, shared=shared)
        items = reading.shared() if shared else reading.own()
        self.cache.put(reading)  # only what can be decoded, so that a row that was repaired is read again
        return loaded, items

    async def load(self, load: Load, policies: RetryPolicies | None = None) -> Loaded:
        return await self.call(lambda driver: driver.load(load), policies)

    async def write(
        self,
        kind: Kind,
        write: W,
        verb: Callable[[Driver, W], Awaitable[Landed]],
        policies: RetryPolicies | None = None,
    ) -> Landed:
        """Send a write until its outcome is known; see `Writer.send`."""
        with self as driver:
            return await self._writer.send(
                kind, write, lambda sending: verb(driver, sending), policies or self.policies
            )

    async def append(self, append: Append, policies: RetryPolicies | None = None) -> Landed:
        """Append; see `Writer.append`. A blind append is always right, so its budget is the call's time."""
        budgets = policies or self.policies
        if append.expected is None:
            budgets = _by_deadline(budgets, self._call_timeout_s)
        with self:
            return await self._writer.append(append, budgets)

    async def pop(self, pop: Pop, policies: RetryPolicies | None = None) -> Landed:
        """Pop; see `Writer.pop`."""
        with self:
            return await self._writer.pop(pop, policies or self.policies)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run in the background; closing waits for it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for what is under way, then close the driver.

        Work in the background gets as long as one call may take, and is cancelled then.
        """
        while self._tasks or self._calls:  # a call may leave work behind, and work makes calls
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=self._call_timeout_s)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late)
            await self._idle.wait()
        await self._writer.drain()
        with self:
            await self.driver.close()


@lru_cache
def _by_deadline(policies: RetryPolicies, deadline_s: float) -> RetryPolicies:
    """The same budgets, the transient one bounded by time and not by a count."""
    transient = policies.transient
    if transient.max_attempts is None or transient.max_attempts == 1:
        return policies
    bounded = replace(transient, max_attempts=None, deadline_s=transient.deadline_s or deadline_s)
    return replace(policies, transient=bounded)
