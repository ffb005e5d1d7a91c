"""What compaction attempts and removals do inside a SQLite transaction: functions on a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from cas_session.driver import BeginCompaction, FinishCompaction, Prune
from cas_session.drivers import sqlite_reads as reads
from cas_session.drivers import sqlite_sql as sql
from cas_session.drivers.sqlite_rows import shift


def begin_compaction(raw: sqlite3.Connection, begin: BeginCompaction) -> Literal["started", "held", "moved"]:
    """Take the lease, also over from an attempt that has expired. Asking again changes nothing."""
    running = raw.execute(sql.READ_RUNNING, (begin.session_id,)).fetchone()
    if running is not None and running[0] == begin.attempt_id:
        return "started"
    row = reads.read_session(raw, begin.session_id)
    if (0 if row is None else row.manifest.epoch) != begin.source.epoch:
        return "moved"
    if running is not None:
        attempt_id, is_live = running
        if is_live:
            return "held"
        raw.execute(sql.EXPIRE_COMPACTION, (attempt_id,))
    raw.execute(
        sql.INSERT_COMPACTION,
        (
            begin.attempt_id,
            begin.session_id,
            begin.owner,
            shift(begin.lease.total_seconds()),
            begin.trigger,
            begin.source.version,
            begin.source.version.nonce,
            begin.source.epoch,
            begin.last_seq,
            begin.item_count,
            begin.digest,
            begin.model,
            begin.host,
        ),
    )
    return "started"


def renew_compaction(raw: sqlite3.Connection, attempt_id: str, lease: timedelta) -> bool:
    return raw.execute(sql.RENEW_COMPACTION, (shift(lease.total_seconds()), attempt_id)).rowcount == 1


def finish_compaction(raw: sqlite3.Connection, finish: FinishCompaction) -> None:
    raw.execute(
        sql.FINISH_COMPACTION,
        {
            "attempt_id": finish.attempt_id,
            "status": finish.status,
            "decision": finish.decision,
            "output_items": finish.output_items,
            "output_digest": finish.output_digest,
            "found_version": finish.found_version,
            "target_version": finish.target_version,
            "appended_during": finish.appended_during,
            "model": finish.model,
            "host": finish.host,
            "response_id": finish.response_id,
            "usage": finish.usage,
            "error": finish.error,
        },
    )


def remove_erased(raw: sqlite3.Connection, session_id: str, batch: int) -> int:
    """Remove up to ``batch`` erased items and what else names them; say how many items went."""
    raw.execute(sql.FORGET_ERASED_TEXTS, {"session_id": session_id})
    return raw.execute(sql.DELETE_ERASED_ITEMS, (session_id, batch)).rowcount


def read_cutoffs(raw: sqlite3.Connection, prune: Prune) -> tuple[str, str]:
    """The moments up to which items and op rows have been kept long enough, by the database's clock."""
    ages = (shift(-prune.retain.total_seconds()), shift(-max(prune.fence, prune.retain).total_seconds()))
    item_cutoff, op_cutoff = raw.execute(sql.READ_CUTOFFS, ages).fetchone()
    return str(item_cutoff), str(op_cutoff)


def find_prunable(raw: sqlite3.Connection, cutoffs: tuple[str, str], after: str, sessions: int) -> list[str]:
    """Ids of sessions that may have something to prune, in order, behind ``after``."""
    item_cutoff, op_cutoff = cutoffs
    parameters = {
        "item_cutoff": item_cutoff,
        "op_cutoff": op_cutoff,
        "after": after,
        "sessions": sessions,
    }
    return [session_id for (session_id,) in raw.execute(sql.FIND_PRUNABLE_SESSIONS, parameters).fetchall()]


def prune_sessions(
    raw: sqlite3.Connection, cutoffs: tuple[str, str], session_ids: Sequence[str], batch: int
) -> int:
    """Remove up to ``batch`` rows of these sessions that nobody can read; say how many went."""
    left = batch
    for session_id in session_ids:
        left -= _prune_session(raw, cutoffs, session_id, left)
        if left <= 0:
            break
    return batch - left


def forget(raw: sqlite3.Connection, session_id: str) -> bool:
    """Remove every row of a tombstone."""
    if raw.execute(sql.FORGET_SESSION, (session_id,)).rowcount == 0:
        return False
    for statement in (sql.FORGET_ITEMS, sql.FORGET_OPS, sql.FORGET_COMPACTIONS):
        raw.execute(statement, (session_id,))
    return True


def _prune_session(raw: sqlite3.Connection, cutoffs: tuple[str, str], session_id: str, rows: int) -> int:
    """Items go first: they are found by the op rows that hid them."""
    item_cutoff, op_cutoff = cutoffs
    named = {"session_id": session_id, "item_cutoff": item_cutoff, "op_cutoff": op_cutoff}
    left = rows - remove_erased(raw, session_id, rows)
    horizon = raw.execute(sql.READ_HORIZON, named).fetchone()
    if left and horizon is not None:
        left -= raw.execute(sql.DELETE_HIDDEN_ITEMS, (session_id, *horizon, left)).rowcount
    if left:
        left -= raw.execute(sql.DELETE_POPPED_ITEMS, {**named, "rows": left}).rowcount
    if left:
        left -= raw.execute(sql.DELETE_COMPACTIONS, (session_id, op_cutoff, left)).rowcount
    if left:
        left -= raw.execute(sql.DELETE_OPS, {**named, "rows": left}).rowcount
    return rows - left
