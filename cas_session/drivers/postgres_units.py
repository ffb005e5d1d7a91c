"""What each verb does with one connection: a statement, and a second one where the first landed nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

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
    Known,
    Landed,
    ListSessions,
    Load,
    Loaded,
    Manifest,
    OpRow,
    Pop,
    Prefix,
    Replace,
    Restore,
    SessionRow,
    Write,
)
from cas_session.drivers import postgres_reads as reads
from cas_session.drivers import postgres_upkeep as upkeep
from cas_session.drivers import postgres_writes as writes
from cas_session.drivers.postgres_errors import OpExistsError
from cas_session.drivers.postgres_pool import Link
from cas_session.errors import (
    Change,
    OperationMismatchError,
    SessionNotFoundError,
    StorageUnavailableError,
    VersionConflictError,
    VersionNotRetainedError,
)
from cas_session.snapshot import Version

LARGEST = 2**63 - 1  # bigint; no version, seq or limit is above it
LANDED = 15  # the column behind manifest and chain


class Current(NamedTuple):
    """The session as it was when a write did not land.

    Attributes:
        manifest: Under the row lock, or as read if the statement's snapshot had no session.
        is_deleted: Whether it is a tombstone.
        expected_epoch: The epoch of the expected version's op row; None if there is no such row.
    """

    manifest: Manifest
    is_deleted: bool = False
    expected_epoch: int | None = None


# Items


async def load(link: Link, load: Load) -> Loaded:
    """Version and items in one statement."""
    if load.known is not None:
        return await _load_behind(link, load.session_id, load.known)
    sql = reads.LOAD_WITH_AGES if load.ages else reads.LOAD
    rows = await link.rows(sql, load.session_id, _bounded(load.limit))
    if not rows:
        return Loaded(None, ())
    session = _session_of_json(json.loads(rows[0][1]))
    newest_first = rows[:0:-1]
    if load.ages:
        items = [(seq, text) for seq, text, _ in newest_first]
        return Loaded(session, items, [created_at for _, _, created_at in newest_first])
    return Loaded(session, [row[:] for row in newest_first])


async def _load_behind(link: Link, session_id: str, known: Known) -> Loaded:
    version = known.version
    rows = await link.rows(reads.LOAD_BEHIND, session_id, known.seq, int(version), version.nonce, known.epoch)
    if not rows:
        return Loaded(None, ())
    session = json.loads(rows[0][1])
    return Loaded(
        _session_of_json(session), [(seq, text) for seq, text in rows[:0:-1]], extends=session["extends"]
    )


async def load_as_of(link: Link, session_id: str, version: int) -> Loaded:
    """The items of an earlier version, all of them or an error."""
    rows = await link.rows(reads.LOAD_AS_OF, session_id, _bounded(version))
    if not rows:
        raise SessionNotFoundError(session_id)
    session, op = json.loads(rows[0][1])
    row = _session_of_json(session)
    if row.manifest.version == 0:
        raise SessionNotFoundError(session_id)
    source = _manifest_of_json(op) if op else NO_SESSION if version == 0 else None
    items = [(seq, text) for seq, text in rows[1:]]
    if source is None or source.epoch < row.manifest.erased_epoch or len(items) != source.item_count:
        raise _not_retained(session_id, version, row.manifest, None if source is None else source.epoch)
    return Loaded(dataclasses.replace(row, manifest=source), items)


async def append(link: Link, group: Sequence[Append]) -> list[Landed]:
    """One append, or several unconditional ones as one statement."""
    if len(group) > 1:
        return await _append_group(link, group)
    (write,) = group
    if write.expected is None:
        sql = writes.APPEND
    else:
        sql = writes.APPEND_NEW if _creates(write.expected) else writes.APPEND_IF
    sent = await _send(link, write, "append", sql, write.texts, sum(write.sizes), write.owner, write.metadata)
    return [await _landed_or_conflict(link, write, sent)]


async def pop(link: Link, pop: Pop) -> Landed:
    """Read the last item, then hide it if the version still stands; ``locked`` makes sure that it does."""
    try:
        if not pop.locked:
            return await _pop(link, pop, op_id=pop.op_id)
        async with link.transaction(op_id=pop.op_id):
            await link.row(reads.LOCK_SESSION, pop.session_id)
            return await _pop(link, pop, op_id=None)
    except OpExistsError:
        return await _landed_before(link, pop, "pop")


async def clear(link: Link, clear: Clear) -> Landed:
    kind: Kind = "delete" if clear.delete else "clear"
    if not (clear.expected is None or _creates(clear.expected)):
        sent = await _send(link, clear, kind, writes.CLEAR_IF, clear.delete)
    else:
        sent = await _send(link, clear, kind, writes.CLEAR, clear.delete, clear.owner, clear.metadata)
    return await _landed_or_conflict(link, clear, sent)


async def replace_all(link: Link, write: Replace) -> Landed:
    if write.expected is None:
        raise ValueError("a replace of everything needs an expected version")
    sql = writes.REPLACE_NEW if _creates(write.expected) else writes.REPLACE_IF
    sent = await _send(
        link, write, "replace", sql, write.texts, sum(write.sizes), write.owner, write.metadata
    )
    return await _landed_or_conflict(link, write, sent)


async def replace_prefix(link: Link, write: Replace, prefix: Prefix) -> Landed:
    sent = await _send_prefix(link, write, prefix)
    if isinstance(sent, Landed):
        return dataclasses.replace(sent, found_version=sent.manifest.version - 1)
    if write.expected is not None and (sent is None or not _is_expected(write.expected, sent)):
        raise _conflict(write, write.expected, sent)
    if sent is None:
        raise _conflict(write, prefix.planned, None)
    if sent.manifest.epoch != prefix.epoch or not await _is_ancestor(link, write, prefix):
        raise _conflict(write, prefix.planned, sent._replace(expected_epoch=None))
    if not sent.manifest.base_seq <= prefix.through < sent.manifest.next_seq:
        raise ValueError(
            f"a prefix up to seq {prefix.through} cannot be replaced: base_seq is {sent.manifest.base_seq}, "
            f"next_seq {sent.manifest.next_seq}"
        )
    raise _overtaken(write)


async def restore(link: Link, write: Restore) -> Landed:
    if write.expected is None:
        raise ValueError("a restore needs an expected version")
    if write.expected == 0:
        sent: Landed | Current | None = await _current(link, write)
    else:
        sent = await _send(link, write, "restore", writes.RESTORE, _bounded(write.version))
    if isinstance(sent, Landed):
        return sent
    if sent is None or sent.manifest.version == 0:
        raise SessionNotFoundError(write.session_id)
    if not _is_expected(write.expected, sent):
        raise _conflict(write, write.expected, sent)
    source = await link.row(reads.FIND_OP_OF_VERSION, write.session_id, _bounded(write.version))
    epoch = 0 if write.version == 0 else source and source[1]
    raise _not_retained(write.session_id, write.version, sent.manifest, epoch)


# What leaves no op row


async def record_chain(link: Link, session_id: str, chain: Chain) -> bool:
    sql = upkeep.RECORD_CHAIN if chain.epoch else upkeep.RECORD_CHAIN_OF_EPOCH_0
    if chain.epoch is None:
        return False
    columns = chain.response_id, chain.stored, chain.deferred_id, chain.epoch, chain.seq
    return await link.row(sql, session_id, *columns) is not None


async def begin_compaction(link: Link, begin: BeginCompaction) -> Any:
    source = begin.source
    (outcome,) = await link.row(
        upkeep.BEGIN_COMPACTION,
        begin.attempt_id,
        begin.session_id,
        begin.owner,
        begin.lease,
        begin.trigger,
        int(source.version),
        source.version.nonce,
        source.epoch,
        begin.last_seq,
        begin.item_count,
        begin.digest,
        begin.model,
        begin.host,
    )
    return outcome


async def finish_compaction(link: Link, finish: FinishCompaction) -> None:
    await link.row(
        upkeep.FINISH_COMPACTION,
        finish.attempt_id,
        finish.status,
        finish.decision,
        finish.output_items,
        finish.output_digest,
        finish.found_version,
        finish.target_version,
        finish.appended_during,
        finish.model,
        finish.host,
        finish.response_id,
        finish.usage,
        finish.error,
    )


async def prune(
    link: Link, after: str, batch: int, ages: tuple[timedelta, timedelta], window: int
) -> tuple[int, str | None]:
    """Remove up to ``batch`` rows of the ``window`` sessions behind ``after``, whose last one is returned.

    ``ages`` are those of hidden items, and of op rows and attempts.
    """
    await link.row(upkeep.PRUNE_ERASED_TEXTS, after, window)
    removed, last = await link.row(upkeep.PRUNE, after, batch, *ages, window)
    return removed, last


async def forget(link: Link, session_id: str) -> bool:
    """Remove a tombstone and all of its rows, under its lock."""
    async with link.transaction():
        await link.row(reads.LOCK_SESSION, session_id)
        if await link.row(upkeep.FORGET_TOMBSTONE, session_id) is None:
            return False
        for sql in (upkeep.FORGET_ITEMS, upkeep.FORGET_OPS, upkeep.FORGET_COMPACTIONS):
            await link.row(sql, session_id)
    return True


# What is recorded


async def find_op(link: Link, session_id: str, op_id: str) -> OpRow | None:
    row = await link.row(reads.FIND_OP, session_id, op_id)
    return None if row is None else _op(row)


async def operations(link: Link, session_id: str, limit: int, before: int | None) -> list[OpRow]:
    rows = await link.rows(reads.OPERATIONS, session_id, _bounded(before), _bounded(limit))
    return [_op(row) for row in rows]


async def compactions(link: Link, session_id: str, limit: int) -> list[CompactionRow]:
    return [CompactionRow(*row) for row in await link.rows(reads.COMPACTIONS, session_id, _bounded(limit))]


async def list_sessions(link: Link, query: ListSessions) -> list[SessionRow]:
    arguments: list[Any] = [_bounded(query.limit), *(query.after or (None, None))]
    if query.order == "active":
        if query.owner is None:
            raise ValueError("order 'active' needs an owner")
        rows = await link.rows(reads.LIST_BY_LAST_WRITE, *arguments, query.owner)
    elif query.owner is not None:
        rows = await link.rows(reads.LIST_BY_OWNER, *arguments, query.owner)
    else:
        rows = await link.rows(reads.LIST_BY_AGE, *arguments)
    return [_session(row) for row in rows]


# What the writes share


async def _send(link: Link, write: Write, kind: Kind, sql: str, *arguments: Any) -> Landed | Current | None:
    """Send a write. It landed, now or before, or this is what is there; None if there is no session.

    Raises:
        OperationMismatchError: The op_id belongs to another write.
    """
    try:
        row = await _write(link, write, kind, sql, *arguments, expected=write.expected, op_id=write.op_id)
    except OpExistsError:
        return await _landed_before(link, write, kind)
    if row is not None and row[LANDED]:
        return Landed(_manifest(row), _chain(row))
    # A re-sent write waits behind its own first sending and then finds its own version.
    if write.fenced and (landed := await _find_landed(link, write, kind)) is not None:
        return landed
    return await _current(link, write) if row is None else _current_of(row)


async def _write(
    link: Link,
    write: Write,
    kind: Kind,
    sql: str,
    *arguments: Any,
    expected: int | None,
    op_id: str | None,
) -> Any:
    """Run the statement of a write.

    Raises:
        OpExistsError: The op_id has a row, so the statement landed nothing.
    """
    number, nonce = _expectation(expected)
    head = write.session_id, write.op_id, write.nonce, write.digest, write.worker
    return await link.row(sql, *head, kind, number, nonce, *arguments, op_id=op_id)


async def _append_group(link: Link, group: Sequence[Append]) -> list[Landed]:
    """Every member has its own version, op row and block; the row that comes back is the last one's."""
    counts = list(itertools.accumulate(len(write.texts) for write in group))
    sizes = list(itertools.accumulate(sum(write.sizes) for write in group))
    first = group[0]
    try:
        row = await link.row(
            writes.APPEND_GROUP,
            first.session_id,
            [write.op_id for write in group],
            [write.nonce for write in group],
            [write.digest for write in group],
            [write.worker for write in group],
            "append",
            counts,
            sizes,
            [text for write in group for text in write.texts],
            first.owner,
            first.metadata,
            op_id=first.op_id,
        )
    except (OpExistsError, StorageUnavailableError) as error:
        raise GroupRefusedError(str(error)) from error
    last, chain = _manifest(row), _chain(row)
    return [
        Landed(
            dataclasses.replace(
                last,
                version=Version(last.version - len(group) + at, write.nonce),
                next_seq=last.next_seq - counts[-1] + count,
                item_count=last.item_count - counts[-1] + count,
                byte_count=last.byte_count - sizes[-1] + size,
            ),
            chain,
        )
        for at, (write, count, size) in enumerate(zip(group, counts, sizes, strict=True), start=1)
    ]


async def _pop(link: Link, pop: Pop, *, op_id: str | None) -> Landed:
    """Read and hide the last item; ``op_id`` as for `Link`, None inside a transaction.

    Raises:
        OpExistsError: As `_write`.
    """
    row = await link.row(reads.LAST_ITEM, pop.session_id)
    found, chain = (NO_SESSION, NO_CHAIN) if row is None else (_manifest(row), _chain(row))
    seq, gen, text = (None, None, None) if row is None else row[LANDED:]
    if pop.expected is not None and not _is_expected(pop.expected, Current(found)):
        return await _landed_or_conflict(link, pop, await _look(link, pop, "pop"))
    if text is None:
        landed = await _find_landed(link, pop, "pop") if pop.fenced else None
        return landed or Landed(found, chain)
    last = seq, gen, len(text.encode())
    row = await _write(link, pop, "pop", writes.POP, *last, expected=found.version, op_id=op_id)
    if row is not None and row[LANDED]:
        return Landed(_manifest(row), _chain(row), item=text)
    if pop.expected is None:
        raise _overtaken(pop)
    return await _landed_or_conflict(link, pop, await _look(link, pop, "pop"))


async def _look(link: Link, write: Write, kind: Kind) -> Landed | Current | None:
    """Why a write does not land: it had landed, or this is what is there."""
    landed = await _find_landed(link, write, kind) if write.fenced else None
    return landed or await _current(link, write)


async def _landed_or_conflict(link: Link, write: Write, sent: Landed | Current | None) -> Landed:
    if isinstance(sent, Landed):
        return sent
    raise _conflict(write, 0 if write.expected is None else write.expected, sent)


async def _find_landed(link: Link, write: Write, kind: Kind) -> Landed | None:
    """What this write did if it had landed before, by its op row.

    Raises:
        OperationMismatchError: The op_id belongs to another write.
    """
    op = await find_op(link, write.session_id, write.op_id)
    if op is None:
        return None
    if op.kind != kind or op.digest != write.digest:
        raise OperationMismatchError(write.session_id, write.op_id, kind=kind, found_kind=op.kind)
    item, found_version = None, None
    if kind == "pop":
        popped = await link.row(reads.FIND_POPPED, write.session_id, int(op.manifest.version))
        item = None if popped is None else popped[0]
    elif kind == "compact":
        found_version = op.manifest.version - 1
    return Landed(op.manifest, None, item=item, found_version=found_version)


async def _landed_before(link: Link, write: Write, kind: Kind) -> Landed:
    """What this write did, now that the fence says that its op row is there."""
    landed = await _find_landed(link, write, kind)
    if landed is None:
        raise StorageUnavailableError(f"session {write.session_id!r} was forgotten while it was written")
    return landed


async def _current(link: Link, write: Write) -> Current | None:
    number, nonce = _expectation(write.expected)
    row = await link.row(reads.CURRENT, write.session_id, number, nonce)
    return None if row is None else _current_of(row)


async def _is_ancestor(link: Link, write: Write, prefix: Prefix) -> bool:
    """Whether the session went through the planned version."""
    if prefix.planned == 0:
        return True
    op = await link.row(reads.FIND_OP_OF_VERSION, write.session_id, _bounded(prefix.planned))
    return op is not None and op[0] == prefix.planned.nonce


async def _send_prefix(link: Link, write: Replace, prefix: Prefix) -> Landed | Current | None:
    texts, size = write.texts, sum(write.sizes)
    if _creates(write.expected) and prefix.epoch == 0 and prefix.through == 0:
        return await _send(link, write, "compact", writes.COMPACT_NEW, texts, size)
    return await _send(
        link,
        write,
        "compact",
        writes.COMPACT,
        texts,
        size,
        prefix.through,
        prefix.item_count,
        prefix.byte_count,
        prefix.epoch,
        _bounded(prefix.planned),
        prefix.planned.nonce,
    )


# Why a write did not land


def _creates(expected: int | None) -> bool:
    """Whether a write asks that there is no session. A version 0 with a nonce is one that never was."""
    return expected == 0 and not (isinstance(expected, Version) and expected.nonce)


def _is_expected(expected: int, current: Current) -> bool:
    version = current.manifest.version
    nonce = expected.nonce if isinstance(expected, Version) else ""
    return expected == version and nonce in ("", version.nonce)


def _conflict(write: Write, expected: int, current: Current | None) -> Exception:
    """What came between the expected version and the one that is there."""
    if current is not None and expected == write.expected and _is_expected(expected, current):
        return _overtaken(write)  # it was sent while the write that made the expected version was landing
    actual = Version(0) if current is None else current.manifest.version
    return VersionConflictError(
        write.session_id, expected=expected, actual=actual, change=_change(expected, current)
    )


def _change(expected: int, current: Current | None) -> Change:
    if current is None or current.manifest.version == 0:
        return "missing"
    if current.is_deleted:
        return "deleted"
    epoch = 0 if expected == 0 else current.expected_epoch
    return "appended" if epoch == current.manifest.epoch else "rewritten"


def _overtaken(write: Write) -> StorageUnavailableError:
    return StorageUnavailableError(f"session {write.session_id!r} was written between a read and this write")


def _not_retained(session_id: str, version: int, current: Manifest, epoch: int | None) -> Exception:
    """Why a version cannot be had; ``epoch`` is that of its op row."""
    if not 0 <= version <= current.version:
        return ValueError(
            f"session {session_id!r} is at version {int(current.version)}; it has no version {int(version)}"
        )
    erased = epoch is not None and epoch < current.erased_epoch
    return VersionNotRetainedError(session_id, version, "erased" if erased else "pruned")


# Rows and parameters


def _expectation(expected: int | None) -> tuple[int | None, str]:
    """Number and nonce; '' checks the number only."""
    return _bounded(expected), expected.nonce if isinstance(expected, Version) else ""


def _bounded(number: int | None) -> int | None:
    """As a bigint. Versions beyond it do not exist, and limits beyond it are none."""
    return None if number is None else max(-1, min(int(number), LARGEST))


def _manifest(row: Any) -> Manifest:
    version, nonce, *counters = row[:10]
    return Manifest(Version(version, nonce), *counters)


def _chain(row: Any) -> Chain:
    return Chain(*row[10:15])


def _current_of(row: Any) -> Current:
    deleted_at, expected_epoch = row[LANDED + 1 :]
    return Current(_manifest(row), deleted_at is not None, expected_epoch)


def _session(row: Any) -> SessionRow:
    session_id, created_at, updated_at, deleted_at, owner, metadata = row[15:]
    return SessionRow(
        session_id, _manifest(row), _chain(row), created_at, updated_at, deleted_at, owner, metadata
    )


def _op(row: Any) -> OpRow:
    op_id, kind, digest, worker, created_at = row[10:]
    return OpRow(op_id, kind, _manifest(row), digest, worker, created_at)


def _session_of_json(row: dict[str, Any]) -> SessionRow:
    return SessionRow(
        session_id=row["session_id"],
        manifest=_manifest_of_json(row),
        chain=Chain(
            row["chain_response_id"],
            row["chain_stored"],
            row["chain_deferred_id"],
            row["chain_epoch"],
            row["chain_seq"],
        ),
        created_at=_moment(row["created_at"]),
        updated_at=_moment(row["updated_at"]),
        deleted_at=row["deleted_at"] and _moment(row["deleted_at"]),
        owner=row["owner"],
        metadata=row["metadata"],
    )


def _manifest_of_json(row: dict[str, Any]) -> Manifest:
    return Manifest(
        version=Version(row["version"], row["nonce"]),
        epoch=row["epoch"],
        next_seq=row["next_seq"],
        base_seq=row["base_seq"],
        base_gen=row["base_gen"],
        low_seq=row["low_seq"],
        erased_epoch=row["erased_epoch"],
        item_count=row["item_count"],
        byte_count=row["byte_count"],
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
