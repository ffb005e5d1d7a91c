"""The rewrite that people write by hand: read, ask the model, clear, write the answer. It loses data.

Nothing is wrong with the store below it. The sequence itself has no version: whatever others append or erase
between its read and its clear is overwritten, and readers see the empty middle.
"""

from __future__ import annotations

from dataclasses import dataclass

from cas_session.compaction.output import normalise_output
from cas_session.compactors import Compacted, CompactionRequest, Compactor
from cas_session.session import CasSession


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The versions of one rewrite: of what was read, after the clear, after the answer was written."""

    read: int
    cleared: int
    written: int


async def rewrite(session: CasSession, compactor: Compactor) -> Rewritten | None:
    """Rewrite the session by hand; None if there is nothing in it."""
    before = await session.snapshot()
    if not before.items:
        return None
    request = CompactionRequest(session_id=session.session_id, mode="input", items=before.items)
    answer = await compactor.compact(request)
    output = normalise_output(answer.output if isinstance(answer, Compacted) else answer)
    cleared = await session.clear()
    written = await session.append(output)
    return Rewritten(before.version, cleared, written)
