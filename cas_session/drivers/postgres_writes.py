"""The Postgres statements of the writes: each one round trip, autocommit, READ COMMITTED.

The row lock on the session row serialises writers. A write is one data-modifying CTE on that row (``s``),
which feeds the inserts of items and op. Its predicate stands on the target row, for only that is checked
again after a wait. Where nothing landed, ``c`` locks the row and returns what is true now: a plain subselect
would read the statement's snapshot, from before the wait. What inserts a session stands only where its
absence is allowed: the WHERE of an upsert guards its update and not its insert.

Parameters of every write: $1 session_id, $2 op_id, $3 nonce, $4 digest, $5 worker, $6 kind, $7 expected
version, $8 expected nonce ('' checks the number only). Its row: the manifest, the chain, whether it landed,
and if not deleted_at and the epoch of the expected version's op row. No row: nothing landed, and there was
no session in the statement's snapshot.
"""

from __future__ import annotations

_OP = """
o AS (
    INSERT INTO cas_session_op (
        session_id, op_id, version, kind, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, digest, worker, created_at
    )
    SELECT
        $1::text, $2::text, s.version, $6::text, s.nonce, s.epoch, s.next_seq, s.base_seq, s.base_gen,
        s.low_seq, s.erased_epoch, s.item_count, s.byte_count, $4::bytea, $5::text, s.updated_at
    FROM s
)"""

_ITEMS_AT_THE_END = """
i AS (
    INSERT INTO cas_session_item (session_id, seq, gen, data, created_at)
    SELECT $1::text, s.next_seq - cardinality($9::text[]) - 1 + u.at, s.epoch, u.data, s.updated_at
    FROM s, unnest($9::text[]) WITH ORDINALITY AS u (data, at)
)"""

_ITEMS_FROM_LOW_SEQ = """
i AS (
    INSERT INTO cas_session_item (session_id, seq, gen, data, created_at)
    SELECT $1::text, s.low_seq - 1 + u.at, s.epoch, u.data, s.updated_at
    FROM s, unnest($9::text[]) WITH ORDINALITY AS u (data, at)
)"""

_NO_CHAIN = """
        chain_response_id = NULL,
        chain_stored = NULL,
        chain_deferred_id = NULL,
        chain_epoch = NULL,
        chain_seq = NULL,"""

_LANDED = """
SELECT
    s.version, s.nonce, s.epoch, s.next_seq, s.base_seq, s.base_gen, s.low_seq, s.erased_epoch,
    s.item_count, s.byte_count, s.chain_response_id, s.chain_stored, s.chain_deferred_id, s.chain_epoch,
    s.chain_seq, true, NULL::timestamptz, NULL::bigint
FROM s
"""

_IF_NOT = """
c AS (
    SELECT
        t.*,
        (
            SELECT o.epoch FROM cas_session_op o
            WHERE o.session_id = $1::text AND o.version = $7::bigint
                AND (o.nonce = $8::text OR $8::text = '')
        ) AS expected_epoch
    FROM cas_session t
    WHERE t.session_id = $1::text AND NOT EXISTS (SELECT FROM s)
    FOR NO KEY UPDATE
)"""

_NOT_LANDED = """
UNION ALL
SELECT
    c.version, c.nonce, c.epoch, c.next_seq, c.base_seq, c.base_gen, c.low_seq, c.erased_epoch,
    c.item_count, c.byte_count, c.chain_response_id, c.chain_stored, c.chain_deferred_id, c.chain_epoch,
    c.chain_seq, false, c.deleted_at, c.expected_epoch
FROM c
"""

# $9 texts, $10 their bytes, $11 owner, $12 metadata. Unconditional ($7 is null, which the WHERE insists on)
# and the hottest, so without ``c``.
APPEND = f"""
WITH s AS (
    INSERT INTO cas_session AS t (
        session_id, version, epoch, nonce, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, created_at, updated_at, owner, metadata
    )
    VALUES (
        $1::text, 1, 0, $3::text, 1 + cardinality($9::text[]), 0, 0, 1, 0,
        cardinality($9::text[]), $10::bigint, now(), clock_timestamp(), $11::text, $12::text
    )
    ON CONFLICT (session_id) DO UPDATE SET
        version = t.version + 1,
        nonce = excluded.nonce,
        next_seq = t.next_seq + excluded.item_count,
        item_count = t.item_count + excluded.item_count,
        byte_count = t.byte_count + excluded.byte_count,
        created_at = CASE WHEN t.version = 0 OR t.deleted_at IS NOT NULL THEN now() ELSE t.created_at END,
        updated_at = clock_timestamp(),
        deleted_at = NULL,
        owner = CASE WHEN t.version = 0 OR t.deleted_at IS NOT NULL THEN excluded.owner ELSE t.owner END,
        metadata = CASE
            WHEN t.version = 0 OR t.deleted_at IS NOT NULL THEN excluded.metadata ELSE t.metadata
        END
    WHERE $7::bigint IS NULL AND $8::text = ''
    RETURNING t.*
),{_ITEMS_AT_THE_END},{_OP}{_LANDED}"""

# As APPEND, for a session that must not exist.
APPEND_NEW = f"""
WITH s AS (
    INSERT INTO cas_session AS t (
        session_id, version, epoch, nonce, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, created_at, updated_at, owner, metadata
    )
    VALUES (
        $1::text, 1, 0, $3::text, 1 + cardinality($9::text[]), 0, 0, 1, 0,
        cardinality($9::text[]), $10::bigint, now(), clock_timestamp(), $11::text, $12::text
    )
    ON CONFLICT (session_id) DO UPDATE SET
        version = 1,
        nonce = excluded.nonce,
        next_seq = excluded.next_seq,
        item_count = excluded.item_count,
        byte_count = excluded.byte_count,
        created_at = now(),
        updated_at = clock_timestamp(),
        owner = excluded.owner,
        metadata = excluded.metadata
    WHERE t.version = 0
    RETURNING t.*
),{_ITEMS_AT_THE_END},{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# As APPEND, at the expected version.
APPEND_IF = f"""
WITH s AS (
    UPDATE cas_session t SET
        version = t.version + 1,
        nonce = $3::text,
        next_seq = t.next_seq + cardinality($9::text[]),
        item_count = t.item_count + cardinality($9::text[]),
        byte_count = t.byte_count + $10::bigint,
        created_at = CASE WHEN t.deleted_at IS NULL THEN t.created_at ELSE now() END,
        updated_at = clock_timestamp(),
        deleted_at = NULL,
        owner = CASE WHEN t.deleted_at IS NULL THEN t.owner ELSE $11::text END,
        metadata = CASE WHEN t.deleted_at IS NULL THEN t.metadata ELSE $12::text END
    WHERE t.session_id = $1::text AND t.version = $7::bigint AND (t.nonce = $8::text OR $8::text = '')
    RETURNING t.*
),{_ITEMS_AT_THE_END},{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# Several unconditional appends. $2 to $5 hold one entry a member; so do $7 and $8, items and bytes up to the
# member's last. $9 the texts of all, $10 owner, $11 metadata.
APPEND_GROUP = f"""
WITH s AS (
    INSERT INTO cas_session AS t (
        session_id, version, epoch, nonce, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, created_at, updated_at, owner, metadata
    )
    VALUES (
        $1::text, cardinality($2::text[]), 0, ($3::text[])[cardinality($3::text[])],
        1 + cardinality($9::text[]), 0, 0, 1, 0, cardinality($9::text[]),
        ($8::bigint[])[cardinality($8::bigint[])], now(), clock_timestamp(), $10::text, $11::text
    )
    ON CONFLICT (session_id) DO UPDATE SET
        version = t.version + excluded.version,
        nonce = excluded.nonce,
        next_seq = t.next_seq + excluded.item_count,
        item_count = t.item_count + excluded.item_count,
        byte_count = t.byte_count + excluded.byte_count,
        created_at = CASE WHEN t.version = 0 OR t.deleted_at IS NOT NULL THEN now() ELSE t.created_at END,
        updated_at = clock_timestamp(),
        deleted_at = NULL,
        owner = CASE WHEN t.version = 0 OR t.deleted_at IS NOT NULL THEN excluded.owner ELSE t.owner END,
        metadata = CASE
            WHEN t.version = 0 OR t.deleted_at IS NOT NULL THEN excluded.metadata ELSE t.metadata
        END
    RETURNING t.*
),{_ITEMS_AT_THE_END},
o AS (
    INSERT INTO cas_session_op (
        session_id, op_id, version, kind, nonce, epoch, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, digest, worker, created_at
    )
    SELECT
        $1::text, m.op_id, s.version - cardinality($2::text[]) + m.at, $6::text, m.nonce, s.epoch,
        s.next_seq - cardinality($9::text[]) + m.items, s.base_seq, s.base_gen, s.low_seq, s.erased_epoch,
        s.item_count - cardinality($9::text[]) + m.items,
        s.byte_count - ($8::bigint[])[cardinality($8::bigint[])] + m.bytes,
        m.digest, m.worker, s.updated_at
    FROM s, unnest($2::text[], $3::text[], $4::bytea[], $5::text[], $7::bigint[], $8::bigint[])
        WITH ORDINALITY AS m (op_id, nonce, digest, worker, items, bytes, at)
){_LANDED}"""

# $9 seq, $10 gen and $11 bytes of the last visible item, as read at the expected version.
POP = f"""
WITH s AS (
    UPDATE cas_session t SET
        version = t.version + 1,
        epoch = t.epoch + 1,
        nonce = $3::text,
        item_count = t.item_count - 1,
        byte_count = t.byte_count - $11::bigint,{_NO_CHAIN}
        updated_at = clock_timestamp()
    WHERE t.session_id = $1::text AND t.version = $7::bigint AND (t.nonce = $8::text OR $8::text = '')
    RETURNING t.*
),
i AS (
    UPDATE cas_session_item i SET popped = s.version
    FROM s
    WHERE i.session_id = $1::text AND i.seq = $9::bigint AND i.gen = $10::bigint
),{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# $9 whether it is a delete, $10 owner, $11 metadata. A null $7 is unconditional, else it is 0. No item row is
# touched: a DELETE beside the update would read the statement's snapshot and leave what was appended while it
# waited.
CLEAR = f"""
WITH s AS (
    INSERT INTO cas_session AS t (
        session_id, version, epoch, nonce, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, created_at, updated_at, deleted_at, owner, metadata
    )
    VALUES (
        $1::text, 1, 1, $3::text, 1, 0, 1, 1, 1,
        0, 0, now(), clock_timestamp(), CASE WHEN $9::boolean THEN clock_timestamp() END,
        $10::text, CASE WHEN NOT $9::boolean THEN $11::text END
    )
    ON CONFLICT (session_id) DO UPDATE SET
        version = t.version + 1,
        epoch = t.epoch + 1,
        nonce = excluded.nonce,
        base_seq = t.next_seq - 1,
        base_gen = t.epoch + 1,
        low_seq = t.next_seq,
        erased_epoch = t.epoch + 1,
        item_count = 0,
        byte_count = 0,{_NO_CHAIN}
        updated_at = clock_timestamp(),
        created_at = CASE WHEN t.version = 0 THEN now() ELSE t.created_at END,
        deleted_at = CASE WHEN $9::boolean THEN clock_timestamp() ELSE t.deleted_at END,
        owner = CASE WHEN t.version = 0 THEN excluded.owner ELSE t.owner END,
        metadata = CASE
            WHEN $9::boolean THEN NULL WHEN t.version = 0 THEN excluded.metadata ELSE t.metadata
        END
    WHERE $7::bigint IS NULL OR t.version = 0
    RETURNING t.*
),{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# As CLEAR, at the expected version, so that it creates nothing: without owner and metadata.
CLEAR_IF = f"""
WITH s AS (
    UPDATE cas_session t SET
        version = t.version + 1,
        epoch = t.epoch + 1,
        nonce = $3::text,
        base_seq = t.next_seq - 1,
        base_gen = t.epoch + 1,
        low_seq = t.next_seq,
        erased_epoch = t.epoch + 1,
        item_count = 0,
        byte_count = 0,{_NO_CHAIN}
        updated_at = clock_timestamp(),
        deleted_at = CASE WHEN $9::boolean THEN clock_timestamp() ELSE t.deleted_at END,
        metadata = CASE WHEN $9::boolean THEN NULL ELSE t.metadata END
    WHERE t.session_id = $1::text AND t.version = $7::bigint AND (t.nonce = $8::text OR $8::text = '')
    RETURNING t.*
),{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# $9 texts, $10 their bytes, $11 owner, $12 metadata; for a session that must not exist.
REPLACE_NEW = f"""
WITH s AS (
    INSERT INTO cas_session AS t (
        session_id, version, epoch, nonce, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, created_at, updated_at, owner, metadata
    )
    VALUES (
        $1::text, 1, 1, $3::text, 1 + cardinality($9::text[]), 0, 1, 1, 0,
        cardinality($9::text[]), $10::bigint, now(), clock_timestamp(), $11::text, $12::text
    )
    ON CONFLICT (session_id) DO UPDATE SET
        version = 1,
        epoch = 1,
        nonce = excluded.nonce,
        next_seq = excluded.next_seq,
        base_gen = 1,
        item_count = excluded.item_count,
        byte_count = excluded.byte_count,{_NO_CHAIN}
        created_at = now(),
        updated_at = clock_timestamp(),
        owner = excluded.owner,
        metadata = excluded.metadata
    WHERE t.version = 0
    RETURNING t.*
),{_ITEMS_FROM_LOW_SEQ},{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# $9 texts, $10 their bytes, $11 owner, $12 metadata; at the expected version.
REPLACE_IF = f"""
WITH s AS (
    UPDATE cas_session t SET
        version = t.version + 1,
        epoch = t.epoch + 1,
        nonce = $3::text,
        next_seq = t.next_seq + cardinality($9::text[]),
        base_seq = t.next_seq - 1,
        base_gen = t.epoch + 1,
        low_seq = t.next_seq,
        item_count = cardinality($9::text[]),
        byte_count = $10::bigint,{_NO_CHAIN}
        created_at = CASE WHEN t.deleted_at IS NULL THEN t.created_at ELSE now() END,
        updated_at = clock_timestamp(),
        deleted_at = NULL,
        owner = CASE WHEN t.deleted_at IS NULL THEN t.owner ELSE $11::text END,
        metadata = CASE WHEN t.deleted_at IS NULL THEN t.metadata ELSE $12::text END
    WHERE t.session_id = $1::text AND t.version = $7::bigint AND (t.nonce = $8::text OR $8::text = '')
    RETURNING t.*
),{_ITEMS_FROM_LOW_SEQ},{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# $9 texts, $10 their bytes; for a session that must not exist: what a chain over empty storage leads to.
COMPACT_NEW = f"""
WITH s AS (
    INSERT INTO cas_session AS t (
        session_id, version, epoch, nonce, next_seq, base_seq, base_gen, low_seq, erased_epoch,
        item_count, byte_count, created_at, updated_at
    )
    VALUES (
        $1::text, 1, 1, $3::text, 1, 0, 1, 1 - cardinality($9::text[]), 0,
        cardinality($9::text[]), $10::bigint, now(), clock_timestamp()
    )
    ON CONFLICT (session_id) DO UPDATE SET
        version = 1,
        epoch = 1,
        nonce = excluded.nonce,
        base_gen = 1,
        low_seq = excluded.low_seq,
        item_count = excluded.item_count,
        byte_count = excluded.byte_count,{_NO_CHAIN}
        created_at = now(),
        updated_at = clock_timestamp()
    WHERE t.version = 0
    RETURNING t.*
),{_ITEMS_FROM_LOW_SEQ},{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# $9 texts, $10 their bytes; of the prefix $11 its last seq, $12 its items, $13 its bytes, $14 its epoch, $15
# and $16 version and nonce of the plan. A null $7 leaves the check to the epoch.
COMPACT = f"""
WITH s AS (
    UPDATE cas_session t SET
        version = t.version + 1,
        epoch = t.epoch + 1,
        nonce = $3::text,
        base_seq = $11::bigint,
        base_gen = t.epoch + 1,
        low_seq = $11::bigint - cardinality($9::text[]) + 1,
        item_count = t.item_count - $12::bigint + cardinality($9::text[]),
        byte_count = t.byte_count - $13::bigint + $10::bigint,{_NO_CHAIN}
        created_at = CASE WHEN t.version = 0 OR t.deleted_at IS NOT NULL THEN now() ELSE t.created_at END,
        updated_at = clock_timestamp(),
        deleted_at = NULL
    WHERE t.session_id = $1::text AND t.epoch = $14::bigint
        AND ($7::bigint IS NULL OR t.version = $7::bigint AND (t.nonce = $8::text OR $8::text = ''))
        AND t.base_seq <= $11::bigint AND $11::bigint < t.next_seq
        AND (
            $15::bigint = 0
            OR EXISTS (
                SELECT FROM cas_session_op o
                WHERE o.session_id = $1::text AND o.version = $15::bigint
                    AND o.nonce = $16::text
            )
        )
    RETURNING t.*
),{_ITEMS_FROM_LOW_SEQ},{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""

# $9 the version to bring back. Its rows are read from the statement's snapshot, which is current if the
# expected version still stands; their count proves that all of them are there.
RESTORE = f"""
WITH v AS (
    SELECT o.version, o.epoch, o.next_seq, o.base_seq, o.base_gen, o.low_seq, o.item_count, o.byte_count
    FROM cas_session_op o
    WHERE o.session_id = $1::text AND o.version = $9::bigint
    UNION ALL
    SELECT 0, 0, 1, 0, 0, 1, 0, 0 WHERE $9::bigint = 0
),
r AS (
    SELECT i.data, row_number() OVER (ORDER BY i.seq) AS at
    FROM cas_session t, v, cas_session_item i
    WHERE t.session_id = $1::text AND i.session_id = $1::text
        AND i.seq >= v.low_seq AND i.seq < v.next_seq
        AND i.gen <= v.epoch AND i.gen >= t.erased_epoch
        AND (i.seq > v.base_seq OR i.gen = v.base_gen)
        AND (i.popped IS NULL OR i.popped > v.version)
),
s AS (
    UPDATE cas_session t SET
        version = t.version + 1,
        epoch = t.epoch + 1,
        nonce = $3::text,
        next_seq = t.next_seq + v.item_count,
        base_seq = t.next_seq - 1,
        base_gen = t.epoch + 1,
        low_seq = t.next_seq,
        item_count = v.item_count,
        byte_count = v.byte_count,{_NO_CHAIN}
        created_at = CASE WHEN t.deleted_at IS NULL THEN t.created_at ELSE now() END,
        updated_at = clock_timestamp(),
        deleted_at = NULL
    FROM v
    WHERE t.session_id = $1::text AND t.version = $7::bigint AND (t.nonce = $8::text OR $8::text = '')
        AND v.epoch >= t.erased_epoch AND v.item_count = (SELECT count(*) FROM r)
    RETURNING t.*
),
i AS (
    INSERT INTO cas_session_item (session_id, seq, gen, data, created_at)
    SELECT $1::text, s.low_seq - 1 + r.at, s.epoch, r.data, s.updated_at FROM s, r
),{_OP},{_IF_NOT}{_LANDED}{_NOT_LANDED}"""
