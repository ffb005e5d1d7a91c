"""How long a session rests after its last compaction attempts, those of all workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from cas_session.compaction.policy import CompactionPolicy
from cas_session.driver import CompactionRow

LANDED = frozenset({"applied", "rebased"})
FAILED = frozenset({"failed", "unsupported", "empty_output", "not_smaller"})
ATTEMPTS_READ = 16  # more consecutive failures than the longest cooldown needs to be reached


def resting_until(attempts: Sequence[CompactionRow], policy: CompactionPolicy) -> datetime | None:
    """When the trigger may be asked again; None if now.

    Args:
        attempts: Newest first. Those that neither landed nor failed (a conflict, a cancellation) are
            passed over: they say nothing about the model.
        policy: The cooldowns.
    """
    told = [row for row in attempts if row.decision in LANDED | FAILED and row.finished_at is not None]
    if not told or told[0].finished_at is None:
        return None
    failures = sum(1 for _ in takewhile(lambda row: row.decision in FAILED, told))
    seconds = policy.cooldown_s
    if failures:
        seconds = min(policy.failure_cooldown_max_s, policy.failure_cooldown_s * 2.0 ** (failures - 1))
    return told[0].finished_at + timedelta(seconds=seconds) if seconds else None
