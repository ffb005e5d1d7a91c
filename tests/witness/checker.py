"""Says whether a history could have come from a store that keeps its promises. Pure.

Each write returned its version, so the order is no matter of search: the op rows are replayed on a list,
version by version, and every call is held against it. Three kinds of evidence must agree: what the callers
were told, what the op rows say, and what the readers saw. A write of unknown outcome may be among the op rows
once, at any place behind its begin, or not at all.

Times are compared only in one way: of two calls, one of which ended before the other began, the later one has
the higher version (a read or a conflict: the same one or a higher).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from cas_session import codec
from tests.witness.history import PIN, Call, Final, History, Mark, Op, Tokens, Verb, item_of

Rule = Literal[
    "gap",  # the versions of the op rows are not 1, 2, 3 ...
    "foreign",  # an op row that no call made
    "twice",  # two op rows of one call
    "lost",  # told that it landed, and there is no op row
    "false refusal",  # told that it did not land, and there is an op row
    "version",  # the version that was told is another write's
    "result",  # another result than the list has
    "expected",  # a conditional write landed on another version
    "erased",  # what was erased came back
    "stale input",  # made from items that were not there any more
    "manifest",  # kind, epoch or counts of an op row are wrong
    "read",  # a read that is not the list of its version
    "not landed",  # a read shows what has no op row
    "shortened",  # within one epoch, an earlier read is no prefix of a later one
    "conflict",  # a conflict that does not tell the truth
    "order",  # a later call with a lower version
    "raised",  # an exception that the contract does not name
    "final",  # what is there in the end is not the list
]

KINDS: dict[Verb, str] = {
    "append": "append",
    "pop": "pop",
    "clear": "clear",
    "delete": "delete",
    "replace": "replace",
    "update": "replace",
    "restore": "restore",
    "compact": "compact",
}
ERASES = ("clear", "delete")


@dataclass(frozen=True)
class Violation:
    """A broken promise."""

    rule: Rule
    session: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.session}): {self.text}"


def check(history: History) -> list[Violation]:
    """Every violation; none for a store that keeps its promises."""
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in history.calls:
        calls[call.session].append(call)
    prunes = calls.pop("", [])
    return [
        Violation("raised", "", f"{call.verb} {call.id}: {call.error}")
        for call in prunes
        if call.outcome == "raised"
    ] + [
        violation
        for final in history.finals
        for violation in SessionCheck(final, calls[final.session], prunes).violations()
    ]


class SessionCheck:
    """One session: its list at each version, and the calls that are held against it."""

    def __init__(self, final: Final, calls: Sequence[Call], prunes: Sequence[Call]) -> None:
        self.final = final
        self.calls = sorted(calls, key=lambda call: call.begin)
        self.by_id = {call.id: call for call in calls}
        self.pruned_from = min((call.begin for call in prunes), default=math.inf)
        self.op_of: dict[str, Op] = {}
        self.lists: list[Tokens] = [()]
        self.epochs = [0]
        self.erased = [0]  # up to each version, the last one that erased
        self.deleted = [False]
        self.home: dict[str, int] = {}  # the version that brought a token
        self.writer = {token: call for call in calls for token in call.tokens}
        self.known: dict[str, int] = {}  # the highest version that was told before a call began

    def violations(self) -> Iterator[Violation]:
        yield from self._replay()
        yield from self._order()
        for call in self.calls:
            yield from self._call(call)
        yield from self._prefixes()
        yield from self._final()

    # The list

    def _replay(self) -> Iterator[Violation]:
        for op in self.final.ops:
            if op.version.number != len(self.lists):
                yield self._broken("gap", f"version {op.version.number} behind {len(self.lists) - 1}")
                return
            call = self.by_id.get(op.call)
            if call is None:
                yield self._broken("foreign", f"version {op.version.number} has op_id {op.op_id!r}")
                call = Call(op.call, self.final.session, "clear", 0)
            elif call.id in self.op_of:
                first = self.op_of[call.id].version.number
                yield self._broken("twice", f"{call.id} landed as {first} and {op.version.number}")
            self.op_of.setdefault(call.id, op)
            yield from self._apply(op, call)
            yield from self._manifest(op, call)

    def _apply(self, op: Op, call: Call) -> Iterator[Violation]:
        before, at = self.lists[-1], len(self.lists)
        if call.expected is not None and not call.expected.names(self._mark(at - 1)):
            yield self._broken("expected", f"{call.id} expects {call.expected} and landed as {at}")
        after: Tokens | None = ()
        match call.verb:
            case "append":
                after = before + call.items
            case "pop":
                after = before[:-1] if before else None
            case "replace":
                after = call.items
            case "update":
                given, made = call.steps[-1] if call.steps else ((), ())
                after = made if given == before else None
            case "compact":
                after = _compacted(before, *call.steps[-1]) if call.steps else None
                if call.planned is not None and not self._only_appends(call.planned, at - 1):
                    after = None
            case "restore":
                target = call.target if call.target is not None else -1
                if target < self.erased[-1]:
                    yield self._broken("erased", f"{call.id}, version {at}, restores {target}")
                after = self.lists[target] if 0 <= target < at else None
        if after is None:
            yield self._broken("stale input", f"{call.id}, version {at}, on {before}")
            after = before
        for token in call.tokens:
            self.home.setdefault(token, at)
        self.lists.append(after)
        self.epochs.append(self.epochs[-1] + (call.verb != "append"))
        self.erased.append(at if call.verb in ERASES else self.erased[-1])
        self.deleted.append(
            call.verb == "delete" or (self.deleted[-1] and call.verb in ("clear", "pop")),
        )

    def _manifest(self, op: Op, call: Call) -> Iterator[Violation]:
        items = self.lists[-1]
        size = sum(map(_size, items))
        expected = (KINDS.get(call.verb), self.epochs[-1], len(items), size)
        found = (op.kind, op.epoch, op.item_count, op.byte_count)
        if found != expected:
            yield self._broken("manifest", f"version {op.version.number}: {found}, not {expected}")

    def _only_appends(self, planned: Mark, at: int) -> bool:
        """Whether only appends came after the planned version."""
        number = planned.number
        return number <= at and planned.names(self._mark(number)) and self.epochs[number] == self.epochs[at]

    # The calls

    def _call(self, call: Call) -> Iterator[Violation]:
        op = self.op_of.get(call.id)
        if call.outcome == "raised":
            yield self._broken("raised", call, str(call.error))
        elif not call.is_write:
            yield from self._read(call)
        elif call.outcome == "landed" or (call.verb, call.outcome, op is None) == ("pop", "nothing", False):
            yield from self._landed(call, op)
        elif op is not None and call.outcome != "unknown":
            told = f"{call.outcome!r}, and landed as {op.version.number}"
            yield self._broken("conflict" if call.outcome == "conflict" else "false refusal", call, told)
        elif call.outcome == "conflict":
            yield from self._conflict(call)
        elif call.outcome == "not retained":
            yield from self._not_retained(call)
        elif call.outcome == "nothing" and call.version is not None:
            yield from self._nothing(call, call.version)

    def _landed(self, call: Call, op: Op | None) -> Iterator[Violation]:
        if op is None:
            yield self._broken("lost", call, f"told that it landed as {call.version}")
            return
        number = op.version.number
        if call.version is not None and call.version != op.version:
            yield self._broken("version", call, f"told {call.version}, landed as {op.version}")
        if call.verb != "pop" or call.version is None:  # a cancelled caller was told neither
            return
        gone = self._was_erased(number, by=_end(call)) or self.pruned_from < _end(call)
        if call.item is None and call.resent and gone:
            return  # what it took was not there any more when it was sent again
        if call.item not in self.lists[number - 1][-1:]:
            yield self._broken("result", call, f"took {call.item!r} from {self.lists[number - 1]}")

    def _nothing(self, call: Call, version: Mark) -> Iterator[Violation]:
        """There was nothing to write: for a pop an empty session, for the others what was there stays."""
        if not self._exists(version):
            yield self._broken("version", call, f"told {version}, which was never there")
        elif call.verb == "pop" and self.lists[version.number]:
            yield self._broken("result", call, f"took nothing from {self.lists[version.number]}")

    def _conflict(self, call: Call) -> Iterator[Violation]:
        expected, actual = call.expected, call.version
        if expected is None or actual is None or not self._exists(actual):
            yield self._broken("conflict", call, f"expected {expected}, found {actual}, never there")
            return
        change = self._change(expected, actual.number)
        if expected.names(actual):
            yield self._broken("conflict", call, f"expected {expected} and found it")
        elif call.change != change:
            yield self._broken("conflict", call, f"{expected} to {actual} is {change}, not {call.change}")

    def _change(self, expected: Mark, actual: int) -> str:
        if actual == 0:
            return "missing"
        if self.deleted[actual]:
            return "deleted"
        if expected.number == 0:
            return "appended" if self.epochs[actual] == 0 else "rewritten"
        known = expected.number < len(self.lists) and expected.names(self._mark(expected.number))
        return "appended" if known and self.epochs[expected.number] == self.epochs[actual] else "rewritten"

    def _read(self, call: Call) -> Iterator[Violation]:
        if call.outcome == "not retained":
            yield from self._not_retained(call)
        if call.outcome != "read":
            return
        if call.version is None or not self._exists(call.version):
            yield self._broken("read", call, f"of {call.version}, which was never there")
            return
        number = call.version.number
        if call.verb == "read as of" and self.erased[self.known[call.id]] > number:
            yield self._broken("erased", call, f"read as of {number}, cleared at {self.erased[-1]}")
        wanted = self.lists[number]
        if call.limit is not None:
            wanted = wanted[max(0, len(wanted) - call.limit) :]
        if call.items != wanted:
            yield self._broken(self._kind_of_read(call, number), call, _difference(call, wanted))
        elif call.epoch != self.epochs[number]:
            yield self._broken("read", call, f"epoch {call.epoch} at {number}, not {self.epochs[number]}")

    def _kind_of_read(self, call: Call, number: int) -> Rule:
        """Why a read is wrong."""
        for token in set(call.items) - set(self.lists[number]):
            if token in self.home and self.home[token] < self.erased[number]:
                return "erased"
            writer = self.writer.get(token)
            if writer is not None and writer.id not in self.op_of:
                return "not landed"
        return "read"

    def _not_retained(self, call: Call) -> Iterator[Violation]:
        target = call.target or 0
        by = _end(call)
        if not (self._was_erased(target, by=by) if call.reason == "erased" else self.pruned_from < by):
            yield self._broken("result", call, f"version {target} is not {call.reason}")

    def _was_erased(self, version: int, *, by: float) -> bool:
        """Whether something that erased came after the version and may have landed by then."""
        later = (self.by_id.get(op.call) for op in self.final.ops[version:] if op.kind in ERASES)
        return any(call is not None and call.begin < by for call in later)

    # All together

    def _order(self) -> Iterator[Violation]:
        ended: list[tuple[float, int]] = []
        known = 0
        for call in self.calls:
            while ended and ended[0][0] < call.begin:
                known = max(known, heapq.heappop(ended)[1])
            self.known[call.id] = min(known, len(self.lists) - 1)
            op = self.op_of.get(call.id)
            if op is not None and op.version.number <= known:
                yield self._broken("order", call, f"landed as {op.version.number}, {known} was there before")
            seen = self._seen(call)
            if seen is not None and seen < known:
                yield self._broken("order", call, f"saw {seen}, {known} was there before")
            told = [op.version.number] if op is not None and call.outcome == "landed" else []
            for version in (*told, *([] if seen is None else [seen])):
                heapq.heappush(ended, (_end(call), version))

    def _seen(self, call: Call) -> int | None:
        """The version that the call saw as the current one."""
        if call.planned is not None:
            return call.planned.number
        if call.outcome == "nothing" and call.id in self.op_of:
            return None  # a pop that was sent again: its item is gone, its version is the first sending's
        if call.outcome in ("conflict", "nothing") or (call.outcome, call.verb) == ("read", "read"):
            return None if call.version is None else call.version.number
        return None

    def _prefixes(self) -> Iterator[Violation]:
        reads: dict[int, list[Call]] = defaultdict(list)
        for call in self.calls:
            if (call.outcome, call.verb, call.limit) == ("read", "read", None) and call.epoch is not None:
                reads[call.epoch].append(call)
        for same in reads.values():
            same.sort(key=lambda call: call.version or Mark(0))
            for earlier, later in itertools.pairwise(same):
                if later.items[: len(earlier.items)] != earlier.items:
                    yield self._broken("shortened", later, f"{later.items} behind {earlier.items}")

    def _final(self) -> Iterator[Violation]:
        last, final = len(self.lists) - 1, self.final
        if final.version != self._mark(last) or final.epoch != self.epochs[last]:
            yield self._broken("final", f"at {final.version}, epoch {final.epoch}, behind version {last}")
        if final.items != self.lists[last]:
            yield self._broken("final", f"{final.items}, not {self.lists[last]}")
        if Counter(final.rows) != Counter(self.lists[last]):
            hidden = Counter(final.rows) - Counter(self.lists[last])
            yield self._broken("final", f"rows that nobody may read any more: {sorted(hidden)}")

    def _mark(self, number: int) -> Mark:
        return self.final.ops[number - 1].version if number else Mark(0)

    def _exists(self, version: Mark) -> bool:
        return 0 <= version.number < len(self.lists) and version == self._mark(version.number)

    def _broken(self, rule: Rule, where: Call | str, text: str = "") -> Violation:
        said = f"{where.verb} {where.id}: {text}" if isinstance(where, Call) else where
        return Violation(rule, self.final.session, said)


@cache
def _size(token: str) -> int:
    return codec.encode([item_of(token)]).size


def _end(call: Call) -> float:
    return math.inf if call.end is None else call.end


def _compacted(before: Tokens, given: Tokens, made: Tokens) -> Tokens | None:
    """The list with the prefix that a compactor got replaced; None if that was not its prefix.

    Pinned items were not given; they follow what was made.
    """
    kept: list[str] = []
    rest = list(before)
    for token in given:
        while rest and rest[0] != token and rest[0].startswith(PIN):
            kept.append(rest.pop(0))
        if not rest or rest.pop(0) != token:
            return None
    return (*made, *kept, *rest)


def _difference(call: Call, wanted: Tokens) -> str:
    missing = [token for token in wanted if token not in call.items]
    extra = [token for token in call.items if token not in wanted]
    return f"version {call.version} without {missing}, with {extra} ({len(call.items)} of {len(wanted)})"
