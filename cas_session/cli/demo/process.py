"""One process of a run: its store, its end of the pipe, its role.

A process lives as long as its parent holds the other end of the pipe, and no longer, however the parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Literal

from cas_session.cli.demo.messages import Appended, Begin, Done, Failed, News, Order, Ready, Stop
from cas_session.cli.demo.settings import Settings
from cas_session.cli.demo.turns import turn
from cas_session.session import CasSession
from cas_session.store import SessionStore

POOL_SIZE = 3  # connections at most

Role = Literal["writer", "compactor", "eraser"]


def main(role: Role, number: int, pipe: Connection, settings: Settings) -> None:
    """Run one process of the given role until it is told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        asyncio.run(_serve(role, number, pipe, settings))
    except Exception as error:  # noqa: BLE001  # whatever it is, the parent must hear of it
        pipe.send(Failed(f"{role} {number}: {'; '.join(_words(error))}"))
    # All is closed and told. Taking the interpreter apart would cost more than the work of some runs.
    os._exit(0)


class Line:
    """A process's end of the pipe to its parent. Ends the process when the parent is gone."""

    def __init__(self, pipe: Connection) -> None:
        self.stopped = asyncio.Event()
        self._pipe = pipe
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, news: News) -> None:
        self._pipe.send(news)

    async def order(self) -> Order:
        return await self._orders.get()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the process is to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopped.wait(), seconds)

    def _listen(self) -> None:
        while True:
            try:
                order = self._pipe.recv()
            except (EOFError, OSError):
                os._exit(1)  # at once: nobody is left to whom anything could be told
            with contextlib.suppress(RuntimeError):  # the loop has ended, and so has the work
                self._loop.call_soon_threadsafe(self._take, order)

    def _take(self, order: Order) -> None:
        if isinstance(order, Stop):
            self.stopped.set()
        self._orders.put_nowait(order)


async def append(line: Line, session: CasSession, settings: Settings, author: str, number: int) -> int:
    """Append a turn, tell that it was acknowledged, and return its version."""
    items = turn(settings.seed, author, number, real=settings.api == "openai")
    began = time.monotonic()
    version = int(await session.append(items))
    line.tell(Appended(session.session_id, author, number, version, began, time.monotonic()))
    return version


def _words(error: Exception) -> list[str]:
    if isinstance(error, ExceptionGroup):
        return [words for inner in error.exceptions for words in _words(inner)]
    return [f"{type(error).__name__}: {error}"]


async def _serve(role: Role, number: int, pipe: Connection, settings: Settings) -> None:
    line = Line(pipe)
    # Imported by role: each process loads what it needs, and starts that much sooner.
    if role == "writer":
        from cas_session.cli.demo.writer import play
    elif role == "compactor":
        from cas_session.cli.demo.compactor import play
    else:
        from cas_session.cli.demo.eraser import play
    async with SessionStore(settings.url, pool_size=POOL_SIZE, worker=f"demo-{role}-{number}") as store:
        line.tell(Ready())
        begin = await line.order()
        if isinstance(begin, Begin):
            await play(line, store, settings, number, begin)
            line.tell(Done())
            await line.stopped.wait()
