"""What an import reads: conversations, each a row after the other, in the order in which they were held."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from cas_session import codec
from cas_session.errors import ItemDecodingError, ItemEncodingError
from cas_session.snapshot import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a conversation: an item, or what is wrong with it.

    Attributes:
        key: Names the row within its conversation, each time that the source is read.
        number: Where a person finds it: the row's id, or the line.
        raw: Its text; bytes that are no text are escaped.
        item: The item; None if the row holds none.
        text: The item as a database keeps it.
        why: Why it is no item.
        owner: Of the conversation, if the row says so.
        metadata: Of the conversation, if the row says so.
    """

    key: int
    number: int
    raw: str
    item: Item | None = None
    text: str = ""
    why: str = ""
    owner: str | None = None
    metadata: Mapping[str, Any] | None = None

    @property
    def size(self) -> int:
        """UTF-8 bytes of the text."""
        return codec.sizes_of([self.text])[0]


@dataclass(frozen=True, slots=True)
class Rejected:
    """Something that was not imported, or not exported. The source keeps it.

    Attributes:
        table: The table or file.
        session_id: The conversation; None if a line does not tell.
        row: The row's id, or the line; None for the conversation as a whole.
        reason: Why.
        text: The row's raw text.
    """

    table: str
    session_id: str | None
    row: int | None
    reason: str
    text: str | None = None


class Conversations(Protocol):
    """An open source. Reading a conversation twice gives the same rows."""

    table: str
    """For messages: the table or file."""

    def session_ids(self) -> AsyncGenerator[str | None, None]:
        """Each conversation once. None stands for the rows that name none; it comes first."""

    def rows(self, session_id: str | None) -> AsyncGenerator[Row, None]:
        """The rows of a conversation in their order."""


class Source(Protocol):
    """Where conversations come from."""

    name: str
    """Its identity, the same at each run: op_ids are made from it."""

    def open(self) -> AbstractAsyncContextManager[Conversations]:
        """Open it for reading. It is never written to."""


def parse(text: str) -> Item:
    """A JSON object from its text.

    Raises:
        ValueError: It is none. The text says why.
    """
    try:
        [item] = codec.decode("", [(0, text)])
    except ItemDecodingError as error:
        raise ValueError(error.why) from error
    return item


def encode(item: Item) -> str:
    """The text of an item, as a database keeps it.

    Raises:
        ValueError: It cannot be stored. The text says why.
    """
    try:
        return codec.encode([item]).texts[0]
    except ItemEncodingError as error:
        raise ValueError(f"{error.why} (at {error.path})" if error.path else error.why) from error


def printable(raw: object) -> str:
    """What a source holds as text that can be stored and shown; what is no UTF-8 is escaped."""
    if isinstance(raw, str):
        return _bytes_of(raw).decode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else repr(raw)


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode("utf-8", "backslashreplace")
