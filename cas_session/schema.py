"""The tables, for both databases. `alembic/versions` builds the same; a test holds them together."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)

REVISION = "0001_serves_0001"  # the newest of alembic/versions: its number, and the oldest one that it serves
VERSION_TABLE = "cas_session_alembic_version"
MIGRATION_LOCK = 0x6361735F73657373  # "cas_sess"; held on Postgres while a migration runs

metadata = MetaData()


def _counter(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _moment(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


session = Table(
    "cas_session",
    metadata,
    Column("session_id", Text, primary_key=True),
    _counter("version"),
    _counter("epoch"),
    Column("nonce", Text, nullable=False),
    _counter("next_seq"),
    _counter("base_seq"),
    _counter("base_gen"),
    _counter("low_seq"),
    _counter("erased_epoch"),
    _counter("item_count"),
    _counter("byte_count"),
    Column("chain_response_id", Text),
    Column("chain_stored", Boolean),
    Column("chain_deferred_id", Text),
    Column("chain_epoch", BigInteger),
    Column("chain_seq", BigInteger),
    _moment("created_at"),
    _moment("updated_at"),
    _moment("deleted_at", nullable=True),
    Column("owner", Text),
    Column("metadata", Text),
    # No index on a column that a write changes: it would end heap-only updates.
    Index("cas_session_by_owner", "owner", "created_at", "session_id"),
    Index("cas_session_by_age", "created_at", "session_id"),
)
# Room for heap-only updates. A statement of its own, for SQLAlchemy 2.0 has no words for it.
event.listen(
    session,
    "after_create",
    DDL("ALTER TABLE cas_session SET (fillfactor = 80)").execute_if(dialect="postgresql"),  # type: ignore[no-untyped-call]
)

item = Table(
    "cas_session_item",
    metadata,
    Column("session_id", Text, nullable=False),
    _counter("seq"),
    _counter("gen"),
    Column("data", Text, nullable=False),
    Column("popped", BigInteger),
    _moment("created_at"),
    PrimaryKeyConstraint("session_id", "seq", "gen", name="cas_session_item_pkey"),
    # Few rows: a re-sent pop and prune find what was popped without reading the session's items.
    Index(
        "cas_session_item_popped",
        "session_id",
        "popped",
        postgresql_where=text("popped IS NOT NULL"),
        sqlite_where=text("popped IS NOT NULL"),
    ),
)

op = Table(
    "cas_session_op",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("op_id", Text, nullable=False),
    _counter("version"),
    Column("kind", Text, nullable=False),
    Column("nonce", Text, nullable=False),
    _counter("epoch"),
    _counter("next_seq"),
    _counter("base_seq"),
    _counter("base_gen"),
    _counter("low_seq"),
    _counter("erased_epoch"),
    _counter("item_count"),
    _counter("byte_count"),
    Column("digest", LargeBinary, nullable=False),
    Column("worker", Text, nullable=False),
    _moment("created_at"),
    PrimaryKeyConstraint("session_id", "op_id", name="cas_session_op_pkey"),
    UniqueConstraint("session_id", "version", name="cas_session_op_version"),
)

compaction = Table(
    "cas_session_compaction",
    metadata,
    Column("attempt_id", Text, primary_key=True),
    Column("session_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("owner", Text, nullable=False),
    _moment("started_at"),
    _moment("expires_at"),
    _moment("finished_at", nullable=True),
    Column("trigger", Text, nullable=False),
    _counter("source_version"),
    Column("source_nonce", Text, nullable=False),
    _counter("source_epoch"),
    _counter("source_last_seq"),
    _counter("source_items"),
    Column("source_digest", LargeBinary),
    Column("output_items", BigInteger),
    Column("output_digest", LargeBinary),
    Column("found_version", BigInteger),
    Column("target_version", BigInteger),
    Column("appended_during", BigInteger),
    Column("decision", Text),
    Column("model", Text),
    Column("host", Text),
    Column("response_id", Text),
    Column("usage", Text),
    Column("error", Text),
    Index("cas_session_compaction_by_session", "session_id", "started_at"),
    # The running attempt is the lease.
    Index(
        "cas_session_compaction_lease",
        "session_id",
        unique=True,
        postgresql_where=text("status = 'running'"),
        sqlite_where=text("status = 'running'"),
    ),
)
