"""Every exception of the package. The class says what the caller does next; the facts are attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from cas_session.snapshot import Version

FailureKind = Literal["retryable", "unsupported", "too_large", "no_chain", "permanent"]
Change = Literal["appended", "rewritten", "deleted", "missing"]


class CasSessionError(Exception):
    """The root of all errors that this package raises on its own behalf."""


class VersionConflictError(CasSessionError):
    """The session is not at the expected version. Nothing was written: load again and decide again.

    Attributes:
        session_id: The session.
        expected: The version that the caller gave.
        actual: The version that is there; 0 if there is no session.
        change: What came between: ``appended`` (only appends), ``rewritten`` (pop, clear, replace,
            compaction, restore), ``deleted``, or ``missing`` (the session is not there at all).
    """

    def __init__(self, session_id: str, *, expected: int, actual: Version, change: Change) -> None:
        super().__init__(
            f"session {session_id!r}: expected version {int(expected)}, found {int(actual)} ({change}); "
            "nothing was written, load the session and decide again"
        )
        self.session_id = session_id
        self.expected = expected
        self.actual = actual
        self.change: Change = change


class SessionNotFoundError(CasSessionError):
    """There is no such session, and the call needs one (restore, operations, compactions, metadata)."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id!r}")
        self.session_id = session_id


class StorageUnavailableError(CasSessionError):
    """The database did not take the call. It did not land: send it again.

    Attributes:
        transient: Whether the same call may succeed by itself in a moment (a deadlock, a busy file, a server
            that restarts), so that the store tries it again within its budget. False for a full disk or a
            damaged file, which somebody has to mend.
    """

    def __init__(self, message: str, *, transient: bool = True) -> None:
        super().__init__(message)
        self.transient = transient


class WriteOutcomeUnknownError(CasSessionError):
    """Nobody knows whether the write landed. Send it again with the same ``op_id``: it lands at most once.

    Attributes:
        op_id: The identity of the write.
    """

    def __init__(self, message: str, *, op_id: str) -> None:
        super().__init__(f"{message}; send it again with op_id={op_id!r}, it lands at most once")
        self.op_id = op_id


class OperationMismatchError(CasSessionError):
    """The ``op_id`` belongs to another write (other kind or items). Nothing was written: use a new one."""

    def __init__(self, session_id: str, op_id: str, *, kind: str, found_kind: str) -> None:
        what = f"a {found_kind}" if kind != found_kind else f"a {found_kind} with other items"
        super().__init__(
            f"session {session_id!r}: op_id {op_id!r} of this {kind} was used for {what}; "
            "nothing was written, give each write an op_id of its own"
        )
        self.session_id = session_id
        self.op_id = op_id


class VersionNotRetainedError(CasSessionError):
    """The items of that version are not kept any more. Never a part of them is returned.

    Attributes:
        session_id: The session.
        version: The version asked for.
        reason: ``erased`` (a clear or delete came after it) or ``pruned`` (older than ``retain``).
    """

    def __init__(self, session_id: str, version: int, reason: Literal["erased", "pruned"]) -> None:
        why = "a clear or delete erased it" if reason == "erased" else "it is older than retain"
        super().__init__(f"session {session_id!r}: version {int(version)} is not retained: {why}")
        self.session_id = session_id
        self.version = version
        self.reason: Literal["erased", "pruned"] = reason


class ConfigurationError(CasSessionError):
    """Something that a person has to mend before a call can work: a URL, a server, an extra, a file."""


class SchemaVersionError(ConfigurationError):
    """The tables are missing or are not the ones that this release needs. The text says the command."""


class ItemEncodingError(CasSessionError, ValueError):
    """An item is not JSON. Nothing was written.

    Attributes:
        index: Position of the item in the call, from 0.
        path: Place inside the item, such as ``content[0].text``; empty for the item itself.
        why: What is wrong there.
    """

    def __init__(self, index: int, path: str, why: str) -> None:
        place = f"items[{index}]" + (f" at {path}" if path else "")
        super().__init__(f"{place}: {why}; nothing was written")
        self.index = index
        self.path = path
        self.why = why


class ItemDecodingError(CasSessionError):
    """A stored row is no JSON object. It is never skipped: repair the row or restore an earlier version.

    Attributes:
        session_id: The session.
        seq: The row's seq.
        why: What is wrong with its text.
    """

    def __init__(self, session_id: str, seq: int, why: str) -> None:
        super().__init__(f"session {session_id!r}: the item at seq {seq} cannot be decoded: {why}")
        self.session_id = session_id
        self.seq = seq
        self.why = why


class CompactorError(CasSessionError):
    """A compactor failed. The history is as it was.

    Attributes:
        kind: ``retryable`` (the same call may succeed later), ``unsupported`` (this server has no such
            endpoint, use another compactor), ``too_large`` (send less), ``no_chain`` (the server does not
            have that response, send the items), ``permanent``.
        retry_after_s: Seconds that the server asked for before the next call.
        status: The HTTP status, if a server answered with one that is not 2xx.
        usage: Tokens of an answer that came and cannot be used.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: FailureKind = "permanent",
        retry_after_s: float | None = None,
        status: int | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.retry_after_s = retry_after_s
        self.status = status
        self.usage: Mapping[str, Any] = usage if usage is not None else {}


class StoreClosedError(CasSessionError):
    """The store is closed, was never opened, or is used in a process or event loop that is not its own."""
