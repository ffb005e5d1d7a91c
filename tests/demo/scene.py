"""One session with some turns, and the record of it that the demonstration's audit gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from cas_session import CasSession, SessionStore
from cas_session.cli.demo import naive
from cas_session.cli.demo.audit import Acknowledged, Evidence, Rewrite
from cas_session.cli.demo.outcome import operations_of
from cas_session.cli.demo.turns import turn
from cas_session.compactors import Compacted, CompactionRequest, ResponsesCompactor
from cas_session.testing.endpoint import ResponsesEndpoint

Meanwhile = Callable[[], Awaitable[Any]]


class Scene:
    """One session, and the record of what was acknowledged.

    Attributes:
        meanwhile: Called while the model is asked.
    """

    def __init__(
        self, store: SessionStore, endpoint: ResponsesEndpoint, compactor: ResponsesCompactor
    ) -> None:
        self.session: CasSession = store.session("scene", compactor=self)
        self.meanwhile: Meanwhile | None = None
        self._endpoint = endpoint
        self._inner = compactor
        self._acknowledged: list[Acknowledged] = []
        self._rewrites: list[Rewrite] = []
        self._clears: list[int] = []

    async def compact(self, request: CompactionRequest) -> Compacted:
        """The compactor of the session."""
        answer = await self._inner.compact(request)
        if self.meanwhile is not None:
            await self.meanwhile()
        return answer

    async def append(self, number: int) -> None:
        items = turn(7, "w1", number)
        version = await self.session.append(items)
        self._acknowledged.append(Acknowledged(f"w1-{number}", int(version), tuple(items)))

    async def clear(self) -> None:
        self._clears.append(int(await self.session.clear()))

    async def fold(self) -> None:
        report = await self.session.compact(force=True)
        if report.landed:
            self._rewrites.append(Rewrite(int(report.version_before), int(report.version_after)))

    async def fold_by_hand(self) -> None:
        done = await naive.rewrite(self.session, self)
        assert done is not None
        self._rewrites.append(Rewrite(done.read, done.cleared, written=done.written))

    async def evidence(self, *, opened: bool = True, **changes: Any) -> Evidence:
        snapshot = await self.session.snapshot()
        evidence = Evidence(
            acknowledged=list(self._acknowledged),
            rewrites=list(self._rewrites),
            clears=list(self._clears),
            operations=await operations_of(self.session),
            version=int(snapshot.version),
            history=snapshot.items,
            unseal=self._endpoint.unseal if opened else None,
        )
        return replace(evidence, **changes)
