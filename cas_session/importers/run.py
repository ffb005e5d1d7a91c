"""The import: find what earlier runs wrote, and append the rest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal, get_args

from cas_session.checks import check_id
from cas_session.driver import Load
from cas_session.errors import OperationMismatchError, VersionConflictError
from cas_session.importers.known import Known, Refusal, find_blocks, op_id_of, prefix_of
from cas_session.importers.source import Conversations, Rejected, Row, Source, printable
from cas_session.snapshot import Item
from cas_session.store import SessionStore

CHUNK_ITEMS = 1000  # of one append; nearly every conversation is one
CHUNK_BYTES = 4 * 2**20
KEPT = 100  # rejections in a report; every one is told as it is found

Corrupt = Literal["refuse", "leave_out"]
CORRUPT: tuple[Corrupt, ...] = get_args(Corrupt)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import did, or with ``dry_run`` would do.

    Attributes:
        source: The source's name.
        dry_run: Nothing was written.
        sessions: Conversations that got items.
        items: Items that were written.
        already_there: Items that earlier runs had written.
        rejected: Rows that hold no item.
        refused: Conversations that were left as they are.
        reasons: The first hundred of what was rejected and refused.
    """

    source: str
    dry_run: bool = False
    sessions: int = 0
    items: int = 0
    already_there: int = 0
    rejected: int = 0
    refused: int = 0
    reasons: tuple[Rejected, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all that the source holds is there now."""
        return not self.rejected and not self.refused


async def import_sessions(
    source: Source,
    store: SessionStore,
    *,
    append: bool = False,
    corrupt: Corrupt = "refuse",
    dry_run: bool = False,
    on_rejected: Callable[[Rejected], object] = lambda rejected: None,
    on_progress: Callable[[ImportReport], object] = lambda report: None,
) -> ImportReport:
    """Take the conversations of a source over, each under its own id.

    A run can be broken off and made again at any time: each append has an op_id made of the source's name
    and its first row, so it lands once, and a source that has grown is continued. What earlier runs wrote is
    known by those op rows, which live for the store's ``fence`` or ``retain``, whichever is longer (30 days
    by default); the newest write of a session stays. When they are gone, the conversation is refused rather
    than imported twice, unless ``append`` is set.

    A conversation is left as it is, and the report says so, if

    - its id is none (over 512 bytes, NUL), or a row of it holds no JSON object;
    - the session exists and earlier runs did not make it, or somebody wrote to it since and there is more;
      also if it is deleted or cleared, so that what was erased stays erased;
    - rows that were imported are not what they were: popped, cleared or compacted in the source.

    One that has up to 1,000 items and 4 MB lands as a whole or not at all. Of a longer one, whoever writes
    to the session while it is imported may find the write between two of its parts.

    Args:
        source: Such as `SdkTables` or `JsonLines`. It is never written to.
        store: Where they go.
        append: Also behind what others wrote.
        corrupt: ``leave_out`` imports a conversation without its rows that hold no JSON object.
        dry_run: Read and compare everything, write nothing.
        on_rejected: Hears of each row and conversation that is not imported.
        on_progress: Hears the report so far after each conversation.

    Raises:
        ConfigurationError: The source cannot be read.
        CasSessionError: Of the store. What was imported until then stays; run it again.
    """
    if corrupt not in CORRUPT:
        raise ValueError(f"corrupt is one of {CORRUPT}, not {corrupt!r}")
    run = _Import(source, store, append=append, corrupt=corrupt, dry_run=dry_run, on_rejected=on_rejected)
    async with source.open() as conversations, aclosing(conversations.session_ids()) as session_ids:
        async for session_id in session_ids:
            if not await run.take_over(conversations, session_id):
                break
            on_progress(run.report())
    return run.report()


@dataclass(slots=True)
class _Plan:
    """What one conversation comes to.

    Attributes:
        version: At which the session must still be; 0: it must not exist.
        already: Items that are there.
        new: Items that are not.
        rejected: Rows that hold none.
    """

    version: int
    already: int = 0
    new: int = 0
    rejected: int = 0


@dataclass(slots=True)
class _Chunk:
    """Items that are appended together."""

    first: Row
    items: list[Item] = field(default_factory=list)
    size: int = 0

    def takes(self, row: Row) -> bool:
        return len(self.items) < CHUNK_ITEMS and self.size + row.size <= CHUNK_BYTES

    def add(self, row: Row) -> None:
        assert row.item is not None
        self.items.append(row.item)
        self.size += row.size


class _Import:
    """One run."""

    def __init__(
        self,
        source: Source,
        store: SessionStore,
        *,
        append: bool,
        corrupt: Corrupt,
        dry_run: bool,
        on_rejected: Callable[[Rejected], object],
    ) -> None:
        self._source = source
        self._store = store
        self._append = append
        self._corrupt = corrupt
        self._dry_run = dry_run
        self._on_rejected = on_rejected
        self._prefix = prefix_of(source.name)
        self._sessions = self._items = self._already = self._rejected = self._refused = 0
        self._reasons: list[Rejected] = []

    def report(self) -> ImportReport:
        return ImportReport(
            source=self._source.name,
            dry_run=self._dry_run,
            sessions=self._sessions,
            items=self._items,
            already_there=self._already,
            rejected=self._rejected,
            refused=self._refused,
            reasons=tuple(self._reasons),
        )

    async def take_over(self, conversations: Conversations, session_id: str | None) -> bool:
        """Import one conversation; say whether to go on with the others."""
        if session_id is None:
            return await self._reject_homeless(conversations)
        try:
            try:
                check_id("session_id", session_id)
            except ValueError as error:
                raise Refusal(str(error)) from error
            plan = await self._plan(conversations, session_id)
            self._already += plan.already
            if plan.new and self._dry_run:
                self._sessions += 1
                self._items += plan.new
            elif plan.new:
                await self._write(conversations, session_id, plan)
        except Refusal as refusal:
            self._refused += 1
            self._tell(Rejected(conversations.table, printable(session_id), None, str(refusal)))
        return True

    async def _reject_homeless(self, conversations: Conversations) -> bool:
        async with aclosing(conversations.rows(None)) as rows:
            async for row in rows:
                self._reject(conversations, None, row)
        if self._corrupt == "leave_out":
            return True
        why = "lines that name no conversation may be a part of any: nothing was imported"
        self._refused += 1
        self._tell(Rejected(conversations.table, None, None, why))
        return False

    async def _plan(self, conversations: Conversations, session_id: str) -> _Plan:
        """Read the conversation to its end and compare it with what is there. Nothing is written."""
        loaded = await self._store.backend.load(Load(session_id, 0))
        blocks = await find_blocks(self._store.backend, session_id, self._prefix)
        known = Known(self._prefix, blocks)
        plan = _Plan(blocks[-1].op.manifest.version if blocks else 0)
        async with aclosing(conversations.rows(session_id)) as rows:
            async for row in rows:
                if row.item is None:
                    plan.rejected += 1
                    self._reject(conversations, session_id, row)
                elif known.has(row):
                    plan.already += 1
                else:
                    plan.new += 1
        known.check_end()
        if plan.rejected and self._corrupt == "refuse":
            raise Refusal(f"{plan.rejected} of its rows hold no item")
        if plan.new and not self._append and loaded.manifest.version != plan.version:
            raise Refusal(_others(loaded.manifest.version, plan))
        return plan

    async def _write(self, conversations: Conversations, session_id: str, plan: _Plan) -> None:
        """Append what is new. The first append lands only if the plan is still right; then the rest must."""
        expected = None if self._append else plan.version
        written = 0
        async with aclosing(self._chunks(conversations, session_id, plan.already)) as chunks:
            async for chunk in chunks:
                session = self._store.session(
                    session_id, owner=chunk.first.owner, metadata=chunk.first.metadata
                )
                try:
                    await session.append(
                        chunk.items, op_id=op_id_of(self._prefix, chunk.first), expected_version=expected
                    )
                except (VersionConflictError, OperationMismatchError) as error:
                    raise Refusal(f"somebody wrote to it during the import: {error}") from error
                expected = None
                self._sessions += written == 0
                self._items += len(chunk.items)
                written += len(chunk.items)
        if written != plan.new:
            raise Refusal(f"the source changed while it was read: {written} of {plan.new} items were written")

    async def _chunks(
        self, conversations: Conversations, session_id: str, already: int
    ) -> AsyncGenerator[_Chunk, None]:
        chunk: _Chunk | None = None
        async with aclosing(conversations.rows(session_id)) as rows:
            async for row in rows:
                if row.item is None:
                    continue
                if already:
                    already -= 1
                    continue
                if chunk is not None and not chunk.takes(row):
                    yield chunk
                    chunk = None
                if chunk is None:
                    chunk = _Chunk(row)
                chunk.add(row)
        if chunk is not None:
            yield chunk

    def _reject(self, conversations: Conversations, session_id: str | None, row: Row) -> None:
        self._rejected += 1
        self._tell(Rejected(conversations.table, session_id, row.number, row.why, row.raw))

    def _tell(self, rejected: Rejected) -> None:
        if len(self._reasons) < KEPT:
            self._reasons.append(rejected)
        self._on_rejected(rejected)


def _others(version: int, plan: _Plan) -> str:
    if plan.version == 0:
        return f"the session exists already, at version {version}, and no earlier run of this import made it"
    return f"others wrote to the session since the import, and the source has {plan.new} more items"
