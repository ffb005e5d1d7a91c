"""The four tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_serves_0001"
down_revision = None
branch_labels = None
depends_on = None

LEAVE_ROOM = "ALTER TABLE cas_session SET (fillfactor = 80)"  # for heap-only updates

# lz4 reads and writes several times faster than the default, where the server was built with it.
COMPRESS_ITEMS = """
DO $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)
    ) THEN
        ALTER TABLE cas_session_item ALTER COLUMN data SET COMPRESSION lz4;
    END IF;
END
$$
"""


def upgrade() -> None:
    _create_session()
    _create_item()
    _create_op()
    _create_compaction()


def downgrade() -> None:
    op.drop_table("cas_session_compaction")
    op.drop_table("cas_session_op")
    op.drop_table("cas_session_item")
    op.drop_table("cas_session")


def _create_session() -> None:
    op.create_table(
        "cas_session",
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("nonce", sa.Text, nullable=False),
        sa.Column("next_seq", sa.BigInteger, nullable=False),
        sa.Column("base_seq", sa.BigInteger, nullable=False),
        sa.Column("base_gen", sa.BigInteger, nullable=False),
        sa.Column("low_seq", sa.BigInteger, nullable=False),
        sa.Column("erased_epoch", sa.BigInteger, nullable=False),
        sa.Column("item_count", sa.BigInteger, nullable=False),
        sa.Column("byte_count", sa.BigInteger, nullable=False),
        sa.Column("chain_response_id", sa.Text),
        sa.Column("chain_stored", sa.Boolean),
        sa.Column("chain_deferred_id", sa.Text),
        sa.Column("chain_epoch", sa.BigInteger),
        sa.Column("chain_seq", sa.BigInteger),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.Column("owner", sa.Text),
        sa.Column("metadata", sa.Text),
        sa.PrimaryKeyConstraint("session_id"),
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute(LEAVE_ROOM)
    op.create_index("cas_session_by_owner", "cas_session", ["owner", "created_at", "session_id"])
    op.create_index("cas_session_by_age", "cas_session", ["created_at", "session_id"])


def _create_item() -> None:
    op.create_table(
        "cas_session_item",
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("gen", sa.BigInteger, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("popped", sa.BigInteger),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "seq", "gen", name="cas_session_item_pkey"),
    )
    op.create_index(
        "cas_session_item_popped",
        "cas_session_item",
        ["session_id", "popped"],
        postgresql_where=sa.text("popped IS NOT NULL"),
        sqlite_where=sa.text("popped IS NOT NULL"),
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute(COMPRESS_ITEMS)


def _create_op() -> None:
    op.create_table(
        "cas_session_op",
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("op_id", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("nonce", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("next_seq", sa.BigInteger, nullable=False),
        sa.Column("base_seq", sa.BigInteger, nullable=False),
        sa.Column("base_gen", sa.BigInteger, nullable=False),
        sa.Column("low_seq", sa.BigInteger, nullable=False),
        sa.Column("erased_epoch", sa.BigInteger, nullable=False),
        sa.Column("item_count", sa.BigInteger, nullable=False),
        sa.Column("byte_count", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "op_id", name="cas_session_op_pkey"),
        sa.UniqueConstraint("session_id", "version", name="cas_session_op_version"),
    )


def _create_compaction() -> None:
    op.create_table(
        "cas_session_compaction",
        sa.Column("attempt_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("trigger", sa.Text, nullable=False),
        sa.Column("source_version", sa.BigInteger, nullable=False),
        sa.Column("source_nonce", sa.Text, nullable=False),
        sa.Column("source_epoch", sa.BigInteger, nullable=False),
        sa.Column("source_last_seq", sa.BigInteger, nullable=False),
        sa.Column("source_items", sa.BigInteger, nullable=False),
        sa.Column("source_digest", sa.LargeBinary),
        sa.Column("output_items", sa.BigInteger),
        sa.Column("output_digest", sa.LargeBinary),
        sa.Column("found_version", sa.BigInteger),
        sa.Column("target_version", sa.BigInteger),
        sa.Column("appended_during", sa.BigInteger),
        sa.Column("decision", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("host", sa.Text),
        sa.Column("response_id", sa.Text),
        sa.Column("usage", sa.Text),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("attempt_id"),
    )
    op.create_index(
        "cas_session_compaction_by_session", "cas_session_compaction", ["session_id", "started_at"]
    )
    op.create_index(
        "cas_session_compaction_lease",
        "cas_session_compaction",
        ["session_id"],
        unique=True,
        postgresql_where=sa.text("status = 'running'"),
        sqlite_where=sa.text("status = 'running'"),
    )
