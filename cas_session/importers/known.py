"""What earlier runs of an import wrote, read from the op rows of a session."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from cas_session.backend import Backend
from cas_session.driver import OpRow
from cas_session.importers.source import Row
from cas_session.writes import digest

OPS_PAGE = 500

CHANGED = (
    "its rows are not those that an earlier run imported: it was popped, cleared, compacted or repaired in "
    "the source since, or the op rows of its first part are pruned here"
)
PRUNED = "the op rows from before its import are pruned here, so that nobody can tell what is new"


class Refusal(Exception):
    """This conversation stays as it is; the text says why."""


@dataclass(frozen=True, slots=True)
class Block:
    """An append of an earlier run.

    Attributes:
        op: Its op row.
        count: How many items it wrote; None if the write before it is pruned.
    """

    op: OpRow
    count: int | None


def prefix_of(name: str) -> str:
    """How the op_ids of a source begin."""
    return f"import:{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}:"


def op_id_of(prefix: str, first: Row) -> str:
    """The op_id of an append, by its first row alone: it is the same after the source has grown."""
    return f"{prefix}{first.key}"


async def find_blocks(backend: Backend, session_id: str, prefix: str) -> list[Block]:
    """The appends of a source to a session, oldest first."""
    blocks: list[Block] = []
    newer: OpRow | None = None
    async for op in _operations(backend, session_id):
        if newer is not None and newer.op_id.startswith(prefix):
            blocks.append(Block(newer, _items_between(op, newer)))
        newer = op
    if newer is not None and newer.op_id.startswith(prefix):
        blocks.append(Block(newer, _items_between(None, newer)))
    return blocks[::-1]


class Known:
    """Recognises the rows that earlier runs wrote: block for block, by first row, count and digest."""

    def __init__(self, prefix: str, blocks: Iterable[Block]) -> None:
        self._prefix = prefix
        self._blocks = deque(blocks)
        self._texts: list[str] = []

    def has(self, row: Row) -> bool:
        """Whether the next item of the conversation is there already.

        Raises:
            Refusal: It should be, and is another, or nobody can tell.
        """
        if not self._blocks:
            return False
        block = self._blocks[0]
        if not self._texts:
            if op_id_of(self._prefix, row) != block.op.op_id:
                raise Refusal(CHANGED)
            if block.count is None:
                raise Refusal(PRUNED)
        self._texts.append(row.text)
        if len(self._texts) == block.count:
            if digest("append", block.op.op_id, self._texts) != block.op.digest:
                raise Refusal(CHANGED)
            self._blocks.popleft()
            self._texts.clear()
        return True

    def check_end(self) -> None:
        """The conversation ended.

        Raises:
            Refusal: Earlier runs had found more.
        """
        if self._blocks:
            raise Refusal(CHANGED)


async def _operations(backend: Backend, session_id: str) -> AsyncIterator[OpRow]:
    """The session's writes, newest first."""
    before: int | None = None
    while True:
        page = await _page(backend, session_id, before)
        for op in page:
            yield op
        if len(page) < OPS_PAGE:
            return
        before = int(page[-1].manifest.version)


async def _page(backend: Backend, session_id: str, before: int | None) -> list[OpRow]:
    return await backend.call(lambda driver: driver.operations(session_id, limit=OPS_PAGE, before=before))


def _items_between(older: OpRow | None, newer: OpRow) -> int | None:
    """How many items an append wrote; ``older`` is what is known of the write before it."""
    version = int(newer.manifest.version)
    if version == 1:
        return newer.manifest.next_seq - 1
    if older is None or int(older.manifest.version) != version - 1:
        return None
    return newer.manifest.next_seq - older.manifest.next_seq
