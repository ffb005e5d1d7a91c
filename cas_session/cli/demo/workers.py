"""The processes of a run: writers, those that compact, the one that clears. Each has a store of its own.

A process lives as long as its parent holds the other end of the pipe, and no longer, however the parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator
from itertools import count
from multiprocessing.connection import Connection
from typing import Literal

from cas_session.cli.demo import naive
from cas_session.cli.demo.conversation import turn
from cas_session.cli.demo.messages import (
    Answered,
    Appended,
    Asked,
    Begin,
    Clear,
    Cleared,
    Compacted,
    Done,
    Failed,
    Fill,
    Filled,
    Fold,
    Look,
    Looked,
    News,
    Order,
    Ready,
    Stop,
    WasRead,
)
from cas_session.cli.demo.settings import Settings
from cas_session.compaction.policy import CompactionPolicy
from cas_session.compactors import Compacted as Answer
from cas_session.compactors import CompactionRequest, Mode, ResponsesCompactor
from cas_session.session import CasSession
from cas_session.snapshot import Item
from cas_session.store import SessionStore
from cas_session.testing.strict import InvalidRequestError, check_items, check_links, item_type

Role = Literal["writer", "compactor", "folder", "eraser"]

PAUSE_S = 0.1  # between two turns of a writer, on average; agents think
READ_EVERY = 5  # turns of a writer
REST_S = 0.5  # after a compaction
TURNS_TO_ERASE = 3
MODEL_TIMEOUT_S = 60.0


def main(role: Role, number: int, pipe: Connection, settings: Settings, base_url: str | None) -> None:
    """Run one process of the given role until it is told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        asyncio.run(_serve(role, number, pipe, settings, base_url))
    except Exception as error:  # noqa: BLE001  # whatever it is, the parent must hear of it
        pipe.send(Failed(f"{role} {number}: {type(error).__name__}: {error}"))


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
            self._loop.call_soon_threadsafe(self._take, order)
            if isinstance(order, Stop):
                return self._watch()

    def _watch(self) -> None:
        """Only the parent's end is of interest now."""
        with contextlib.suppress(EOFError, OSError):
            self._pipe.recv()
        os._exit(1)

    def _take(self, order: Order) -> None:
        if isinstance(order, Stop):
            self.stopped.set()
        self._orders.put_nowait(order)


class WatchedCompactor:
    """A compactor that says when its model is asked and when it has answered."""

    mode: Mode = "input"

    def __init__(self, inner: ResponsesCompactor, line: Line) -> None:
        self.model = inner.model
        self._inner = inner
        self._line = line

    async def compact(self, request: CompactionRequest) -> Answer:
        self._line.tell(Asked(request.session_id, time.monotonic()))
        try:
            return await self._inner.compact(request)
        finally:
            self._line.tell(Answered(request.session_id, time.monotonic()))


async def _serve(
    role: Role, number: int, pipe: Connection, settings: Settings, base_url: str | None
) -> None:
    line = Line(pipe)
    async with SessionStore(settings.url, worker=f"demo-{role}-{number}") as store:
        line.tell(Ready())
        begin = await line.order()
        if not isinstance(begin, Begin):
            return
        if role == "writer":
            await _write(line, store, settings, number, begin.first)
        elif role == "eraser":
            await _erase(line, store.session(settings.erased), settings)
        else:
            async with _compactor(line, settings, base_url) as compactor:
                if role == "compactor":
                    await _compact_again_and_again(line, store, compactor, settings)
                else:
                    await _fold_on_demand(line, store, compactor, settings)
        line.tell(Done())
        await line.stopped.wait()


# -- writers


async def _write(line: Line, store: SessionStore, settings: Settings, number: int, first: Item) -> None:
    """Append whole turns to the shared session, and read it from time to time."""
    author = f"w{number}"
    dice = random.Random(f"{settings.seed}/{author}/pauses")
    share = settings.share_of(number)
    session, reader = store.session(settings.shared), Reader(store.session(settings.shared), first)
    for turns in count(1):
        if line.stopped.is_set() or (share is not None and turns > share):
            return
        version = await _append(line, session, settings, author, turns)
        reader.newest = max(reader.newest, version)
        if turns % READ_EVERY == 0:
            line.tell(await reader.read())
        await line.pause(dice.uniform(0, 2 * PAUSE_S))


async def _append(line: Line, session: CasSession, settings: Settings, author: str, number: int) -> int:
    items = turn(settings.seed, author, number, real=settings.api == "openai")
    began = time.monotonic()
    version = await session.append(items)
    line.tell(Appended(session.session_id, author, number, int(version), began, time.monotonic()))
    return int(version)


class Reader:
    """Reads the shared session as an agent does before it asks its model, and checks what it gets.

    Attributes:
        newest: The highest version that this process has seen, written or read.
    """

    def __init__(self, session: CasSession, first: Item) -> None:
        self.newest = 0
        self._session = session
        self._first = first

    async def read(self) -> WasRead:
        snapshot = await self._session.snapshot()
        version, items = int(snapshot.version), snapshot.items
        seen, self.newest = self.newest, max(self.newest, version)
        if version < seen:
            return WasRead(version, "stale", f"version {version} after version {seen} was seen")
        if items[:1] != [self._first] and not any(item_type(item) == "compaction" for item in items):
            return WasRead(version, "torn", f"version {version}: the beginning of the conversation is gone")
        try:
            check_items(items)
            check_links(items, {})
        except InvalidRequestError as error:
            return WasRead(version, "invalid", f"version {version}: {error}")
        return WasRead(version)


# -- those that compact


@contextlib.asynccontextmanager
async def _compactor(line: Line, settings: Settings, base_url: str | None) -> AsyncIterator[WatchedCompactor]:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    if base_url is None:  # the user's key, address and proxies, from the environment
        client = AsyncOpenAI(max_retries=0)
    else:
        client = AsyncOpenAI(
            base_url=base_url,
            api_key="none is needed",
            max_retries=0,
            timeout=MODEL_TIMEOUT_S,
            http_client=DefaultAsyncHttpxClient(trust_env=False),  # a proxy would not find this machine
        )
    async with client:
        yield WatchedCompactor(ResponsesCompactor(model=settings.model, client=client), line)


async def _compact_again_and_again(
    line: Line, store: SessionStore, compactor: WatchedCompactor, settings: Settings
) -> None:
    """Compact the shared session until the end, and until one compaction landed."""
    session = _compacted_session(store, settings.shared, compactor, settings)
    landed = False
    while not line.stopped.is_set():
        done = await _compact(session, compactor, settings)
        line.tell(done)
        landed = landed or done.landed
        await line.pause(REST_S if done.model_calls else REST_S / 10)
    if not landed:
        line.tell(await _compact(session, compactor, settings, force=True))


async def _fold_on_demand(
    line: Line, store: SessionStore, compactor: WatchedCompactor, settings: Settings
) -> None:
    """Compact the other session once for each order."""
    session = _compacted_session(store, settings.erased, compactor, settings)
    while isinstance(await line.order(), Fold):
        line.tell(await _compact(session, compactor, settings, force=True))


def _compacted_session(
    store: SessionStore, session_id: str, compactor: WatchedCompactor, settings: Settings
) -> CasSession:
    # The model keeps every user message, so that the part that a compaction saves shrinks as the run goes on.
    policy = CompactionPolicy.strict(min_savings=0) if settings.strict else CompactionPolicy(min_savings=0)
    return store.session(session_id, compactor=compactor, policy=policy)


async def _compact(
    session: CasSession, compactor: WatchedCompactor, settings: Settings, *, force: bool = False
) -> Compacted:
    if settings.naive:
        return await _rewrite(session, compactor)
    report = await session.compact(force=force)
    return Compacted(
        session.session_id,
        time.monotonic(),
        report.status,
        report.landed,
        int(report.version_before),
        int(report.version_after),
        report.model_calls,
        error=report.error,
    )


async def _rewrite(session: CasSession, compactor: WatchedCompactor) -> Compacted:
    versions = await naive.rewrite(session, compactor)
    if versions is None:
        return Compacted(session.session_id, time.monotonic(), "nothing_to_compact", False, 0, 0, 0)
    return Compacted(
        session.session_id,
        time.monotonic(),
        "rewritten",
        True,
        versions.read,
        versions.written,
        1,
        cleared_version=versions.cleared,
    )


# -- the one that clears


async def _erase(line: Line, session: CasSession, settings: Settings) -> None:
    """Fill the other session, clear it, and look at it, as ordered."""
    there: list[Item] = []
    while not isinstance(order := await line.order(), Stop):
        match order:
            case Fill(number):
                for turns in range(1, TURNS_TO_ERASE + 1):
                    await _append(line, session, settings, f"c{number}", turns)
                line.tell(Filled(number))
            case Clear(number, refill):
                version = await session.clear()
                at, there = time.monotonic(), []
                if refill:
                    await _append(line, session, settings, f"r{number}", 1)
                    there = turn(settings.seed, f"r{number}", 1, real=settings.api == "openai")
                line.tell(Cleared(number, int(version), at))
            case Look(number):
                found = (await session.snapshot()).items
                returned = sum(item not in there for item in found)
                line.tell(Looked(number, returned, missing=sum(item not in found for item in there)))
