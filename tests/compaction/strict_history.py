"""A strict provider, written apart from the code under test: it reads items and says what it refuses.

It works by looking back and forth through plain lists, without an index or a group, so that a mistake in the
bookkeeping of ``cuts`` is not repeated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Item = dict[str, Any]
Refusal = tuple[str, int]  # the rule, and the identity of the item that breaks it

ANSWERS = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "computer_call_output": "computer_call",
    "shell_call_output": "shell_call",
    "apply_patch_call_output": "apply_patch_call",
    "local_shell_call_output": "local_shell_call",
    "tool_search_output": "tool_search_call",
    "program_output": "program",
    "mcp_approval_response": "mcp_approval_request",
}
NOT_MODEL_MADE = {"reasoning", "compaction", "additional_tools", "configuration_update"}


class StrictProvider:
    """The provider that made a history: it knows which reasoning each item that it made belongs to."""

    def __init__(self, history: Sequence[Item]) -> None:
        self._reasoning_of = {id(item): _reasoning_before(history, i) for i, item in enumerate(history)}

    def refuses_request(self, items: Sequence[Item]) -> set[Refusal]:
        """What is wrong with the items as the input of a request that is sent now."""
        open_calls = {("call without output", id(call)) for call in unanswered(items)}
        return self.refuses_history(items) | open_calls | self._loose_reasoning(items, end_is_loose=True)

    def refuses_history(self, items: Sequence[Item]) -> set[Refusal]:
        """What is wrong with the items as a history that more may be appended to."""
        refused = {("orphan", id(item)) for i, item in enumerate(items) if _is_orphan(item, items[:i])}
        refused |= {("unsendable", id(item)) for item in items if is_unsendable(item)}
        there = [id(item) for item in items]
        refused |= {
            ("made without its reasoning", id(item))
            for item in items
            if not {id(r) for r in self._reasoning_of.get(id(item), [])} <= set(there)
        }
        return refused | self._loose_reasoning(items, end_is_loose=False)

    def _loose_reasoning(self, items: Sequence[Item], *, end_is_loose: bool) -> set[Refusal]:
        loose = set()
        for index, item in enumerate(items):
            behind = [other for other in items[index + 1 :] if other.get("type") != "reasoning"]
            if item.get("type") != "reasoning" or (behind and behind[0].get("type") == "compaction"):
                continue
            bound = [id(r) for r in self._reasoning_of.get(id(behind[0]), [])] if behind else []
            if id(item) not in bound and (behind or end_is_loose):
                loose.add(("reasoning without its follower", id(item)))
        return loose


def unanswered(items: Sequence[Item]) -> list[Item]:
    """The calls and approval requests that no later output answers; each output answers the oldest."""
    waiting: list[Item] = []
    for item in items:
        asked = ANSWERS.get(str(item.get("type")))
        if item.get("type") in ANSWERS.values():
            waiting.append(item)
        elif asked:
            answered = _oldest([call for call in waiting if call["type"] == asked], item)
            waiting = [call for call in waiting if call is not answered]
    return [call for call in waiting if not is_server_search(call)]


def is_server_search(item: Item) -> bool:
    return item.get("type") == "tool_search_call" and item.get("execution") == "server"


def is_unsendable(item: Item) -> bool:
    return item.get("type") in ("item_reference", "compaction_trigger") or item.keys() == {"id"}


def is_user(item: Item) -> bool:
    return item.get("role") == "user"


def _is_orphan(item: Item, before: Sequence[Item]) -> bool:
    asked = ANSWERS.get(str(item.get("type")))
    if asked and _oldest([call for call in before if call.get("type") == asked], item) is None:
        return True
    approval = item.get("approval_request_id") if item.get("type") == "mcp_call" else None
    if approval and not any(
        call.get("type") == "mcp_approval_request" and call["id"] == approval for call in before
    ):
        return True
    caller = item.get("caller") or {}
    return caller.get("type") == "program" and not any(
        call.get("type") == "program" and call["call_id"] == caller["caller_id"] for call in before
    )


def _oldest(calls: Sequence[Item], output: Item) -> Item | None:
    """The oldest of the calls that the output may mean; calls are all of the family that it answers."""
    kind = output["type"]
    if kind == "mcp_approval_response":
        named = [call for call in calls if call["id"] == output["approval_request_id"]]
    elif kind == "local_shell_call_output":
        names = [output[key] for key in ("call_id", "id") if key in output]
        named = [call for name in names for call in calls if name in (call["call_id"], call["id"])]
    elif output.get("call_id"):
        named = [call for call in calls if call.get("call_id") == output["call_id"]]
    else:
        named = [call for call in calls if not call.get("call_id")]
    named = sorted(named, key=lambda call: bool(call.get("execution") != output.get("execution")))
    return named[0] if named else None


def _reasoning_before(history: Sequence[Item], index: int) -> list[Item]:
    """The run of reasoning that the item was made with: right before it, or before what was made with it."""
    if not _is_model_made(history, index):
        return []
    while index > 0 and _is_model_made(history, index - 1):
        index -= 1
    run = []
    while index > 0 and history[index - 1].get("type") == "reasoning":
        index -= 1
        run.append(history[index])
    return run


def _is_model_made(history: Sequence[Item], index: int) -> bool:
    item = history[index]
    kind = item.get("type", "message")
    if kind == "message":
        return bool(item.get("role") == "assistant")
    if kind == "tool_search_output":
        return item.get("execution") == "server"
    if kind == "shell_call_output":
        call = _oldest([c for c in history[:index] if c.get("type") == "shell_call"], item) or {}
        return bool((call.get("environment") or {}).get("type") == "container_reference")
    if kind == "program_output":
        return True
    return kind not in ANSWERS and kind not in NOT_MODEL_MADE and not is_unsendable(item)
