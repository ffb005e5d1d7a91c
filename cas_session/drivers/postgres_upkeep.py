"""The Postgres statements without an op row: chain, lease, metadata, erasing, pruning. All may be sent twice.

What is hidden or erased never comes back, so a removal that reads a snapshot is right beside live writers.
"""

from __future__ import annotations

# The chain: $1 session_id, $2 response id, $3 stored, $4 deferred id, $5 epoch, $6 seq.
RECORD_CHAIN = """
UPDATE cas_session SET
    chain_response_id = $2::text,
    chain_stored = $3::boolean,
    chain_deferred_id = $4::text,
    chain_epoch = $5::bigint,
    chain_seq = $6::bigint
WHERE session_id = $1::text AND epoch = $5::bigint
RETURNING true
"""

# A session that does not exist has epoch 0; the row that it gets has version 0, which counts as none.
RECORD_CHAIN_OF_EPOCH_0 = """
INSERT INTO cas_session AS t (
    session_id, version, epoch, nonce, next_seq, base_seq, base_gen, low_seq, erased_epoch,
    item_count, byte_count, chain_response_id, chain_stored, chain_deferred_id, chain_epoch, chain_seq,
    created_at, updated_at
)
VALUES (
    $1::text, 0, 0, '', 1, 0, 0, 1, 0,
    0, 0, $2::text, $3::boolean, $4::text, $5::bigint, $6::bigint,
    now(), now()
)
ON CONFLICT (session_id) DO UPDATE SET
    chain_response_id = excluded.chain_response_id,
    chain_stored = excluded.chain_stored,
    chain_deferred_id = excluded.chain_deferred_id,
    chain_epoch = excluded.chain_epoch,
    chain_seq = excluded.chain_seq
WHERE t.epoch = excluded.chain_epoch
RETURNING true
"""

# $1 session_id, $2 metadata
SET_METADATA = """
UPDATE cas_session SET metadata = $2::text
WHERE session_id = $1::text AND deleted_at IS NULL AND version > 0
RETURNING true
"""

# $1 attempt_id, $2 session_id, $3 owner, $4 lease, $5 trigger, $6 to $9 version, nonce, epoch and last seq of
# the source, $10 its items, $11 their digest, $12 model, $13 host. Reading the count of ``x`` first makes the
# insert see the old attempt expired.
BEGIN_COMPACTION = """
WITH e AS (
    SELECT COALESCE((SELECT epoch FROM cas_session WHERE session_id = $2::text), 0) = $8::bigint AS stands
),
x AS (
    UPDATE cas_session_compaction c SET status = 'expired', finished_at = clock_timestamp()
    FROM e
    WHERE e.stands AND c.session_id = $2::text AND c.status = 'running' AND c.expires_at <= clock_timestamp()
        AND c.attempt_id <> $1::text
    RETURNING c.attempt_id
),
a AS (
    INSERT INTO cas_session_compaction (
        attempt_id, session_id, status, owner, started_at, expires_at, trigger, source_version, source_nonce,
        source_epoch, source_last_seq, source_items, source_digest, model, host
    )
    SELECT
        $1::text, $2::text, 'running', $3::text, clock_timestamp(), clock_timestamp() + $4::interval,
        $5::text, $6::bigint, $7::text, $8::bigint, $9::bigint, $10::bigint, $11::bytea, $12::text, $13::text
    FROM e
    WHERE e.stands AND (SELECT count(*) FROM x) >= 0
    ON CONFLICT DO NOTHING
    RETURNING attempt_id
)
SELECT
    CASE
        WHEN EXISTS (SELECT FROM a) THEN 'started'
        WHEN EXISTS (
            SELECT FROM cas_session_compaction
            WHERE attempt_id = $1::text AND session_id = $2::text AND status = 'running'
        ) THEN 'started'
        WHEN e.stands THEN 'held'
        ELSE 'moved'
    END
FROM e
"""

# $1 attempt_id, $2 lease
RENEW_COMPACTION = """
UPDATE cas_session_compaction SET expires_at = clock_timestamp() + $2::interval
WHERE attempt_id = $1::text AND status = 'running'
RETURNING true
"""

# $1 attempt_id, $2 status, then the columns in their order. The lock on the session row makes this and a
# clear wait for each other, so that no digest is written behind the clear that removes them.
FINISH_COMPACTION = """
WITH s AS (
    SELECT erased_epoch FROM cas_session
    WHERE session_id = (SELECT session_id FROM cas_session_compaction WHERE attempt_id = $1::text)
    FOR NO KEY UPDATE
)
UPDATE cas_session_compaction c SET
    status = CASE WHEN c.status = 'running' THEN $2::text ELSE c.status END,
    finished_at = clock_timestamp(),
    decision = $3::text,
    output_items = $4::bigint,
    source_digest = CASE
        WHEN COALESCE((SELECT erased_epoch FROM s), 0) > c.source_epoch THEN NULL ELSE c.source_digest
    END,
    output_digest = CASE
        WHEN COALESCE((SELECT erased_epoch FROM s), 0) > c.source_epoch THEN NULL ELSE $5::bytea
    END,
    found_version = $6::bigint,
    target_version = $7::bigint,
    appended_during = $8::bigint,
    model = COALESCE($9::text, c.model),
    host = COALESCE($10::text, c.host),
    response_id = $11::text,
    usage = $12::text,
    error = CASE WHEN COALESCE((SELECT erased_epoch FROM s), 0) > c.source_epoch THEN NULL ELSE $13::text END
WHERE c.attempt_id = $1::text
RETURNING true
"""

# $1 session_id
REMOVE_ERASED = """
WITH s AS (SELECT erased_epoch FROM cas_session WHERE session_id = $1::text),
i AS (
    DELETE FROM cas_session_item i USING s
    WHERE i.session_id = $1::text AND i.gen < s.erased_epoch
)
UPDATE cas_session_compaction c SET source_digest = NULL, output_digest = NULL, error = NULL
FROM s
WHERE c.session_id = $1::text AND c.source_epoch < s.erased_epoch
    AND (c.source_digest IS NOT NULL OR c.output_digest IS NOT NULL OR c.error IS NOT NULL)
"""

# One batch of one window of sessions: $1 behind which session, $2 rows at most, $3 the age of hidden items,
# $4 of op rows and attempts, $5 sessions at most. It returns how many rows went and the last session seen.
#
# ``y`` is the session's first young write. What the manifest just before it hid has been hidden long enough:
# that of the newest op row before, or of ``y`` itself if it left base_seq and base_gen as they were. Nothing
# is taken by its gen alone. A pop whose op row is gone is old. LIMIT in a lateral keeps the planner at one
# index range a session; SKIP LOCKED keeps two workers out of each other's way. An op row is the key to its
# version's items, which were current until the next write: it counts from there, so that the one before the
# first young one stays. Maintenance's own attempts have the session '', which has no row: the first window
# takes them.
PRUNE = """
WITH s AS MATERIALIZED (
    SELECT s.session_id, s.version, s.base_seq, s.base_gen, s.erased_epoch, y.version AS young, y.kind
    FROM (
        SELECT * FROM cas_session WHERE session_id > $1::text ORDER BY session_id LIMIT $5::bigint
    ) s
    LEFT JOIN LATERAL (
        SELECT o.version, o.kind FROM cas_session_op o
        WHERE o.session_id = s.session_id AND o.created_at > now() - $3::interval
        ORDER BY o.version
        LIMIT 1
    ) y ON true
),
hidden AS MATERIALIZED (
    SELECT i.session_id, i.seq, i.gen
    FROM s
    LEFT JOIN LATERAL (
        SELECT o.base_seq, o.base_gen FROM cas_session_op o
        WHERE o.session_id = s.session_id
            AND (
                s.young IS NULL OR o.version < s.young
                OR o.version = s.young AND s.kind IN ('append', 'pop')
            )
        ORDER BY o.version DESC
        LIMIT 1
    ) b ON true
    CROSS JOIN LATERAL (
        SELECT i.session_id, i.seq, i.gen FROM cas_session_item i
        WHERE i.session_id = s.session_id AND i.seq <= s.base_seq AND i.gen < s.base_gen
            AND (i.gen < s.erased_epoch OR i.seq <= b.base_seq AND i.gen < b.base_gen)
        ORDER BY i.seq
        LIMIT $2::bigint
        FOR UPDATE SKIP LOCKED
    ) i
    LIMIT $2::bigint
),
popped AS MATERIALIZED (
    SELECT i.session_id, i.seq, i.gen
    FROM s
    CROSS JOIN LATERAL (
        SELECT i.session_id, i.seq, i.gen FROM cas_session_item i
        WHERE i.session_id = s.session_id AND i.popped IS NOT NULL
            AND NOT EXISTS (
                SELECT FROM cas_session_op o
                WHERE o.session_id = s.session_id AND o.version = i.popped
                    AND o.created_at > now() - $3::interval
            )
        LIMIT $2::bigint
        FOR UPDATE SKIP LOCKED
    ) i
    LIMIT $2::bigint - (SELECT count(*) FROM hidden)
),
ops AS MATERIALIZED (
    SELECT o.session_id, o.version
    FROM s
    LEFT JOIN LATERAL (
        SELECT o.version FROM cas_session_op o
        WHERE o.session_id = s.session_id AND o.created_at > now() - $4::interval
        ORDER BY o.version
        LIMIT 1
    ) y ON true
    CROSS JOIN LATERAL (
        SELECT o.session_id, o.version FROM cas_session_op o
        WHERE o.session_id = s.session_id AND o.version < LEAST(s.version, y.version - 1)
            AND NOT EXISTS (
                SELECT FROM cas_session_compaction c
                WHERE c.session_id = s.session_id AND c.status = 'running' AND c.source_version = o.version
            )
        LIMIT $2::bigint
        FOR UPDATE SKIP LOCKED
    ) o
    LIMIT $2::bigint - (SELECT count(*) FROM hidden) - (SELECT count(*) FROM popped)
),
attempts AS MATERIALIZED (
    SELECT c.attempt_id
    FROM (SELECT session_id FROM s UNION ALL SELECT '' WHERE $1::text = '') s
    CROSS JOIN LATERAL (
        SELECT c.attempt_id FROM cas_session_compaction c
        WHERE c.session_id = s.session_id AND c.status <> 'running'
            AND COALESCE(c.finished_at, c.expires_at) <= now() - $4::interval
        LIMIT $2::bigint
        FOR UPDATE SKIP LOCKED
    ) c
    LIMIT $2::bigint - (SELECT count(*) FROM hidden) - (SELECT count(*) FROM popped)
        - (SELECT count(*) FROM ops)
),
gone_items AS (
    DELETE FROM cas_session_item i USING (SELECT * FROM hidden UNION SELECT * FROM popped) v
    WHERE i.session_id = v.session_id AND i.seq = v.seq AND i.gen = v.gen
    RETURNING 1
),
gone_ops AS (
    DELETE FROM cas_session_op o USING ops v
    WHERE o.session_id = v.session_id AND o.version = v.version
    RETURNING 1
),
gone_attempts AS (
    DELETE FROM cas_session_compaction c USING attempts v WHERE c.attempt_id = v.attempt_id RETURNING 1
)
SELECT
    (SELECT count(*) FROM gone_items) + (SELECT count(*) FROM gone_ops)
        + (SELECT count(*) FROM gone_attempts),
    (SELECT max(session_id) FROM s)
"""

# What a crash behind a clear left: digests and error texts of attempts from before. The same window.
PRUNE_ERASED_TEXTS = """
UPDATE cas_session_compaction c SET source_digest = NULL, output_digest = NULL, error = NULL
FROM (
    SELECT session_id, erased_epoch FROM cas_session
    WHERE session_id > $1::text ORDER BY session_id LIMIT $2::bigint
) s
WHERE c.session_id = s.session_id AND c.source_epoch < s.erased_epoch
    AND (c.source_digest IS NOT NULL OR c.output_digest IS NOT NULL OR c.error IS NOT NULL)
"""

# Under the lock of LOCK_SESSION, so that nothing of a writer that was waited for stays behind. Not beside a
# live attempt: one that was planned at version 0 has no op row by which to tell another session apart.
FORGET_TOMBSTONE = """
DELETE FROM cas_session s
WHERE s.session_id = $1::text AND s.deleted_at IS NOT NULL
    AND NOT EXISTS (
        SELECT FROM cas_session_compaction c
        WHERE c.session_id = $1::text AND c.status = 'running' AND c.expires_at > now()
    )
RETURNING true
"""

FORGET_ITEMS = "DELETE FROM cas_session_item WHERE session_id = $1::text"

FORGET_OPS = "DELETE FROM cas_session_op WHERE session_id = $1::text"

FORGET_COMPACTIONS = "DELETE FROM cas_session_compaction WHERE session_id = $1::text"
