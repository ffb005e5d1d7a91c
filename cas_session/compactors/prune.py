"""PruneCompactor: makes a history shorter without a model, by dropping what is old."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from cas_session.compaction.cuts import allowed_cuts, is_user_message, item_type
from cas_session.compactors.base import Compacted, CompactionRequest
from cas_session.errors import CompactorError
from cas_session.snapshot import Item


class PruneCompactor:
    """Drops the beginning of a history. Calls keep their outputs, reasoning keeps what follows it.

    By itself it drops what lies before the newest compaction item that the server put into its own output
    (``context_management`` on responses.create): the item stands for all of that. With ``turns`` it keeps the
    newest so many turns, and of what is older only the newest compaction item, if there is one.

    Where there is nothing to drop the history comes back as it is, and the report says ``not_smaller``.

    Args:
        turns: How many turns to keep, at least 1; a turn starts at a user message. It counts in what is
            compacted: the policy's ``keep_last_turns`` are kept on top of that.
    """

    mode: Literal["input"] = "input"

    def __init__(self, *, turns: int | None = None) -> None:
        if turns is not None and (not isinstance(turns, int) or isinstance(turns, bool) or turns < 1):
            raise ValueError(f"turns must be an int >= 1, or None, not {turns!r}: a history cannot be empty")
        self._turns = turns

    async def compact(self, request: CompactionRequest) -> Compacted:
        """Drop; no call is made.

        Raises:
            CompactorError: There are no items, only the id of a response.
        """
        if request.mode != "input":
            raise CompactorError("pruning needs the items, not the id of a response", kind="no_chain")
        items = request.items
        newest = next((i for i in reversed(range(len(items))) if item_type(items[i]) == "compaction"), None)
        start = _turn_start(items, self._turns) if self._turns is not None else 0
        if newest is not None and start <= newest:
            return Compacted(output=_from_compaction(items, newest))
        cut = max((k for k in allowed_cuts(items) if k <= start), default=0)
        sealed = [items[newest]] if newest is not None and newest < cut else []
        return Compacted(output=[*sealed, *items[cut:]])


def _turn_start(items: list[Item], turns: int) -> int:
    starts = [i for i, item in enumerate(items) if is_user_message(item)]
    return starts[-turns] if turns <= len(starts) else 0


def _from_compaction(items: list[Item], newest: int) -> list[Item]:
    """The items from the compaction item on, and as much before it as what follows cannot do without."""

    def candidates() -> Iterator[int]:
        yield newest
        yield from (i for i in reversed(range(newest)) if is_user_message(items[i]))

    # No cut in front of a compaction item is allowed, so the rest must stand on its own.
    stands = (k for k in candidates() if allowed_cuts(items[k:])[-1:] == [len(items) - k])
    return items[next(stands, 0) :]
