"""The openai client of a compactor: the user's own as it is, or one that is made when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CONNECT_TIMEOUT_S = 5.0  # seconds, as openai's own default


class ModelClient:
    """Holds a client.

    The one that is made has its retries off, for the policy's budget counts the calls, and waits for an
    answer as long as the policy's deadline lets it.
    """

    def __init__(self, given: AsyncOpenAI | None) -> None:
        self._client = given

    def get(self) -> AsyncOpenAI:
        """The client.

        Raises:
            openai.OpenAIError: None was given, and the environment does not say how to make one.
        """
        if self._client is None:
            from openai import AsyncOpenAI, Timeout  # seconds to import, and a store may never need it

            self._client = AsyncOpenAI(max_retries=0, timeout=Timeout(None, connect=CONNECT_TIMEOUT_S))
        return self._client

    @property
    def base_url(self) -> str | None:
        """Where its calls go; None if that is not known, or not yet."""
        return str(self._client.base_url) if self._client is not None and self.host is not None else None

    @property
    def host(self) -> str | None:
        """Whose it is; None if that is not known, or not yet."""
        return text_or_none(getattr(getattr(self._client, "base_url", None), "host", None))


def plain_usage(usage: object) -> dict[str, Any]:
    """The usage of an answer as a dict, as the provider counts it; {} if there is none."""
    dump = getattr(usage, "model_dump", None)
    plain = dump(mode="json", exclude_none=True, warnings=False) if callable(dump) else usage
    return dict(plain) if isinstance(plain, Mapping) else {}


def text_or_none(value: object) -> str | None:
    """The value if it is a text: what a user's mock returns may be anything."""
    return value if isinstance(value, str) else None
