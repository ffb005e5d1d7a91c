"""What compaction attempts and removals do inside a SQLite transaction: functions on a connection."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, NamedTuple

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
    if raw.execute(sql.HAS_ERASED_ITEMS, (session_id,)).fetchone() is None:
        return 0
    return raw.execute(sql.DELETE_ERASED_ITEMS, (session_id, batch)).rowcount


def read_cutoffs(raw: sqlite3.Connection, prune: Prune) -> tuple[str, str]:
    """The moments up to which items and op rows have been kept long enough, by the database's clock."""
    ages = (shift(-prune.retain.total_seconds()), shift(-max(prune.fence, prune.retain).total_seconds()))
    item_cutoff, op_cutoff = raw.execute(sql.READ_CUTOFFS, ages).fetchone()
    return str(item_cutoff), str(op_cutoff)


def find_prunable(
    raw: sqlite3.Connection, cutoffs: tuple[str, str], after: str, sessions: int
) -> tuple[list[str], str | None]:
    """Look at so many sessions behind ``after``, in order of their ids.

    Returns:
        The ids of those that may have something to prune, and the last id that was looked at; None if that
        was the last one there is.
    """
    item_cutoff, op_cutoff = cutoffs
    parameters = {"item_cutoff": item_cutoff, "op_cutoff": op_cutoff, "after": after, "sessions": sessions}
    looked_at = raw.execute(sql.FIND_PRUNABLE, parameters).fetchall()
    found = [session_id for session_id, is_prunable in looked_at if is_prunable]
    if not after and raw.execute(sql.HAS_OLD_ATTEMPTS, (op_cutoff,)).fetchone()[0]:
        found.insert(0, "")
    return found, looked_at[-1][0] if len(looked_at) == sessions else None


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
    if left and (horizon := _horizon(raw, session_id, item_cutoff)) is not None:
        left -= raw.execute(sql.DELETE_HIDDEN_ITEMS, (session_id, *horizon, left)).rowcount
    if left:
        left -= raw.execute(sql.DELETE_POPPED_ITEMS, {**named, "rows": left}).rowcount
    if left:
        left -= raw.execute(sql.DELETE_COMPACTIONS, (session_id, op_cutoff, left)).rowcount
    if left:
        left -= raw.execute(sql.DELETE_OPS, {**named, "rows": left}).rowcount
    return rows - left


class _Op(NamedTuple):
    kind: str
    epoch: int
    base_seq: int
    base_gen: int
    created_at: str

    @property
    def is_rewrite(self) -> bool:
        return self.kind not in ("append", "pop")


def _horizon(raw: sqlite3.Connection, session_id: str, cutoff: str) -> tuple[int, int] | None:
    """The newest base that took over long enough ago: what lies under it was hidden then or before.

    Op rows are in the order of their versions, and so of their times, and are searched by halving. Clocks are
    set back at times: that a base is old its own rewrite must say. One whose rewrite has no op row any more
    took over before every op row that is left.

    Returns:
        (base_seq, base_gen)
    """
    oldest, newest = raw.execute(sql.READ_OP_VERSIONS, (session_id,)).fetchone()
    if oldest is None:
        return None
    versions = range(oldest, newest + 1)

    def op(version: int) -> _Op:
        return _Op(*raw.execute(sql.READ_OP_UP_TO, (session_id, version)).fetchone())

    young = bisect_left(versions, True, key=lambda version: op(version).created_at > cutoff)
    if young < len(versions) and not (found := op(versions[young])).is_rewrite:
        base = found  # which left the base as it was
    elif young:
        base = op(versions[young - 1])
    else:
        return None
    took_over = op(versions[bisect_left(versions, base.base_gen, key=lambda version: op(version).epoch)])
    if took_over.is_rewrite and took_over.epoch == base.base_gen and took_over.created_at > cutoff:
        return None
    return base.base_seq, base.base_gen
