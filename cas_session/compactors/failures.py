"""Sorts what a call through the openai client raised by what to do next. One table for all compactors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Final

from cas_session.errors import CompactorError, FailureKind

# Servers and gateways say in these ways that they do not have the endpoint.
_MISSING: Final = frozenset({404, 405, 501})
# What the openai client itself tries again.
_RETRYABLE: Final = frozenset({408, 409, 429})
_BY_CODE: Final[dict[str, FailureKind]] = {
    "context_length_exceeded": "too_large",
    "string_above_max_length": "too_large",
    "previous_response_not_found": "no_chain",
    "model_not_found": "permanent",
    "insufficient_quota": "permanent",
    "invalid_encrypted_content": "permanent",
}


def translate(error: Exception) -> CompactorError:
    """The failure as a `CompactorError`; the words stay the server's."""
    from openai import APIConnectionError, APIStatusError

    words = f"{type(error).__name__}: {error}"
    if isinstance(error, APIStatusError):
        return CompactorError(
            words,
            kind=_kind_of(error.status_code, error.code),
            retry_after_s=_retry_after_s(error.response.headers),
        )
    if isinstance(error, APIConnectionError | TimeoutError):
        return CompactorError(words, kind="retryable")
    return CompactorError(words)


def _kind_of(status: int, code: str | None) -> FailureKind:
    if code is not None and code in _BY_CODE:
        return _BY_CODE[code]
    if status in _MISSING:
        return "unsupported"
    return "retryable" if status in _RETRYABLE or status >= 500 else "permanent"


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of Retry-After, in either of its forms (RFC 9110, section 10.2.3), or of retry-after-ms."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        return max(seconds, 0.0) if math.isfinite(seconds) else None
    try:
        return max(parsedate_to_datetime(headers["retry-after"]).timestamp() - time(), 0.0)
    except (KeyError, ValueError):
        return None
