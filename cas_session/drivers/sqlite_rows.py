"""Rows of a SQLite database and what they mean: columns to values of the contract, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cas_session.driver import NO_CHAIN, NO_SESSION, Chain, CompactionRow, Manifest, OpRow, SessionRow
from cas_session.snapshot import Version

LARGEST = 2**63 - 1  # of SQLite's integers
NOTHING = (None,) * 5  # the columns of a chain that is not there


class Head(NamedTuple):
    """A session as a write finds it, and the moment of the write."""

    manifest: Manifest
    chain: Chain
    has_row: bool
    is_deleted: bool
    now: str


def to_head(columns: Sequence[Any]) -> Head:
    """From one row, which has no version where there is no session."""
    has_row = columns[0] is not None
    manifest = to_manifest(columns[:10]) if has_row else NO_SESSION
    return Head(manifest, to_chain(columns[10:15]), has_row, columns[15] is not None, columns[16])


def to_session(columns: Sequence[Any]) -> SessionRow:
    created_at, updated_at, deleted_at, owner, metadata = columns[16:]
    return SessionRow(
        session_id=columns[0],
        manifest=to_manifest(columns[1:11]),
        chain=to_chain(columns[11:16]),
        created_at=to_moment(created_at),
        updated_at=to_moment(updated_at),
        deleted_at=None if deleted_at is None else to_moment(deleted_at),
        owner=owner,
        metadata=metadata,
    )


def to_op(columns: Sequence[Any]) -> OpRow:
    op_id, kind = columns[:2]
    digest, worker, created_at = columns[12:]
    return OpRow(op_id, kind, to_manifest(columns[2:12]), digest, worker, to_moment(created_at))


def to_compaction(columns: Sequence[Any]) -> CompactionRow:
    attempt_id, session_id, status, owner, started_at, expires_at, finished_at, *rest = columns
    return CompactionRow(
        attempt_id,
        session_id,
        status,
        owner,
        to_moment(started_at),
        to_moment(expires_at),
        None if finished_at is None else to_moment(finished_at),
        *rest,
    )


def manifest_columns(manifest: Manifest) -> tuple[int | str, ...]:
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


def chain_columns(chain: Chain) -> tuple[Any, ...]:
    return chain.response_id, chain.stored, chain.deferred_id, chain.epoch, chain.seq


def to_moment(text: str) -> datetime:
    return datetime.fromisoformat(text + "+00:00")


def moment_text(moment: datetime) -> str:
    """The moment as the database writes it."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", timespec="milliseconds")


def shift(seconds: float) -> str:
    """The modifier that moves 'now' by so many seconds."""
    return f"{seconds:+.3f} seconds"


def to_manifest(columns: Sequence[Any]) -> Manifest:
    version, nonce, *counters = columns
    return Manifest(Version(version, nonce), *counters)


def to_chain(columns: Sequence[Any]) -> Chain:
    if columns == NOTHING:
        return NO_CHAIN
    response_id, stored, deferred_id, epoch, seq = columns
    return Chain(response_id, None if stored is None else bool(stored), deferred_id, epoch, seq)
