"""What the verbs that read do inside a SQLite transaction, which sees one commit."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import Any

from cas_session.driver import (
    NO_SESSION,
    CompactionRow,
    Known,
    ListSessions,
    Load,
    Loaded,
    Manifest,
    OpRow,
    SessionRow,
)
from cas_session.drivers import sqlite_sql as sql
from cas_session.drivers.sqlite_rows import (
    LARGEST,
    Head,
    moment_text,
    to_compaction,
    to_head,
    to_moment,
    to_op,
    to_session,
)
from cas_session.errors import ItemDecodingError, SessionNotFoundError, VersionNotRetainedError

LAST_MOMENT = "~"  # sorts behind every moment and is what a first page begins at


def load(raw: sqlite3.Connection, load: Load) -> Loaded:
    """The session row and its newest visible items."""
    if load.limit is not None and load.limit < 0:
        raise ValueError(f"limit must be 0 or more, or None for all, not {load.limit}")
    row = read_session(raw, load.session_id)
    if row is None:
        return Loaded(None, [])
    if load.known is not None and is_ancestor(raw, row, load.known):
        session_id, low_seq, base_seq, base_gen = visible(load.session_id, row.manifest)
        behind = (session_id, max(low_seq, load.known.seq + 1), base_seq, base_gen, -1)
        rows = fetch_items(raw, session_id, sql.READ_ITEMS, behind)
        rows.reverse()
        return Loaded(row, rows, extends=True)
    limit = -1 if load.limit is None else min(load.limit, LARGEST)
    statement = sql.READ_ITEMS_WITH_AGES if load.ages else sql.READ_ITEMS
    found = fetch_items(raw, load.session_id, statement, (*visible(load.session_id, row.manifest), limit))
    found.reverse()
    if load.ages:
        return Loaded(row, [(seq, text) for seq, text, _ in found], [to_moment(at) for _, _, at in found])
    return Loaded(row, found)


def is_ancestor(raw: sqlite3.Connection, row: SessionRow, known: Known) -> bool:
    """Whether only appends came since what is known, and none of its writes was lost by a failover."""
    version = row.manifest.version
    if known.version == version and known.version.nonce == version.nonce:
        return True
    if known.epoch != row.manifest.epoch:
        return False
    op = op_of_version(raw, row.session_id, known.version)
    return op is not None and op.manifest.version.nonce == known.version.nonce


def load_as_of(raw: sqlite3.Connection, session_id: str, version: int) -> Loaded:
    """The items of an earlier version, all of them or an error."""
    row = read_session(raw, session_id)
    if row is None or row.manifest.version == 0:
        raise SessionNotFoundError(session_id)
    source = retained(raw, session_id, row.manifest, version)
    rows = fetch_items(raw, session_id, sql.READ_ITEMS_AS_OF, as_of(session_id, row.manifest, source))
    check_complete(session_id, source, len(rows))
    return Loaded(replace(row, manifest=source), rows)


def read_session(raw: sqlite3.Connection, session_id: str) -> SessionRow | None:
    row = raw.execute(sql.READ_SESSION, (session_id,)).fetchone()
    return None if row is None else to_session(row)


def read_head(raw: sqlite3.Connection, session_id: str) -> Head:
    """What a write needs to know, which is less than the row."""
    return to_head(raw.execute(sql.READ_HEAD, (session_id,)).fetchone())


def find_op(raw: sqlite3.Connection, session_id: str, op_id: str) -> OpRow | None:
    row = raw.execute(sql.READ_OP, (session_id, op_id)).fetchone()
    return None if row is None else to_op(row)


def op_of_version(raw: sqlite3.Connection, session_id: str, version: int) -> OpRow | None:
    if not 0 < version <= LARGEST:
        return None
    row = raw.execute(sql.READ_OP_OF_VERSION, (session_id, int(version))).fetchone()
    return None if row is None else to_op(row)


def operations(raw: sqlite3.Connection, session_id: str, limit: int, before: int | None) -> list[OpRow]:
    bound = LARGEST if before is None else min(before, LARGEST)
    listed = raw.execute(sql.LIST_OPS, (session_id, bound, min(limit, LARGEST)))
    return [to_op(row) for row in listed.fetchall()]


def compactions(raw: sqlite3.Connection, session_id: str, limit: int) -> list[CompactionRow]:
    listed = raw.execute(sql.LIST_COMPACTIONS, (session_id, min(limit, LARGEST)))
    return [to_compaction(row) for row in listed.fetchall()]


def list_sessions(raw: sqlite3.Connection, query: ListSessions) -> list[SessionRow]:
    if query.owner is None and query.order == "active":
        raise ValueError("order='active' lists the sessions of one owner: give the owner")
    if query.order == "active":
        statement = sql.LIST_ACTIVE_BY_OWNER
    else:
        statement = sql.LIST_CREATED if query.owner is None else sql.LIST_CREATED_BY_OWNER
    moment, session_id = query.after or (None, "")
    parameters = {
        "owner": query.owner,
        "moment": LAST_MOMENT if moment is None else moment_text(moment),
        "session_id": session_id,
        "limit": min(query.limit, LARGEST),
    }
    return [to_session(row) for row in raw.execute(statement, parameters).fetchall()]


def schema_revision(raw: sqlite3.Connection) -> str | None:
    if raw.execute(sql.HAS_REVISION).fetchone() is None:
        return None
    row = raw.execute(sql.READ_REVISION).fetchone()
    return None if row is None else str(row[0])


def ping(raw: sqlite3.Connection) -> None:
    raw.execute(sql.PING).fetchone()


def retained(raw: sqlite3.Connection, session_id: str, current: Manifest, version: int) -> Manifest:
    """The manifest of an earlier version, if its items may still be there."""
    if not 0 <= version <= current.version:
        raise ValueError(
            f"session {session_id!r} is at version {int(current.version)}; "
            f"there is no version {int(version)} of it"
        )
    if version == 0:
        source: Manifest | None = NO_SESSION
    else:
        op = op_of_version(raw, session_id, version)
        source = None if op is None else op.manifest
    if source is None:
        raise VersionNotRetainedError(session_id, version, "pruned")
    if source.epoch < current.erased_epoch:
        raise VersionNotRetainedError(session_id, version, "erased")
    return source


def check_complete(session_id: str, source: Manifest, rows: int) -> None:
    if rows != source.item_count:
        raise VersionNotRetainedError(session_id, source.version, "pruned")


def visible(session_id: str, manifest: Manifest) -> tuple[str, int, int, int]:
    return session_id, manifest.low_seq, manifest.base_seq, manifest.base_gen


def as_of(session_id: str, current: Manifest, source: Manifest) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "low_seq": source.low_seq,
        "next_seq": source.next_seq,
        "base_seq": source.base_seq,
        "base_gen": source.base_gen,
        "epoch": source.epoch,
        "erased_epoch": current.erased_epoch,
        "version": int(source.version),
    }


def fetch_items(raw: sqlite3.Connection, session_id: str, statement: str, parameters: Any) -> list[Any]:
    try:
        return raw.execute(statement, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if hasattr(error, "sqlite_errorcode"):
            raise
        # Python's module, not SQLite, refused a text, and its message quotes it: say which one it is instead.
        for seq, data in raw.execute(sql.READ_RAW_ITEMS, (session_id,)):
            if not _is_utf8(data):
                raise ItemDecodingError(session_id, seq, "it is no UTF-8") from None
        raise


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
