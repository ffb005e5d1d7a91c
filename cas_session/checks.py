"""Checks of what comes from outside, the same for both databases, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cas_session import codec
from cas_session.errors import ItemEncodingError

MAX_ID_BYTES = 512  # UTF-8


def check_id(name: str, value: str) -> str:
    """An id, op_id or owner that both databases can store.

    Raises:
        ValueError: It is no text of 1 to 512 bytes of UTF-8 without NUL.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a str, not {type(value).__name__}")  # one class for all
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds a lone surrogate, which has no UTF-8: {value!r}") from error
    if not 1 <= size <= MAX_ID_BYTES:
        raise ValueError(f"{name} must have 1 to {MAX_ID_BYTES} bytes of UTF-8, not {size}")
    if "\0" in value:
        raise ValueError(f"{name} must not hold NUL: {value!r}")
    return value


def check_limit(limit: int | None) -> int | None:
    """A read limit: None for all, else 0 or more.

    Raises:
        ValueError: It is negative or no int.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ValueError(f"limit must be None (all items) or an int of at least 0, not {limit!r}")
    return limit


def check_count(name: str, value: int) -> int:
    """How many, or below which: an int of at least 0.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be an int of at least 0, not {value!r}")
    return value


def encode_metadata(metadata: Mapping[str, Any] | None) -> str | None:
    """Metadata as JSON text.

    Raises:
        ValueError: It is no JSON object.
    """
    if metadata is None:
        return None
    try:
        return codec.encode([dict(metadata)]).texts[0]
    except (ItemEncodingError, TypeError, ValueError) as error:
        raise ValueError(f"metadata must be a JSON object: {error}") from error


def check_version(version: int) -> int:
    """A version: an int of at least 0.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise ValueError(f"a version is an int of at least 0, not {version!r}")
    return version
