"""Long random histories on real drivers: every verb, stale versions, writes sent again, prune at any time."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cas_session.driver import NO_CHAIN, Chain, Driver, Known, Landed, Load, Prune, Write
from cas_session.errors import (
    Change,
    OperationMismatchError,
    VersionConflictError,
    VersionNotRetainedError,
)
from cas_session.snapshot import Version
from tests.conformance import writes
from tests.conformance.database import Database
from tests.model.manifest import RefusedError, Rules
from tests.model.replay import FENCE, Replay, counters
from tests.model.search import Node, Step, compaction, follow, planned

T = TypeVar("T")

RULES = Rules()
EXAMPLES, STEPS = 60, 40  # some 10 s a driver
OTHERS = [Step("append", ("other",)), Step("clear"), Step("replace"), Step("pop")]
ANOTHER_NONCE = "0123456789abcdef"

Refusal = type[Exception] | tuple[type[Exception], ...] | None

picks = st.integers(0, 10_000)
"""An index into something whose length is known only when the rule runs."""


def pick(options: Sequence[T], at: int) -> T:
    return options[at % len(options)]


class Histories(RuleBasedStateMachine):
    """One session and its models. What a rule may do is decided by the models, never by the driver."""

    driver: ClassVar[Driver]
    database: ClassVar[Database]
    runner: ClassVar[asyncio.Runner]
    numbers: ClassVar[Iterator[int]]

    def __init__(self) -> None:
        super().__init__()
        self.replay = Replay(self.driver, self.database, f"session-{next(self.numbers)}")
        self.node = planned(RULES, Node())
        self.deleted = False
        self.chain = NO_CHAIN
        self.landed: list[tuple[Write, Landed]] = []

    @property
    def version(self) -> int:
        return self.node.lists.version

    # Writes.

    @rule(count=st.integers(1, 3), expected=picks)
    def append(self, count: int, expected: int) -> None:
        self.send(Step("append", self.texts(count)), self.expected(expected))

    @rule(counts=st.lists(st.integers(1, 3), min_size=2, max_size=4))
    def append_together(self, counts: list[int]) -> None:
        group = [
            writes.append(self.replay.session_id, *self.texts(count, member))
            for member, count in enumerate(counts)
        ]
        for write, landed in zip(group, self.run(self.driver.append(group)), strict=True):
            self.follow(Step("append", write.texts), write, landed)

    @rule(count=st.integers(0, 3), expected=picks)
    def replace(self, count: int, expected: int) -> None:
        self.send(Step("replace", self.texts(count)), self.expected(expected, always=True))

    @rule(kind=st.sampled_from(["pop", "clear", "delete"]), expected=picks)
    def remove(self, kind: Any, expected: int) -> None:
        self.send(Step(kind), self.expected(expected))

    @rule(locked=st.booleans())
    def pop(self, locked: bool) -> None:
        self.send(Step("pop"), None, locked=locked)

    @precondition(lambda self: self.version)
    @rule(version=picks, expected=picks)
    def restore(self, version: int, expected: int) -> None:
        """Of a version from 1 to one that is not written yet."""
        step = Step("restore", version=1 + version % (self.version + 1))
        self.send(step, self.expected(expected, always=True))

    @rule(cut=picks, count=st.integers(0, 4))
    def compact(self, cut: int, count: int) -> None:
        """At any cut of what is there now."""
        cut %= len(self.node.lists.items) + 1
        self.send(compaction(RULES, self.node, cut, self.texts(count)), None if self.version else 0)

    @precondition(lambda self: self.version)
    @rule(version=picks, expected=picks, strict=st.booleans())
    def compact_late(self, version: int, expected: int, strict: bool) -> None:
        """As planned at some version, whatever came between."""
        step = pick(self.node.plans, version)
        self.send(step, self.expected(expected) if strict else None)

    @precondition(lambda self: self.landed)
    @rule(at=picks)
    def send_again(self, at: int) -> None:
        write, first = pick(self.landed, at)

        again = self.run(writes.send(self.driver, writes.resent(write)))

        assert again.manifest == first.manifest
        assert again.manifest.version.nonce == first.manifest.version.nonce
        assert again.found_version == first.found_version
        if first.manifest.version < self.node.lists.erased_before:
            assert again.item is None
        elif first.manifest.version > self.node.lists.pruned_before:
            assert again.item == first.item
        else:
            assert again.item in (first.item, None)

    @precondition(lambda self: self.landed)
    @rule(
        at=picks,
        step=st.sampled_from([Step("append", ("other",)), Step("clear"), Step("replace"), Step("pop")]),
    )
    def use_an_op_id_again(self, at: int, step: Step) -> None:
        used, _ = pick(self.landed, at)
        write = writes.resent(self.replay.write_of(step, op_id=used.op_id))
        if write.digest != used.digest:
            with pytest.raises(OperationMismatchError):
                self.run(writes.send(self.driver, write))

    # Everything else.

    @rule(epoch=st.integers(-2, 1), response=st.integers(0, 99))
    def record_chain(self, epoch: int, response: int) -> None:
        """Of the epoch that is there, of an earlier one, or of one to come."""
        now = self.node.state.manifest.epoch
        chain = Chain(f"resp_{response}", stored=response % 2 == 0, epoch=now + epoch, seq=response)

        recorded = self.run(self.driver.record_chain(self.replay.session_id, chain))

        assert recorded == (epoch == 0)
        if recorded:
            self.chain = chain

    @rule()
    def remove_erased(self) -> None:
        self.move(Step("remove erased"))
        self.run(self.driver.remove_erased(self.replay.session_id))
        self.check_item_rows()

    @rule(back=st.integers(0, 3), batch=st.sampled_from([1, 3, 1000]))
    def prune_what_was_hidden_long_ago(self, back: int, batch: int) -> None:
        step = Step("prune", version=max(0, self.version - back))
        self.move(step)
        self.run(self.replay.age(step.version))
        self.prune(timedelta(days=30), batch)

    @rule(batch=st.sampled_from([1, 3, 1000]))
    def prune_what_is_hidden(self, batch: int) -> None:
        self.move(Step("prune", version=self.version))
        self.prune(timedelta(0), batch)

    @rule()
    def prune_what_is_older_than_everything(self) -> None:
        self.move(Step("remove erased"))
        self.prune(FENCE, 1000)

    @rule(limit=st.integers(0, 9))
    def load_the_newest(self, limit: int) -> None:
        loaded = self.run(self.driver.load(Load(self.replay.session_id, limit=limit)))

        items = self.node.lists.items
        assert writes.texts_of(loaded) == list(items[max(0, len(items) - limit) :])

    @precondition(lambda self: self.version)
    @rule(version=picks)
    def read_on(self, version: int) -> None:
        """From what was there at some version: its items are still the first, or all are read afresh."""
        version = 1 + version % self.version
        manifest, lists = self.node.state.ops[version], self.node.lists
        assert manifest is not None
        known = Known(self.replay.versions[version], manifest.epoch, manifest.next_seq - 1)

        loaded = self.run(self.driver.load(Load(self.replay.session_id, known=known)))

        assert loaded.extends == lists.only_appends_since(version)
        new = lists.items[len(lists.history[version]) :] if loaded.extends else lists.items
        assert writes.texts_of(loaded) == list(new)

    @precondition(lambda self: self.version)
    @rule(version=picks)
    def load_as_of(self, version: int) -> None:
        self.run(self.replay.check_version(self.node, 1 + version % self.version))

    # What holds after every rule.

    @invariant()
    def the_session_is_as_modelled(self) -> None:
        loaded = self.run(self.driver.load(Load(self.replay.session_id)))

        assert writes.texts_of(loaded) == list(self.node.lists.items)
        assert counters(loaded.manifest) == self.node.state.manifest
        assert loaded.manifest.version.nonce == self.replay.versions[-1].nonce
        assert loaded.chain == self.chain
        if loaded.row is not None:
            assert (loaded.row.deleted_at is not None) == self.deleted

    def check_item_rows(self) -> None:
        """What is stored is exactly what the rules keep."""
        rows = self.run(self.database.item_rows(self.replay.session_id))
        assert sorted(rows) == sorted(row.text for row in self.node.state.rows)

    def teardown(self) -> None:
        self.check_item_rows()
        self.run(self.replay.check(self.node))
        ops = self.run(writes.operations(self.driver, self.replay.session_id))
        assert [int(op.manifest.version) for op in ops] == list(range(self.version, 0, -1))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def texts(self, count: int, ahead: int = 0) -> tuple[str, ...]:
        return tuple(f"{self.version + ahead}.{at} é" for at in range(count))

    def expected(self, at: int, *, always: bool = False) -> int | None:
        """What is there, two times of three, three ways; else what is not, or is no more."""
        now, stale = self.replay.versions[-1], self.replay.versions[:-1]
        if at % 3:
            return pick([now, int(now)] if always else [None, now, int(now)], at // 3)
        wrong = [Version(now, ANOTHER_NONCE)] if now else []
        return pick([now + 1, *wrong, *stale, *map(int, stale)], at // 3)

    def send(self, step: Step, expected: int | None, **fields: Any) -> None:
        """Send the step as a write; it must land exactly if the models let it."""
        write = dataclasses.replace(self.replay.write_of(step), expected=expected, **fields)
        error = self.refusal(step, expected)
        if error is None:
            self.follow(step, write, self.run(writes.send(self.driver, write)))
            return
        with pytest.raises(error) as caught:
            self.run(writes.send(self.driver, write))
        if isinstance(caught.value, VersionConflictError):
            self.check_conflict(caught.value, step, expected)

    def refusal(
        self, step: Step, expected: int | None
    ) -> type[Exception] | tuple[type[Exception], ...] | None:
        now = self.replay.versions[-1]
        strong = isinstance(expected, Version) and expected.nonce
        moved = expected is not None and (expected != now or bool(strong and strong != now.nonce))
        if step.plan is not None:
            moved = moved or not self.node.lists.only_appends_since(step.plan.source.version)
        refused: type[Exception] | None = None
        if step.kind == "restore":
            refused = self.restore_refusal(step.version)
        if moved and refused:
            return VersionConflictError, refused
        return VersionConflictError if moved else refused

    def restore_refusal(self, version: int) -> type[Exception] | None:
        if version > self.version:
            return ValueError
        try:
            RULES.as_of(self.node.state, version)
        except RefusedError:
            return VersionNotRetainedError
        return None

    def check_conflict(self, error: VersionConflictError, step: Step, expected: int | None) -> None:
        """It names what is there, and one of the versions that the write stood on."""
        now = self.replay.versions[-1]
        assert error.actual == now
        assert error.actual.nonce == now.nonce
        assert error.expected in ({expected} if step.plan is None else {expected, step.plan.source.version})
        if error.expected in self.replay.versions[: int(now)]:
            assert error.change == self.change_since(int(error.expected))

    def change_since(self, version: int) -> Change:
        if self.deleted:
            return "deleted"
        return "appended" if self.node.lists.only_appends_since(version) else "rewritten"

    def follow(self, step: Step, write: Write, landed: Landed) -> None:
        """The write landed, or had nothing to write: take the step in the models, and hold the result."""
        before = self.node
        self.move(step)
        wrote = self.node is not before
        assert counters(landed.manifest) == self.node.state.manifest
        if wrote:
            self.replay.landed(landed)
            self.landed.append((write, landed))
            assert landed.manifest.version.nonce == write.nonce
            if step.kind != "append":
                self.chain = NO_CHAIN
            self.deleted = step.kind == "delete" or (self.deleted and step.kind in ("clear", "pop"))
        assert landed.chain == self.chain
        assert landed.found_version == (before.lists.version if step.plan is not None else None)
        expected_item = before.lists.items[-1] if step.kind == "pop" and before.lists.items else None
        assert landed.item == expected_item

    def move(self, step: Step) -> None:
        """Take a step in the models."""
        after = follow(RULES, self.node, step)
        if after is not None:
            self.node = planned(RULES, after)

    def prune(self, retain: timedelta, batch: int) -> None:
        """Prune until nothing is left to prune."""
        while self.run(self.driver.prune(Prune(retain=retain, fence=FENCE, batch=batch))):
            pass
        self.check_item_rows()


def test_any_history_reads_as_its_model(database_url: str) -> None:
    database = Database(database_url)
    with asyncio.Runner() as runner:
        opened = database.opened()
        driver = runner.run(opened.__aenter__())
        try:
            machine = type(
                "Machine",
                (Histories,),
                {"driver": driver, "database": database, "runner": runner, "numbers": itertools.count()},
            )
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(opened.__aexit__(None, None, None))
