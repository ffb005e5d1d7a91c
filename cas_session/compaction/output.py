"""What a compactor returned, as items that the next request may hold. Pure, without the provider's SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from cas_session.compaction.cuts import KNOWN_TYPES, allowed_cuts, item_type
from cas_session.snapshot import Item

# One source a part, the first that is there: responses.compact refuses the shape that it returned itself.
_PART_SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_url", "file_id"),
}
_PART_EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "input_image": ("detail",),
    "input_file": ("filename", "detail"),
}
# The only keys of input items that must be there and may be null.
_NULLABLE: Final[dict[str, frozenset[str]]] = {
    "image_generation_call": frozenset({"result"}),
    "code_interpreter_call": frozenset({"code", "outputs"}),
    "tool_search_call": frozenset({"arguments"}),
}


class OutputRejected(ValueError):
    """The answer must not replace anything: leave the history as it is and report the reason.

    Attributes:
        reason: ``empty_output``: not a non-empty list of JSON objects. ``invalid_output``: the provider would
            refuse it as input. ``envelope``: items that a wrapping session encrypted.
    """

    def __init__(self, reason: Literal["empty_output", "invalid_output", "envelope"], detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def normalise_output(output: object) -> list[Item]:
    """The compactor's output as valid input items, in its order; what was given is not changed.

    Args:
        output: A list of dicts, or of models with pydantic's ``model_dump``.

    Raises:
        OutputRejected: It is no non-empty list of objects, or the history would be refused with it.
    """
    if not isinstance(output, list | tuple) or not output:
        raise OutputRejected(
            "empty_output", f"the compactor returned {_described(output)}, not a list of items"
        )
    items = [_as_dict(index, entry) for index, entry in enumerate(output)]
    if holds_envelope(items):
        raise OutputRejected("envelope", "the compactor returned encrypted envelopes")
    items = [_normalised(item) for item in items]
    items = [_without_lost_reasoning(item, before) for item, before in zip(items, [{}, *items], strict=False)]
    if allowed_cuts(items)[-1:] != [len(items)]:
        raise OutputRejected(
            "invalid_output", "the compactor's output parts a call from its output or the like"
        )
    return items


def holds_envelope(items: Iterable[Item]) -> bool:
    """Whether a wrapping session encrypted any item, so that a model could not read it.

    Source: EncryptedSession of openai-agents marks its envelopes with ``__enc__``.
    """
    return any("__enc__" in item for item in items)


def _described(output: object) -> str:
    return "an empty list" if output in ([], ()) else type(output).__name__


def _as_dict(index: int, entry: object) -> Item:
    dump = getattr(entry, "model_dump", None)
    if callable(dump):
        # User messages parse as ResponseOutputMessage with input_text parts, which warns; unset keys are not
        # the provider's.
        entry = dump(exclude_unset=True, mode="json", warnings=False)
    if not isinstance(entry, Mapping):
        raise OutputRejected("empty_output", f"entry {index} of the output is no object")
    return dict(entry)


def _normalised(item: Item) -> Item:
    kind = item_type(item)
    nullable = item.keys() if kind not in KNOWN_TYPES else _NULLABLE.get(kind, frozenset())
    clean = {k: v for k, v in item.items() if k != "created_by" and (v is not None or k in nullable)}
    parts_key = "content" if kind == "message" else "output"
    if kind in KNOWN_TYPES and parts_key in clean:
        clean[parts_key] = _parts(clean[parts_key])
    return clean


def _parts(parts: object) -> Any:
    """Message content or tool output: a text, one part or a list of parts."""
    if isinstance(parts, Mapping):
        return _part(parts)
    if isinstance(parts, list | tuple):
        return [_part(part) if isinstance(part, Mapping) else part for part in parts]
    return parts


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if isinstance(kind, str) and kind in _PART_SOURCES:
        return _media_part(part, kind)
    clean = {k: v for k, v in part.items() if v is not None and k != "created_by"}
    if kind == "input_text":  # the keys of the output_text that it was parsed as
        clean = {k: v for k, v in clean.items() if k not in ("annotations", "logprobs")}
    if kind == "output_text" and "annotations" in part:
        clean.setdefault("annotations", [])  # null is refused, and so is a missing list by some
    return clean


def _media_part(part: Mapping[str, Any], kind: str) -> dict[str, Any]:
    sources, extras = (
        {key: part[key] for key in keys if isinstance(part.get(key), str) and part[key]}
        for keys in (_PART_SOURCES[kind], _PART_EXTRAS[kind])
    )
    if not sources:
        raise OutputRejected("invalid_output", f"an {kind} has none of {', '.join(_PART_SOURCES[kind])}")
    source = next(iter(sources))
    return {"type": kind, source: sources[source], **extras}


def _without_lost_reasoning(item: Item, before: Item) -> Item:
    """Drop a message's id unless its reasoning is right before it: alone it makes the next request a 400."""
    if item_type(item) != "message" or before.get("type") == "reasoning":
        return item
    return {k: v for k, v in item.items() if k != "id"}
