"""What a compaction tells the run of openai-agents that asked for it; agents itself is never imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def used_tokens(wrapper: Any) -> int | None:
    """The tokens of the run's newest request and its answer; None if the run does not say."""
    usage = getattr(wrapper, "usage", None)
    entries = getattr(usage, "request_usage_entries", None)
    total = getattr(entries[-1] if entries else usage, "total_tokens", None)
    return total if isinstance(total, int) and total > 0 else None


def add_usage(wrapper: Any, usage: Mapping[str, Any]) -> None:
    """Add the tokens of one model call to the usage of a run's context, if there is one."""
    total: Any = getattr(wrapper, "usage", None)
    add = getattr(total, "add", None)
    if not callable(add) or not usage:
        return
    counts = {name: usage.get(name) or 0 for name in ("input_tokens", "output_tokens", "total_tokens")}
    add(type(total)(requests=1, **counts))
