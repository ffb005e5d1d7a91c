"""A request that was too large, made smaller: its oldest large tool outputs are shortened. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cas_session import codec
from cas_session.compaction.cuts import item_type
from cas_session.snapshot import Item

# Characters that stay of a text, gently first; what is shorter is left alone.
KEPT_CHARS: Final = (2000, 200)
HEAD: Final = 0.75  # the part of them at the beginning; errors and totals stand at the end

# Where a tool's own words are. Screenshots and tool definitions have no shorter form that is valid.
_OUTPUT_KEYS: Final[dict[str, str]] = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "shell_call_output": "output",
    "local_shell_call_output": "output",
    "apply_patch_call_output": "output",
    "program_output": "result",
    "mcp_call": "output",
}
_TEXT_KEYS: Final = frozenset({"text", "stdout", "stderr"})
_MEDIA: Final = {"input_image": "image", "input_file": "file"}


def shorten(items: Sequence[Item], target_bytes: int) -> list[Item]:
    """The items in as many bytes as wanted, if shorter tool outputs can do it, else as near as they come.

    The oldest go first, and no more of them than needed; a note in each says how much is missing. Every item
    stays, with its ids and keys, so that what was a valid history is one afterwards. What was given is not
    changed.

    Args:
        items: Oldest first.
        target_bytes: UTF-8 bytes of all items as JSON.
    """
    short = list(items)
    sizes = list(codec.encode(short).sizes)
    excess = sum(sizes) - target_bytes
    for kept in KEPT_CHARS:
        for index, item in enumerate(short):
            if excess <= 0:
                return short
            key = _OUTPUT_KEYS.get(item_type(item))
            if key is None or sizes[index] <= kept or key not in item:
                continue
            smaller = {**item, key: _shortened(item[key], kept)}
            size = codec.encode([smaller]).size
            if size < sizes[index]:
                excess -= sizes[index] - size
                short[index], sizes[index] = smaller, size
    return short


def _shortened(output: Any, kept: int) -> Any:
    """A tool's output: a text, a list of parts, or chunks of a shell."""
    if isinstance(output, str):
        return _clipped(output, kept)
    if isinstance(output, list):
        return [_shortened(part, kept) if isinstance(part, Mapping | str) else part for part in output]
    if not isinstance(output, Mapping):
        return output
    if medium := _MEDIA.get(str(output.get("type"))):
        return {"type": "input_text", "text": f"[{medium} left out]"}
    return {
        key: _clipped(value, kept) if key in _TEXT_KEYS and isinstance(value, str) else value
        for key, value in output.items()
    }


def _clipped(text: str, kept: int) -> str:
    if len(text) <= kept:
        return text
    head = int(kept * HEAD)
    missing = len(text) - kept
    return f"{text[:head]}\n[... {missing} characters left out ...]\n{text[head + missing :]}"
