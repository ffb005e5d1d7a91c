"""What SQLite's errors mean, by their codes: the one place that says so."""

from __future__ import annotations

import sqlite3

from cas_session.errors import ConfigurationError, StorageUnavailableError, WriteOutcomeUnknownError

PERSISTENT = {
    sqlite3.SQLITE_FULL: "the disk is full: free space, then send it again",
    sqlite3.SQLITE_READONLY: "the database cannot be written: check the file's and the folder's permissions",
    sqlite3.SQLITE_IOERR: "the disk reports an error: check the disk and the file system",
    sqlite3.SQLITE_CORRUPT: "the database file is damaged: restore it from a backup",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database: check the path",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened: check that the folder exists and can be written",
    sqlite3.SQLITE_TOOBIG: "an item is larger than SQLite takes: split it",
}
TRANSIENT = {
    sqlite3.SQLITE_BUSY: "another connection holds the database",
    sqlite3.SQLITE_LOCKED: "another connection holds a table",
    sqlite3.SQLITE_PROTOCOL: "the write-ahead log is contended",
    sqlite3.SQLITE_INTERRUPT: "the call took longer than its time and was rolled back",
    sqlite3.SQLITE_NOMEM: "SQLite has no memory",
    sqlite3.SQLITE_SCHEMA: "the schema changed meanwhile",
}


def translate(error: BaseException) -> BaseException:
    """The one place that says what a database error means. What is no database error is returned as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    primary = _primary_code(error)
    transient = primary in TRANSIENT
    what = TRANSIENT.get(primary) or PERSISTENT.get(primary) or "SQLite refused the call"
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    translated = StorageUnavailableError(f"{what} ({name}: {error})", transient=transient)
    translated.__cause__ = error
    return translated


def translate_commit(error: sqlite3.Error, op_id: str) -> Exception:
    """What a COMMIT means that failed and ended the transaction: nobody knows what stays on the disk."""
    if op_id:
        unknown: Exception = WriteOutcomeUnknownError(f"COMMIT failed ({error})", op_id=op_id)
    else:
        unknown = StorageUnavailableError(f"COMMIT failed ({error}), and sending it again does no harm")
    unknown.__cause__ = error
    return unknown


def translate_open(error: sqlite3.Error, path: str) -> Exception:
    """What keeps a file from being opened is for a person to mend, unless it is only busy."""
    if _primary_code(error) in TRANSIENT:
        failure: Exception = StorageUnavailableError(f"cannot open {path!r} ({error})")
    else:
        what = PERSISTENT.get(_primary_code(error), "SQLite refused to open it")
        failure = ConfigurationError(f"cannot use {path!r} as a database: {what} ({error})")
    failure.__cause__ = error
    return failure


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection held what this one needed."""
    return _primary_code(error) == sqlite3.SQLITE_BUSY


def _primary_code(error: sqlite3.Error) -> int:
    """The error's code without its details; -1 for an error that Python's module raised by itself."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else code
