"""Where a history may be cut: ``items[:k]`` to be compacted, ``items[k:]`` to stay as it is.

Pure functions over items. The rules are those of the Responses API: an output needs its call, a sent call its
output, a reasoning item what the model made right behind it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from cas_session.snapshot import Item

OPEN_CALL_AGE_S: Final = 86_400  # seconds; a day is longer than any tool or approval that is still worked on


@dataclass(frozen=True, slots=True)
class Family:
    """A type of call, the type that answers it, and the keys that name the call on either side.

    A call without a name is answered in order. ``executions`` are the values of that key that tell one kind
    of call from another.
    """

    call: str
    output: str
    call_keys: tuple[str, ...] = ("call_id",)
    output_keys: tuple[str, ...] = ("call_id",)
    executions: tuple[str, ...] = ()


# Source: the item types of openai 3.57.0. Families do not mix: a custom_tool_call that is answered by a
# function_call_output is unanswered.
FAMILIES: Final = (
    Family("function_call", "function_call_output"),
    Family("custom_tool_call", "custom_tool_call_output"),
    Family("computer_call", "computer_call_output"),
    Family("shell_call", "shell_call_output"),
    Family("apply_patch_call", "apply_patch_call_output"),
    # The API names the call by the output's id, openai-agents by call_id.
    Family("local_shell_call", "local_shell_call_output", ("call_id", "id"), ("call_id", "id")),
    Family("tool_search_call", "tool_search_output", executions=("client", "server")),
    Family("program", "program_output"),
    Family("mcp_approval_request", "mcp_approval_response", ("id",), ("approval_request_id",)),
)
SELF_CONTAINED: Final = frozenset(
    {
        "mcp_call",  # but for the approval that it names
        "mcp_list_tools",
        "file_search_call",
        "web_search_call",
        "code_interpreter_call",
        "image_generation_call",
    }
)
SETTINGS: Final = frozenset({"additional_tools", "configuration_update"})  # apply from there on
UNSENDABLE: Final = frozenset({"item_reference", "compaction_trigger"})  # mean nothing in a stored history
KNOWN_TYPES: Final = (
    frozenset({"message", "reasoning", "compaction"})
    | {name for family in FAMILIES for name in (family.call, family.output)}
    | SELF_CONTAINED
    | SETTINGS
    | UNSENDABLE
)

_CALLS: Final = {family.call: family for family in FAMILIES}
_OUTPUTS: Final = {family.output: family for family in FAMILIES}
# What the model or its server writes in one response, in the order that reasoning binds.
_MODEL_MADE: Final = frozenset(_CALLS) | SELF_CONTAINED | {"program_output"}


@dataclass(frozen=True, slots=True)
class Cut:
    """A place to cut, and what becomes of each item before it.

    ``send`` and ``keep`` divide the prefix. The new history is the compactor's output, then the kept items
    as they were, then ``items[position:]``.

    Attributes:
        position: k; ``items[:k]`` is the prefix.
        send: Indexes that go to the compactor, in order.
        keep: Indexes kept verbatim behind the output, in order: pins and dead calls, each with its whole
            group, and the settings in force.
        dead: Those of ``keep`` whose partner will not come: calls, approvals, reasoning without a follower.
        unknown: Indexes in the prefix whose type this module does not know; taken for self-contained.
    """

    position: int
    send: tuple[int, ...]
    keep: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NoCut:
    """There is nowhere to cut.

    Attributes:
        status: ``nothing_to_compact``: all of it was written by earlier compactions, or is to be kept.
            ``open_call``: a call or an approval that still waits is in the way. ``no_safe_cut``: anything
            else, such as an output whose call is missing.
        blockers: Indexes of the items that stand in the way; empty for ``nothing_to_compact``.
    """

    status: Literal["nothing_to_compact", "open_call", "no_safe_cut"]
    blockers: tuple[int, ...] = ()


def find_cut(
    items: Sequence[Item],
    *,
    keep_last_turns: int = 0,
    at_most: int | None = None,
    compacted: int | None = None,
    pinned: Callable[[Item], bool] | None = None,
    created_at: Sequence[datetime | None] | None = None,
    now: datetime | None = None,
    open_call_age_s: float = OPEN_CALL_AGE_S,
) -> Cut | NoCut:
    """The largest safe cut at the start of a user turn or at the end; if there is none, the largest safe cut.

    Args:
        keep_last_turns: Cut at or before the user message that starts the n-th newest turn; 0 if all may go.
        at_most: The largest position allowed, to plan again with less.
        compacted: How many leading items an earlier compaction wrote; by default those up to and with the
            newest compaction item. A call that waits among them was dead when they were written.
        pinned: True for an item that is to be kept verbatim; its group stays with it.
        created_at: When each item was written; None where that is not known, which never counts as old.
        now: The time to judge ages by. Without it and created_at no call is dead.
        open_call_age_s: Seconds after which a waiting call with a later user message is dead.

    Raises:
        ValueError: keep_last_turns is negative, or created_at is not as long as items.
    """
    if keep_last_turns < 0:
        raise ValueError(f"keep_last_turns must not be negative, got {keep_last_turns}")
    if created_at is not None and len(created_at) != len(items):
        raise ValueError(f"created_at has {len(created_at)} entries for {len(items)} items")
    history = _History.read(items)
    limit = min(len(items) if at_most is None else at_most, history.turn_start(keep_last_turns))
    folded = history.behind_compaction if compacted is None else compacted

    old = _older_than(created_at, now, open_call_age_s)
    dead = history.dead(lambda index: index < (compacted or 0) or old(index))
    kept = history.groups_of(dead)
    if pinned is not None:
        kept |= history.groups_of(i for i in range(limit) if history.may_be_pinned(i) and pinned(items[i]))

    fresh = next(
        (i for i in range(folded, limit) if i not in kept and history.types[i] not in SETTINGS), limit
    )
    if fresh >= limit or limit < history.behind_compaction:
        return NoCut("nothing_to_compact")
    waiting = [i for i in history.waiting if i not in dead]
    whole = [k for k in history.whole if max(fresh + 1, history.behind_compaction) <= k <= limit]
    cuts = [k for k in whole if k <= history.ceiling(waiting)]
    if not cuts:
        return _no_cut(history, limit, waiting if whole else [])
    return _cut(history, _preferred(history, cuts), kept, dead)


def allowed_cuts(items: Sequence[Item]) -> list[int]:
    """Every position where the history may be cut, ascending; no pins, every waiting call alive.

    A list that may be cut at its own end stands on its own: nothing in it misses a partner.
    """
    history = _History.read(items)
    ceiling = history.ceiling(history.waiting)
    return [k for k in history.whole if history.behind_compaction <= k <= ceiling]


def item_type(item: Item) -> str:
    """The item's type; a bare ``{"role": ..., "content": ...}`` is a message, a bare id an item_reference."""
    named = item.get("type")
    if isinstance(named, str):
        return named
    if named is None and "role" in item:
        return "message"
    if named is None and "id" in item and not item.keys() - {"id", "type"}:
        return "item_reference"
    return ""


def is_user_message(item: Item) -> bool:
    """Whether a turn starts here."""
    return item.get("role") == "user" and item_type(item) == "message"


@dataclass(frozen=True, slots=True)
class _History:
    """The items with all that ties them together.

    Attributes:
        last: For each item the last index of its group; a cut is whole if no group reaches over it.
        first: For each item the first index of its group, which is also the group's name.
        waiting: Calls, approvals and reasoning whose partner is not there (yet).
        refused: What no request may hold and nothing can mend: orphan outputs, references.
        behind_compaction: The position right behind the newest compaction item; 0 if there is none.
    """

    items: Sequence[Item]
    types: list[str]
    first: list[int]
    last: list[int]
    waiting: list[int]
    refused: list[int]
    behind_compaction: int

    @classmethod
    def read(cls, items: Sequence[Item]) -> _History:
        types = [item_type(item) for item in items]
        groups = _Groups(len(items))
        pairing = _Pairing(items, types, groups)
        unfollowed = _bind_reasoning(types, groups, pairing.is_model_made)
        first = [groups.first_of(i) for i in range(len(items))]
        last = list(first)
        for index, name in enumerate(first):
            last[name] = index
        return cls(
            items=items,
            types=types,
            first=first,
            last=[last[name] for name in first],
            waiting=sorted([*pairing.unanswered(), *unfollowed]),
            refused=sorted([*pairing.orphans, *(i for i, t in enumerate(types) if t in UNSENDABLE)]),
            behind_compaction=max((i + 1 for i, t in enumerate(types) if t == "compaction"), default=0),
        )

    @property
    def whole(self) -> Iterator[int]:
        """The positions that no group reaches over, ascending."""
        reach = -1
        for index, last in enumerate(self.last):
            reach = max(reach, last)
            if reach == index:
                yield index + 1

    def ceiling(self, waiting: Iterable[int]) -> int:
        """The largest position with none of the waiting before it; 0 if something makes every cut unsafe.

        An orphan output pins all before it, for its call may be there in a form that we do not know, and
        cannot be sent itself.
        """
        if self.refused:
            return 0
        return min(waiting, default=len(self.items))

    def turn_start(self, turns: int) -> int:
        """Where the n-th newest turn starts; the end for 0, the beginning if there are fewer turns."""
        starts = [i for i, item in enumerate(self.items) if is_user_message(item)]
        starts.append(len(self.items))
        return starts[-1 - turns] if turns < len(starts) else 0

    def may_be_pinned(self, index: int) -> bool:
        # Behind the new compaction item an older one would hide it: what lies before the newest is void.
        return self.types[index] != "compaction"

    def groups_of(self, indexes: Iterable[int]) -> set[int]:
        names = {self.first[index] for index in indexes}
        return {index for index, name in enumerate(self.first) if name in names} if names else set()

    def dead(self, is_old: Callable[[int], bool]) -> set[int]:
        """Those of the waiting whose partner will not come: old, with a later user message behind them."""
        last_turn = self.turn_start(1)
        return {i for i in self.waiting if i < last_turn and is_old(i)}

    def settings_in_force(self, position: int) -> set[int]:
        """The newest additional_tools before the position, and the newest of each configured setting."""
        newest: dict[str, int] = {}
        for index in range(position):
            if self.types[index] == "additional_tools":
                newest["tools"] = index
            elif self.types[index] == "configuration_update":
                newest |= dict.fromkeys(self.items[index].keys() - {"type", "id"}, index)
        return set(newest.values())


class _Groups:
    """Union-find over indexes; a group is named by its first index."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def first_of(self, index: int) -> int:
        parent = self._parent
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.first_of(one), self.first_of(other)))
        self._parent[high] = low


_Key = tuple[str, str | None, str | None]  # the type of the call, its name, its execution


@dataclass(slots=True)
class _Ledger:
    """What was opened under which key; the oldest that is open is closed first, for ids repeat."""

    still_open: dict[int, None] = field(default_factory=dict)  # in order
    queues: defaultdict[_Key, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    newest: dict[_Key, int] = field(default_factory=dict)

    def open(self, keys: Iterable[_Key], index: int) -> None:
        self.still_open[index] = None
        for key in keys:
            self.queues[key].append(index)
            self.newest[key] = index

    def oldest_open(self, keys: Iterable[_Key]) -> int | None:
        for key in keys:
            queue = self.queues.get(key, deque())
            while queue and queue[0] not in self.still_open:  # closed under its other name
                queue.popleft()
            if queue:
                return queue[0]
        return None

    def newest_of(self, keys: Iterable[_Key]) -> int | None:
        return next((self.newest[key] for key in keys if key in self.newest), None)


class _Pairing:
    """Calls with their outputs, approvals with their calls, programs with what they called."""

    def __init__(self, items: Sequence[Item], types: Sequence[str], groups: _Groups) -> None:
        self._items, self._types, self._groups = items, types, groups
        self._calls = _Ledger()
        self._approved = _Ledger()  # responses that say yes and whose mcp_call is still to come
        self._answered_call: dict[int, int] = {}  # by the index of the output
        self.orphans: list[int] = []
        for index, item in enumerate(items):
            self._place(index, item)

    def unanswered(self) -> list[int]:
        calls = (i for i in self._calls.still_open if not self._needs_no_answer(i))
        return [*calls, *self._approved.still_open]

    def is_model_made(self, index: int) -> bool:
        """Whether reasoning in front of the item may bind it; an unknown type counts, to be safe."""
        item, kind = self._items[index], self._types[index]
        if kind == "message":
            return item.get("role") == "assistant"
        if kind == "tool_search_output":
            return item.get("execution") == "server"
        if kind == "shell_call_output":  # a hosted shell runs inside the response
            call = self._items[self._answered_call.get(index, index)]
            environment = call.get("environment")
            return isinstance(environment, dict) and environment.get("type") == "container_reference"
        return kind in _MODEL_MADE or kind not in KNOWN_TYPES

    def _place(self, index: int, item: Item) -> None:
        kind = self._types[index]
        if family := _CALLS.get(kind):
            self._calls.open(_keys(item, family, family.call_keys)[0], index)
        elif family := _OUTPUTS.get(kind):
            self._answer(index, item, family)
        elif kind == "mcp_call" and item.get("approval_request_id"):
            self._run_approved(index, item)
        self._join_caller(index, item)

    def _answer(self, index: int, item: Item, family: Family) -> None:
        keys = [key for keys in _keys(item, family, family.output_keys) for key in keys]
        call = self._calls.oldest_open(keys)
        if call is not None:
            del self._calls.still_open[call]
            self._answered_call[index] = call
            if family.output == "mcp_approval_response" and item.get("approve") is True:
                self._approved.open(keys, index)
        self._join_or_orphan(index, self._calls.newest_of(keys) if call is None else call)

    def _run_approved(self, index: int, item: Item) -> None:
        keys = [("mcp_approval_request", name, None) for name in _names(item, ("approval_request_id",))]
        response = self._approved.oldest_open(keys)
        if response is not None:
            del self._approved.still_open[response]
        self._join_or_orphan(index, self._calls.newest_of(keys) if response is None else response)

    def _join_caller(self, index: int, item: Item) -> None:
        caller = item.get("caller")
        if isinstance(caller, dict) and caller.get("type") == "program":
            keys = [("program", name, None) for name in _names(caller, ("caller_id",))]
            program = self._calls.oldest_open(keys)
            self._join_or_orphan(index, self._calls.newest_of(keys) if program is None else program)

    def _join_or_orphan(self, index: int, partner: int | None) -> None:
        if partner is not None:
            self._groups.join(partner, index)
        elif index not in self.orphans[-1:]:
            self.orphans.append(index)

    def _needs_no_answer(self, index: int) -> bool:
        return self._types[index] == "tool_search_call" and self._items[index].get("execution") == "server"


def _names(item: Item, keys: Iterable[str]) -> list[str]:
    return [value for key in keys if isinstance(value := item.get(key), str) and value]


def _keys(item: Item, family: Family, name_keys: Iterable[str]) -> list[list[_Key]]:
    """The keys of a call or an output: those with its own execution first, then those with any other."""
    own = item.get("execution") if family.executions else None
    executions = dict.fromkeys((own if own in family.executions else None, *family.executions, None))
    names: Sequence[str | None] = _names(item, name_keys) or (None,)
    return [[(family.call, name, execution) for name in names] for execution in executions]


def _bind_reasoning(types: Sequence[str], groups: _Groups, is_model_made: Callable[[int], bool]) -> list[int]:
    """Join each run of reasoning with all that the model made right behind it; return runs without any."""
    unfollowed: list[int] = []
    index, end = 0, len(types)
    while index < end:
        start = index
        while index < end and types[index] == "reasoning":
            groups.join(start, index)
            index += 1
        if index == start:
            index += 1
            continue
        followers = index
        while index < end and is_model_made(index):
            groups.join(start, index)
            index += 1
        # A compaction item stands for all before it: reasoning in front of one waits for nothing.
        if index == followers and types[index : index + 1] != ["compaction"]:
            unfollowed.append(start)
    return unfollowed


def _older_than(
    created_at: Sequence[datetime | None] | None, now: datetime | None, age_s: float
) -> Callable[[int], bool]:
    if created_at is None or now is None:
        return lambda index: False
    before = now - timedelta(seconds=age_s)

    def is_old(index: int) -> bool:
        written = created_at[index]
        return written is not None and written < before

    return is_old


def _preferred(history: _History, cuts: Sequence[int]) -> int:
    """The largest cut that starts a turn, else the largest; the end of the history starts a turn."""
    end = len(history.items)
    turns = (k for k in reversed(cuts) if k == end or is_user_message(history.items[k]))
    return next(turns, cuts[-1])


def _cut(history: _History, position: int, kept: set[int], dead: set[int]) -> Cut:
    keep = {i for i in kept if i < position} | history.settings_in_force(position)
    return Cut(
        position=position,
        send=tuple(i for i in range(position) if i not in keep),
        keep=tuple(sorted(keep)),
        dead=tuple(sorted(i for i in dead if i < position)),
        unknown=tuple(i for i in range(position) if history.types[i] not in KNOWN_TYPES),
    )


def _no_cut(history: _History, limit: int, waiting: Sequence[int]) -> NoCut:
    if history.refused:
        return NoCut("no_safe_cut", tuple(history.refused))
    calls = tuple(i for i in waiting if history.types[i] != "reasoning" and history.first[i] < limit)
    if calls:
        return NoCut("open_call", calls)
    reaching_over = (i for i in range(limit) if history.last[i] >= limit)
    return NoCut("no_safe_cut", tuple(i for i in waiting if history.first[i] < limit) or tuple(reaching_over))
