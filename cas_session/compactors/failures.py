"""Sorts what a call through the openai client raised by what to do next. One table for all compactors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Final

from cas_session.errors import CompactorError, FailureKind

if TYPE_CHECKING:
    from openai import APIStatusError

# Servers and gateways say in these ways that they do not have the endpoint.
_MISSING: Final = frozenset({404, 405, 501})
# What the openai client itself tries again.
_RETRYABLE: Final = frozenset({408, 409, 429})
# The code of an error, or its type where a server has no codes.
_BY_NAME: Final[dict[str, FailureKind]] = {
    "context_length_exceeded": "too_large",
    "exceed_context_size_error": "too_large",  # llama.cpp
    "string_above_max_length": "too_large",
    "previous_response_not_found": "no_chain",
    "model_not_found": "permanent",
    "DeploymentNotFound": "permanent",  # Azure
    "insufficient_quota": "permanent",
    "invalid_encrypted_content": "permanent",
}


def translate(error: Exception) -> CompactorError:
    """The failure as a `CompactorError`; the words stay the server's.

    A 502 is retryable for everybody. That it may stand for a missing endpoint is for a `FallbackCompactor`
    to say, which reads the error's status.
    """
    from openai import APIConnectionError, APIStatusError

    if isinstance(error, CompactorError):
        return error
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, APIStatusError):
        return CompactorError(
            words,
            kind=_kind_of(error),
            retry_after_s=_retry_after_s(error.response.headers),
            status=error.status_code,
        )
    if isinstance(error, json.JSONDecodeError):  # the client lets it through as it is
        return CompactorError(f"the answer is no JSON: {error}", kind="retryable")
    if isinstance(error, APIConnectionError | TimeoutError):
        return CompactorError(words, kind="retryable")
    return CompactorError(words)


def _kind_of(error: APIStatusError) -> FailureKind:
    for name in (error.code, error.type):
        if isinstance(name, str) and name in _BY_NAME:  # other servers' codes may be numbers
            return _BY_NAME[name]
    status = error.status_code
    if status == 413 or error.param == "input_tokens":  # the latter is vLLM's
        return "too_large"
    if status in _MISSING:
        # Who names a parameter has read the request: it is an item or a model that is not there.
        return "permanent" if error.param else "unsupported"
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
