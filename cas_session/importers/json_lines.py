"""Conversations in a file of JSON Lines: what `export_sessions` writes, or bare items of one conversation."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cas_session.checks import check_id, encode_metadata
from cas_session.errors import ConfigurationError
from cas_session.importers.source import Conversations, Row, encode, parse, printable
from cas_session.snapshot import Item

FETCH_LINES = 50
BOM = b"\xef\xbb\xbf"  # as some editors begin a file
KEYS = {"session_id", "item", "owner", "metadata"}


class JsonLines:
    """A file with one item a line, in the order of each conversation; conversations may be mixed.

    A line is ``{"session_id": "...", "item": {...}}``; the first of a conversation may also hold its
    ``owner`` and ``metadata``. Blank lines are passed over. What is kept in memory is where the lines begin,
    16 bytes each.

    Args:
        path: The file.
        session_id: Every line is a bare item of this conversation.
        name: The source's identity; by default the file's path.
    """

    def __init__(self, path: str | Path, *, session_id: str | None = None, name: str | None = None) -> None:
        self._path = Path(path)
        self._session_id = check_id("session_id", session_id) if session_id is not None else None
        self.name = name if name is not None else f"file:{self._path.resolve()}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Conversations]:
        """Open the file and find the lines of each conversation.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        try:
            file = await asyncio.to_thread(self._path.open, "rb")
        except OSError as error:
            raise ConfigurationError(f"cannot read {str(self._path)!r}: {error.strerror}") from error
        with file:
            lines = await asyncio.to_thread(_find_lines, file, self._session_id)
            yield _File(file, str(self._path), lines, bare=self._session_id is not None)


@dataclass(slots=True)
class _Lines:
    """Where the lines of one conversation are."""

    offsets: array[int] = field(default_factory=lambda: array("Q"))
    numbers: array[int] = field(default_factory=lambda: array("Q"))


class _File:
    """The open file."""

    def __init__(self, file: BinaryIO, name: str, lines: dict[str | None, _Lines], *, bare: bool) -> None:
        self.table = name
        self._file = file
        self._lines = lines
        self._bare = bare

    async def session_ids(self) -> AsyncGenerator[str | None, None]:
        if None in self._lines:
            yield None
        for session_id in self._lines:
            if session_id is not None:
                yield session_id

    async def rows(self, session_id: str | None) -> AsyncGenerator[Row, None]:
        count = len(self._lines[session_id].offsets)
        for start in range(0, count, FETCH_LINES):
            for row in await asyncio.to_thread(
                self._read, session_id, start, min(start + FETCH_LINES, count)
            ):
                yield row

    def _read(self, session_id: str | None, start: int, end: int) -> list[Row]:
        lines, rows = self._lines[session_id], []
        for at in range(start, end):
            self._file.seek(lines.offsets[at])
            rows.append(_row(at, lines.numbers[at], self._file.readline(), bare=self._bare))
        return rows


def _find_lines(file: BinaryIO, session_id: str | None) -> dict[str | None, _Lines]:
    lines: dict[str | None, _Lines] = {}
    for number, offset, line in _lines_of(file):
        named = session_id if session_id is not None else _named_by(line)
        if named not in lines:
            lines[named] = _Lines()
        lines[named].offsets.append(offset)
        lines[named].numbers.append(number)
    return lines


def _lines_of(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line that is not blank."""
    offset = 0
    for number, line in enumerate(file, start=1):
        start = offset + (len(BOM) if number == 1 and line.startswith(BOM) else 0)
        offset += len(line)
        if line.strip():
            yield number, start, line[start - offset + len(line) :]


def _named_by(line: bytes) -> str | None:
    """The session id of a line; None if it names none."""
    try:
        session_id = parse(line.decode()).get("session_id")
    except ValueError:
        return None
    return session_id if isinstance(session_id, str) else None


def _row(key: int, number: int, line: bytes, *, bare: bool) -> Row:
    raw = printable(line.rstrip(b"\r\n"))
    try:
        entry = parse(line.decode())
        if bare:
            return Row(key=key, number=number, raw=raw, item=entry, text=_encode_bare(entry))
        _check_entry(entry)
        return Row(
            key=key,
            number=number,
            raw=raw,
            item=entry["item"],
            text=encode(entry["item"]),
            owner=entry.get("owner"),
            metadata=entry.get("metadata"),
        )
    except ValueError as error:
        return Row(key=key, number=number, raw=raw, why=str(error))


def _encode_bare(item: Item) -> str:
    if item.keys() == {"session_id", "item"}:
        raise ValueError("it names a conversation: import the file without a session id of your own")
    return encode(item)


def _check_entry(entry: Item) -> None:
    if not isinstance(entry.get("session_id"), str):
        raise ValueError('it names no conversation: a line is {"session_id": "...", "item": {...}}')
    if unknown := entry.keys() - KEYS:
        raise ValueError(f"it has unknown keys: {', '.join(sorted(unknown))}")
    if not isinstance(entry.get("item"), dict):
        raise ValueError("its item is no JSON object")
    if (owner := entry.get("owner")) is not None:
        check_id("owner", owner)
    if (metadata := entry.get("metadata")) is not None:
        if not isinstance(metadata, dict):
            raise ValueError("its metadata is no JSON object")
        encode_metadata(metadata)
