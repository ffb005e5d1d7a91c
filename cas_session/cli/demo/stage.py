"""One run: endpoints, processes, load, clears in the middle of model calls, accounting."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from cas_session.cli.demo.audit import Acknowledged
from cas_session.cli.demo.files import resealed
from cas_session.cli.demo.ledger import Ledger
from cas_session.cli.demo.messages import (
    Answered,
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
)
from cas_session.cli.demo.outcome import Models, Outcome, account_for
from cas_session.cli.demo.process import POOL_SIZE
from cas_session.cli.demo.settings import Settings
from cas_session.cli.demo.team import Team, Worker, WorkerFailedError
from cas_session.session import CasSession
from cas_session.snapshot import Item
from cas_session.store import SessionStore

LATENCY_S = (1.0, 2.0)  # of the local endpoints, drawn anew for each call
ARRIVAL_TIMEOUT_S = 60.0


@dataclass(slots=True)
class _Cast:
    """The processes by what they do."""

    writers: list[Worker]
    compactor: Worker
    eraser: Worker
    failed: asyncio.Event = field(default_factory=asyncio.Event)


class Stage:
    """One run.

    Args:
        settings: What was asked for.
        items: What the shared conversation begins with.
        ledger: Filled while the run goes on, for whoever wants to watch.
        began: When the user's command began, on the monotonic clock.

    Attributes:
        phase: What it is at, in words.
        load_began: When the load began, on the monotonic clock; None before.
        load_s: How long it goes on at most.
    """

    def __init__(self, settings: Settings, items: Sequence[Item], ledger: Ledger, began: float) -> None:
        self._settings = settings
        self._items = list(items)
        self._ledger = ledger
        self._dice = random.Random(settings.seed)
        self._models: Models | None = None
        self._began = began
        self.phase = "starting the processes"
        self.load_began: float | None = None
        self.load_s = 0.0

    async def run(self) -> Outcome:
        """Run it all; nothing that was started is left afterwards.

        Raises:
            CasSessionError: It could not begin, or the database went away.
        """
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            store = await stack.enter_async_context(
                SessionStore(settings.url, pool_size=POOL_SIZE, worker="demo")
            )
            team = await stack.enter_async_context(Team())
            cast = self._start_processes(team)
            if settings.api == "local":
                await self._start_endpoints(stack)  # they load while the processes do
            await team.ready()
            seed = await self._append_seed(store.session(settings.shared))
            self.phase = "asking the model for the first time"
            try:
                await self._load(cast)
            except (WorkerFailedError, TimeoutError) as error:
                why = str(error) or "the model's request did not arrive"
                if why not in self._ledger.failures:
                    self._ledger.failures.append(why)
            self.phase = "waiting for what is under way"
            await team.dismiss()
            self.phase = "accounting"
            return await account_for(store, settings, self._ledger, seed, self._models)

    # -- before

    async def _start_endpoints(self, stack: contextlib.AsyncExitStack) -> None:
        from cas_session.testing.endpoint import ResponsesEndpoint  # needs the extra

        self._models = Models(
            shared=await stack.enter_async_context(ResponsesEndpoint()),
            erased=await stack.enter_async_context(ResponsesEndpoint()),
        )
        self._draw_latency()
        self._items, self._ledger.resealed = resealed(self._items, self._models.shared.seal)

    def _draw_latency(self) -> None:
        if self._models is not None:
            for endpoint in (self._models.shared, self._models.erased):
                endpoint.compact_latency_s = self._dice.uniform(*LATENCY_S)

    def _start_processes(self, team: Team) -> _Cast:
        settings = self._settings
        failed = asyncio.Event()

        def hear(news: News) -> None:
            self._ledger.hear(news)
            if isinstance(news, Answered):
                self._draw_latency()
            elif isinstance(news, Failed):
                failed.set()

        return _Cast(
            compactor=team.start("compactor", 1, settings, hear),
            eraser=team.start("eraser", 1, settings, hear),
            writers=[
                team.start("writer", number, settings, hear) for number in range(1, settings.workers + 1)
            ],
            failed=failed,
        )

    async def _append_seed(self, session: CasSession) -> Acknowledged:
        version = await session.append(self._items)
        return Acknowledged("seed", int(version), tuple(self._items))

    # -- the load

    async def _load(self, cast: _Cast) -> None:
        begin = Begin(
            self._items[0],
            shared_url=self._models.shared.base_url if self._models is not None else None,
            erased_url=self._models.erased.base_url if self._models is not None else None,
        )
        cast.compactor.tell(begin)
        # What follows falls into a model call from the first turn on, if this conversation can be compacted.
        await cast.compactor.wait_for(Asked, Compacted, session_id=self._settings.shared)
        self.phase = "appending, compacting, clearing"
        for worker in (*cast.writers, cast.eraser):
            worker.tell(begin)
        over = asyncio.Event()
        clearing = asyncio.create_task(self._clear_again_and_again(cast, over))
        try:
            await self._wait_for_writers(cast)
            over.set()
            await clearing
        finally:
            clearing.cancel()
            await asyncio.wait({clearing})

    async def _wait_for_writers(self, cast: _Cast) -> None:
        """Wait until all turns are in, the time is up, or a process failed."""
        self.load_s = self._settings.load_s(time.monotonic() - self._began)
        self.load_began = time.monotonic()
        waits = [
            asyncio.ensure_future(_all_done(cast.writers)),
            asyncio.ensure_future(cast.failed.wait()),
        ]
        try:
            timeout_s = self.load_s if math.isfinite(self.load_s) else None
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _clear_again_and_again(self, cast: _Cast, over: asyncio.Event) -> None:
        number = 0
        while (number < self._settings.clears or not over.is_set()) and not cast.failed.is_set():
            number += 1
            await self._clear_once(cast, number)

    async def _clear_once(self, cast: _Cast, number: int) -> None:
        """Fill, compact, clear while the model is asked, let it answer, look."""
        session_id = self._settings.erased
        cast.eraser.tell(Fill(number))
        await cast.eraser.wait_for(Filled)
        async with self._held_model() as arrived:
            cast.compactor.tell(Fold())
            await cast.compactor.wait_for(Asked, session_id=session_id)
            await arrived()
            cast.eraser.tell(Clear(number, refill=number % 2 == 0))
            await cast.eraser.wait_for(Cleared)
        await cast.compactor.wait_for(Compacted, session_id=session_id, timeout_s=None)
        cast.eraser.tell(Look(number))
        await cast.eraser.wait_for(Looked)

    @contextlib.asynccontextmanager
    async def _held_model(self) -> AsyncIterator[Callable[[], Awaitable[object]]]:
        """The local endpoint answers no sooner than the block ends; gives what waits for its request.

        The real one cannot be held: there the clear comes as soon as the request is on its way.
        """
        if self._models is None:
            yield _at_once
            return
        async with self._models.erased.hold("compact") as held:
            yield lambda: held.arrived(timeout_s=ARRIVAL_TIMEOUT_S)


async def prepare(settings: Settings) -> None:
    """Bring the database to the schema of this release.

    Raises:
        CasSessionError: It cannot be used. Nothing was started yet.
    """
    async with SessionStore(settings.url, migrate=True, worker="demo"):
        pass


async def remove(settings: Settings) -> None:
    """Take the run's sessions out of the database."""
    async with SessionStore(settings.url, worker="demo") as store:
        for session_id in (settings.shared, settings.erased):
            await store.session(session_id).delete()
            await store.forget(session_id)


async def _all_done(workers: Sequence[Worker]) -> None:
    await asyncio.gather(*(worker.wait_for(Done, timeout_s=None) for worker in workers))


async def _at_once() -> None:
    pass
