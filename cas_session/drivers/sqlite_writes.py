"""What the verbs that write do inside a SQLite transaction: functions on a connection, run in its thread.

BEGIN IMMEDIATE has let in one writer only, so every write reads the session row, decides, and then writes
what it decided. The op row is written first: its primary key is the fence for a write that comes again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from cas_session.driver import (
    NO_CHAIN,
    NO_SESSION,
    Append,
    Chain,
    Clear,
    GroupRefusedError,
    Kind,
    Landed,
    Manifest,
    Pop,
    Prefix,
    Replace,
    Restore,
    SessionRow,
    Write,
)
from cas_session.drivers import sqlite_reads as reads
from cas_session.drivers import sqlite_sql as sql
from cas_session.drivers.sqlite_rows import (
    chain_columns,
    manifest_columns,
    moment_text,
    to_chain,
    to_manifest,
)
from cas_session.errors import (
    Change,
    OperationMismatchError,
    SessionNotFoundError,
    VersionConflictError,
)
from cas_session.snapshot import Version


def append(raw: sqlite3.Connection, group: Sequence[Append]) -> list[Landed]:
    """Append the members' blocks, one behind the other."""
    if len(group) == 1:
        return _append(raw, group)
    try:
        return _append(raw, group)
    except (sqlite3.IntegrityError, sqlite3.DataError) as error:
        raise GroupRefusedError(str(error)) from error  # an op_id that is used, an item that is too large


def pop(raw: sqlite3.Connection, pop: Pop) -> Landed:
    """Hide the last visible item."""
    if pop.fenced and (landed := _landed(raw, pop, "pop")) is not None:
        return landed
    row = reads.read_session(raw, pop.session_id)
    _check_expected(raw, row, pop)
    if row is None:
        return Landed(NO_SESSION, NO_CHAIN)
    found = reads.fetch_items(raw, pop.session_id, sql.READ_LAST_ITEM, reads.visible(row))
    if not found:
        return Landed(row.manifest, row.chain)
    ((seq, gen, text),) = found
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
    row = reads.read_session(raw, clear.session_id)
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
        _put_deleted(raw, row, clear, manifest)
    else:
        _put_rewritten(raw, row, clear.session_id, manifest, created_by=clear)
    return Landed(manifest, NO_CHAIN)


def replace_all(raw: sqlite3.Connection, write: Replace) -> Landed:
    """Hide everything behind these items."""
    if write.expected is None:
        raise ValueError("a replace of everything needs expected, the version that it replaces")
    if write.fenced and (landed := _landed(raw, write, "replace")) is not None:
        return landed
    row = reads.read_session(raw, write.session_id)
    _check_expected(raw, row, write)
    before = NO_SESSION if row is None else row.manifest
    manifest = _replaced(before, write.nonce, len(write.texts), sum(write.sizes))
    now = reads.now(raw)
    if (landed := _claim(raw, write, "replace", manifest, now)) is not None:
        return landed
    _insert_items(raw, write.session_id, before.next_seq, manifest.epoch, write.texts, now)
    _put_rewritten(raw, row, write.session_id, manifest, revive=True, created_by=write)
    return Landed(manifest, NO_CHAIN)


def replace_prefix(raw: sqlite3.Connection, write: Replace, prefix: Prefix) -> Landed:
    """Hide the prefix behind these items; the tail is not touched."""
    if write.fenced and (landed := _landed(raw, write, "compact")) is not None:
        return landed
    row = reads.read_session(raw, write.session_id)
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
    now = reads.now(raw)
    if (landed := _claim(raw, write, "compact", manifest, now)) is not None:
        return landed
    _insert_items(raw, write.session_id, low_seq, epoch, write.texts, now)
    _put_rewritten(raw, row, write.session_id, manifest, revive=True)
    return Landed(manifest, NO_CHAIN, found_version=int(before.version))


def restore(raw: sqlite3.Connection, write: Restore) -> Landed:
    """Hide everything behind copies of an earlier version's items."""
    if write.expected is None:
        raise ValueError("a restore needs expected, the version that it replaces")
    if write.fenced and (landed := _landed(raw, write, "restore")) is not None:
        return landed
    row = reads.read_session(raw, write.session_id)
    if row is None or row.manifest.version == 0:
        raise SessionNotFoundError(write.session_id)
    _check_expected(raw, row, write)
    source = reads.retained(raw, row, write.version)
    before = row.manifest
    manifest = _replaced(before, write.nonce, source.item_count, source.byte_count)
    if (landed := _claim(raw, write, "restore", manifest)) is not None:
        return landed
    copy = {**reads.as_of(row, source), "new_seq": before.next_seq, "new_gen": manifest.epoch}
    reads.check_complete(write.session_id, source, raw.execute(sql.COPY_ITEMS_AS_OF, copy).rowcount)
    _put_rewritten(raw, row, write.session_id, manifest, revive=True)
    return Landed(manifest, NO_CHAIN)


def record_chain(raw: sqlite3.Connection, session_id: str, chain: Chain) -> bool:
    """Write the chain if the epoch is the one that it belongs to."""
    row = reads.read_session(raw, session_id)
    epoch = 0 if row is None else row.manifest.epoch
    if chain.epoch != epoch:
        return False
    if row is None:
        _put(raw, session_id, NO_SESSION, chain)
    else:
        raw.execute(sql.RECORD_CHAIN, (*chain_columns(chain), session_id))
    return True


def set_metadata(raw: sqlite3.Connection, session_id: str, metadata: str | None) -> bool:
    return raw.execute(sql.SET_METADATA, (metadata, session_id)).rowcount == 1


def _append(raw: sqlite3.Connection, group: Sequence[Append]) -> list[Landed]:
    first = group[0]
    if first.fenced and (landed := _landed(raw, first, "append")) is not None:
        return [landed]
    row = raw.execute(sql.READ_HEAD, (first.session_id,)).fetchone()
    before = NO_SESSION if row[0] is None else to_manifest(row[:10])
    chain, deleted_at, now = to_chain(row[10:15]), row[15], row[16]
    if first.expected is not None and not _is_expected(first.expected, before.version):
        raise _conflict(raw, reads.read_session(raw, first.session_id), first.session_id, first.expected)
    manifest, landed_group = before, []
    for member in group:
        start, manifest = manifest.next_seq, _appended(manifest, member)
        if (landed := _claim(raw, member, "append", manifest, now, alone=len(group) == 1)) is not None:
            return [landed]
        _insert_items(raw, member.session_id, start, manifest.epoch, member.texts, now)
        landed_group.append(Landed(manifest, chain))
    if before.version > 0 and deleted_at is None:
        _advance(raw, first.session_id, manifest, now)
    else:
        _put(raw, first.session_id, manifest, chain, owner=first.owner, metadata=first.metadata)
    return landed_group


def _appended(before: Manifest, append: Append) -> Manifest:
    """The manifest behind the append. Spelled out, for it is made for every write of a turn."""
    items = len(append.texts)
    return Manifest(
        Version(before.version + 1, append.nonce),
        before.epoch,
        before.next_seq + items,
        before.base_seq,
        before.base_gen,
        before.low_seq,
        before.erased_epoch,
        before.item_count + items,
        before.byte_count + sum(append.sizes),
    )


def _advance(raw: sqlite3.Connection, session_id: str, manifest: Manifest, now: str) -> None:
    raw.execute(
        sql.ADVANCE_SESSION,
        (
            manifest.version,
            manifest.version.nonce,
            manifest.next_seq,
            manifest.item_count,
            manifest.byte_count,
            now,
            session_id,
        ),
    )


def _claim(
    raw: sqlite3.Connection,
    write: Write,
    kind: Kind,
    manifest: Manifest,
    now: str | None = None,
    *,
    alone: bool = True,
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
                kind,
                *manifest_columns(manifest),
                write.digest,
                write.worker,
                now,
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
    op = reads.find_op(raw, write.session_id, write.op_id)
    if op is None:
        return None
    if op.kind != kind or op.digest != write.digest:
        raise OperationMismatchError(write.session_id, write.op_id, kind=kind, found_kind=op.kind)
    item, found_version = None, None
    if kind == "pop":
        popped = (write.session_id, op.manifest.version)
        found = reads.fetch_items(raw, write.session_id, sql.READ_POPPED_ITEM, popped)
        item = found[0][0] if found else None
    elif kind == "compact":
        found_version = op.manifest.version - 1
    return Landed(op.manifest, None, item=item, found_version=found_version)


def _check_expected(raw: sqlite3.Connection, row: SessionRow | None, write: Write) -> None:
    if write.expected is None:
        return
    if not _is_expected(write.expected, Version(0) if row is None else row.manifest.version):
        raise _conflict(raw, row, write.session_id, write.expected)


def _is_expected(expected: int, actual: Version) -> bool:
    nonce = expected.nonce if isinstance(expected, Version) else ""
    return expected == actual and (not nonce or nonce == actual.nonce)


def _check_ancestor(raw: sqlite3.Connection, row: SessionRow | None, write: Replace, prefix: Prefix) -> None:
    """The session is still in the plan's epoch, and the planned version is one that it went through."""
    if row is None:
        if write.expected is None or prefix.epoch != 0:
            raise _conflict(raw, row, write.session_id, prefix.planned)
        return
    if row.manifest.epoch == prefix.epoch:
        if prefix.planned == 0:
            return
        planned = reads.op_of_version(raw, write.session_id, prefix.planned)
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
    op = reads.op_of_version(raw, session_id, expected)
    nonce = expected.nonce if isinstance(expected, Version) else ""
    if op is None or op.manifest.epoch != row.manifest.epoch:
        return "rewritten"
    return "rewritten" if nonce and nonce != op.manifest.version.nonce else "appended"


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


def _insert_items(
    raw: sqlite3.Connection, session_id: str, start: int, gen: int, texts: Sequence[str], now: str
) -> None:
    raw.executemany(
        sql.INSERT_ITEM, [(session_id, seq, gen, text, now) for seq, text in enumerate(texts, start)]
    )


def _put_rewritten(
    raw: sqlite3.Connection,
    row: SessionRow | None,
    session_id: str,
    manifest: Manifest,
    *,
    revive: bool = False,
    created_by: Clear | Replace | None = None,
) -> None:
    """Write the row after a rewrite: the chain goes, and ``revive`` makes a tombstone a session again.

    ``created_by`` has the owner and metadata of a session that is new or revived.
    """
    owner, metadata = (None, None) if created_by is None else (created_by.owner, created_by.metadata)
    if row is None or row.manifest.version == 0:
        _put(raw, session_id, manifest, NO_CHAIN, owner=owner, metadata=metadata)
        return
    revived = revive and row.deleted_at is not None
    is_new = revived and created_by is not None
    _put(
        raw,
        session_id,
        manifest,
        NO_CHAIN,
        created_at=None if revived else moment_text(row.created_at),
        deleted_at=None if revived or row.deleted_at is None else moment_text(row.deleted_at),
        owner=owner if is_new else row.owner,
        metadata=metadata if is_new else row.metadata,
    )


def _put_deleted(raw: sqlite3.Connection, row: SessionRow | None, clear: Clear, manifest: Manifest) -> None:
    is_new = row is None or row.manifest.version == 0
    created_at = None if row is None or is_new else moment_text(row.created_at)
    owner = clear.owner if row is None or is_new else row.owner
    _put(raw, clear.session_id, manifest, NO_CHAIN, created_at=created_at, deleted_at="now", owner=owner)


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
            *manifest_columns(manifest),
            *chain_columns(chain),
            created_at,
            deleted_at,
            owner,
            metadata,
        ),
    )
