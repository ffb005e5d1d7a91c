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
    Write,
)
from cas_session.drivers import sqlite_reads as reads
from cas_session.drivers import sqlite_sql as sql
from cas_session.drivers.sqlite_rows import Head, chain_columns, manifest_columns
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
    head = reads.read_head(raw, pop.session_id)
    _check_expected(raw, head, pop)
    before = head.manifest
    visible = reads.visible(pop.session_id, before)
    found = reads.fetch_items(raw, pop.session_id, sql.READ_LAST_ITEM, visible)
    if not found:
        return Landed(before, head.chain)
    ((seq, gen, text),) = found
    manifest = replace(
        before,
        version=Version(before.version + 1, pop.nonce),
        epoch=before.epoch + 1,
        item_count=before.item_count - 1,
        byte_count=before.byte_count - len(text.encode()),
    )
    if (landed := _claim(raw, pop, "pop", manifest, head.now)) is not None:
        return landed
    raw.execute(sql.MARK_POPPED, (manifest.version, pop.session_id, seq, gen))
    _rewrite(raw, pop.session_id, manifest, head.now)
    return Landed(manifest, NO_CHAIN, item=text)


def clear(raw: sqlite3.Connection, clear: Clear) -> Landed:
    """Hide everything for ever; with ``delete`` leave a tombstone."""
    kind: Kind = "delete" if clear.delete else "clear"
    if clear.fenced and (landed := _landed(raw, clear, kind)) is not None:
        return landed
    head = reads.read_head(raw, clear.session_id)
    _check_expected(raw, head, clear)
    before = head.manifest
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
    if (landed := _claim(raw, clear, kind, manifest, head.now)) is not None:
        return landed
    if before.version == 0:
        _create(raw, clear, manifest, head.now, is_deleted=clear.delete)
    else:
        statement = sql.DELETE_SESSION if clear.delete else sql.REWRITE_SESSION
        _rewrite(raw, clear.session_id, manifest, head.now, statement)
    return Landed(manifest, NO_CHAIN)


def replace_all(raw: sqlite3.Connection, write: Replace) -> Landed:
    """Hide everything behind these items."""
    if write.expected is None:
        raise ValueError("a replace of everything needs expected, the version that it replaces")
    if write.fenced and (landed := _landed(raw, write, "replace")) is not None:
        return landed
    head = reads.read_head(raw, write.session_id)
    _check_expected(raw, head, write)
    before = head.manifest
    manifest = _replaced(before, write.nonce, len(write.texts), sum(write.sizes))
    if (landed := _claim(raw, write, "replace", manifest, head.now)) is not None:
        return landed
    _insert_items(raw, write.session_id, before.next_seq, manifest.epoch, write.texts, head.now)
    if before.version == 0 or head.is_deleted:
        _create(raw, write, manifest, head.now)
    else:
        _rewrite(raw, write.session_id, manifest, head.now)
    return Landed(manifest, NO_CHAIN)


def replace_prefix(raw: sqlite3.Connection, write: Replace, prefix: Prefix) -> Landed:
    """Hide the prefix behind these items; the tail is not touched."""
    if write.fenced and (landed := _landed(raw, write, "compact")) is not None:
        return landed
    head = reads.read_head(raw, write.session_id)
    _check_expected(raw, head, write)
    _check_ancestor(raw, head, write, prefix)
    before = head.manifest
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
    if (landed := _claim(raw, write, "compact", manifest, head.now)) is not None:
        return landed
    _insert_items(raw, write.session_id, low_seq, epoch, write.texts, head.now)
    if before.version == 0:
        _put(raw, write.session_id, manifest, NO_CHAIN, head.now)
    else:
        _rewrite_and_revive(raw, write.session_id, head, manifest)
    return Landed(manifest, NO_CHAIN, found_version=int(before.version))


def restore(raw: sqlite3.Connection, write: Restore) -> Landed:
    """Hide everything behind copies of an earlier version's items."""
    if write.expected is None:
        raise ValueError("a restore needs expected, the version that it replaces")
    if write.fenced and (landed := _landed(raw, write, "restore")) is not None:
        return landed
    head = reads.read_head(raw, write.session_id)
    before = head.manifest
    if before.version == 0:
        raise SessionNotFoundError(write.session_id)
    _check_expected(raw, head, write)
    source = reads.retained(raw, write.session_id, before, write.version)
    manifest = _replaced(before, write.nonce, source.item_count, source.byte_count)
    if (landed := _claim(raw, write, "restore", manifest, head.now)) is not None:
        return landed
    copy = {
        **reads.as_of(write.session_id, before, source),
        "new_seq": before.next_seq,
        "new_gen": manifest.epoch,
        "now": head.now,
    }
    reads.check_complete(write.session_id, source, raw.execute(sql.COPY_ITEMS_AS_OF, copy).rowcount)
    _rewrite_and_revive(raw, write.session_id, head, manifest)
    return Landed(manifest, NO_CHAIN)


def record_chain(raw: sqlite3.Connection, session_id: str, chain: Chain) -> bool:
    """Write the chain if the epoch is the one that it belongs to."""
    head = reads.read_head(raw, session_id)
    if chain.epoch != head.manifest.epoch:
        return False
    if head.has_row:
        raw.execute(sql.RECORD_CHAIN, (*chain_columns(chain), session_id))
    else:
        _put(raw, session_id, NO_SESSION, chain, head.now)
    return True


def set_metadata(raw: sqlite3.Connection, session_id: str, metadata: str | None) -> bool:
    return raw.execute(sql.SET_METADATA, (metadata, session_id)).rowcount == 1


def _append(raw: sqlite3.Connection, group: Sequence[Append]) -> list[Landed]:
    first = group[0]
    if first.fenced and (landed := _landed(raw, first, "append")) is not None:
        return [landed]
    head = reads.read_head(raw, first.session_id)
    _check_expected(raw, head, first)
    manifest, landed_group = head.manifest, []
    for member in group:
        start, manifest = manifest.next_seq, _appended(manifest, member)
        if (landed := _claim(raw, member, "append", manifest, head.now, alone=len(group) == 1)) is not None:
            return [landed]
        _insert_items(raw, member.session_id, start, manifest.epoch, member.texts, head.now)
        landed_group.append(Landed(manifest, head.chain))
    if head.manifest.version == 0 or head.is_deleted:
        _create(raw, first, manifest, head.now, head.chain)
    else:
        _advance(raw, first.session_id, manifest, head.now)
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
    now: str,
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


def _check_expected(raw: sqlite3.Connection, head: Head, write: Write) -> None:
    if write.expected is not None and not _is_expected(write.expected, head.manifest.version):
        raise _conflict(raw, head, write.session_id, write.expected)


def _is_expected(expected: int, actual: Version) -> bool:
    nonce = expected.nonce if isinstance(expected, Version) else ""
    return expected == actual and (not nonce or nonce == actual.nonce)


def _check_ancestor(raw: sqlite3.Connection, head: Head, write: Replace, prefix: Prefix) -> None:
    """The session is still in the plan's epoch, and the planned version is one that it went through."""
    if not head.has_row:
        if write.expected is None or prefix.epoch != 0:
            raise _conflict(raw, head, write.session_id, prefix.planned)
        return
    if head.manifest.epoch == prefix.epoch:
        if prefix.planned == 0:
            return
        planned = reads.op_of_version(raw, write.session_id, prefix.planned)
        if planned is not None and planned.manifest.version.nonce == prefix.planned.nonce:
            return
    raise _conflict(raw, head, write.session_id, prefix.planned)


def _conflict(raw: sqlite3.Connection, head: Head, session_id: str, expected: int) -> VersionConflictError:
    change = _change(raw, head, session_id, expected)
    return VersionConflictError(session_id, expected=expected, actual=head.manifest.version, change=change)


def _change(raw: sqlite3.Connection, head: Head, session_id: str, expected: int) -> Change:
    """What came between the expected version and the one that is there."""
    if head.manifest.version == 0:
        return "missing"
    if head.is_deleted:
        return "deleted"
    if expected == 0:
        return "appended" if head.manifest.epoch == 0 else "rewritten"
    op = reads.op_of_version(raw, session_id, expected)
    nonce = expected.nonce if isinstance(expected, Version) else ""
    if op is None or op.manifest.epoch != head.manifest.epoch:
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


def _rewrite(
    raw: sqlite3.Connection,
    session_id: str,
    manifest: Manifest,
    now: str,
    statement: str = sql.REWRITE_SESSION,
) -> None:
    """Write the row after a rewrite. A tombstone stays one."""
    raw.execute(statement, (*manifest_columns(manifest), now, session_id))


def _rewrite_and_revive(raw: sqlite3.Connection, session_id: str, head: Head, manifest: Manifest) -> None:
    """Write the row after a rewrite that makes a tombstone a session again, with the owner it had."""
    _rewrite(raw, session_id, manifest, head.now)
    if head.is_deleted:
        raw.execute(sql.REVIVE_SESSION, (head.now, session_id))


def _create(
    raw: sqlite3.Connection,
    write: Append | Clear | Replace,
    manifest: Manifest,
    now: str,
    chain: Chain = NO_CHAIN,
    *,
    is_deleted: bool = False,
) -> None:
    """Write the row of a session that is new, or new again, with the write's owner and metadata."""
    deleted_at, metadata = (now, None) if is_deleted else (None, write.metadata)
    _put(raw, write.session_id, manifest, chain, now, deleted_at, write.owner, metadata)


def _put(
    raw: sqlite3.Connection,
    session_id: str,
    manifest: Manifest,
    chain: Chain,
    now: str,
    deleted_at: str | None = None,
    owner: str | None = None,
    metadata: str | None = None,
) -> None:
    """Write the whole session row."""
    raw.execute(
        sql.PUT_SESSION,
        (
            session_id,
            *manifest_columns(manifest),
            *chain_columns(chain),
            now,
            deleted_at,
            owner,
            metadata,
        ),
    )
