"""The contract between the store and a database: verbs, each one transaction, one parameter object a verb.

A driver does not retry, sleep or log. At its edge every database error becomes one of three:

- `VersionConflictError`: the write did not land, for the session is not what the caller expected;
- `StorageUnavailableError`: it did not land, and ``transient`` says whether sending it again may help;
- `WriteOutcomeUnknownError`: it was sent and nobody answered. Sending the same write again, with the same
  op_id and ``fenced=True``, either lands it or finds that it had landed.

A unit that was begun is settled, finished or rolled back, before the cancellation of its caller goes on, as
a `CancelledUnitError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol

from cas_session.snapshot import Version

Kind = Literal["append", "pop", "clear", "replace", "compact", "restore", "delete"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The part of a session row that says which item rows are visible, after one write.

    An item row is visible if ``popped`` is null, ``seq >= low_seq``, and either ``seq > base_seq`` or
    ``gen == base_gen``. seq counts from 1. `next_seq` and `base_seq` never go back.
    """

    version: Version
    epoch: int
    next_seq: int
    base_seq: int
    base_gen: int
    low_seq: int
    erased_epoch: int
    item_count: int
    byte_count: int


NO_SESSION = Manifest(Version(0), 0, 1, 0, 0, 1, 0, 0, 0)
"""The manifest of a session that does not exist."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What the session row knows of the provider's stored responses. Any rewrite resets it.

    Attributes:
        response_id: The last response, for ``previous_response_id``.
        stored: Whether the provider kept it; None if nobody said, which counts as kept.
        deferred_id: A response whose compaction was put off until its tool outputs are in.
        epoch: The epoch of the run's read; the chain is void in any other.
        seq: The last seq that the chain covers.
    """

    response_id: str | None = None
    stored: bool | None = None
    deferred_id: str | None = None
    epoch: int | None = None
    seq: int | None = None


NO_CHAIN = Chain()


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session row as it stands. A tombstone has ``deleted_at``; ``metadata`` is JSON text."""

    session_id: str
    manifest: Manifest
    chain: Chain
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    owner: str | None
    metadata: str | None


@dataclass(frozen=True, slots=True)
class Known:
    """What a reader has: every item visible at this version, the last of them at or below ``seq``."""

    version: Version
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read the manifest and the newest ``limit`` visible items (None: all) in one statement.

    Attributes:
        ages: Read also when each item was stored.
        known: Read only the items behind it, if only appends came since: the epoch is the same, and the op
            row of its version still has its nonce. Not together with a limit or ages.
    """

    session_id: str
    limit: int | None = None
    ages: bool = False
    known: Known | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load found: rows of (seq, text), oldest first, and with ``ages`` a moment for each row.

    ``extends`` says that the rows are only those behind what was known.
    """

    row: SessionRow | None
    rows: Sequence[tuple[int, str]]
    created_at: Sequence[datetime] = ()
    extends: bool = False

    @property
    def manifest(self) -> Manifest:
        return self.row.manifest if self.row is not None else NO_SESSION

    @property
    def chain(self) -> Chain:
        return self.row.chain if self.row is not None else NO_CHAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What every write carries.

    Attributes:
        op_id: The identity of the write, the same each time it is sent; the fence for re-sent writes.
        nonce: Random, new each time it is sent.
        digest: Of kind and payload, keyed with the op_id; another one under the same op_id is a mistake.
        expected: None writes unconditionally; a Version checks number and nonce, a bare int the number;
            0 creates the session if there is none.
        fenced: The write may have landed already (sent before, or the op_id is the user's own): look for its
            op row before a conflict is reported.
        worker: Who writes, for the audit trail.
    """

    session_id: str
    op_id: str
    nonce: str
    digest: bytes
    expected: int | None = None
    fenced: bool = False
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Write):
    """Append one or more items as one block. ``owner`` and ``metadata`` apply if it creates the session."""

    texts: tuple[str, ...]
    sizes: tuple[int, ...]
    owner: str | None = None
    metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pop(Write):
    """Hide the last visible item. An empty session stays as it is: nothing is written.

    ``locked`` takes the row lock first, so that the pop lands beside any number of writers.
    """

    locked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear(Write):
    """Erase all items, also of an empty session and of one that does not exist.

    ``delete`` leaves a tombstone: deleted_at is set and the metadata goes. ``owner`` and ``metadata`` apply
    if a clear creates the session.
    """

    delete: bool = False
    owner: str | None = None
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class Prefix:
    """The part of a history that a compaction replaces.

    Attributes:
        through: The last seq of it (s); base_seq <= s < next_seq, else ValueError.
        planned: The version that the plan was made from; its op row must still have this nonce.
        epoch: The epoch of that version; any other is a conflict.
        item_count: How many visible items the prefix has.
        byte_count: Their UTF-8 bytes.
    """

    through: int
    planned: Version
    epoch: int
    item_count: int
    byte_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(Write):
    """Replace the whole history, or only its prefix, by these items. The tail is not touched.

    A whole replace needs ``expected``. A prefix replace needs its epoch and its ancestor, and checks
    ``expected`` as well if one is given. Its kind is ``compact``. ``owner`` and ``metadata`` apply if a whole
    replace creates the session or revives a tombstone.
    """

    texts: tuple[str, ...]
    sizes: tuple[int, ...]
    prefix: Prefix | None = None
    owner: str | None = None
    metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Write):
    """Bring back the items of ``version`` as a new rewrite. It needs ``expected``."""

    version: int


@dataclass(frozen=True, slots=True)
class Landed:
    """A write that landed, or had nothing to write.

    Attributes:
        manifest: As this write left it; its version is the write's own.
        chain: As the row has it; None if an earlier sending had landed and only the op row was read.
        item: The item's text, for a pop; None if there was none.
        found_version: The version just before a prefix replace.
    """

    manifest: Manifest
    chain: Chain | None
    item: str | None = None
    found_version: int | None = None


@dataclass(frozen=True, slots=True)
class OpRow:
    """One landed write, for the audit trail. No content."""

    op_id: str
    kind: Kind
    manifest: Manifest
    digest: bytes
    worker: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginCompaction:
    """Take the lease: insert the running attempt, only if the session's epoch is still the source's.

    An attempt that has expired by the database's clock is taken over and marked ``expired``.
    """

    attempt_id: str
    session_id: str
    owner: str
    lease: timedelta
    trigger: str
    source: Manifest
    last_seq: int
    item_count: int
    digest: bytes
    model: str | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishCompaction:
    """Close an attempt with what was read, paid and decided.

    If the session was erased since the source, no digest and no text is stored.
    """

    attempt_id: str
    status: Literal["done", "expired"] = "done"
    decision: str
    output_items: int | None = None
    output_digest: bytes | None = None
    found_version: int | None = None
    target_version: int | None = None
    appended_during: int | None = None
    model: str | None = None
    host: str | None = None
    response_id: str | None = None
    usage: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CompactionRow:
    """One attempt as it is recorded; ``usage`` is JSON text."""

    attempt_id: str
    session_id: str
    status: str
    owner: str
    started_at: datetime
    expires_at: datetime
    finished_at: datetime | None
    trigger: str
    source_version: int
    source_nonce: str
    source_epoch: int
    source_last_seq: int
    source_items: int
    source_digest: bytes | None
    output_items: int | None
    output_digest: bytes | None
    found_version: int | None
    target_version: int | None
    appended_during: int | None
    decision: str | None
    model: str | None
    host: str | None
    response_id: str | None
    usage: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSessions:
    """A page of sessions, deleted ones left out.

    Attributes:
        owner: Only this owner's.
        order: ``created`` or ``active`` (last written; within one owner only), newest first.
        limit: Rows at most.
        after: (moment, session_id) of the last row of the page before.
    """

    owner: str | None = None
    order: Literal["created", "active"] = "created"
    limit: int = 50
    after: tuple[datetime, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Remove one bounded batch of what nobody can read any more.

    Attributes:
        retain: How long hidden items are kept, counted from the hiding.
        fence: How long op rows are kept at least.
        batch: Rows at most.
    """

    retain: timedelta
    fence: timedelta
    batch: int = 1000


@dataclass(frozen=True, slots=True)
class Traits:
    """What differs between databases and matters to callers.

    Attributes:
        name: For messages and logs.
        migrates_when_opened: A local file is brought to the newest schema without being asked.
    """

    name: str
    migrates_when_opened: bool


class GroupRefusedError(Exception):
    """The database refused a group of several appends. Nothing of it landed: send each member alone."""


class CancelledUnitError(asyncio.CancelledError):
    """The caller was cancelled after its unit was begun. The unit was settled first.

    Attributes:
        error: What the unit raised; None if it landed.
    """

    def __init__(self, error: BaseException | None, *message: object) -> None:
        super().__init__(*message)
        self.error = error


class Driver(Protocol):
    """One database. Every method is one transaction unless it says otherwise."""

    traits: Traits

    async def open(self) -> None:
        """Connect; leave nothing open if that fails or is cancelled.

        Raises:
            ConfigurationError: A person has to mend something (server too old, file not writable, login).
            StorageUnavailableError: The server does not answer.
        """

    async def schema_revision(self) -> str | None:
        """The revision that the database's migrations have reached; None if the tables are missing."""

    async def migrate(self) -> None:
        """Bring the schema to the newest revision, under a lock, so that any number may call it at once."""

    async def close(self) -> None:
        """Wait for what is under way, then close every connection."""

    async def ping(self) -> None:
        """One round trip to the database."""

    async def load(self, load: Load) -> Loaded:
        """Read version and items in one statement, so that they belong together."""

    async def load_as_of(self, session_id: str, version: int) -> Loaded:
        """Read the items of an earlier version; row.manifest is that version's.

        Raises:
            SessionNotFoundError: There is no session row.
            VersionNotRetainedError: Not every item of it is there.
            ValueError: The version was not written yet.
        """

    async def append(self, group: Sequence[Append]) -> list[Landed]:
        """Append the members' blocks to one session, in order, as one statement: all of them land or none.

        Each member has a version, an op row and a contiguous block of its own. A conditional or fenced
        append is alone in its group.

        Raises:
            GroupRefusedError: A group of several was refused.
        """

    async def pop(self, pop: Pop) -> Landed:
        """Hide the last item and return it. Losing the race to another writer is a StorageUnavailableError
        (nothing landed, send it again)."""

    async def clear(self, clear: Clear) -> Landed:
        """Erase, or delete. The erased rows themselves go with `remove_erased`."""

    async def remove_erased(self, session_id: str) -> None:
        """Remove every item row with gen < erased_epoch, and the digests and error texts of attempts from
        before."""

    async def replace(self, replace: Replace) -> Landed:
        """Replace all, or the prefix."""

    async def restore(self, restore: Restore) -> Landed:
        """Bring an earlier version's items back.

        Raises:
            SessionNotFoundError, VersionNotRetainedError, ValueError: As in `load_as_of`.
        """

    async def record_chain(self, session_id: str, chain: Chain) -> bool:
        """Write all chain columns if the session's epoch is ``chain.epoch``; say whether it was.

        A session that does not exist gets a row with version 0, which counts as none.
        """

    async def begin_compaction(self, begin: BeginCompaction) -> Literal["started", "held", "moved"]:
        """Take the lease. ``held``: another worker has a live one. ``moved``: the epoch is another."""

    async def renew_compaction(self, attempt_id: str, lease: timedelta) -> bool:
        """Prolong the lease from now on; False if the attempt is not the running one any more."""

    async def finish_compaction(self, finish: FinishCompaction) -> None:
        """Close the attempt. An attempt that was taken over keeps its status and gets the rest."""

    async def find_op(self, session_id: str, op_id: str) -> OpRow | None:
        """The op row of a write, if it landed (and is not pruned)."""

    async def operations(self, session_id: str, *, limit: int, before: int | None) -> list[OpRow]:
        """Op rows, newest first, below version ``before``."""

    async def compactions(self, session_id: str, *, limit: int) -> list[CompactionRow]:
        """Attempts, newest first."""

    async def list_sessions(self, query: ListSessions) -> list[SessionRow]:
        """A page of session rows."""

    async def set_metadata(self, session_id: str, metadata: str | None) -> bool:
        """Write the user's own metadata; False if there is no such session. No version moves."""

    async def prune(self, prune: Prune) -> int:
        """Remove one batch and say how many rows went; 0 means that nothing is left to prune now."""

    async def forget(self, session_id: str) -> bool:
        """Remove every row of a tombstone; False if there is none, or a compaction of it is running."""
