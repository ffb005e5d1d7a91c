"""What a read gives: items and the version they belong to, taken together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

Item = dict[str, Any]
"""One entry of a conversation: a JSON object, oldest first in every list of them."""

_ETAG = re.compile(r'(?:W/)?"([0-9]{1,19})(?:-([0-9a-f]{1,64}))?"')


class Version(int):
    """A session's version: the count of its writes, and the nonce of the write that made it.

    It is an int and compares as one. As an ``expected_version`` it is the strong check (number and nonce);
    a bare int is the weak one: after a failover that lost writes a number can match by accident.
    Version 0 is the version of a session that does not exist.
    """

    nonce: str

    def __new__(cls, number: int, nonce: str = "") -> Version:
        self = super().__new__(cls, number)
        self.nonce = nonce
        return self

    def __repr__(self) -> str:
        return f"Version({int(self)}, {self.nonce!r})"

    __str__ = int.__repr__

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]  # int names one argument
        return int(self), self.nonce

    @property
    def etag(self) -> str:
        """The version as a quoted string for HTTP's ETag and If-Match."""
        return f'"{int(self)}-{self.nonce}"' if self.nonce else f'"{int(self)}"'

    @classmethod
    def from_etag(cls, text: str) -> Version:
        """Read an ``etag`` back, also in its weak form ``W/"..."``.

        Raises:
            ValueError: The text is no etag of a version.
        """
        match = _ETAG.fullmatch(text.strip())
        if match is None:
            raise ValueError(f'{text!r} is no etag of a session version, such as "7-5f0c2a9e4b1d8370"')
        return cls(int(match[1]), match[2] or "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The items of a session and the version they belong to, read together.

    Attributes:
        session_id: The session.
        items: Oldest first; the caller's own objects, free to change.
        version: The version that holds exactly these items (before a read limit).
        epoch: The number of rewrites up to this version; appends leave it.
    """

    session_id: str
    items: list[Item]
    version: Version
    epoch: int = 0
