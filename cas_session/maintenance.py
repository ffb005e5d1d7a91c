"""Prunes a database from time to time, on one worker at a time: behind a lease, as a compaction is."""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta

from cas_session import events
from cas_session.backend import Backend
from cas_session.driver import NO_SESSION, BeginCompaction, FinishCompaction, Prune
from cas_session.errors import CasSessionError

LEASE = timedelta(minutes=10)
NO_ONES_SESSION = ""  # the lease's session: no session has an empty id


async def prune_all(backend: Backend, prune: Prune) -> int:
    """Remove batch after batch until nothing is left to prune now; return how many rows went."""
    removed = 0
    while gone := await backend.call(lambda driver: driver.prune(prune)):
        removed += gone
    return removed


async def maintain(backend: Backend, prune: Prune, interval_s: float) -> None:
    """Prune once an interval for as long as the store is open.

    The wait is drawn from half to one and a half intervals, so that workers that started together do not
    ask together.
    """
    while True:
        await asyncio.sleep(interval_s * (0.5 + backend.timing.random()))
        try:
            await _prune_behind_lease(backend, prune)
        except CasSessionError as error:  # the next turn tries again
            events.logger.warning("maintenance failed: %s", error)


async def _prune_behind_lease(backend: Backend, prune: Prune) -> None:
    begin = BeginCompaction(
        attempt_id=secrets.token_hex(16),
        session_id=NO_ONES_SESSION,
        owner=backend.worker,
        lease=LEASE,
        trigger="maintenance",
        source=NO_SESSION,
        last_seq=0,
        item_count=0,
        digest=b"",
    )
    if await backend.call(lambda driver: driver.begin_compaction(begin)) != "started":
        return
    removed = await prune_all(backend, prune)
    finish = FinishCompaction(attempt_id=begin.attempt_id, decision=f"pruned {removed}")
    await backend.call(lambda driver: driver.finish_compaction(finish))
