"""What the verbs do inside a SQLite transaction: plain functions on a connection, run in its thread.

BEGIN IMMEDIATE has let in one writer only, so every write reads the session row, decides, and then writes
what it decided. The op row is written first: its primary key is the fence for a write that comes again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from cas_session.driver import (
    NO_CHAIN,
    NO_SESSION,
    Append,
    BeginCompaction,
    Chain,
    Clear,
    CompactionRow,
    FinishCompaction,
    GroupRefusedError,
    Kind,
    Landed,
    ListSessions,
    Load,
    Loaded,
    Manifest,
    OpRow,
    Pop,
    Prefix,
    Prune,
    Replace,
    Restore,
    SessionRow,
    Write,
)
from cas_session.drivers import sqlite_sql as sql
from cas_session.errors import (
    Change,
    ItemDecodingError,
    OperationMismatchError,
    SessionNotFoundError,
    VersionConflictError,
    VersionNotRetainedError,
)
from cas_session.snapshot import Version

LARGEST = 2**63 - 1  # of SQLite's integers
LAST_MOMENT = "~"  # sorts behind every moment and is what a first page begins at


# Reads


def load(raw: sqlite3.Connection, load: Load) -> Loaded:
    """The session row and its newest visible items."""
    if load.limit is not None and load.limit < 0:
        raise ValueError(f"limit must be 0 or more, or None for all, not {load.limit}")
    row = read_session(raw, load.session_id)
    if row is None:
        return Loaded(None, [])
    limit = -1 if load.limit is None else min(load.limit, LARGEST)
    statement = sql.READ_ITEMS_WITH_AGES if load.ages else sql.READ_ITEMS
    found = _fetch_items(raw, load.session_id, statement, (*_visible(row), limit))
    found.reverse()
    if load.ages:
        return Loaded(row, [(seq, text) for seq, text, _ in found], [_moment(at) for _, _, at in found])
    return Loaded(row, found)


def load_as_of(raw: sqlite3.Connection, session_id: str, version: int) -> Loaded:
    """The items of an earlier version, all of them or an error."""
    row = read_session(raw, session_id)
    if row is None or row.manifest.version == 0:
        raise SessionNotFoundError(session_id)
    source = _retained(raw, row, version)
    rows = _fetch_items(raw, session_id, sql.READ_ITEMS_AS_OF, _as_of(row, source))
    _check_complete(session_id, source, len(rows))
    return Loaded(replace(row, manifest=source), rows)


def read_session(raw: sqlite3.Connection, session_id: str) -> SessionRow | None:
    row = raw.execute(sql.READ_SESSION, (session_id,)).fetchone()
    return None if row is None else _session(row)


def find_op(raw: sqlite3.Connection, session_id: str, op_id: str) -> OpRow | None:
    row = raw.execute(sql.READ_OP, (session_id, op_id)).fetchone()
    return None if row is None else _op(row)


def operations(raw: sqlite3.Connection, session_id: str, limit: int, before: int | None) -> list[OpRow]:
    bound = LARGEST if before is None else min(before, LARGEST)
    return [_op(row) for row in raw.execute(sql.LIST_OPS, (session_id, bound, limit)).fetchall()]


def compactions(raw: sqlite3.Connection, session_id: str, limit: int) -> list[CompactionRow]:
    return [_compaction(row) for row in raw.execute(sql.LIST_COMPACTIONS, (session_id, limit)).fetchall()]


def list_sessions(raw: sqlite3.Connection, query: ListSessions) -> list[SessionRow]:
    if query.owner is None and query.order == "active":
        raise ValueError("order='active' lists the sessions of one owner: give the owner")
    if query.order == "active":
        statement = sql.LIST_ACTIVE_BY_OWNER
    else:
        statement = sql.LIST_CREATED if query.owner is None else sql.LIST_CREATED_BY_OWNER
    moment, session_id = query.after or (None, "")
    parameters = {
        "owner": query.owner,
        "moment": LAST_MOMENT if moment is None else _text(moment),
        "session_id": session_id,
        "limit": query.limit,
    }
    return [_session(row) for row in raw.execute(statement, parameters).fetchall()]


def schema_revision(raw: sqlite3.Connection) -> str | None:
    if raw.execute(sql.HAS_REVISION).fetchone() is None:
        return None
    row = raw.execute(sql.READ_REVISION).fetchone()
    return None if row is None else str(row[0])


def ping(raw: sqlite3.Connection) -> None:
    raw.execute(sql.PING).fetchone()


# Writes


def append(raw: sqlite3.Connection, group: Sequence[Append]) -> list[Landed]:
    """Append the members' blocks, one behind the other."""
    if len(group) == 1:
        return _append(raw, group)
    try:
        return _append(raw, group)
    except (sqlite3.IntegrityError, sqlite3.DataError) as error:
        raise GroupRefusedError(str(error)) from error  # an op_id that is used, an item that is too large


def _append(raw: sqlite3.Connection, group: Sequence[Append]) -> list[Landed]:
    first = group[0]
    if first.fenced and (landed := _landed(raw, first, "append")) is not None:
        return [landed]
    row = read_session(raw, first.session_id)
    _check_expected(raw, row, first)
    manifest, chain = (NO_SESSION, NO_CHAIN) if row is None else (row.manifest, row.chain)
    landed_group = []
    for member in group:
        start = manifest
        manifest = replace(
            start,
            version=Version(start.version + 1, member.nonce),
            next_seq=start.next_seq + len(member.texts),
            item_count=start.item_count + len(member.texts),
            byte_count=start.byte_count + sum(member.sizes),
        )
        if (landed := _claim(raw, member, "append", manifest, alone=len(group) == 1)) is not None:
            return [landed]
        _insert_items(raw, member.session_id, start.next_seq, manifest.epoch, member.texts)
        landed_group.append(Landed(manifest, chain))
    if row is not None and row.manifest.version > 0 and row.deleted_at is None:
        raw.execute(
            sql.ADVANCE_SESSION,
            (
                manifest.version,
                manifest.version.nonce,
                manifest.next_seq,
                manifest.item_count,
                manifest.byte_count,
                first.session_id,
            ),
        )
    else:
        _put(raw, first.session_id, manifest, chain, owner=first.owner, metadata=first.metadata)
    return landed_group


def pop(raw: sqlite3.Connection, pop: Pop) -> Landed:
    """Hide the last visible item."""
    if pop.fenced and (landed := _landed(raw, pop, "pop")) is not None:
        return landed
    row = read_session(raw, pop.session_id)
    _check_expected(raw, row, pop)
    if row is None:
        return Landed(NO_SESSION, NO_CHAIN)
    last = raw.execute(sql.READ_LAST_ITEM, _visible(row)).fetchone()
    if last is None:
        return Landed(row.manifest, row.chain)
    seq, gen, text = last
    before = row.manifest
    manifest = replace(
        before,
        version=Version(before.version + 1, pop.nonce),
        epoch=before.epoch + 1,
        item_count=before.item_count - 1,
        byte_count=before.byte_count - len(text.encode()),
    )
    if (landed := _claim(raw, pop, "pop", manifest)) is not None:
        return landed
    raw.execute(sql.MARK_POPPED, (manifest.version, pop.session_id, seq, gen))
    _put_rewritten(raw, row, pop.session_id, manifest)
    return Landed(manifest, NO_CHAIN, item=text)


def clear(raw: sqlite3.Connection, clear: Clear) -> Landed:
    """Hide everything for ever; with ``delete`` leave a tombstone."""
    kind: Kind = "delete" if clear.delete else "clear"
    if clear.fenced and (landed := _landed(raw, clear, kind)) is not None:
        return landed
    row = read_session(raw, clear.session_id)
    _check_expected(raw, row, clear)
    before = NO_SESSION if row is None else row.manifest
    epoch = before.epoch + 1
    manifest = Manifest(
        version=Version(before.version + 1, clear.nonce),
        epoch=epoch,
        next_seq=before.next_seq,
        base_seq=before.next_seq - 1,
        base_gen=epoch,
        low_seq=before.next_seq,
        erased_epoch=epoch,
        item_count=0,
        byte_count=0,
    )
    if (landed := _claim(raw, clear, kind, manifest)) is not None:
        return landed
    if clear.delete:
        _put_deleted(raw, row, clear.session_id, manifest)
    else:
        _put_rewritten(raw, row, clear.session_id, manifest)
    return Landed(manifest, NO_CHAIN)


def replace_all(raw: sqlite3.Connection, write: Replace) -> Landed:
    """Hide everything behind these items."""
    if write.expected is None:
        raise ValueError("a replace of everything needs expected, the version that it replaces")
    if write.fenced and (landed := _landed(raw, write, "replace")) is not None:
        return landed
    row = read_session(raw, write.session_id)
    _check_expected(raw, row, write)
    before = NO_SESSION if row is None else row.manifest
    manifest = _replaced(before, write.nonce, len(write.texts), sum(write.sizes))
    if (landed := _claim(raw, write, "replace", manifest)) is not None:
        return landed
    _insert_items(raw, write.session_id, before.next_seq, manifest.epoch, write.texts)
    _put_rewritten(raw, row, write.session_id, manifest, revive=True)
    return Landed(manifest, NO_CHAIN)


def replace_prefix(raw: sqlite3.Connection, write: Replace, prefix: Prefix) -> Landed:
    """Hide the prefix behind these items; the tail is not touched."""
    if write.fenced and (landed := _landed(raw, write, "compact")) is not None:
        return landed
    row = read_session(raw, write.session_id)
    _check_expected(raw, row, write)
    _check_ancestor(raw, row, write, prefix)
    before = NO_SESSION if row is None else row.manifest
    if not before.base_seq <= prefix.through < before.next_seq:
        raise ValueError(
            f"session {write.session_id!r}: a prefix up to seq {prefix.through} is not within "
            f"{before.base_seq}..{before.next_seq - 1}"
        )
    epoch = before.epoch + 1
    low_seq = prefix.through - len(write.texts) + 1
    manifest = replace(
        before,
        version=Version(before.version + 1, write.nonce),
        epoch=epoch,
        base_seq=prefix.through,
        base_gen=epoch,
        low_seq=low_seq,
        item_count=before.item_count - prefix.item_count + len(write.texts),
        byte_count=before.byte_count - prefix.byte_count + sum(write.sizes),
    )
    if (landed := _claim(raw, write, "compact", manifest)) is not None:
        return landed
    _insert_items(raw, write.session_id, low_seq, epoch, write.texts)
    _put_rewritten(raw, row, write.session_id, manifest, revive=True)
    return Landed(manifest, NO_CHAIN, found_version=int(before.version))


def restore(raw: sqlite3.Connection, write: Restore) -> Landed:
    """Hide everything behind copies of an earlier version's items."""
    if write.expected is None:
        raise ValueError("a restore needs expected, the version that it replaces")
    if write.fenced and (landed := _landed(raw, write, "restore")) is not None:
        return landed
    row = read_session(raw, write.session_id)
    if row is None or row.manifest.version == 0:
        raise SessionNotFoundError(write.session_id)
    _check_expected(raw, row, write)
    source = _retained(raw, row, write.version)
    before = row.manifest
    manifest = _replaced(before, write.nonce, source.item_count, source.byte_count)
    if (landed := _claim(raw, write, "restore", manifest)) is not None:
        return landed
    copy = {**_as_of(row, source), "new_seq": before.next_seq, "new_gen": manifest.epoch}
    _check_complete(write.session_id, source, raw.execute(sql.COPY_ITEMS_AS_OF, copy).rowcount)
    _put_rewritten(raw, row, write.session_id, manifest, revive=True)
    return Landed(manifest, NO_CHAIN)


def record_chain(raw: sqlite3.Connection, session_id: str, chain: Chain) -> bool:
    """Write the chain if the epoch is the one that it belongs to."""
    row = read_session(raw, session_id)
    epoch = 0 if row is None else row.manifest.epoch
    if chain.epoch != epoch:
        return False
    if row is None:
        _put(raw, session_id, NO_SESSION, chain)
    else:
        raw.execute(sql.RECORD_CHAIN, (*_chain_columns(chain), session_id))
    return True


def set_metadata(raw: sqlite3.Connection, session_id: str, metadata: str | None) -> bool:
    return raw.execute(sql.SET_METADATA, (metadata, session_id)).rowcount == 1


# Compaction attempts


def begin_compaction(raw: sqlite3.Connection, begin: BeginCompaction) -> Literal["started", "held", "moved"]:
    """Take the lease, also over from an attempt that has expired. Asking again changes nothing."""
    running = raw.execute(sql.READ_RUNNING, (begin.session_id,)).fetchone()
    if running is not None and running[0] == begin.attempt_id:
        return "started"
    row = read_session(raw, begin.session_id)
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
            _shift(begin.lease.total_seconds()),
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
    return raw.execute(sql.RENEW_COMPACTION, (_shift(lease.total_seconds()), attempt_id)).rowcount == 1


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


# Upkeep


def remove_erased(raw: sqlite3.Connection, session_id: str, batch: int) -> int:
    """Remove up to ``batch`` erased items and what else names them; say how many items went."""
    raw.execute(sql.FORGET_ERASED_TEXTS, {"session_id": session_id})
    return raw.execute(sql.DELETE_ERASED_ITEMS, (session_id, batch)).rowcount


def read_cutoffs(raw: sqlite3.Connection, prune: Prune) -> tuple[str, str]:
    """The moments up to which items and op rows have been kept long enough, by the database's clock."""
    ages = (_shift(-prune.retain.total_seconds()), _shift(-max(prune.fence, prune.retain).total_seconds()))
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


def forget(raw: sqlite3.Connection, session_id: str) -> bool:
    """Remove every row of a tombstone."""
    if raw.execute(sql.FORGET_SESSION, (session_id,)).rowcount == 0:
        return False
    for statement in (sql.FORGET_ITEMS, sql.FORGET_OPS, sql.FORGET_COMPACTIONS):
        raw.execute(statement, (session_id,))
    return True


# What the writes share


def _claim(
    raw: sqlite3.Connection, write: Write, kind: Kind, manifest: Manifest, *, alone: bool = True
) -> Landed | None:
    """Write the op row; if the op_id has one already, this write had landed: return what it did then.

    Raises:
        sqlite3.IntegrityError: The op_id has a row, and the write is one of a group.
        OperationMismatchError: The op_id belongs to another write.
    """
    try:
        raw.execute(
            sql.INSERT_OP,
            (
                write.session_id,
                write.op_id,
                *_manifest_columns(manifest)[:2],
                kind,
                *_manifest_columns(manifest)[2:],
                write.digest,
                write.worker,
            ),
        )
    except sqlite3.IntegrityError:
        landed = _landed(raw, write, kind) if alone else None
        if landed is None:
            raise
        return landed
    return None


def _landed(raw: sqlite3.Connection, write: Write, kind: Kind) -> Landed | None:
    """What this write did if it had landed before, by its op row."""
    op = find_op(raw, write.session_id, write.op_id)
    if op is None:
        return None
    if op.kind != kind or op.digest != write.digest:
        raise OperationMismatchError(write.session_id, write.op_id, kind=kind, found_kind=op.kind)
    item, found_version = None, None
    if kind == "pop":
        popped = raw.execute(sql.READ_POPPED_ITEM, (write.session_id, op.manifest.version)).fetchone()
        item = None if popped is None else popped[0]
    elif kind == "compact":
        found_version = op.manifest.version - 1
    return Landed(op.manifest, None, item=item, found_version=found_version)


def _check_expected(raw: sqlite3.Connection, row: SessionRow | None, write: Write) -> None:
    if write.expected is None:
        return
    actual = Version(0) if row is None else row.manifest.version
    nonce = write.expected.nonce if isinstance(write.expected, Version) else ""
    if write.expected != actual or (nonce and nonce != actual.nonce):
        raise _conflict(raw, row, write.session_id, write.expected)


def _check_ancestor(raw: sqlite3.Connection, row: SessionRow | None, write: Replace, prefix: Prefix) -> None:
    """The session is still in the plan's epoch, and the planned version is one that it went through."""
    if row is None:
        if write.expected is None or prefix.epoch != 0:
            raise _conflict(raw, row, write.session_id, prefix.planned)
        return
    if row.manifest.epoch == prefix.epoch:
        if prefix.planned == 0:
            return
        planned = _op_of_version(raw, write.session_id, prefix.planned)
        if planned is not None and planned.manifest.version.nonce == prefix.planned.nonce:
            return
    raise _conflict(raw, row, write.session_id, prefix.planned)


def _conflict(
    raw: sqlite3.Connection, row: SessionRow | None, session_id: str, expected: int
) -> VersionConflictError:
    actual = Version(0) if row is None else row.manifest.version
    change = _change(raw, row, session_id, expected)
    return VersionConflictError(session_id, expected=expected, actual=actual, change=change)


def _change(raw: sqlite3.Connection, row: SessionRow | None, session_id: str, expected: int) -> Change:
    """What came between the expected version and the one that is there."""
    if row is None or row.manifest.version == 0:
        return "missing"
    if row.deleted_at is not None:
        return "deleted"
    if expected == 0:
        return "appended" if row.manifest.epoch == 0 else "rewritten"
    op = _op_of_version(raw, session_id, expected)
    nonce = expected.nonce if isinstance(expected, Version) else ""
    if op is None or op.manifest.epoch != row.manifest.epoch:
        return "rewritten"
    return "rewritten" if nonce and nonce != op.manifest.version.nonce else "appended"


def _op_of_version(raw: sqlite3.Connection, session_id: str, version: int) -> OpRow | None:
    if not 0 < version <= LARGEST:
        return None
    row = raw.execute(sql.READ_OP_OF_VERSION, (session_id, int(version))).fetchone()
    return None if row is None else _op(row)


def _retained(raw: sqlite3.Connection, row: SessionRow, version: int) -> Manifest:
    """The manifest of an earlier version, if its items may still be there."""
    if not 0 <= version <= row.manifest.version:
        raise ValueError(
            f"session {row.session_id!r} is at version {int(row.manifest.version)}; "
            f"there is no version {int(version)} of it"
        )
    if version == 0:
        source: Manifest | None = NO_SESSION
    else:
        op = _op_of_version(raw, row.session_id, version)
        source = None if op is None else op.manifest
    if source is None:
        raise VersionNotRetainedError(row.session_id, version, "pruned")
    if source.epoch < row.manifest.erased_epoch:
        raise VersionNotRetainedError(row.session_id, version, "erased")
    return source


def _check_complete(session_id: str, source: Manifest, rows: int) -> None:
    if rows != source.item_count:
        raise VersionNotRetainedError(session_id, source.version, "pruned")


def _replaced(before: Manifest, nonce: str, items: int, size: int) -> Manifest:
    """The manifest after everything was replaced by ``items`` new ones."""
    epoch = before.epoch + 1
    return Manifest(
        version=Version(before.version + 1, nonce),
        epoch=epoch,
        next_seq=before.next_seq + items,
        base_seq=before.next_seq - 1,
        base_gen=epoch,
        low_seq=before.next_seq,
        erased_epoch=before.erased_epoch,
        item_count=items,
        byte_count=size,
    )


def _fetch_items(raw: sqlite3.Connection, session_id: str, statement: str, parameters: Any) -> list[Any]:
    try:
        return raw.execute(statement, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if hasattr(error, "sqlite_errorcode"):
            raise
        # Python's module, not SQLite, refused a text, and its message quotes it: say which one it is instead.
        for seq, data in raw.execute(sql.READ_RAW_ITEMS, (session_id,)):
            if not _is_utf8(data):
                raise ItemDecodingError(session_id, seq, "it is no UTF-8") from None
        raise


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _insert_items(
    raw: sqlite3.Connection, session_id: str, start: int, gen: int, texts: Sequence[str]
) -> None:
    raw.executemany(
        sql.INSERT_ITEM, [(session_id, seq, gen, text) for seq, text in enumerate(texts, start=start)]
    )


def _put_rewritten(
    raw: sqlite3.Connection,
    row: SessionRow | None,
    session_id: str,
    manifest: Manifest,
    *,
    revive: bool = False,
) -> None:
    """Write the row after a rewrite: the chain goes, and ``revive`` makes a tombstone a session again."""
    if row is None or row.manifest.version == 0:
        _put(raw, session_id, manifest, NO_CHAIN)
        return
    revived = revive and row.deleted_at is not None
    _put(
        raw,
        session_id,
        manifest,
        NO_CHAIN,
        created_at=None if revived else _text(row.created_at),
        deleted_at=None if revived or row.deleted_at is None else _text(row.deleted_at),
        owner=row.owner,
        metadata=row.metadata,
    )


def _put_deleted(
    raw: sqlite3.Connection, row: SessionRow | None, session_id: str, manifest: Manifest
) -> None:
    created_at = None if row is None else _text(row.created_at)
    owner = None if row is None else row.owner
    _put(raw, session_id, manifest, NO_CHAIN, created_at=created_at, deleted_at="now", owner=owner)


def _put(
    raw: sqlite3.Connection,
    session_id: str,
    manifest: Manifest,
    chain: Chain,
    *,
    created_at: str | None = None,
    deleted_at: str | None = None,
    owner: str | None = None,
    metadata: str | None = None,
) -> None:
    """Write the whole session row. ``created_at`` is now if it is not given; ``deleted_at`` may be "now"."""
    raw.execute(
        sql.PUT_SESSION,
        (
            session_id,
            *_manifest_columns(manifest),
            *_chain_columns(chain),
            created_at,
            deleted_at,
            owner,
            metadata,
        ),
    )


# Rows and parameters


def _visible(row: SessionRow) -> tuple[str, int, int, int]:
    return row.session_id, row.manifest.low_seq, row.manifest.base_seq, row.manifest.base_gen


def _as_of(row: SessionRow, source: Manifest) -> dict[str, Any]:
    return {
        "session_id": row.session_id,
        "low_seq": source.low_seq,
        "next_seq": source.next_seq,
        "base_seq": source.base_seq,
        "base_gen": source.base_gen,
        "epoch": source.epoch,
        "erased_epoch": row.manifest.erased_epoch,
        "version": int(source.version),
    }


def _manifest_columns(manifest: Manifest) -> tuple[int | str, ...]:
    return (
        int(manifest.version),
        manifest.version.nonce,
        manifest.epoch,
        manifest.next_seq,
        manifest.base_seq,
        manifest.base_gen,
        manifest.low_seq,
        manifest.erased_epoch,
        manifest.item_count,
        manifest.byte_count,
    )


def _manifest(columns: Sequence[Any]) -> Manifest:
    version, nonce, *counters = columns
    return Manifest(Version(version, nonce), *counters)


def _chain_columns(chain: Chain) -> tuple[Any, ...]:
    return chain.response_id, chain.stored, chain.deferred_id, chain.epoch, chain.seq


def _chain(columns: Sequence[Any]) -> Chain:
    response_id, stored, deferred_id, epoch, seq = columns
    return Chain(response_id, None if stored is None else bool(stored), deferred_id, epoch, seq)


def _session(row: Sequence[Any]) -> SessionRow:
    created_at, updated_at, deleted_at, owner, metadata = row[16:]
    return SessionRow(
        session_id=row[0],
        manifest=_manifest(row[1:11]),
        chain=_chain(row[11:16]),
        created_at=_moment(created_at),
        updated_at=_moment(updated_at),
        deleted_at=None if deleted_at is None else _moment(deleted_at),
        owner=owner,
        metadata=metadata,
    )


def _op(row: Sequence[Any]) -> OpRow:
    op_id, kind = row[:2]
    digest, worker, created_at = row[12:]
    return OpRow(op_id, kind, _manifest(row[2:12]), digest, worker, _moment(created_at))


def _compaction(row: Sequence[Any]) -> CompactionRow:
    attempt_id, session_id, status, owner, started_at, expires_at, finished_at, *rest = row
    return CompactionRow(
        attempt_id,
        session_id,
        status,
        owner,
        _moment(started_at),
        _moment(expires_at),
        None if finished_at is None else _moment(finished_at),
        *rest,
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _text(moment: datetime) -> str:
    """The moment as the database writes it."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", timespec="milliseconds")


def _shift(seconds: float) -> str:
    """The modifier that moves 'now' by so many seconds."""
    return f"{seconds:+.3f} seconds"
