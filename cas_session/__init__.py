"""Conversation storage for agent servers that survives concurrent compaction."""

from cas_session.compaction.policy import CompactionPolicy, TriggerContext
from cas_session.compaction.report import CompactionReport
from cas_session.errors import (
    CasSessionError,
    CompactorError,
    ConfigurationError,
    ItemDecodingError,
    ItemEncodingError,
    OperationMismatchError,
    SchemaVersionError,
    SessionNotFoundError,
    StorageUnavailableError,
    StoreClosedError,
    VersionConflictError,
    VersionNotRetainedError,
    WriteOutcomeUnknownError,
)
from cas_session.retry import RetryPolicies, RetryPolicy
from cas_session.session import CasSession
from cas_session.snapshot import Item, Snapshot, Version
from cas_session.store import SessionInfo, SessionStore

__all__ = [
    "CasSession",
    "CasSessionError",
    "CompactionPolicy",
    "CompactionReport",
    "CompactorError",
    "ConfigurationError",
    "Item",
    "ItemDecodingError",
    "ItemEncodingError",
    "OperationMismatchError",
    "RetryPolicies",
    "RetryPolicy",
    "SchemaVersionError",
    "SessionInfo",
    "SessionNotFoundError",
    "SessionStore",
    "Snapshot",
    "StorageUnavailableError",
    "StoreClosedError",
    "TriggerContext",
    "Version",
    "VersionConflictError",
    "VersionNotRetainedError",
    "WriteOutcomeUnknownError",
]
