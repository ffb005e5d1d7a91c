"""The Postgres statements that read. Version and items come from one statement, which keeps them together.

Three things are written for the planner, so that it walks the primary key backwards, also in a database that
was never analyzed, instead of sorting a whole history for its last 20 items: ``(popped > 0) IS NOT TRUE`` is
``popped IS NULL``, of which it would expect one row in 200; a LIMIT from a subselect, by which it expects to
want a tenth of the rows; and bounds from subselects, which, unlike a join, it always looks up in the index.
They hide the session as well: a plan for one session looks no cheaper than that for all, which is made once.
"""

from __future__ import annotations

# $1 session_id, $2 limit (null: all). The first row is (null, session row as JSON), so that not every item
# carries it; then (seq, data), newest first.
LOAD = """
WITH s AS MATERIALIZED (SELECT * FROM cas_session WHERE session_id = $1::text)
SELECT NULL::bigint, row_to_json(s)::text FROM s
UNION ALL
(
    SELECT i.seq, i.data
    FROM cas_session_item i
    WHERE i.session_id = (SELECT s.session_id FROM s) AND i.seq >= (SELECT s.low_seq FROM s)
        AND (i.popped > 0) IS NOT TRUE
        AND (i.seq > (SELECT s.base_seq FROM s) OR i.gen = (SELECT s.base_gen FROM s))
    ORDER BY i.seq DESC
    LIMIT (SELECT $2::bigint)
)
"""

# As LOAD, behind what the reader knows: $2 its last seq, $3 its version, $4 the nonce, $5 the epoch. The JSON
# says whether the rows extend it: only appends came since, and no failover lost a write of it.
LOAD_BEHIND = """
WITH s AS MATERIALIZED (
    SELECT
        t.*,
        t.version = $3::bigint AND t.nonce = $4::text OR t.epoch = $5::bigint AND EXISTS (
            SELECT FROM cas_session_op o
            WHERE o.session_id = $1::text AND o.version = $3::bigint AND o.nonce = $4::text
        ) AS extends
    FROM cas_session t
    WHERE t.session_id = $1::text
)
SELECT NULL::bigint, row_to_json(s)::text FROM s
UNION ALL
(
    SELECT i.seq, i.data
    FROM cas_session_item i
    WHERE i.session_id = (SELECT s.session_id FROM s) AND (i.popped > 0) IS NOT TRUE
        AND i.seq >= (
            SELECT CASE WHEN s.extends THEN greatest(s.low_seq, $2::bigint + 1) ELSE s.low_seq END FROM s
        )
        AND (i.seq > (SELECT s.base_seq FROM s) OR i.gen = (SELECT s.base_gen FROM s))
    ORDER BY i.seq DESC
    LIMIT (SELECT NULL::bigint)
)
"""

# As LOAD, with the moment of each item.
LOAD_WITH_AGES = """
WITH s AS MATERIALIZED (SELECT * FROM cas_session WHERE session_id = $1::text)
SELECT NULL::bigint, row_to_json(s)::text, NULL::timestamptz FROM s
UNION ALL
(
    SELECT i.seq, i.data, i.created_at
    FROM cas_session_item i
    WHERE i.session_id = (SELECT s.session_id FROM s) AND i.seq >= (SELECT s.low_seq FROM s)
        AND (i.popped > 0) IS NOT TRUE
        AND (i.seq > (SELECT s.base_seq FROM s) OR i.gen = (SELECT s.base_gen FROM s))
    ORDER BY i.seq DESC
    LIMIT (SELECT $2::bigint)
)
"""

# $1 session_id, $2 version. The first row is (null, session row and op row as JSON); erased rows stay out.
LOAD_AS_OF = """
WITH s AS MATERIALIZED (SELECT * FROM cas_session WHERE session_id = $1::text),
v AS MATERIALIZED (
    SELECT * FROM cas_session_op WHERE session_id = $1::text AND version = $2::bigint
)
SELECT NULL::bigint, json_build_array(row_to_json(s), row_to_json(v))::text FROM s LEFT JOIN v ON true
UNION ALL
(
    SELECT i.seq, i.data
    FROM s, v, cas_session_item i
    WHERE i.session_id = $1::text AND i.seq >= v.low_seq AND i.seq < v.next_seq
        AND i.gen <= v.epoch AND i.gen >= s.erased_epoch
        AND (i.seq > v.base_seq OR i.gen = v.base_gen)
        AND (i.popped IS NULL OR i.popped > v.version)
    ORDER BY i.seq
)
"""

# The manifest, the chain, and seq, gen and data of the last visible item.
LAST_ITEM = """
SELECT
    s.version, s.nonce, s.epoch, s.next_seq, s.base_seq, s.base_gen, s.low_seq, s.erased_epoch,
    s.item_count, s.byte_count, s.chain_response_id, s.chain_stored, s.chain_deferred_id, s.chain_epoch,
    s.chain_seq, i.seq, i.gen, i.data
FROM cas_session s
LEFT JOIN LATERAL (
    SELECT i.seq, i.gen, i.data
    FROM cas_session_item i
    WHERE i.session_id = s.session_id AND i.seq >= s.low_seq AND (i.popped > 0) IS NOT TRUE
        AND (i.seq > s.base_seq OR i.gen = s.base_gen)
    ORDER BY i.seq DESC
    LIMIT 1
) i ON true
WHERE s.session_id = $1::text
"""

# The same row as a write that did not land returns. $2 expected version, $3 its nonce.
CURRENT = """
SELECT
    t.version, t.nonce, t.epoch, t.next_seq, t.base_seq, t.base_gen, t.low_seq, t.erased_epoch,
    t.item_count, t.byte_count, t.chain_response_id, t.chain_stored, t.chain_deferred_id, t.chain_epoch,
    t.chain_seq, false, t.deleted_at,
    (
        SELECT o.epoch FROM cas_session_op o
        WHERE o.session_id = $1::text AND o.version = $2::bigint
            AND (o.nonce = $3::text OR $3::text = '')
    )
FROM cas_session t
WHERE t.session_id = $1::text
"""

LOCK_SESSION = "SELECT FROM cas_session WHERE session_id = $1::text FOR UPDATE"

FIND_OP = """
SELECT
    version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
    op_id, kind, digest, worker, created_at
FROM cas_session_op
WHERE session_id = $1::text AND op_id = $2::text
"""

FIND_OP_OF_VERSION = """
SELECT nonce, epoch FROM cas_session_op WHERE session_id = $1::text AND version = $2::bigint
"""

# $2 the version of the pop. An erased item stays erased.
FIND_POPPED = """
SELECT i.data
FROM cas_session_item i, cas_session s
WHERE i.session_id = $1::text AND i.popped = $2::bigint
    AND s.session_id = $1::text AND i.gen >= s.erased_epoch
"""

# $2 below which version (null: all), $3 limit.
OPERATIONS = """
SELECT
    version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
    op_id, kind, digest, worker, created_at
FROM cas_session_op
WHERE session_id = $1::text AND version < COALESCE($2::bigint, 9223372036854775807)
ORDER BY version DESC
LIMIT $3::bigint
"""

# $2 limit
COMPACTIONS = """
SELECT
    attempt_id, session_id, status, owner, started_at, expires_at, finished_at, trigger, source_version,
    source_nonce, source_epoch, source_last_seq, source_items, source_digest, output_items, output_digest,
    found_version, target_version, appended_during, decision, model, host, response_id, usage, error
FROM cas_session_compaction
WHERE session_id = $1::text
ORDER BY started_at DESC, attempt_id DESC
LIMIT $2::bigint
"""

# The lists: $1 limit, $2 and $3 moment and session_id of the last row of the page before (null: from the
# top), $4 owner. A row with version 0 only holds a chain and counts as none.
LIST_BY_AGE = """
SELECT
    version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
    chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
    session_id, created_at, updated_at, deleted_at, owner, metadata
FROM cas_session
WHERE deleted_at IS NULL AND version > 0
    AND (created_at, session_id) < (COALESCE($2::timestamptz, 'infinity'), COALESCE($3::text, ''))
ORDER BY created_at DESC, session_id DESC
LIMIT $1::bigint
"""

LIST_BY_OWNER = """
SELECT
    version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
    chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
    session_id, created_at, updated_at, deleted_at, owner, metadata
FROM cas_session
WHERE owner = $4::text AND deleted_at IS NULL AND version > 0
    AND (created_at, session_id) < (COALESCE($2::timestamptz, 'infinity'), COALESCE($3::text, ''))
ORDER BY created_at DESC, session_id DESC
LIMIT $1::bigint
"""

LIST_BY_LAST_WRITE = """
SELECT
    version, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch, item_count, byte_count,
    chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
    session_id, created_at, updated_at, deleted_at, owner, metadata
FROM cas_session
WHERE owner = $4::text AND deleted_at IS NULL AND version > 0
    AND (updated_at, session_id) < (COALESCE($2::timestamptz, 'infinity'), COALESCE($3::text, ''))
ORDER BY updated_at DESC, session_id DESC
LIMIT $1::bigint
"""
