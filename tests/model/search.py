"""Exhaustive search over short histories: the manifest rules against plain lists, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from tests.model.lists import Lists
from tests.model.manifest import Manifest, MovedError, Plan, RefusedError, Rules, State, plan

_MARKS = ("a", "ñ")  # one of more bytes than characters


class CounterexampleError(AssertionError):
    """A history after which the rules and the lists disagree."""


class Step(NamedTuple):
    """One step of a history.

    Attributes:
        texts: The new items.
        version: To restore, or to prune up to.
        cut: How many items a compaction replaces.
        plan: The same as a driver is told it.
    """

    kind: Literal[
        "append", "pop", "clear", "delete", "replace", "compact", "restore", "remove erased", "prune"
    ]
    texts: tuple[str, ...] = ()
    version: int = 0
    cut: int = 0
    plan: Plan | None = None

    def __str__(self) -> str:
        numbers = [str(number) for number in (self.version, self.cut) if number]
        return " ".join([self.kind, *numbers, *self.texts])


class Node(NamedTuple):
    """One history: what it led to in both models, its last step, and the plan made at each version."""

    state: State = State()
    lists: Lists = Lists()
    plans: tuple[Step, ...] = ()
    step: Step | None = None
    parent: Node | None = None

    @property
    def path(self) -> list[Node]:
        """The nodes after each step, oldest first."""
        return [*self.parent.path, self] if self.parent is not None else []

    def new_texts(self, count: int) -> tuple[str, ...]:
        """Texts that no other write of this history has."""
        return tuple(f"{self.lists.version}{mark}" for mark in _MARKS[:count])


def search(rules: Rules, depth: int, *, inside: bool = True) -> int:
    """Walk every history of up to ``depth`` steps and count them.

    Without ``inside`` only what a user sees is held: items, versions, their past, and refusals.

    Raises:
        CounterexampleError: The first history after which something that must hold does not.
    """
    walked = 0
    for node in histories(rules, depth):
        walked += 1
        check(rules, node)
        if inside:
            check_inside(node)
    return walked


def histories(rules: Rules, depth: int, start: Node | None = None) -> Iterator[Node]:
    """Every history of up to ``depth`` steps; those that lead to the same place go on from there once."""
    seen: set[tuple[State, Lists]] = set()
    level = [planned(rules, start or Node())]
    for left in range(depth, 0, -1):
        following = []
        for node in level:
            for step in steps(rules, node):
                after = follow(rules, node, step)
                if after is None:
                    continue
                yield after
                if left > 1 and (place := (after.state, after.lists)) not in seen:
                    seen.add(place)
                    following.append(planned(rules, after))
        level = following


def steps(rules: Rules, node: Node) -> Iterator[Step]:
    """Every step that somebody can try from here."""
    version = node.lists.version
    yield Step("append", node.new_texts(1))
    yield Step("append", node.new_texts(2))
    yield Step("pop")
    yield Step("clear")
    yield Step("delete")
    yield Step("replace")
    yield Step("replace", node.new_texts(2))
    for earlier in range(1, version + 1):
        yield Step("restore", version=earlier)
    for cut in range(len(node.lists.items) + 1):
        for count in range(3):
            yield compaction(rules, node, cut, node.new_texts(count))
    yield from node.plans[:-1]
    yield Step("remove erased")
    for cutoff in range(max(0, version - 2), version + 1):
        yield Step("prune", version=cutoff)


def compaction(rules: Rules, node: Node, cut: int, new: tuple[str, ...]) -> Step:
    """The step that replaces the first ``cut`` items by new ones."""
    visible = [(row.seq, row.text) for row in rules.visible(node.state)]
    made = plan(node.state.manifest, visible, cut, new, through_base=rules.plans_through_base)
    return Step("compact", new, cut=cut, plan=made)


def planned(rules: Rules, node: Node) -> Node:
    """Remember the plan of a whole compaction at this version, for a later step to land."""
    if len(node.plans) > node.lists.version:
        return node
    made = compaction(rules, node, len(node.lists.items), (f"late {node.lists.version}",))
    return node._replace(plans=(*node.plans, made))


def follow(rules: Rules, node: Node, step: Step) -> Node | None:
    """Take the step in both models; None if it is refused, or writes nothing.

    Raises:
        CounterexampleError: It landed and must not, or was refused and must land.
    """
    allowed = _may_land(node, step)
    try:
        state = _written(rules, node.state, step)
    except MovedError:
        if allowed:
            raise _counterexample(node, f"{step} was refused") from None
        return None
    except RefusedError:
        return None  # `check` holds which versions must be there
    if not allowed:
        raise _counterexample(node, f"{step} landed")
    lists = _listed(node.lists, step)
    if (state, lists) == (node.state, node.lists):
        return None
    after = Node(state, lists, node.plans, step, node)
    if step.kind in ("remove erased", "prune"):
        _check_removal(rules, after)
    return after


def check(rules: Rules, node: Node) -> None:
    """Hold what a user sees against the lists, now and as of every version."""
    _hold(node, "version", node.lists.version, node.state.manifest.version)
    _hold(node, "the visible items", node.lists.items, tuple(row.text for row in rules.visible(node.state)))
    for version in range(1, node.lists.version + 1):
        _check_version(rules, node, version)


def check_inside(node: Node) -> None:
    """Hold the counters against the lists, and that those which never go back do not."""
    lists, manifest = node.lists, node.state.manifest
    _hold(node, "epoch", lists.rewrites[-1], manifest.epoch)
    _hold(node, "item_count", len(lists.items), manifest.item_count)
    _hold(node, "byte_count", sum(len(text.encode()) for text in lists.items), manifest.byte_count)
    _hold(node, "rows of one key", len(node.state.rows), len({row[:2] for row in node.state.rows}))
    before = node.parent.state.manifest if node.parent else Manifest()
    for name in ("next_seq", "base_seq", "erased_epoch"):
        if getattr(manifest, name) < getattr(before, name):
            raise _counterexample(node, f"{name} went back")


def _may_land(node: Node, step: Step) -> bool:
    if step.kind == "restore":
        return not node.lists.is_erased(step.version)
    return step.plan is None or node.lists.only_appends_since(step.plan.source.version)


def _written(rules: Rules, state: State, step: Step) -> State:
    match step.kind:
        case "append":
            return rules.append(state, step.texts)
        case "pop":
            return rules.pop(state)
        case "clear":
            return rules.clear(state)
        case "delete":
            return rules.delete(state)
        case "replace":
            return rules.replace(state, step.texts)
        case "restore":
            return rules.restore(state, step.version)
        case "remove erased":
            return rules.remove_erased(state)
        case "prune":
            return rules.prune(state, step.version)
        case "compact":
            assert step.plan is not None
            return rules.compact(state, step.plan)


def _listed(lists: Lists, step: Step) -> Lists:
    match step.kind:
        case "append":
            return lists.append(step.texts)
        case "pop":
            return lists.pop()
        case "clear" | "delete":
            return lists.clear()
        case "replace":
            return lists.replace(step.texts)
        case "restore":
            return lists.restore(step.version)
        case "remove erased":
            return lists
        case "prune":
            return lists.prune(step.version)
        case "compact":
            return lists.compact(step.cut, step.texts)


def _check_version(rules: Rules, node: Node, version: int) -> None:
    lists = node.lists
    try:
        found = rules.as_of(node.state, version)
    except RefusedError:
        if version >= max(lists.erased_before, lists.pruned_before):
            raise _counterexample(node, f"version {version} should be there") from None
    else:
        if lists.is_erased(version):
            raise _counterexample(node, f"version {version} is erased and can be read")
        if found != lists.history[version]:
            raise _counterexample(
                node, f"version {version}: expected {lists.history[version]}, found {found}"
            )


def _check_removal(rules: Rules, node: Node) -> None:
    """All went that may: each row that stayed is visible in a version that is kept."""
    assert node.step is not None
    kept = [op for op in node.state.ops[max(node.step.version, node.lists.erased_before) :] if op is not None]
    for row in node.state.rows:
        if not any(rules.is_visible_as_of(op, row) for op in kept):
            raise _counterexample(node, f"{row} stayed, and no version that is kept has it")


def _hold(node: Node, what: str, expected: object, actual: object) -> None:
    if expected != actual:
        raise _counterexample(node, f"{what}: expected {expected}, found {actual}")


def _counterexample(node: Node, why: str) -> CounterexampleError:
    return CounterexampleError(f"{[str(after.step) for after in node.path]}: {why}")
