"""What a store has read, so that the next read asks only for what is new. Bounded in bytes."""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from cas_session import codec
from cas_session.driver import Known, Loaded
from cas_session.snapshot import Item

MANY_PARTS = 16  # of one reading; more are put together, for each costs a call

# Bytes in CPython 3.11, measured with sys.getsizeof.
READING_BYTES = 1000  # a reading without its items
ROW_BYTES = 112  # a row without its text
OBJECT_BYTES = 250  # a small dict
ARRAY_BYTES = 120  # a small list
MEMBER_BYTES = 60  # a number or a short text


class Reading:
    """All items of one version.

    Args:
        session_id: The session.
        loaded: What the driver read.
        before: The reading that the rows extend; None if they are all there is.
        shared: Keep the items decoded, for callers that only look at them.
    """

    def __init__(self, session_id: str, loaded: Loaded, before: Reading | None, *, shared: bool) -> None:
        manifest = loaded.manifest
        self.session_id = session_id
        self.known = Known(manifest.version, manifest.epoch, manifest.next_seq - 1)
        new = (_Part(session_id, loaded.rows),) if loaded.rows else ()
        self._parts: tuple[_Part, ...] = (*(before._parts if before is not None else ()), *new)
        if len(self._parts) > MANY_PARTS:
            self._parts = (_Part.of(session_id, self._parts),)
        self.size = READING_BYTES + sum(part.size for part in self._parts)
        self._items: list[Item] | None = None
        if not shared:
            return
        self.size += sum(part.decoded_size for part in self._parts)
        if before is not None and before._items is not None:
            self._items = [*before._items, *(item for part in new for item in part.own())]
        else:
            self._items = self.own()

    def own(self) -> list[Item]:
        """The items as new objects, the caller's to change."""
        return [item for part in self._parts for item in part.own()]

    def shared(self) -> list[Item]:
        """The items as the objects that every caller gets; only the list is new."""
        return list(self._items) if self._items is not None else self.own()


class ReadCache:
    """The readings of a store, least recently used out first.

    Args:
        limit_bytes: Bytes of memory, as far as they can be told without a look at each item; 0 holds nothing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._readings: OrderedDict[str, Reading] = OrderedDict()

    def get(self, session_id: str) -> Reading | None:
        return self._readings.get(session_id)

    def put(self, reading: Reading) -> None:
        """Hold a reading in place of the session's last one, if it is not too large."""
        self.drop(reading.session_id)
        if reading.size > self._limit:
            return
        self._readings[reading.session_id] = reading
        self._size += reading.size
        while self._size > self._limit:
            self.drop(next(iter(self._readings)))

    def drop(self, session_id: str) -> None:
        """Hold nothing of a session."""
        reading = self._readings.pop(session_id, None)
        if reading is not None:
            self._size -= reading.size


class _Part:
    """Consecutive items: their rows, and from the second time on a form that copies faster."""

    def __init__(self, session_id: str, rows: Sequence[tuple[int, str]]) -> None:
        self.size = sum(sys.getsizeof(text) + ROW_BYTES for _, text in rows)
        self._session_id = session_id
        self._rows = rows
        self._decoded_size: int | None = None
        self._copy: bytes | None = None
        self._asked = False

    @classmethod
    def of(cls, session_id: str, parts: Iterable[_Part]) -> _Part:
        """Several parts as one."""
        part = cls(session_id, ())
        part._decoded_size = sum(each.decoded_size for each in parts)
        part._keep_copy([item for each in parts for item in each.own()])
        return part

    @property
    def decoded_size(self) -> int:
        """Bytes of the items as Python objects."""
        if self._decoded_size is None:
            self._decoded_size = sum(_decoded_size(text) for _, text in self._rows)
        return self._decoded_size

    def own(self) -> list[Item]:
        if self._copy is not None:
            items: list[Item] = pickle.loads(self._copy)  # made here, from decoded JSON
            return items
        items = codec.decode(self._session_id, self._rows)
        if self._asked:
            _ = self.decoded_size  # which is told by the rows
            self._keep_copy(items)
        self._asked = True
        return items

    def _keep_copy(self, items: list[Item]) -> None:
        self._copy, self._rows = pickle.dumps(items, pickle.HIGHEST_PROTOCOL), ()
        self.size = sys.getsizeof(self._copy)


def _decoded_size(text: str) -> int:
    """Bytes of an item as Python objects, by the marks in its JSON; marks inside texts make it larger."""
    return (
        sys.getsizeof(text)
        + OBJECT_BYTES * text.count("{")
        + ARRAY_BYTES * text.count("[")
        + MEMBER_BYTES * (text.count(",") + text.count(":"))
    )
