"""The checker finds each kind of broken promise: histories that were recorded, with one thing changed.

Every change is tried at several places of the history, and every one of them must be found.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests import postgres
from tests.witness.checker import KINDS, Rule, SessionCheck, check
from tests.witness.history import Call, Final, History, Mark, Op, recorded
from tests.witness.stress import finals
from tests.witness.worker import Settings, named_writes, work

ENOUGH = 3  # writes of each kind that landed
CALLS = 300  # after which it looks whether that is enough
PLACES = 8  # at which each change is tried
S = "hot"

Change = Callable[["Tape"], Iterable[History]]


class Tape:
    """A history, with what the changes look for in its busiest session."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.final = next(final for final in history.finals if final.session == S)
        self.calls = {call.id: call for call in history.calls if call.session == S}
        self.ops = self.final.ops
        prunes = [call for call in history.calls if call.verb == "prune"]
        replayed = SessionCheck(self.final, tuple(self.calls.values()), prunes)
        assert list(replayed.violations()) == []
        self.lists, self.known = replayed.lists, replayed.known
        self.reads = [call for call in self.calls.values() if _is_read(call)]

    def landed(self, *verbs: str) -> Iterator[tuple[Op, Call]]:
        """Writes that landed and whose caller was told the version."""
        for op in self.ops:
            call = self.calls[op.call]
            if call.outcome == "landed" and call.version is not None and call.verb in verbs:
                yield op, call

    @property
    def some_ops(self) -> tuple[Op, ...]:
        """Op rows from everywhere, for they are many."""
        return self.ops[:: max(1, len(self.ops) // PLACES)]

    def with_call(self, call: Call, **changes: object) -> History:
        """The history with one call changed."""
        return self.with_calls([replace(call, **changes)])  # type: ignore[arg-type]

    def with_calls(self, changed: Iterable[Call], final: Final | None = None) -> History:
        by_id = {call.id: call for call in self.history.calls} | {call.id: call for call in changed}
        others = [final for final in self.history.finals if final.session != S]
        return History(tuple(by_id.values()), (*others, final or self.final))

    def with_ops(self, ops: Iterable[Op], **changes: object) -> History:
        """The history with other op rows, numbered anew."""
        numbered = tuple(
            replace(op, version=Mark(at, op.version.nonce)) for at, op in enumerate(ops, start=1)
        )
        last = numbered[-1].version
        return self.with_calls([], replace(self.final, ops=numbered, version=last, **changes))  # type: ignore[arg-type]


def _is_read(call: Call) -> bool:
    return (call.verb, call.outcome, call.limit) == ("read", "read", None)


# Writes


def an_append_whose_rows_are_lost(tape: Tape) -> Iterator[History]:
    for _, call in tape.landed("append"):
        readers = [
            replace(read, items=tuple(token for token in read.items if token not in call.items))
            for read in tape.reads
            if set(call.items) & set(read.items)
        ]
        if readers:
            yield tape.with_calls(readers)


def an_append_that_is_lost_with_its_op_row(tape: Tape) -> Iterator[History]:
    """As after a failover: the versions behind it are used again."""
    for op, _ in tape.landed("append"):
        yield tape.with_ops(other for other in tape.ops if other is not op)


def an_op_row_that_is_lost(tape: Tape) -> Iterator[History]:
    for op in tape.some_ops[:-1]:
        left = tuple(other for other in tape.ops if other is not op)
        yield tape.with_calls([], replace(tape.final, ops=left))


def a_version_that_two_writes_are_told(tape: Tape) -> Iterator[History]:
    before: Mark | None = None
    for op, call in tape.landed("append", "clear", "replace", "update", "compact", "restore"):
        if before is not None:
            yield tape.with_call(call, version=before)
        before = op.version


def a_version_with_another_nonce(tape: Tape) -> Iterator[History]:
    for op, call in tape.landed("append", "clear", "pop"):
        yield tape.with_call(call, version=Mark(op.version.number, "another"))


def versions_that_begin_again_after_a_delete(tape: Tape) -> Iterator[History]:
    for op, _ in tape.landed("delete", "clear"):
        at = op.version.number
        again = [
            replace(later, version=Mark(number, later.version.nonce))
            for number, later in enumerate(tape.ops[at:], start=1)
        ]
        if again:
            yield tape.with_calls([], replace(tape.final, ops=(*tape.ops[:at], *again)))


def a_write_of_unknown_outcome_that_landed_twice(tape: Tape) -> Iterator[History]:
    last = tape.ops[-1]
    for op, call in tape.landed("append"):
        again = replace(
            op, version=Mark(0, "again"), op_id=f"{op.op_id}-again", epoch=last.epoch,
            item_count=last.item_count + len(call.items), byte_count=last.byte_count,
        )  # fmt: skip
        items = tape.final.items + call.items
        history = tape.with_ops([*tape.ops, again], items=items, rows=items)
        unknown = replace(call, outcome="unknown", version=None, end=None)
        yield History(tuple(unknown if one.id == call.id else one for one in history.calls), history.finals)


def a_write_of_nobody(tape: Tape) -> Iterator[History]:
    for op in tape.some_ops:
        yield tape.with_ops(replace(o, op_id="nobody/1") if o is op else o for o in tape.ops)


def a_write_that_landed_and_was_told_not_to(tape: Tape) -> Iterator[History]:
    for _, call in tape.landed("append", "pop", "clear", "replace", "compact"):
        yield tape.with_call(call, outcome="did not land", version=None, planned=None)


def a_write_that_conflicts_with_itself(tape: Tape) -> Iterator[History]:
    for op, call in tape.landed("append", "replace", "restore"):
        if call.expected is not None:
            yield tape.with_call(call, outcome="conflict", version=op.version, change="rewritten")


def a_conditional_write_on_another_version(tape: Tape) -> Iterator[History]:
    for op, call in tape.landed("append", "replace", "restore", "pop"):
        if call.expected is not None and op.version.number > 2:
            yield tape.with_call(call, expected=tape.ops[op.version.number - 3].version)
            yield tape.with_call(call, expected=Mark(call.expected.number, "another"))


def a_later_write_with_a_lower_version(tape: Tape) -> Iterator[History]:
    """The call was made before the one whose version is lower had begun."""
    for op, call in tape.landed("append", "clear", "replace", "update"):
        if op.version.number > 1:
            before = tape.calls[tape.ops[op.version.number - 2].call]
            yield tape.with_call(call, begin=before.begin - 2, end=before.begin - 1)


# What writes did


def a_pop_that_takes_what_another_took(tape: Tape) -> Iterator[History]:
    taken: str | None = None
    for _, call in tape.landed("pop"):
        if taken is not None:
            yield tape.with_call(call, item=taken)
        taken = call.item


def a_pop_that_takes_an_item_and_returns_none(tape: Tape) -> Iterator[History]:
    for _, call in tape.landed("pop"):
        yield tape.with_call(call, item=None, resent=False)


def an_update_of_items_that_were_not_there(tape: Tape) -> Iterator[History]:
    """A lost update: what came between is not in what it made."""
    for _, call in tape.landed("update"):
        given, made = call.steps[-1]
        if given:
            yield tape.with_call(call, steps=((given[:-1], made),))


def a_compaction_of_items_that_were_not_there(tape: Tape) -> Iterator[History]:
    for _, call in tape.landed("compact"):
        given, made = call.steps[-1]
        yield tape.with_call(call, steps=((("erased", *given), made),))
        if len(given) > 1:
            yield tape.with_call(call, steps=((given[1:], made),))


def a_compaction_planned_before_a_rewrite(tape: Tape) -> Iterator[History]:
    for op, call in tape.landed("compact"):
        earlier = [before for before in tape.ops[: op.version.number - 1] if before.epoch < op.epoch - 1]
        if earlier:
            yield tape.with_call(call, planned=earlier[-1].version)


def a_restore_of_what_was_erased(tape: Tape) -> Iterator[History]:
    for op, call in tape.landed("restore"):
        erasing = [
            before.version.number
            for before in tape.ops[: op.version.number - 1]
            if before.kind in ("clear", "delete")
        ]
        if erasing:
            yield tape.with_call(call, target=erasing[-1] - 1)


def a_rewrite_that_leaves_the_epoch(tape: Tape) -> Iterator[History]:
    for op in tape.ops:
        if op.kind != "append":
            yield tape.with_ops(
                replace(o, epoch=o.epoch - 1) if o.version.number >= op.version.number else o
                for o in tape.ops
            )


def a_count_that_is_wrong(tape: Tape) -> Iterator[History]:
    for op in tape.some_ops:
        for wrong in (replace(op, item_count=op.item_count + 1), replace(op, byte_count=op.byte_count - 1)):
            yield tape.with_ops(wrong if o is op else o for o in tape.ops)


# Reads


def a_read_whose_version_is_newer_than_its_items(tape: Tape) -> Iterator[History]:
    for read in tape.reads:
        assert read.version is not None
        if read.version.number < len(tape.ops):
            after = tape.ops[read.version.number]
            if after.item_count or read.items:
                yield tape.with_call(read, version=after.version, epoch=after.epoch)


def a_read_with_a_hole(tape: Tape) -> Iterator[History]:
    for read in tape.reads:
        if len(read.items) > 1:
            yield tape.with_call(read, items=(read.items[0], *read.items[2:]))


def a_read_in_another_order(tape: Tape) -> Iterator[History]:
    for read in tape.reads:
        if len(read.items) > 1:
            yield tape.with_call(read, items=(*read.items[:-2], read.items[-1], read.items[-2]))


def a_read_of_an_earlier_state(tape: Tape) -> Iterator[History]:
    """All of it is right, but a newer version had been told to somebody before it began."""
    for read in tape.reads:
        assert read.version is not None
        before = [r for r in tape.reads if r.version and r.version.number < tape.known[read.id]]
        if before:
            stale = max(before, key=lambda r: r.version or Mark(0))
            yield tape.with_call(read, version=stale.version, items=stale.items, epoch=stale.epoch)


def a_read_of_what_was_cleared(tape: Tape) -> Iterator[History]:
    for op, clear in tape.landed("clear", "delete"):
        before = tape.lists[op.version.number - 1]
        read = Call("late", S, "read", clear.begin, clear.end, outcome="read", epoch=op.epoch)
        if before:
            yield tape.with_calls([replace(read, version=op.version, items=before)])


def a_read_as_of_what_was_cleared(tape: Tape) -> Iterator[History]:
    for op, clear in tape.landed("clear", "delete"):
        target, late = op.version.number - 1, (clear.end or 0) + 1
        read = Call("late", S, "read as of", late, late + 1, target=target, outcome="read")
        if target:
            was = tape.ops[target - 1]
            items = tape.lists[target]
            yield tape.with_calls([replace(read, version=was.version, epoch=was.epoch, items=items)])


def a_read_of_what_did_not_land(tape: Tape) -> Iterator[History]:
    refused = Call("refused", S, "append", 0, 1, items=("refused.0",), outcome="did not land")
    for read in tape.reads:
        yield tape.with_calls([refused, replace(read, items=(*read.items, "refused.0"))])


def an_item_that_is_not_as_it_was_written(tape: Tape) -> Iterator[History]:
    for read in tape.reads:
        if read.items:
            yield tape.with_call(read, items=(*read.items[:-1], '{"content": 1}'))


# Conflicts and refusals


def conflicts(tape: Tape) -> Iterator[Call]:
    return (call for call in tape.calls.values() if call.outcome == "conflict" and call.version)


def a_conflict_with_a_version_that_was_gone(tape: Tape) -> Iterator[History]:
    for call in conflicts(tape):
        known = tape.known[call.id]
        if known > 1 and call.expected and call.expected.number != known - 1:
            stale = tape.ops[known - 2]
            yield tape.with_call(call, version=stale.version)


def a_conflict_of_another_kind(tape: Tape) -> Iterator[History]:
    for call in conflicts(tape):
        for change in {"appended", "rewritten", "deleted", "missing"} - {call.change}:
            yield tape.with_call(call, change=change)


def a_conflict_with_what_was_expected(tape: Tape) -> Iterator[History]:
    for call in conflicts(tape):
        yield tape.with_call(call, expected=call.version)


def a_conflict_of_an_unconditional_write(tape: Tape) -> Iterator[History]:
    for call in conflicts(tape):
        yield tape.with_call(call, expected=None)


def a_version_that_is_said_to_be_erased(tape: Tape) -> Iterator[History]:
    last = max(op.version.number for op, _ in tape.landed("clear", "delete"))
    for read in tape.reads:
        yield tape.with_call(
            read, verb="read as of", outcome="not retained", reason="erased", target=last, version=None
        )


def an_exception_that_nobody_names(tape: Tape) -> Iterator[History]:
    for call in conflicts(tape):
        yield tape.with_call(call, outcome="raised", error="KeyError()")


# The end


def erased_rows_that_are_still_stored(tape: Tape) -> Iterator[History]:
    for _, call in tape.landed("append"):
        yield tape.with_calls([], replace(tape.final, rows=(*tape.final.rows, call.items[0])))


def items_that_are_lost_in_the_end(tape: Tape) -> Iterator[History]:
    items = (*tape.final.items, "more")
    yield tape.with_calls([], replace(tape.final, items=items))
    yield tape.with_calls(
        [], replace(tape.final, rows=()) if tape.final.rows else replace(tape.final, rows=items)
    )


FOUND_BY: dict[Change, set[Rule]] = {
    an_append_whose_rows_are_lost: {"read"},
    an_append_that_is_lost_with_its_op_row: {"lost"},
    an_op_row_that_is_lost: {"gap"},
    a_version_that_two_writes_are_told: {"version"},
    a_version_with_another_nonce: {"version"},
    versions_that_begin_again_after_a_delete: {"gap"},
    a_write_of_unknown_outcome_that_landed_twice: {"twice"},
    a_write_of_nobody: {"foreign"},
    a_write_that_landed_and_was_told_not_to: {"false refusal"},
    a_write_that_conflicts_with_itself: {"conflict"},
    a_conditional_write_on_another_version: {"expected"},
    a_later_write_with_a_lower_version: {"order"},
    a_pop_that_takes_what_another_took: {"result"},
    a_pop_that_takes_an_item_and_returns_none: {"result"},
    an_update_of_items_that_were_not_there: {"stale input"},
    a_compaction_of_items_that_were_not_there: {"stale input"},
    a_compaction_planned_before_a_rewrite: {"stale input"},
    a_restore_of_what_was_erased: {"erased"},
    a_rewrite_that_leaves_the_epoch: {"manifest"},
    a_count_that_is_wrong: {"manifest"},
    a_read_whose_version_is_newer_than_its_items: {"read", "erased", "not landed"},
    a_read_with_a_hole: {"read"},
    a_read_in_another_order: {"read"},
    a_read_of_an_earlier_state: {"order"},
    a_read_of_what_was_cleared: {"erased"},
    a_read_as_of_what_was_cleared: {"erased"},
    a_read_of_what_did_not_land: {"not landed"},
    an_item_that_is_not_as_it_was_written: {"read"},
    a_conflict_with_a_version_that_was_gone: {"order"},
    a_conflict_of_another_kind: {"conflict"},
    a_conflict_with_what_was_expected: {"conflict"},
    a_conflict_of_an_unconditional_write: {"conflict"},
    a_version_that_is_said_to_be_erased: {"result"},
    an_exception_that_nobody_names: {"raised"},
    erased_rows_that_are_still_stored: {"final"},
    items_that_are_lost_in_the_end: {"final"},
}


def calls_of(stores: Iterable[Settings]) -> list[Call]:
    return [call for settings in stores for call in recorded(Path(settings.log))]


def is_enough(stores: Iterable[Settings]) -> bool:
    """Whether there is something to change of each kind."""
    landed = Counter(call.verb for call in calls_of(stores) if call.outcome == "landed")
    return all(landed[verb] >= ENOUGH for verb in KINDS)


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Tape:
    """What two stores did on one SQLite file."""
    folder = tmp_path_factory.mktemp("recorded")
    url = f"sqlite:///{folder / 'sessions.db'}"
    histories: list[History] = []

    async def record() -> None:
        stopped = asyncio.Event()
        count, seed = itertools.count(1), random.SystemRandom().randrange(2**32)
        stores = [
            Settings(
                name, url, str(folder / f"{name}.log"), seed, sessions=(S,), clients=1, retain_s=retain_s
            )
            for name, retain_s in (("a", 0.0), ("b", None))
        ]

        def done() -> None:
            if next(count) % CALLS == 0 and is_enough(stores):
                stopped.set()

        await finals(url)  # makes the tables
        with named_writes():
            await asyncio.gather(*(work(settings, stopped, done) for settings in stores))
        histories.append(History(tuple(calls_of(stores)), tuple(await finals(url, [S]))))

    postgres.in_own_loop(record)
    return Tape(histories[0])


def test_what_was_recorded_has_no_violation(tape: Tape) -> None:
    assert check(tape.history) == []
    assert {call.verb for call in tape.history.calls if call.outcome == "landed"} == set(KINDS)


@pytest.mark.parametrize("change", FOUND_BY, ids=lambda change: change.__name__)
def test_the_checker_finds(tape: Tape, change: Change) -> None:
    changed = list(islice(_spread(change(tape)), PLACES))

    assert changed
    for history in changed:
        assert {violation.rule for violation in check(history)} & FOUND_BY[change]


def test_a_write_whose_outcome_nobody_heard_may_have_landed_or_not(tape: Tape) -> None:
    """Once, or not at all."""
    landed = list(tape.landed("append", "pop", "clear", "replace", "update", "compact", "restore"))
    unheard = [replace(call, outcome="unknown", version=None, planned=None, end=None) for _, call in landed]
    absent = Call("absent", S, "append", tape.reads[0].begin, items=("absent.0",))

    assert check(tape.with_calls([*unheard, absent])) == []


def test_a_history_that_was_saved_is_the_same(tape: Tape, tmp_path: Path) -> None:
    tape.history.save(tmp_path / "history")

    assert History.load(tmp_path / "history") == tape.history


def test_a_log_whose_last_line_is_torn_tells_the_rest(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        '{"id": "1", "session": "hot", "verb": "append", "begin": 1, "items": ["a"]}\n'
        '{"id": "2", "session": "hot", "verb": "clear", "begin": 2}\n'
        '{"id": "1", "end": 3, "outcome": "landed", "version": [1, "n"]}\n'
        '{"id": "2", "end": 4, "outc'
    )

    first, second = recorded(tmp_path / "log")

    assert (first.end, first.outcome, first.version) == (3, "landed", Mark(1, "n"))
    assert (second.end, second.outcome) == (None, "unknown")


def _spread(histories: Iterable[History]) -> Iterator[History]:
    """Some from everywhere, for they are many."""
    found = list(histories)
    return iter(found[:: max(1, len(found) // PLACES)])
