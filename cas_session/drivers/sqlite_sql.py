"""The statements of the SQLite driver. They run inside BEGIN IMMEDIATE, which lets in one writer at a time,
or, for reads, inside a deferred transaction, which sees one commit.

Times are UTC text with milliseconds, made by the database's clock, so that they sort as text.
"""

from __future__ import annotations

READ_SESSION = """
SELECT session_id,
       version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
       chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
       created_at, updated_at, deleted_at, owner, metadata
  FROM cas_session
 WHERE session_id = ?
"""

# What a write needs to know: one row, also where there is no session, for the moment of the write.
READ_HEAD = """
SELECT s.version, s.nonce, s.epoch, s.next_seq, s.base_seq, s.base_gen, s.low_seq, s.erased_epoch,
       s.item_count, s.byte_count,
       s.chain_response_id, s.chain_stored, s.chain_deferred_id, s.chain_epoch, s.chain_seq,
       s.deleted_at,
       strftime('%Y-%m-%d %H:%M:%f', 'now')
  FROM (SELECT ? AS session_id) AS asked
  LEFT JOIN cas_session AS s ON s.session_id = asked.session_id
"""

# What an append changes of a living session; the one write that must be fast.
ADVANCE_SESSION = """
UPDATE cas_session
   SET version = ?,
       nonce = ?,
       next_seq = ?,
       item_count = ?,
       byte_count = ?,
       updated_at = ?
 WHERE session_id = ?
"""

# What a rewrite changes of a session that is there. The chain is void; created_at and owner, which have
# indexes, stay.
REWRITE_SESSION = """
UPDATE cas_session
   SET version = ?,
       nonce = ?,
       epoch = ?,
       next_seq = ?,
       base_seq = ?,
       base_gen = ?,
       low_seq = ?,
       erased_epoch = ?,
       item_count = ?,
       byte_count = ?,
       chain_response_id = NULL,
       chain_stored = NULL,
       chain_deferred_id = NULL,
       chain_epoch = NULL,
       chain_seq = NULL,
       updated_at = ?
 WHERE session_id = ?
"""

# The same, and the session is a tombstone.
DELETE_SESSION = """
UPDATE cas_session
   SET version = ?1,
       nonce = ?2,
       epoch = ?3,
       next_seq = ?4,
       base_seq = ?5,
       base_gen = ?6,
       low_seq = ?7,
       erased_epoch = ?8,
       item_count = ?9,
       byte_count = ?10,
       chain_response_id = NULL,
       chain_stored = NULL,
       chain_deferred_id = NULL,
       chain_epoch = NULL,
       chain_seq = NULL,
       updated_at = ?11,
       deleted_at = ?11,
       metadata = NULL
 WHERE session_id = ?12
"""

REVIVE_SESSION = """
UPDATE cas_session
   SET created_at = ?,
       deleted_at = NULL
 WHERE session_id = ?
"""

# Of a session that is new, also where its row is there already: a tombstone, or with version 0.
PUT_SESSION = """
INSERT INTO cas_session (
    session_id,
    version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
    chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
    created_at, updated_at, deleted_at, owner, metadata)
VALUES (
    ?1,
    ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    ?12, ?13, ?14, ?15, ?16,
    ?17, ?17, ?18, ?19, ?20)
ON CONFLICT (session_id) DO UPDATE
   SET version = excluded.version,
       nonce = excluded.nonce,
       epoch = excluded.epoch,
       next_seq = excluded.next_seq,
       base_seq = excluded.base_seq,
       base_gen = excluded.base_gen,
       low_seq = excluded.low_seq,
       erased_epoch = excluded.erased_epoch,
       item_count = excluded.item_count,
       byte_count = excluded.byte_count,
       chain_response_id = excluded.chain_response_id,
       chain_stored = excluded.chain_stored,
       chain_deferred_id = excluded.chain_deferred_id,
       chain_epoch = excluded.chain_epoch,
       chain_seq = excluded.chain_seq,
       created_at = excluded.created_at,
       updated_at = excluded.updated_at,
       deleted_at = excluded.deleted_at,
       owner = excluded.owner,
       metadata = excluded.metadata
"""

RECORD_CHAIN = """
UPDATE cas_session
   SET chain_response_id = ?,
       chain_stored = ?,
       chain_deferred_id = ?,
       chain_epoch = ?,
       chain_seq = ?
 WHERE session_id = ?
"""

SET_METADATA = """
UPDATE cas_session
   SET metadata = ?
 WHERE session_id = ?
   AND version > 0
   AND deleted_at IS NULL
"""

INSERT_ITEM = """
INSERT INTO cas_session_item (session_id, seq, gen, data, created_at)
VALUES (?, ?, ?, ?, ?)
"""

# A limit of -1 is none.
READ_ITEMS = """
SELECT seq, data
  FROM cas_session_item
 WHERE session_id = ?
   AND seq >= ?
   AND (seq > ? OR gen = ?)
   AND popped IS NULL
 ORDER BY seq DESC
 LIMIT ?
"""

READ_ITEMS_WITH_AGES = """
SELECT seq, data, created_at
  FROM cas_session_item
 WHERE session_id = ?
   AND seq >= ?
   AND (seq > ? OR gen = ?)
   AND popped IS NULL
 ORDER BY seq DESC
 LIMIT ?
"""

READ_RAW_ITEMS = """
SELECT seq, CAST(data AS BLOB)
  FROM cas_session_item
 WHERE session_id = ?
 ORDER BY seq
"""

READ_LAST_ITEM = """
SELECT seq, gen, data
  FROM cas_session_item
 WHERE session_id = ?
   AND seq >= ?
   AND (seq > ? OR gen = ?)
   AND popped IS NULL
 ORDER BY seq DESC
 LIMIT 1
"""

READ_ITEMS_AS_OF = """
SELECT seq, data
  FROM cas_session_item
 WHERE session_id = :session_id
   AND seq >= :low_seq
   AND seq < :next_seq
   AND (seq > :base_seq OR gen = :base_gen)
   AND gen <= :epoch
   AND gen >= :erased_epoch
   AND (popped IS NULL OR popped > :version)
 ORDER BY seq
"""

COPY_ITEMS_AS_OF = """
INSERT INTO cas_session_item (session_id, seq, gen, data, created_at)
SELECT session_id,
       :new_seq - 1 + row_number() OVER (ORDER BY seq),
       :new_gen,
       data,
       :now
  FROM cas_session_item
 WHERE session_id = :session_id
   AND seq >= :low_seq
   AND seq < :next_seq
   AND (seq > :base_seq OR gen = :base_gen)
   AND gen <= :epoch
   AND gen >= :erased_epoch
   AND (popped IS NULL OR popped > :version)
"""

MARK_POPPED = """
UPDATE cas_session_item
   SET popped = ?
 WHERE session_id = ?
   AND seq = ?
   AND gen = ?
"""

READ_POPPED_ITEM = """
SELECT i.data
  FROM cas_session AS s
  JOIN cas_session_item AS i ON i.session_id = s.session_id
 WHERE s.session_id = ?
   AND i.popped = ?
   AND i.gen >= s.erased_epoch
"""

INSERT_OP = """
INSERT INTO cas_session_op (
    session_id, op_id, kind,
    version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
    digest, worker, created_at)
VALUES (
    ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?)
"""

READ_OP = """
SELECT op_id, kind,
       version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
       digest, worker, created_at
  FROM cas_session_op
 WHERE session_id = ?
   AND op_id = ?
"""

READ_OP_OF_VERSION = """
SELECT op_id, kind,
       version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
       digest, worker, created_at
  FROM cas_session_op
 WHERE session_id = ?
   AND version = ?
"""

LIST_OPS = """
SELECT op_id, kind,
       version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
       digest, worker, created_at
  FROM cas_session_op
 WHERE session_id = ?
   AND version < ?
 ORDER BY version DESC
 LIMIT ?
"""

READ_RUNNING = """
SELECT attempt_id,
       expires_at > strftime('%Y-%m-%d %H:%M:%f', 'now')
  FROM cas_session_compaction
 WHERE session_id = ?
   AND status = 'running'
"""

EXPIRE_COMPACTION = """
UPDATE cas_session_compaction
   SET status = 'expired',
       finished_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
 WHERE attempt_id = ?
   AND status = 'running'
"""

INSERT_COMPACTION = """
INSERT INTO cas_session_compaction (
    attempt_id, session_id, status, owner, started_at, expires_at, trigger,
    source_version, source_nonce, source_epoch, source_last_seq, source_items, source_digest,
    model, host)
VALUES (
    ?, ?, 'running', ?,
    strftime('%Y-%m-%d %H:%M:%f', 'now'), strftime('%Y-%m-%d %H:%M:%f', 'now', ?), ?,
    ?, ?, ?, ?, ?, ?,
    ?, ?)
"""

RENEW_COMPACTION = """
UPDATE cas_session_compaction
   SET expires_at = strftime('%Y-%m-%d %H:%M:%f', 'now', ?)
 WHERE attempt_id = ?
   AND status = 'running'
"""

# An attempt whose source was erased keeps no digest and no text.
FINISH_COMPACTION = """
UPDATE cas_session_compaction
   SET status = CASE status WHEN 'running' THEN :status ELSE status END,
       finished_at = strftime('%Y-%m-%d %H:%M:%f', 'now'),
       decision = :decision,
       output_items = :output_items,
       source_digest = CASE WHEN erased.since THEN NULL ELSE source_digest END,
       output_digest = CASE WHEN erased.since THEN NULL ELSE :output_digest END,
       error = CASE WHEN erased.since THEN NULL ELSE :error END,
       found_version = :found_version,
       target_version = :target_version,
       appended_during = :appended_during,
       model = coalesce(:model, model),
       host = coalesce(:host, host),
       response_id = :response_id,
       usage = :usage
  FROM (SELECT coalesce(max(s.erased_epoch > a.source_epoch), 0) AS since
          FROM cas_session_compaction AS a
          LEFT JOIN cas_session AS s ON s.session_id = a.session_id
         WHERE a.attempt_id = :attempt_id) AS erased
 WHERE attempt_id = :attempt_id
"""

LIST_COMPACTIONS = """
SELECT attempt_id, session_id, status, owner, started_at, expires_at, finished_at, trigger,
       source_version, source_nonce, source_epoch, source_last_seq, source_items, source_digest,
       output_items, output_digest, found_version, target_version, appended_during, decision,
       model, host, response_id, usage, error
  FROM cas_session_compaction
 WHERE session_id = ?
 ORDER BY started_at DESC, rowid DESC
 LIMIT ?
"""

# A page begins behind (:moment, :session_id). Version 0 counts as none.
LIST_CREATED = """
SELECT session_id,
       version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
       chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
       created_at, updated_at, deleted_at, owner, metadata
  FROM cas_session
 WHERE deleted_at IS NULL
   AND version > 0
   AND (created_at, session_id) < (:moment, :session_id)
 ORDER BY created_at DESC, session_id DESC
 LIMIT :limit
"""

LIST_CREATED_BY_OWNER = """
SELECT session_id,
       version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
       chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
       created_at, updated_at, deleted_at, owner, metadata
  FROM cas_session
 WHERE owner = :owner
   AND deleted_at IS NULL
   AND version > 0
   AND (created_at, session_id) < (:moment, :session_id)
 ORDER BY created_at DESC, session_id DESC
 LIMIT :limit
"""

LIST_ACTIVE_BY_OWNER = """
SELECT session_id,
       version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
       chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
       created_at, updated_at, deleted_at, owner, metadata
  FROM cas_session
 WHERE owner = :owner
   AND deleted_at IS NULL
   AND version > 0
   AND (updated_at, session_id) < (:moment, :session_id)
 ORDER BY updated_at DESC, session_id DESC
 LIMIT :limit
"""

DELETE_ERASED_ITEMS = """
DELETE FROM cas_session_item
 WHERE rowid IN (SELECT i.rowid
                   FROM cas_session AS s
                   JOIN cas_session_item AS i ON i.session_id = s.session_id
                  WHERE s.session_id = ?
                    AND i.gen < s.erased_epoch
                  LIMIT ?)
"""

# A clear leaves what it erased at or below base_seq, which never goes back: the tail is not looked at.
HAS_ERASED_ITEMS = """
SELECT 1
  FROM cas_session AS s
  JOIN cas_session_item AS i ON i.session_id = s.session_id
 WHERE s.session_id = ?
   AND s.erased_epoch > 0
   AND i.seq <= s.base_seq
   AND i.gen < s.erased_epoch
 LIMIT 1
"""

FORGET_ERASED_TEXTS = """
UPDATE cas_session_compaction
   SET source_digest = NULL,
       output_digest = NULL,
       error = NULL
 WHERE session_id = :session_id
   AND source_epoch < (SELECT erased_epoch FROM cas_session WHERE session_id = :session_id)
   AND (source_digest IS NOT NULL OR output_digest IS NOT NULL OR error IS NOT NULL)
"""

# An empty text sorts before every moment: a retention longer than the calendar removes nothing.
READ_CUTOFFS = """
SELECT coalesce(strftime('%Y-%m-%d %H:%M:%f', 'now', ?), ''),
       coalesce(strftime('%Y-%m-%d %H:%M:%f', 'now', ?), '')
"""

# The next sessions, and whether each may have something to prune: its oldest op row is old enough and it
# hides something (what hides rows has an op row), or a crash left erased rows. Hidden rows lie at or below
# base_seq, with few visible ones, and popped ones have an index: no history is read for this.
FIND_PRUNABLE = """
SELECT s.session_id,
       (:item_cutoff >= (SELECT o.created_at
                           FROM cas_session_op AS o
                          WHERE o.session_id = s.session_id
                          ORDER BY o.version
                          LIMIT 1)
        AND (EXISTS (SELECT 1
                       FROM cas_session_item AS i
                      WHERE i.session_id = s.session_id
                        AND i.seq <= s.base_seq
                        AND i.gen <> s.base_gen)
             OR EXISTS (SELECT 1
                          FROM cas_session_item AS i
                         WHERE i.session_id = s.session_id
                           AND i.popped IS NOT NULL)))
       OR (s.erased_epoch > 0
           AND EXISTS (SELECT 1
                         FROM cas_session_item AS i
                        WHERE i.session_id = s.session_id
                          AND i.seq <= s.base_seq
                          AND i.gen < s.erased_epoch))
       OR :op_cutoff >= (SELECT o.created_at
                           FROM cas_session_op AS o
                          WHERE o.session_id = s.session_id
                            AND o.version < s.version
                          ORDER BY o.version
                          LIMIT 1)
       OR EXISTS (SELECT 1
                    FROM cas_session_compaction AS c
                   WHERE c.session_id = s.session_id
                     AND (coalesce(c.finished_at, c.expires_at) <= :op_cutoff
                          OR (c.source_epoch < s.erased_epoch
                              AND (c.source_digest IS NOT NULL
                                   OR c.output_digest IS NOT NULL
                                   OR c.error IS NOT NULL))))
  FROM cas_session AS s
 WHERE s.session_id > :after
 ORDER BY s.session_id
 LIMIT :sessions
"""

# Maintenance's own attempts have the session '', which has no row.
HAS_OLD_ATTEMPTS = """
SELECT EXISTS (SELECT 1
                 FROM cas_session_compaction
                WHERE session_id = ''
                  AND coalesce(finished_at, expires_at) <= ?)
"""

READ_OP_VERSIONS = """
SELECT (SELECT version FROM cas_session_op WHERE session_id = ?1 ORDER BY version LIMIT 1),
       (SELECT version FROM cas_session_op WHERE session_id = ?1 ORDER BY version DESC LIMIT 1)
"""

# The newest op row up to a version.
READ_OP_UP_TO = """
SELECT kind, epoch, base_seq, base_gen, created_at
  FROM cas_session_op
 WHERE session_id = ?
   AND version <= ?
 ORDER BY version DESC
 LIMIT 1
"""

DELETE_HIDDEN_ITEMS = """
DELETE FROM cas_session_item
 WHERE rowid IN (SELECT rowid
                   FROM cas_session_item
                  WHERE session_id = ?
                    AND seq <= ?
                    AND gen < ?
                  LIMIT ?)
"""

# Of the items that were popped first. A pop whose op row is gone is old enough.
DELETE_POPPED_ITEMS = """
DELETE FROM cas_session_item
 WHERE rowid IN (SELECT i.id
                   FROM (SELECT rowid AS id, popped
                           FROM cas_session_item
                          WHERE session_id = :session_id
                            AND popped IS NOT NULL
                          ORDER BY popped
                          LIMIT :rows) AS i
                  WHERE NOT EXISTS (SELECT 1
                                      FROM cas_session_op AS o
                                     WHERE o.session_id = :session_id
                                       AND o.version = i.popped
                                       AND o.created_at > :item_cutoff))
"""

DELETE_COMPACTIONS = """
DELETE FROM cas_session_compaction
 WHERE rowid IN (SELECT rowid
                   FROM cas_session_compaction
                  WHERE session_id = ?
                    AND coalesce(finished_at, expires_at) <= ?
                  LIMIT ?)
"""

# The newest op row stays, and the one that a running attempt was planned from.
# An op row is the key to its version's items, which were current until the next write: it counts from there.
# Only the oldest are looked at, so many that one may have to stay.
DELETE_OPS = """
DELETE FROM cas_session_op
 WHERE rowid IN (SELECT o.id
                   FROM (SELECT rowid AS id, version, created_at
                           FROM cas_session_op
                          WHERE session_id = :session_id
                            AND :op_cutoff >= (SELECT created_at
                                                 FROM cas_session_op
                                                WHERE session_id = :session_id
                                                ORDER BY version
                                                LIMIT 1)
                          ORDER BY version
                          LIMIT :rows + 1) AS o
                  WHERE o.version < (SELECT version FROM cas_session WHERE session_id = :session_id)
                    AND o.created_at <= :op_cutoff
                    AND NOT EXISTS (SELECT 1
                                      FROM cas_session_op AS n
                                     WHERE n.session_id = :session_id
                                       AND n.version = o.version + 1
                                       AND n.created_at > :op_cutoff)
                    AND NOT EXISTS (SELECT 1
                                      FROM cas_session_compaction AS c
                                     WHERE c.session_id = :session_id
                                       AND c.status = 'running'
                                       AND c.source_version = o.version)
                  ORDER BY o.version
                  LIMIT :rows)
"""

# Not beside a live attempt: one that was planned at version 0 has no op row by which to tell that the session
# it meets is another one.
FORGET_SESSION = """
DELETE FROM cas_session
 WHERE session_id = ?
   AND deleted_at IS NOT NULL
   AND NOT EXISTS (SELECT 1
                     FROM cas_session_compaction AS c
                    WHERE c.session_id = cas_session.session_id
                      AND c.status = 'running'
                      AND c.expires_at > strftime('%Y-%m-%d %H:%M:%f', 'now'))
"""

FORGET_ITEMS = "DELETE FROM cas_session_item WHERE session_id = ?"

FORGET_OPS = "DELETE FROM cas_session_op WHERE session_id = ?"

FORGET_COMPACTIONS = "DELETE FROM cas_session_compaction WHERE session_id = ?"

HAS_REVISION = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'cas_session_alembic_version'"

READ_REVISION = "SELECT version_num FROM cas_session_alembic_version"

PING = "SELECT count(*) FROM sqlite_master"
