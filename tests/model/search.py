"""Exhaustive search over short histories: the manifest rules against plain lists, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.lists import Lists
from tests.model.manifest import MovedError, Plan, RefusedError, Rules, State, plan

_MARKS = ("a", "ñ")  # one of more bytes than characters


class CounterexampleError(AssertionError):
    """A history after which the rules and the lists disagree."""


class Node(NamedTuple):
    """One history: what it led to in both models, its steps, and the plan that was made at each version."""

    state: State = State()
    lists: Lists = Lists()
    path: tuple[str, ...] = ()
    plans: tuple[Plan, ...] = ()

    def new_texts(self, count: int) -> tuple[str, ...]:
        """Texts that no other write of this history has."""
        return tuple(f"{self.lists.version}{mark}" for mark in _MARKS[:count])

    def after(self, step: str, state: State, lists: Lists) -> Node:
        return Node(state, lists, (*self.path, step), self.plans)


def search(rules: Rules, depth: int, *, inside: bool = True) -> int:
    """Walk every history of up to ``depth`` steps and count them.

    Without ``inside`` only what a user sees is held: items, versions, their past, and refusals.

    Raises:
        CounterexampleError: The first history after which something that must hold does not.
    """
    seen: set[tuple[State, Lists]] = set()
    level = [_planned(rules, Node())]
    walked = 0
    for left in range(depth, 0, -1):
        following = []
        for node in level:
            for after in steps(rules, node):
                walked += 1
                check(rules, after)
                if inside:
                    check_inside(node, after)
                # Other steps may have led to the same place.
                if left > 1 and (place := (after.state, after.lists)) not in seen:
                    seen.add(place)
                    following.append(_planned(rules, after))
        level = following
    return walked


def steps(rules: Rules, node: Node) -> Iterator[Node]:
    """Every step that a session can take from here."""
    state, lists = node.state, node.lists
    for count in (1, 2):
        texts = node.new_texts(count)
        yield node.after(f"append {count}", rules.append(state, texts), lists.append(texts))
    if lists.items:
        yield node.after("pop", rules.pop(state), lists.pop())
    yield node.after("clear", rules.clear(state), lists.clear())
    yield node.after("delete", rules.delete(state), lists.clear())
    for count in (0, 2):
        texts = node.new_texts(count)
        yield node.after(f"replace {count}", rules.replace(state, texts), lists.replace(texts))
    yield from _restores(rules, node)
    yield from _compactions(rules, node)
    yield from _late_compactions(rules, node)
    yield from _removals(rules, node)


def check(rules: Rules, node: Node) -> None:
    """Hold what a user sees against the lists, now and as of every version."""
    _hold(node, "version", node.lists.version, node.state.manifest.version)
    _hold(node, "the visible items", node.lists.items, tuple(row.text for row in rules.visible(node.state)))
    for version in range(1, node.lists.version + 1):
        _check_version(rules, node, version)


def check_inside(before: Node, node: Node) -> None:
    """Hold the counters against the lists, and that those which never go back do not."""
    lists, manifest = node.lists, node.state.manifest
    _hold(node, "epoch", lists.rewrites[-1], manifest.epoch)
    _hold(node, "item_count", len(lists.items), manifest.item_count)
    _hold(node, "byte_count", sum(len(text.encode()) for text in lists.items), manifest.byte_count)
    _hold(node, "rows of one key", len(node.state.rows), len({row[:2] for row in node.state.rows}))
    for name in ("next_seq", "base_seq", "erased_epoch"):
        if getattr(manifest, name) < getattr(before.state.manifest, name):
            raise CounterexampleError(f"{node.path}: {name} went back")


def _check_version(rules: Rules, node: Node, version: int) -> None:
    lists = node.lists
    try:
        found = rules.as_of(node.state, version)
    except RefusedError:
        if version >= max(lists.erased_before, lists.pruned_before):
            raise CounterexampleError(f"{node.path}: version {version} should be there") from None
    else:
        if lists.is_erased(version):
            raise CounterexampleError(f"{node.path}: version {version} is erased and can be read")
        _hold(node, f"the items as of version {version}", lists.history[version], found)


def _restores(rules: Rules, node: Node) -> Iterator[Node]:
    for version in range(1, node.lists.version + 1):
        step = f"restore {version}"
        try:
            restored = rules.restore(node.state, version)
        except RefusedError:
            continue
        if node.lists.is_erased(version):
            raise CounterexampleError(f"{node.path}: {step} brought back what was erased")
        yield node.after(step, restored, node.lists.restore(version))


def _compactions(rules: Rules, node: Node) -> Iterator[Node]:
    """Compact at every cut, to 0, 1 or 2 new items."""
    for cut in range(len(node.lists.items) + 1):
        for count in range(3):
            new = node.new_texts(count)
            compacted = rules.compact(node.state, _plan(rules, node, cut, new))
            yield node.after(f"compact {cut} to {count}", compacted, node.lists.compact(cut, new))


def _late_compactions(rules: Rules, node: Node) -> Iterator[Node]:
    """Land the plan that was made at each earlier version; only appends may have come between."""
    for version, planned in enumerate(node.plans[:-1]):
        step = f"compact as planned at {version}"
        allowed = node.lists.only_appends_since(version)
        try:
            compacted = rules.compact(node.state, planned)
        except MovedError:
            _hold(node, f"a refusal to {step}", allowed, False)
        else:
            _hold(node, f"leave to {step}", allowed, True)
            cut = len(node.lists.history[version])
            yield node.after(step, compacted, node.lists.compact(cut, (f"late {version}",)))


def _removals(rules: Rules, node: Node) -> Iterator[Node]:
    yield node.after("remove erased", rules.remove_erased(node.state), node.lists)
    for cutoff in range(max(0, node.lists.version - 2), node.lists.version + 1):
        pruned = rules.prune(node.state, cutoff)
        after = node.after(f"prune up to {cutoff}", pruned, node.lists.prune(cutoff))
        for row in pruned.rows:
            if not any(op and rules.is_visible_as_of(op, row) for op in pruned.ops[cutoff:]):
                raise CounterexampleError(f"{after.path}: {row} stayed, and no version that is kept has it")
        yield after


def _planned(rules: Rules, node: Node) -> Node:
    """Remember the plan of a whole compaction at this version, for a later step to land."""
    if len(node.plans) > node.lists.version:
        return node
    new = (f"late {node.lists.version}",)
    return node._replace(plans=(*node.plans, _plan(rules, node, len(node.lists.items), new)))


def _plan(rules: Rules, node: Node, cut: int, new: tuple[str, ...]) -> Plan:
    visible = [(row.seq, row.text) for row in rules.visible(node.state)]
    return plan(node.state.manifest, visible, cut, new, through_base=rules.plans_through_base)


def _hold(node: Node, what: str, expected: object, actual: object) -> None:
    if expected != actual:
        raise CounterexampleError(f"{node.path}: {what}: expected {expected}, found {actual}")
