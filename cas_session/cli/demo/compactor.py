"""The process that compacts: one session again and again, the other one when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from cas_session.cli.demo import naive
from cas_session.cli.demo.messages import Answered, Asked, Begin, Compacted, Fold
from cas_session.cli.demo.process import Line
from cas_session.cli.demo.settings import Settings
from cas_session.compaction.policy import CompactionPolicy
from cas_session.compactors import Compacted as Answer
from cas_session.compactors import CompactionRequest, Mode, ResponsesCompactor
from cas_session.session import CasSession
from cas_session.store import SessionStore

REST_S = 0.5  # after a compaction
IDLE_S = 0.05  # when there was nothing to do


async def play(line: Line, store: SessionStore, settings: Settings, number: int, begin: Begin) -> None:
    """Compact both sessions until the run is over."""
    async with (
        _watched(line, settings, begin.shared_url) as shared,
        _watched(line, settings, begin.erased_url) as erased,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(_again_and_again(line, Folding(store, settings.shared, shared, settings)))
        group.create_task(_on_demand(line, Folding(store, settings.erased, erased, settings)))


class WatchedCompactor:
    """A compactor that tells when its model is asked and when it has answered."""

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


class Folding:
    """Makes one session shorter, as the settings say."""

    def __init__(
        self, store: SessionStore, session_id: str, compactor: WatchedCompactor, settings: Settings
    ) -> None:
        self._session = store.session(session_id, compactor=compactor, policy=_policy(settings))
        self._compactor = compactor
        self._naive = settings.naive

    async def once(self, *, force: bool = False) -> Compacted:
        return await (_by_hand(self._session, self._compactor) if self._naive else self._compact(force))

    async def _compact(self, force: bool) -> Compacted:
        report = await self._session.compact(force=force)
        return Compacted(
            report.session_id,
            time.monotonic(),
            report.status,
            report.landed,
            int(report.version_before),
            int(report.version_after),
            report.model_calls,
            error=report.error,
        )


async def _by_hand(session: CasSession, compactor: WatchedCompactor) -> Compacted:
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


async def _again_and_again(line: Line, folding: Folding) -> None:
    """Compact until the run is over and one compaction landed. The first is not a matter of size."""
    landed, force = False, True
    while not line.stopped.is_set():
        done = await folding.once(force=force)
        line.tell(done)
        landed, force = landed or done.landed, False
        await line.pause(REST_S if done.model_calls else IDLE_S)
    if not landed:
        line.tell(await folding.once(force=True))


async def _on_demand(line: Line, folding: Folding) -> None:
    while isinstance(await line.order(), Fold):
        line.tell(await folding.once(force=True))


@contextlib.asynccontextmanager
async def _watched(line: Line, settings: Settings, url: str | None) -> AsyncIterator[WatchedCompactor]:
    if url is None:  # the user's key, address and proxies, from the environment
        client = AsyncOpenAI(max_retries=0)
    else:
        client = AsyncOpenAI(
            base_url=url,
            api_key="none is needed",
            max_retries=0,
            timeout=settings.deadline_s,
            http_client=DefaultAsyncHttpxClient(trust_env=False),  # a proxy would not find this machine
        )
    async with client:
        yield WatchedCompactor(ResponsesCompactor(model=settings.model, client=client), line)


def _policy(settings: Settings) -> CompactionPolicy:
    make = CompactionPolicy.strict if settings.strict else CompactionPolicy
    # The model keeps every user message, so the part that a compaction saves shrinks as the run goes on.
    return make(min_savings=0, deadline_s=settings.deadline_s)
