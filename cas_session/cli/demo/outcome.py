"""What a run found: the evidence of both sessions, out of the database and the ledger, and its audit."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cas_session.cli.demo.audit import Account, Acknowledged, Evidence, Rewrite, audit
from cas_session.cli.demo.ledger import Ledger
from cas_session.cli.demo.settings import Settings
from cas_session.cli.demo.turns import turn
from cas_session.driver import OpRow
from cas_session.errors import SessionNotFoundError
from cas_session.session import CasSession
from cas_session.store import SessionStore

if TYPE_CHECKING:
    from cas_session.testing.endpoint import ResponsesEndpoint

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
    """

    settings: Settings
    ledger: Ledger
    shared: Account
    erased: Account
    versions: int
    opened: bool
    refused: tuple[str, ...]
    counted_calls: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The local endpoints, each with what it was there for."""

    shared: ResponsesEndpoint
    erased: ResponsesEndpoint


async def account_for(
    store: SessionStore, settings: Settings, ledger: Ledger, seed: Acknowledged, models: Models | None
) -> Outcome:
    """Gather the evidence and audit it.

    Args:
        store: Where the sessions are.
        settings: Of the run.
        ledger: What the processes told, all of it.
        seed: The append that the shared session began with.
        models: None if the real API was asked.
    """
    shared = await _evidence(
        store.session(settings.shared),
        [seed, *_acknowledged(settings, ledger, settings.shared)],
        ledger,
        model=models.shared if models is not None else None,
    )
    erased = await _evidence(
        store.session(settings.erased),
        _acknowledged(settings, ledger, settings.erased),
        ledger,
        clears=[clear.version for clear in ledger.clears],
        model=models.erased if models is not None else None,
    )
    endpoints = [models.shared, models.erased] if models is not None else []
    statuses = [request.status for endpoint in endpoints for request in endpoint.compact_requests]
    return Outcome(
        settings=settings,
        ledger=ledger,
        shared=audit(shared),
        erased=audit(erased),
        versions=len(shared.operations) + len(erased.operations),
        opened=models is not None,
        refused=tuple(f"HTTP {status}" for status in statuses if status not in (None, 200)),
        counted_calls=len(statuses) if models is not None else None,
    )


async def _evidence(
    session: CasSession,
    acknowledged: list[Acknowledged],
    ledger: Ledger,
    *,
    clears: list[int] | None = None,
    model: ResponsesEndpoint | None,
) -> Evidence:
    operations, snapshot = await operations_of(session), await session.snapshot()
    return Evidence(
        acknowledged=acknowledged,
        rewrites=[
            Rewrite(done.read_version, done.cleared_version, written=done.version)
            if done.cleared_version is not None
            else Rewrite(done.read_version, done.version)
            for done in ledger.compactions
            if done.session_id == session.session_id and done.landed
        ],
        clears=clears or [],
        operations=operations,
        version=int(snapshot.version),
        history=snapshot.items,
        unseal=model.unseal if model is not None else None,
    )


def _acknowledged(settings: Settings, ledger: Ledger, session_id: str) -> list[Acknowledged]:
    return [
        Acknowledged(
            f"{append.author}-{append.number}",
            append.version,
            tuple(turn(settings.seed, append.author, append.number, real=settings.api == "openai")),
        )
        for append in ledger.turns(session_id)
    ]


async def operations_of(session: CasSession) -> list[OpRow]:
    """All op rows of a session, oldest first; none if there is no such session."""
    rows: list[OpRow] = []
    before = None
    with contextlib.suppress(SessionNotFoundError):
        while page := await session.operations(limit=PAGE, before=before):
            rows += page
            before = int(page[-1].manifest.version)
    return rows[::-1]
