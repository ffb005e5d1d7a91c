"""One run: endpoints, processes, load, clears in the middle of model calls, accounting."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cas_session.cli.demo.audit import Account, Acknowledged, Evidence, Rewrite, audit
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
from cas_session.cli.demo.process import POOL_SIZE
from cas_session.cli.demo.settings import Settings
from cas_session.cli.demo.team import Team, Worker, WorkerFailedError
from cas_session.cli.demo.turns import turn
from cas_session.driver import OpRow
from cas_session.errors import SessionNotFoundError
from cas_session.session import CasSession
from cas_session.snapshot import Item
from cas_session.store import SessionStore

if TYPE_CHECKING:
    from cas_session.testing.endpoint import ResponsesEndpoint

LATENCY_S = (1.0, 2.0)  # of the local endpoints, drawn anew for each call
ARRIVAL_TIMEOUT_S = 60.0
PAGE = 1000  # op rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run found.

    Attributes:
        shared: The account of the session that all writers share.
        erased: The account of the session that was cleared.
        versions: How many writes both sessions had together.
        opened: Whether compaction items could be opened.
        refused: Requests that the local endpoints refused, in their words.
        counted_calls: Model calls that the local endpoints counted; None without them.
        resealed: Items of the seed whose opaque content came from another server.
    """

    settings: Settings
    ledger: Ledger
    shared: Account
    erased: Account
    versions: int
    opened: bool
    refused: tuple[str, ...]
    counted_calls: int | None
    resealed: int


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
        self._endpoint: ResponsesEndpoint | None = None  # of the shared session
        self._held: ResponsesEndpoint | None = None  # of the other one, whose requests are stopped
        self._resealed = 0
        self._seed: Acknowledged | None = None
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
            await self._append_seed(store.session(settings.shared))
            self.phase = "asking the model for the first time"
            try:
                await self._load(cast)
            except WorkerFailedError as error:
                if str(error) not in self._ledger.failures:
                    self._ledger.failures.append(str(error))
            self.phase = "waiting for what is under way"
            await team.dismiss()
            self.phase = "accounting"
            return await self._outcome(store)

    # -- before

    async def _start_endpoints(self, stack: contextlib.AsyncExitStack) -> None:
        from cas_session.testing.endpoint import ResponsesEndpoint  # needs the extra

        self._endpoint = await stack.enter_async_context(ResponsesEndpoint())
        self._held = await stack.enter_async_context(ResponsesEndpoint())
        self._draw_latency()
        self._items, self._resealed = resealed(self._items, self._endpoint.seal)

    def _draw_latency(self) -> None:
        for endpoint in (self._endpoint, self._held):
            if endpoint is not None:
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

    async def _append_seed(self, session: CasSession) -> None:
        version = await session.append(self._items)
        self._seed = Acknowledged("seed", int(version), tuple(self._items))

    # -- the load

    async def _load(self, cast: _Cast) -> None:
        begin = Begin(
            self._items[0],
            shared_url=self._endpoint.base_url if self._endpoint is not None else None,
            erased_url=self._held.base_url if self._held is not None else None,
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
        """Fill, compact, clear while the model is asked, let it answer, look; until the load is over."""
        number, session_id = 0, self._settings.erased
        while (number < self._settings.clears or not over.is_set()) and not cast.failed.is_set():
            number += 1
            cast.eraser.tell(Fill(number))
            await cast.eraser.wait_for(Filled)
            async with contextlib.AsyncExitStack() as stack:
                held = await stack.enter_async_context(self._held.hold("compact")) if self._held else None
                cast.compactor.tell(Fold())
                await cast.compactor.wait_for(Asked, session_id=session_id)
                if held is not None:
                    await held.arrived(timeout_s=ARRIVAL_TIMEOUT_S)
                cast.eraser.tell(Clear(number, refill=number % 2 == 0))
                await cast.eraser.wait_for(Cleared)
                # The end of the block lets the model answer.
            await cast.compactor.wait_for(Compacted, session_id=session_id, timeout_s=None)
            cast.eraser.tell(Look(number))
            await cast.eraser.wait_for(Looked)

    # -- after

    async def _outcome(self, store: SessionStore) -> Outcome:
        settings = self._settings
        shared, erased = store.session(settings.shared), store.session(settings.erased)
        evidence = await self._evidence(shared, self._endpoint)
        beside = await self._evidence(erased, self._held)
        endpoints = [endpoint for endpoint in (self._endpoint, self._held) if endpoint is not None]
        requests = [request for endpoint in endpoints for request in endpoint.compact_requests]
        return Outcome(
            settings=settings,
            ledger=self._ledger,
            shared=audit(evidence),
            erased=audit(beside),
            versions=len(evidence.operations) + len(beside.operations),
            opened=self._endpoint is not None,
            refused=tuple(
                f"HTTP {request.status}" for request in requests if request.status not in (None, 200)
            ),
            counted_calls=len(requests) if endpoints else None,
            resealed=self._resealed,
        )

    async def _evidence(self, session: CasSession, endpoint: ResponsesEndpoint | None) -> Evidence:
        operations = await operations_of(session)
        snapshot = await session.snapshot()
        mine = session.session_id
        return Evidence(
            acknowledged=self._acknowledged(mine),
            rewrites=[
                Rewrite(done.read_version, done.cleared_version, written=done.version)
                if done.cleared_version is not None
                else Rewrite(done.read_version, done.version)
                for done in self._ledger.compactions
                if done.session_id == mine and done.landed
            ],
            clears=[clear.version for clear in self._ledger.clears] if mine == self._settings.erased else [],
            operations=operations,
            version=int(snapshot.version),
            history=snapshot.items,
            unseal=endpoint.unseal if endpoint is not None else None,
        )

    def _acknowledged(self, session_id: str) -> list[Acknowledged]:
        settings = self._settings
        appends = [
            Acknowledged(
                f"{append.author}-{append.number}",
                append.version,
                tuple(turn(settings.seed, append.author, append.number, real=settings.api == "openai")),
            )
            for append in self._ledger.turns(session_id)
        ]
        seed = [self._seed] if self._seed is not None and session_id == settings.shared else []
        return [*seed, *appends]


async def operations_of(session: CasSession) -> list[OpRow]:
    """All op rows of a session, oldest first; none if there is no such session."""
    rows: list[OpRow] = []
    before = None
    with contextlib.suppress(SessionNotFoundError):
        while page := await session.operations(limit=PAGE, before=before):
            rows += page
            before = int(page[-1].manifest.version)
    return rows[::-1]


async def _all_done(workers: Sequence[Worker]) -> None:
    await asyncio.gather(*(worker.wait_for(Done, timeout_s=None) for worker in workers))


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
