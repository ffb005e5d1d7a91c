"""The export: sessions as JSON Lines, which `JsonLines` reads back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from cas_session import codec
from cas_session.checks import check_id
from cas_session.driver import Load, Loaded, SessionRow
from cas_session.errors import ItemDecodingError, SessionNotFoundError
from cas_session.importers.source import Rejected
from cas_session.snapshot import Item
from cas_session.store import SessionInfo, SessionStore

PAGE = 500
KEPT = 100
ITEM_TABLE = "cas_session_item"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        sessions: Sessions that were written.
        items: Their items.
        refused: Sessions with a row that cannot be decoded, of which nothing was written.
        reasons: The first hundred of those rows.
    """

    sessions: int = 0
    items: int = 0
    refused: int = 0
    reasons: tuple[Rejected, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing was left out."""
        return not self.refused


async def export_sessions(
    store: SessionStore,
    write: Callable[[str], object],
    *,
    session_ids: Sequence[str] | None = None,
    on_rejected: Callable[[Rejected], object] = lambda rejected: None,
    on_progress: Callable[[ExportReport], object] = lambda report: None,
) -> ExportReport:
    """Write what sessions hold now, a line an item: ``{"session_id": "...", "item": {...}}``.

    The first line of a session also has its ``owner`` and ``metadata``, if there are any. Each session is one
    snapshot, whoever writes meanwhile; one at a time is held in memory. Sessions come newest first by
    creation, so that the same database gives the same file; those made or revived after the export began may
    be missing. A session without items has no line.

    Args:
        store: Where they are.
        write: Gets each line, with its line end.
        session_ids: Only these, in this order; None: all that are not deleted.
        on_rejected: Hears of each session that is left out.
        on_progress: Hears the report so far after each session.

    Raises:
        SessionNotFoundError: One of ``session_ids`` does not exist, or is deleted.
    """
    report, reasons = ExportReport(), list[Rejected]()
    sessions = items = refused = 0
    async for loaded in _all(store) if session_ids is None else _named(store, session_ids):
        assert loaded.row is not None
        try:
            lines = _lines(loaded.row, codec.decode(loaded.row.session_id, loaded.rows))
        except ItemDecodingError as error:
            refused += 1
            rejected = Rejected(
                ITEM_TABLE, error.session_id, error.seq, error.why, _text_at(loaded, error.seq)
            )
            reasons += [rejected] if len(reasons) < KEPT else []
            on_rejected(rejected)
        else:
            for line in lines:
                write(line)
            sessions += 1
            items += len(lines)
        report = ExportReport(sessions=sessions, items=items, refused=refused, reasons=tuple(reasons))
        on_progress(report)
    return report


async def _all(store: SessionStore) -> AsyncIterator[Loaded]:
    after: SessionInfo | None = None
    while page := await store.list_sessions(limit=PAGE, after=after):
        for info in page:
            loaded = await store.backend.load(Load(info.session_id))
            if _exists(loaded):  # and was not deleted since
                yield loaded
        after = page[-1]


async def _named(store: SessionStore, session_ids: Sequence[str]) -> AsyncIterator[Loaded]:
    for session_id in session_ids:
        loaded = await store.backend.load(Load(check_id("session_id", session_id)))
        if not _exists(loaded):
            raise SessionNotFoundError(session_id)
        yield loaded


def _exists(loaded: Loaded) -> bool:
    return loaded.row is not None and loaded.row.deleted_at is None and loaded.manifest.version > 0


def _lines(row: SessionRow, items: list[Item]) -> list[str]:
    """The lines of a session. They are put together of texts, for an item may be as deep as a line."""
    named = codec.encode([{"session_id": row.session_id}]).texts[0][:-1]
    lines = [f'{named},"item":{text}}}\n' for text in codec.encode(items).texts]
    if lines and row.owner is not None:
        named = codec.encode([{"session_id": row.session_id, "owner": row.owner}]).texts[0][:-1]
    if lines and (row.owner is not None or row.metadata is not None):
        metadata = f',"metadata":{row.metadata}' if row.metadata is not None else ""
        lines[0] = f'{named}{metadata},"item":{codec.encode(items[:1]).texts[0]}}}\n'
    return lines


def _text_at(loaded: Loaded, seq: int) -> str | None:
    return next((text for at, text in loaded.rows if at == seq), None)
