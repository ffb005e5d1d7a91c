"""Frozen facts about what the store did, for a hook: ``SessionStore(..., on_event=hook)``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cas_session.compaction.report import CompactionReport
    from cas_session.driver import Kind

logger = logging.getLogger("cas_session")


@dataclass(frozen=True, slots=True)
class WriteAttempt:
    """One sending of a write, and what became of it.

    Attributes:
        attempt: Counts the sendings of the write, from 1.
        outcome: ``landed``, now or by an earlier sending; ``refused``, as by a conflict; ``not_landed`` or
            ``unknown`` for failures, after which it is sent again within its budget.
        error: What the driver said; None if it landed.
    """

    session_id: str
    kind: Kind
    op_id: str
    attempt: int
    outcome: Literal["landed", "refused", "not_landed", "unknown"]
    error: Exception | None


@dataclass(frozen=True, slots=True)
class CancelledWrite:
    """The caller of a write was cancelled after it was begun; it was settled before the cancellation went on.

    Attributes:
        outcome: ``landed``, ``not_landed`` or ``unknown``.
    """

    session_id: str
    kind: Kind
    op_id: str
    outcome: Literal["landed", "not_landed", "unknown"]


@dataclass(frozen=True, slots=True)
class ErasureFailed:
    """The rows of a clear or delete could not be removed; nobody can read them, prune takes them."""

    session_id: str
    error: Exception


@dataclass(frozen=True, slots=True)
class CompactionFinished:
    """A compaction attempt ended, landed or not."""

    report: CompactionReport


Event = WriteAttempt | CancelledWrite | ErasureFailed | CompactionFinished
Hook = Callable[[Event], None]


def publish(hook: Hook | None, event: Event) -> None:
    """Tell the hook. What a hook raises is logged and goes no further: the write it hears of has happened."""
    if hook is None:
        return
    try:
        hook(event)
    except Exception:  # a hook must not fail the call that it watches
        logger.exception("the event hook failed on %s", type(event).__name__)
