"""Stores whose driver is the real one, with something around the next calls of some of its verbs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cas_session import SessionStore, StorageUnavailableError, WriteOutcomeUnknownError
from cas_session.driver import Driver, Load, Loaded
from cas_session.retry import Timing

Around = Callable[..., Awaitable[Any]]


class PatchedDriver:
    """A real driver. What was called is in `called`, as (verb, first argument)."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.called: list[tuple[str, Any]] = []
        self._around: dict[str, deque[Around]] = defaultdict(deque)

    def around(self, verb: str, *arounds: Around) -> None:
        """Let the next calls of the verb go through these functions of (verb, argument), one each."""
        self._around[verb].extend(arounds)

    def sent(self, verb: str) -> list[Any]:
        """The arguments of the calls of the verb."""
        return [argument for name, argument in self.called if name == verb]

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.driver, name)
        if not callable(verb):
            return verb

        async def call(*args: Any, **named: Any) -> Any:
            self.called.append((name, args[0] if args else None))
            around = self._around[name].popleft() if self._around[name] else None
            return await (verb(*args, **named) if around is None else around(verb, *args, **named))

        return call


async def lose_answer(verb: Around, write: Any) -> Any:
    """The write lands, and nobody hears of it."""
    await verb(write)
    raise WriteOutcomeUnknownError("the connection was lost", op_id=_op_id(write))


async def lose_request(verb: Around, write: Any) -> Any:
    """The write does not land, and nobody hears of it."""
    raise WriteOutcomeUnknownError("the connection was lost", op_id=_op_id(write))


async def refuse(verb: Around, *args: Any) -> Any:
    """The database surely did not take the call."""
    raise StorageUnavailableError("the database is busy")


async def cancel_answer(verb: Around, *args: Any) -> Any:
    """The call lands, and its caller is cancelled before it hears of it."""
    await verb(*args)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def first(before: Callable[[], Awaitable[Any]]) -> Around:
    """Something happens between the caller's decision and the call."""

    async def call(verb: Around, *args: Any) -> Any:
        await before()
        return await verb(*args)

    return call


class Gate:
    """Holds one call: ``arrived`` when it is there, ``release`` lets it go on."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, verb: Around, *args: Any) -> Any:
        self.arrived.set()
        await self.release.wait()
        return await verb(*args)


class FakeTime:
    """A clock that only sleeping moves. Draws are always the upper end of a wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    @property
    def timing(self) -> Timing:
        return Timing(clock=lambda: self.now, sleep=self.sleep, random=lambda: 1.0)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Patched:
    """A store, and the driver under it."""

    store: SessionStore
    driver: PatchedDriver
    time: FakeTime


@contextlib.asynccontextmanager
async def patched_store(url: str, **options: Any) -> AsyncIterator[Patched]:
    """An open store over a patched driver, which waits without taking time."""
    time = FakeTime()
    store = SessionStore(url, timing=time.timing, **options)
    driver = PatchedDriver(store._driver)
    store._driver = driver  # type: ignore[assignment]
    async with store:
        driver.called.clear()
        yield Patched(store, driver, time)


async def row_of(store: SessionStore, session_id: str) -> Loaded:
    """The session as the database has it."""
    return await store.backend.driver.load(Load(session_id))


def _op_id(write: Any) -> str:
    return str((write[0] if isinstance(write, list) else write).op_id)
