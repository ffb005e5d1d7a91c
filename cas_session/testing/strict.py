"""What the Responses API refuses, with its wording: unknown fields, broken links between items.

The known fields, types and values come from the openai package's own request types, so they stay in step
with the installed client. The words of the refusals are those that users of the real API report.
"""

import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from openai.types.responses import (
    EasyInputMessageParam,
    ResponseInputItemParam,
    ResponseOutputMessageParam,
    ResponseReasoningItemParam,
)
from openai.types.responses.response_input_param import LocalShellCallOutput, Message

Item = dict[str, Any]

# Each call is answered by one output of its own family under the same call_id.
OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "local_shell_call": "local_shell_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
}
CALL_OF = {output: call for call, output in OUTPUT_OF.items()}

# Not made by the model, so nothing that a reasoning item could have led to.
NO_FOLLOWER = {
    *CALL_OF,
    "mcp_approval_response",
    "compaction",
    "compaction_trigger",
    "additional_tools",
    "configuration_update",
}

# The API takes these although the request types leave them out: ids of the messages that it returned
# itself, plain text of the assistant, and the key that openai-agents gives to the local shell.
ALSO_TAKEN: dict[Any, dict[str, Any]] = {
    EasyInputMessageParam: {"id": str, "status": Literal["in_progress", "completed", "incomplete"]},
    Message: {"id": str},
    ResponseOutputMessageParam: {"content": str},
    LocalShellCallOutput: {"call_id": str},
}
# The types ask for these, the API does not.
NOT_ASKED_FOR: dict[Any, set[str]] = {
    ResponseOutputMessageParam: {"id", "status"},
    ResponseReasoningItemParam: {"id"},
}
EXCLUSIVE = {
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_url", "file_id"),
}
MAX_CHARS = {"id": 64, "call_id": 64, "prompt_cache_key": 64}
ID_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
JSON_NAMES = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


class InvalidRequestError(Exception):
    """The API refuses the request: `status`, and the `error` object of the body."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}


def check_parameters(body: Mapping[str, Any], params: Any) -> None:
    """Refuse top-level fields that the parameters `params` of a method do not know, at any depth.

    The items of `input` are left to `check_items`.
    """
    settings = {name: value for name, value in body.items() if name != "input"}
    shapes = _atoms(params)
    _check_fields(settings, shapes, "")
    _check_required(settings, shapes[:1], "")
    if not isinstance(body.get("input"), str | list | None):
        raise _wrong_type("input", body["input"], [str, list])


def check_items(items: Sequence[Any]) -> None:
    """Refuse unknown item types, unknown, missing, mistyped and exclusive fields, and item references."""
    for index, item in enumerate(items):
        path = f"input[{index}]"
        if not isinstance(item, dict):
            raise _wrong_type(path, item, [dict])
        shapes = _check_object(item, _atoms(ResponseInputItemParam), path)
        _check_required(item, shapes, path)
        kind = item_type(item)
        if kind == "item_reference":
            raise InvalidRequestError(f"Item with id '{item['id']}' not found.", param="input", status=404)
        if kind in CALL_OF and kind != "tool_search_output" and _call_key(item) is None:
            raise _missing(f"{path}.call_id")
        if kind == "compaction_trigger" and index != len(items) - 1:
            raise InvalidRequestError("A compaction trigger must be the last input item.", param=path)


def check_messages(messages: Sequence[Any], shapes: Any) -> None:
    """Refuse chat messages of unknown roles and with unknown, missing or mistyped fields."""
    if not messages:
        raise InvalidRequestError("Invalid 'messages': empty array.", param="messages", code="empty_array")
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if not isinstance(message, dict):
            raise _wrong_type(path, message, [dict])
        _check_required(message, _check_object(message, _atoms(shapes), path), path)


def check_links(items: Sequence[Item], made_with: Mapping[str, str]) -> None:
    """Refuse a context in which items miss the ones that they belong to, or an id is there twice.

    Args:
        items: The whole context, stored responses of the chain included, oldest first.
        made_with: The ids of the model's items, each with the id of the reasoning that led to it.
    """
    _check_ids(items, made_with)
    _check_calls(items)
    for item, follower in zip(items, [*items[1:], None], strict=True):
        if item_type(item) == "reasoning" and not _follows_reasoning(follower):
            raise InvalidRequestError(
                f"Item '{item.get('id')}' of type 'reasoning' was provided without its required"
                " following item.",
                param="input",
            )


def item_type(item: Item) -> str:
    """The type of an input item; a message may leave it out, and so may an item reference."""
    return str(item.get("type") or ("message" if "role" in item else "item_reference"))


def _check_ids(items: Sequence[Item], made_with: Mapping[str, str]) -> None:
    seen: set[str] = set()
    for item in items:
        name = item.get("id")
        if name is None:
            continue
        if name in seen:
            raise InvalidRequestError(
                f"Duplicate item found with id {name}. Remove duplicate items from your input and try again.",
                param="input",
            )
        if made_with.get(name, name) not in seen | {name}:
            raise InvalidRequestError(
                f"Item '{name}' of type '{item_type(item)}' was provided without its required 'reasoning'"
                f" item: '{made_with[name]}'.",
                param="input",
            )
        seen.add(name)


def _check_calls(items: Sequence[Item]) -> None:
    # Call ids repeat across turns with some providers, so each key has a queue of unanswered calls.
    unanswered: dict[tuple[str, str | None], deque[Item]] = {}
    approvals: set[str] = set()
    for item in items:
        kind, key = item_type(item), _call_key(item)
        if item.get("execution") == "server":
            continue
        if kind in OUTPUT_OF:
            unanswered.setdefault((kind, key), deque()).append(item)
        elif kind in CALL_OF:
            waiting = unanswered.get((CALL_OF[kind], key))
            if not waiting:
                raise InvalidRequestError(
                    f"No tool call found for {_spoken(CALL_OF[kind])} output with call_id {key}.",
                    param="input",
                )
            waiting.popleft()
        elif kind == "mcp_approval_request":
            approvals.add(item["id"])
        elif kind == "mcp_approval_response" and item["approval_request_id"] not in approvals:
            raise InvalidRequestError(
                f"No approval request found with id {item['approval_request_id']}.", param="input"
            )
    for (kind, key), waiting in unanswered.items():
        if waiting:
            raise InvalidRequestError(f"No tool output found for {_spoken(kind)} {key}.", param="input")


def _call_key(item: Item) -> str | None:
    # The API names the call of a local shell output by the output's id.
    fallback = item.get("id") if item.get("type") == "local_shell_call_output" else None
    return item.get("call_id") or fallback


def _spoken(call: str) -> str:
    return call.replace("_", " ")


def _follows_reasoning(item: Item | None) -> bool:
    if item is None:
        return False
    kind = item_type(item)
    return item.get("role") == "assistant" if kind == "message" else kind not in NO_FOLLOWER


def _check(value: Any, hints: Sequence[Any], path: str) -> None:
    if object in hints or Any in hints:
        return
    if isinstance(value, dict):
        shapes = [hint for hint in hints if hasattr(hint, "__required_keys__")]
        if shapes:
            _check_object(value, shapes, path)
        elif not any(get_origin(hint) is dict for hint in hints):
            raise _wrong_type(path, value, hints)
    elif isinstance(value, list):
        lists = [hint for hint in hints if get_args(hint) and get_origin(hint) not in (Literal, dict)]
        if not lists:
            raise _wrong_type(path, value, hints)
        elements = [atom for hint in lists for atom in _atoms(get_args(hint)[0])]
        for index, element in enumerate(value):
            _check(element, elements, f"{path}[{index}]")
    elif not any(value in get_args(hint) for hint in hints if get_origin(hint) is Literal):
        plain = {int, float} if type(value) is int else {type(value)}
        if plain.isdisjoint(hint for hint in hints if isinstance(hint, type)):
            allowed = [name for hint in hints if get_origin(hint) is Literal for name in get_args(hint)]
            if allowed and value is not None:
                raise _wrong_value(path, value, allowed)
            raise _wrong_type(path, value, hints)


def _check_object(value: Item, shapes: Sequence[Any], path: str) -> Sequence[Any]:
    """Check an object against those of the shapes that its `type` and `role` name, and return them."""
    if EasyInputMessageParam in shapes and "role" in value:
        value = {"type": "message", **value}
    fitting = _fitting(value, shapes, path)
    _check_fields(value, fitting, f"{path}.")
    _check_id_prefix(value, path)
    _check_exclusive(value, path)
    return fitting


def _fitting(value: Item, shapes: Sequence[Any], path: str) -> Sequence[Any]:
    fitting = [shape for shape in shapes if _fits(value, shape, "type")]
    if not fitting and "type" in value:
        named = [name for shape in shapes for name in _tag(shape, "type")[0]]
        if named:
            raise _wrong_value(path, value["type"], named)
    elif not fitting:
        raise _missing(f"{path}.type")
    fitting = [shape for shape in fitting if _fits(value, shape, "role")] or fitting or list(shapes)
    if value.get("role") == "assistant" and ResponseOutputMessageParam in fitting:
        # The general message type lets an assistant say input_text, the API does not.
        return [ResponseOutputMessageParam]
    return fitting


def _check_id_prefix(value: Item, path: str) -> None:
    prefix = ID_PREFIXES.get(str(value.get("type")), "")
    if not str(value.get("id", prefix)).startswith(prefix):
        raise InvalidRequestError(
            f"Invalid '{path}.id': '{value['id']}'. Expected an ID that begins with '{prefix}'.",
            param=f"{path}.id",
            code="invalid_value",
        )


def _check_exclusive(value: Item, path: str) -> None:
    given = [name for name in EXCLUSIVE.get(str(value.get("type")), ()) if name in value]
    if len(given) > 1:
        names = " or ".join(f"'{name}'" for name in given)
        raise InvalidRequestError(
            f"Mutually exclusive parameters: '{path}'. Ensure you are only providing one of: {names}.",
            param=path,
            code="mutually_exclusive_parameters",
        )


def _check_fields(value: Mapping[str, Any], shapes: Sequence[Any], prefix: str) -> None:
    for name, inner in value.items():
        known = [atom for shape in shapes for atom in _field(shape, name)]
        if not known:
            raise InvalidRequestError(
                f"Unknown parameter: '{prefix}{name}'.", param=f"{prefix}{name}", code="unknown_parameter"
            )
        _check(inner, known, f"{prefix}{name}")
        _check_length(inner, MAX_CHARS.get(name, sys.maxsize), f"{prefix}{name}")


def _check_length(value: Any, limit: int, path: str) -> None:
    if isinstance(value, str) and len(value) > limit:
        raise InvalidRequestError(
            f"Invalid '{path}': string too long. Expected a string with maximum length {limit},"
            f" but got a string with length {len(value)} instead.",
            param=path,
            code="string_above_max_length",
        )


def _check_required(value: Mapping[str, Any], shapes: Sequence[Any], path: str) -> None:
    """Refuse an object that misses a field which every one of the shapes asks for."""
    asked = [_required(shape) - NOT_ASKED_FOR.get(shape, set()) for shape in shapes]
    for name in sorted(set.intersection(*map(set, asked)) - {"input", "stream", "type"}):
        if name not in value:
            raise _missing(f"{path}.{name}" if path else name)


def _fits(value: Item, shape: Any, tag: str) -> bool:
    names, optional = _tag(shape, tag)
    return optional if tag not in value else str in names or value[tag] in names


@functools.cache
def _tag(shape: Any, tag: str) -> tuple[list[Any], bool]:
    """The values that a field may have, `str` for any text, and whether it may be left out."""
    hints = _field(shape, tag)
    names = [name for hint in hints if get_origin(hint) is Literal for name in get_args(hint)]
    return names + [hint for hint in hints if hint is str], tag not in _required(shape)


@functools.cache
def _atoms(hint: Any) -> list[Any]:
    """The members of a union, without the wrappers that say nothing about the value."""
    origin = get_origin(hint)
    if origin in (Required, NotRequired, Annotated):
        return _atoms(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [atom for member in get_args(hint) for atom in _atoms(member)]
    return [hint]


@functools.cache
def _field(shape: Any, name: str) -> list[Any]:
    fields = _fields(shape)
    return _atoms(fields[name]) if name in fields else []


@functools.cache
def _fields(shape: Any) -> dict[str, Any]:
    fields = get_type_hints(shape)
    also = ALSO_TAKEN.get(shape, {})
    return fields | {name: Union[hint, fields.get(name, hint)] for name, hint in also.items()}  # noqa: UP007


@functools.cache
def _required(shape: Any) -> frozenset[str]:
    hints = get_type_hints(shape, include_extras=True)
    return frozenset(name for name, hint in hints.items() if get_origin(hint) is Required)


def _missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter"
    )


def _wrong_type(path: str, value: Any, hints: Iterable[Any]) -> InvalidRequestError:
    names = sorted({_json_name(hint) for hint in hints if hint is not type(None)})
    expected = names[0] if len(names) == 1 else f"one of {_listed(names)}"
    return InvalidRequestError(
        f"Invalid type for '{path}': expected {expected}, but got {JSON_NAMES[type(value)]} instead.",
        param=path,
        code="invalid_type",
    )


def _json_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return JSON_NAMES[type(get_args(hint)[0])]
    if get_origin(hint) is dict or hasattr(hint, "__required_keys__"):
        return JSON_NAMES[dict]
    return JSON_NAMES.get(hint, JSON_NAMES[list])


def _wrong_value(path: str, value: Any, allowed: Iterable[Any]) -> InvalidRequestError:
    names = sorted({f"'{name}'" for name in allowed})
    return InvalidRequestError(
        f"Invalid value: '{value}'. Supported values are: {_listed(names)}.", param=path, code="invalid_value"
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])}, and {names[-1]}" if len(names) > 1 else names[0]
