"""ResponsesCompactor: responses.compact over the openai client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from cas_session.compactors.base import Compacted, CompactionRequest
from cas_session.compactors.client import ModelClient, plain_usage, text_or_none
from cas_session.compactors.failures import translate

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class ResponsesCompactor:
    """Folds a history through ``POST {base_url}/responses/compact``.

    A client that is given is used as it is: its retries, its timeout, its base_url; exactly its attribute
    ``responses.compact`` is awaited. Without one, `AsyncOpenAI()` is made at the first call, with its own
    retries off, for the policy's budget counts the calls.

    Args:
        model: The model that compacts, such as ``gpt-5.1``.
        client: The user's client.
        mode: ``auto`` uses the provider's stored responses where that is right and items elsewhere; the
            others force one way.
        options: Further arguments of ``responses.compact``: instructions, prompt_cache_key, service_tier.
    """

    def __init__(
        self,
        *,
        model: str,
        client: AsyncOpenAI | None = None,
        mode: Literal["auto", "input", "previous_response_id"] = "auto",
        **options: Any,
    ) -> None:
        if not model or not isinstance(model, str):
            raise ValueError(f"model must be the name of a model, not {model!r}")
        if mode not in ("auto", "input", "previous_response_id"):
            raise ValueError(f"mode is auto, input or previous_response_id, not {mode!r}")
        if unknown := options.keys() - _OPTIONS:
            raise ValueError(f"responses.compact has no {sorted(unknown)}; it takes {sorted(_OPTIONS)}")
        self.model = model
        self.mode = mode
        self._client = ModelClient(client)
        self._options = options

    @property
    def base_url(self) -> str | None:
        """Where its calls go; None before the first call if no client was given."""
        return self._client.base_url

    async def compact(self, request: CompactionRequest) -> Compacted:
        """Make one call.

        Raises:
            CompactorError: Sorted by what to do next.
        """
        arguments: dict[str, Any] = {"model": self.model, **self._options}
        if request.mode == "previous_response_id":
            arguments["previous_response_id"] = request.previous_response_id
        else:
            arguments["input"] = request.items
        try:
            answer = await self._client.get().responses.compact(**arguments)
        except Exception as error:
            raise translate(error) from error
        return Compacted(
            output=getattr(answer, "output", None),
            usage=plain_usage(getattr(answer, "usage", None)),
            response_id=text_or_none(getattr(answer, "id", None)),
            model=self.model,
            host=self._client.host,
        )


_OPTIONS = frozenset(
    {
        "instructions",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
        "extra_headers",
        "extra_query",
        "extra_body",
        "timeout",
    }
)
