"""The accounting: every acknowledged write is looked for, in the operations and in the content. Pure.

Two independent accounts. By the operations: the op rows say which seqs each append got, and which of them a
later rewrite replaced, having read them or not. By the content: what is in the history now, with every
compaction item opened, must be the acknowledged items, verbatim, once each, in the order of their versions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cas_session.driver import OpRow
from cas_session.snapshot import Item
from cas_session.testing.strict import item_type

Unseal = Callable[[str], list[Item]]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An append that the store acknowledged."""

    name: str
    version: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewrite that landed: it made ``version`` from what it had read at ``read_version``.

    ``written`` is the version of its answer, for a rewrite by hand whose ``version`` was its clear.
    """

    read_version: int
    version: int
    written: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one session after the run.

    Attributes:
        acknowledged: Every append, of any kind.
        rewrites: Every compaction, or rewrite by hand.
        clears: Versions of the clears that a user asked for.
        operations: All op rows, oldest first.
        version: The session's version.
        history: The session's items.
        unseal: Opens a compaction item; None if only the provider can.
    """

    acknowledged: Sequence[Acknowledged]
    rewrites: Sequence[Rewrite]
    clears: Sequence[int]
    operations: Sequence[OpRow]
    version: int
    history: Sequence[Item]
    unseal: Unseal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of one session's writes. Names are those of appends; the rest are sentences.

    Attributes:
        folded: Appends that a compaction read and replaced.
        verbatim: Appends that are in the history as they were.
        erased: Appends that a user's clear erased.
        lost: Appends that are gone although nobody erased them.
        duplicated: Appends that are there more than once.
        altered: What differs in content or order from what was appended.
        gaps: What is wrong with the versions.
        undone: Clears whose erased items came back.
    """

    folded: frozenset[str]
    verbatim: frozenset[str]
    erased: frozenset[str]
    lost: frozenset[str]
    duplicated: frozenset[str]
    altered: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    undone: frozenset[int] = frozenset()


def audit(evidence: Evidence) -> Account:
    """Account for every acknowledged append."""
    fates = _fates(evidence)
    contents = _contents(evidence, fates)
    lost = fates.lost | contents.lost
    return Account(
        folded=frozenset(fates.folded - lost),
        verbatim=frozenset(fates.verbatim - lost),
        erased=frozenset(fates.erased),
        lost=frozenset(lost),
        duplicated=frozenset(contents.duplicated),
        altered=tuple(contents.altered),
        gaps=tuple(_gaps(evidence)),
        undone=frozenset(_undone(evidence)),
    )


def expand(history: Sequence[Item], unseal: Unseal) -> list[Item]:
    """The history with every compaction item opened: what the model knows of, oldest first.

    A compaction keeps the user messages beside the item that covers them: they count once.
    """
    known: list[Item] = []
    for item in history:
        if item_type(item) == "compaction":
            inside = expand(unseal(item["encrypted_content"]), unseal)
            known = [*_without_copies(known, inside), *inside]
        else:
            known.append(item)
    return known


# -- by the operations


@dataclass(slots=True)
class _Fates:
    """Where the items of each append are, by the operations alone."""

    folded: set[str] = field(default_factory=set)
    verbatim: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Block:
    """The seqs of an append that are visible as it wrote them."""

    name: str
    version: int
    first: int
    last: int


def _fates(evidence: Evidence) -> _Fates:
    names = {append.version: append.name for append in evidence.acknowledged}
    by_hand = {rewrite.version: rewrite for rewrite in evidence.rewrites if rewrite.written is not None}
    read_by = {rewrite.version: rewrite.read_version for rewrite in evidence.rewrites}
    fates, visible, next_seq = _Fates(), list[_Block](), 1
    for op in evidence.operations:
        version, manifest = int(op.manifest.version), op.manifest
        if op.kind == "append":
            if version in names:
                visible.append(_Block(names[version], version, next_seq, manifest.next_seq - 1))
        elif op.kind == "compact" or version in by_hand:
            through = manifest.base_seq
            visible = _rewrite(visible, through, read_by.get(version, 0), fates)
        elif op.kind in ("clear", "delete") and version in evidence.clears:
            fates.erased.update(block.name for block in visible)
            visible = []
        else:  # nobody asked for it, so whatever it hid is lost
            fates.lost.update(block.name for block in visible)
            visible = []
        next_seq = manifest.next_seq
    fates.verbatim.update(block.name for block in visible)
    # In two parts, one folded and one behind the cut, counts as verbatim. Without an op row, as lost.
    fates.folded -= fates.verbatim | fates.lost
    fates.lost |= set(names.values()) - fates.folded - fates.verbatim - fates.erased
    return fates


def _rewrite(visible: list[_Block], through: int, read_version: int, fates: _Fates) -> list[_Block]:
    """Replace everything up to a seq, by a rewrite that had read the session at ``read_version``."""
    left: list[_Block] = []
    for block in visible:
        if block.first <= through:
            (fates.folded if block.version <= read_version else fates.lost).add(block.name)
        if block.last > through:
            left.append(_Block(block.name, block.version, max(block.first, through + 1), block.last))
    return left


def _undone(evidence: Evidence) -> set[int]:
    """Clears that a rewrite undid: it had read before the clear, and its answer landed after it."""
    return {
        clear
        for clear in evidence.clears
        for rewrite in evidence.rewrites
        if rewrite.read_version < clear < (rewrite.written or rewrite.version)
    }


def _gaps(evidence: Evidence) -> list[str]:
    """What is wrong with the versions: each write has one, each version one write."""
    kinds: dict[int, tuple[str, int | None]] = {
        append.version: ("append", len(append.items)) for append in evidence.acknowledged
    }
    kinds |= dict.fromkeys(evidence.clears, ("clear", None))
    for rewrite in evidence.rewrites:
        kinds[rewrite.version] = ("compact" if rewrite.written is None else "clear", None)
        if rewrite.written is not None:
            kinds[rewrite.written] = ("append", None)
    versions = Counter(int(op.manifest.version) for op in evidence.operations)
    wanted = range(1, evidence.version + 1)
    return [
        *(f"no operation has version {version}" for version in wanted if version not in versions),
        *(f"{n} operations have version {version}" for version, n in sorted(versions.items()) if n > 1),
        *(f"version {version} is above the session's own" for version in versions if version not in wanted),
        *_unlike(evidence.operations, kinds),
    ]


def _unlike(operations: Sequence[OpRow], wanted: Mapping[int, tuple[str, int | None]]) -> list[str]:
    """Operations that are not what was acknowledged under their version."""
    wrong, next_seq = [], 1
    for op in operations:
        version = int(op.manifest.version)
        size, next_seq = op.manifest.next_seq - next_seq, op.manifest.next_seq
        kind, items = wanted.get(version, (None, None))
        if kind is None:
            wrong.append(f"version {version}: the {op.kind} was acknowledged to nobody")
        elif kind != op.kind:
            wrong.append(f"version {version}: acknowledged as {kind}, recorded as {op.kind}")
        elif items is not None and items != size:
            wrong.append(f"version {version}: {items} items acknowledged, {size} recorded")
    there = {int(op.manifest.version) for op in operations}
    missing = sorted(wanted.keys() - there)
    return [*wrong, *(f"version {version}: acknowledged, not recorded" for version in missing)]


# -- by the content


@dataclass(slots=True)
class _Contents:
    lost: set[str] = field(default_factory=set)
    duplicated: set[str] = field(default_factory=set)
    altered: list[str] = field(default_factory=list)


def _contents(evidence: Evidence, fates: _Fates) -> _Contents:
    """Compare what is there, verbatim, with what must be there.

    Where nobody but the provider can open a compaction item, only the appends that are verbatim are compared.
    """
    must_be_there = fates.verbatim if evidence.unseal is None else fates.verbatim | fates.folded | fates.lost
    appends = sorted(
        (append for append in evidence.acknowledged if append.name in must_be_there),
        key=lambda append: append.version,
    )
    expected = [_text(item) for append in appends for item in append.items]
    there = [_text(item) for item in _known(evidence)]
    missing, extra = Counter(expected) - Counter(there), Counter(there) - Counter(expected)
    result = _Contents()
    for append in appends:
        texts = {_text(item) for item in append.items}
        if not texts.isdisjoint(missing):
            result.lost.add(append.name)
        if not texts.isdisjoint(extra):
            result.duplicated.add(append.name)
    if evidence.unseal is not None and not result.lost and not result.duplicated:
        result.altered = _differences(expected, there)
    return result


def _known(evidence: Evidence) -> Sequence[Item]:
    return evidence.history if evidence.unseal is None else expand(evidence.history, evidence.unseal)


def _differences(expected: list[str], there: list[str]) -> list[str]:
    if foreign := len(there) - len(expected):
        return [f"{foreign} items are there that nobody appended"]
    if expected != there:
        at = next(n for n, (want, got) in enumerate(zip(expected, there, strict=True)) if want != got)
        return [f"item {at} is not the one that was appended at this place"]
    return []


def _text(item: Item) -> str:
    """The item as JSON: the order of its keys counts."""
    return json.dumps(item)


def _without_copies(items: Sequence[Item], originals: Sequence[Item]) -> list[Item]:
    """The items, less one for each user message among the originals."""
    copies = Counter(_said(item) for item in originals if _is_from_user(item))
    rest = []
    for item in items:
        if _is_from_user(item) and copies[_said(item)] > 0:
            copies[_said(item)] -= 1
        else:
            rest.append(item)
    return rest


def _is_from_user(item: Item) -> bool:
    return item_type(item) == "message" and item.get("role") == "user"


def _said(item: Item) -> str:
    """What makes two user messages the same, one as sent and the other as a compaction returned it."""
    content: Any = item.get("content") or []
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    known = [{key: value for key, value in part.items() if value not in (None, "auto")} for part in parts]
    return json.dumps(known, sort_keys=True)
