"""The manifest rules in memory: session row, item rows and op rows, exactly the write table of the design.

States are values, so that a search may branch from any of them. Every rule is a method of its own, so that
a mutant changes one and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple


class Manifest(NamedTuple):
    """The session row; without a nonce, for nothing is lost here."""

    version: int = 0
    epoch: int = 0
    next_seq: int = 1
    base_seq: int = 0
    base_gen: int = 0
    low_seq: int = 1
    erased_epoch: int = 0
    item_count: int = 0
    byte_count: int = 0


class Row(NamedTuple):
    """An item row; ``popped`` is the version of the pop that hid it, 0 if none did."""

    seq: int
    gen: int
    text: str
    popped: int = 0


class State(NamedTuple):
    """A session in its database. ``ops[v]`` is the manifest of version v's op row, None if it is pruned."""

    manifest: Manifest = Manifest()
    rows: tuple[Row, ...] = ()
    ops: tuple[Manifest | None, ...] = (Manifest(),)


class RefusedError(Exception):
    """A version is not retained; nothing changes."""

    def __init__(self, reason: Literal["erased", "pruned"]) -> None:
        super().__init__(reason)
        self.reason = reason


class MovedError(Exception):
    """The epoch is not the planned one; nothing changes."""


class Plan(NamedTuple):
    """A prefix replace as the engine sends it: made from ``source``, for the rows up to seq ``through``."""

    source: Manifest
    through: int
    item_count: int
    byte_count: int
    texts: tuple[str, ...]


def size(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def plan(
    source: Manifest,
    visible: Sequence[tuple[int, str]],
    cut: int,
    new: tuple[str, ...],
    *,
    through_base: bool = True,
) -> Plan:
    """Plan to replace ``visible[:cut]``, rows of (seq, text), by new texts.

    What is kept up to base_seq is sent again behind the new texts. Without ``through_base`` it is not, and
    base_seq goes back: a mutant.
    """
    if not visible:
        return Plan(source, source.next_seq - 1, 0, 0, new)
    through = visible[cut - 1][0] if cut else min(source.base_seq, visible[0][0] - 1)
    kept: list[str] = []
    if through_base:
        through = max(through, source.base_seq)
        kept = [text for seq, text in visible[cut:] if seq <= source.base_seq]
    replaced = [text for _, text in visible[:cut]] + kept
    return Plan(source, through, len(replaced), size(replaced), new + tuple(kept))


class Rules:
    """What each write does, what is visible, what is kept. The methods are the lines of the design."""

    plans_through_base = True

    def is_visible(self, manifest: Manifest, row: Row) -> bool:
        return (
            not row.popped
            and (row.seq > manifest.base_seq or row.gen == manifest.base_gen)
            and row.seq >= manifest.low_seq
        )

    def is_visible_as_of(self, manifest: Manifest, row: Row) -> bool:
        return (
            manifest.low_seq <= row.seq < manifest.next_seq
            and row.gen <= manifest.epoch
            and (row.seq > manifest.base_seq or row.gen == manifest.base_gen)
            and (not row.popped or row.popped > manifest.version)
        )

    def is_erased(self, manifest: Manifest, row: Row) -> bool:
        return row.gen < manifest.erased_epoch

    def is_hidden_by(self, manifest: Manifest, row: Row) -> bool:
        """Whether the write that left this manifest, or one before it, hid the row."""
        return 0 < row.popped <= manifest.version or (
            row.seq <= manifest.base_seq and row.gen < manifest.base_gen
        )

    def is_whole(self, manifest: Manifest, rows: Sequence[Row]) -> bool:
        return len(rows) == manifest.item_count

    def visible(self, state: State) -> tuple[Row, ...]:
        return tuple(sorted(row for row in state.rows if self.is_visible(state.manifest, row)))

    def as_of(self, state: State, version: int) -> tuple[str, ...]:
        manifest = state.ops[version]
        if manifest is None:
            raise RefusedError("pruned")
        if manifest.epoch < state.manifest.erased_epoch:
            raise RefusedError("erased")  # also one that was empty
        rows = [
            row
            for row in state.rows
            if self.is_visible_as_of(manifest, row) and not self.is_erased(state.manifest, row)
        ]
        if not self.is_whole(manifest, rows):
            raise RefusedError("pruned")
        return tuple(row.text for row in sorted(rows))

    def append(self, state: State, texts: tuple[str, ...]) -> State:
        before = state.manifest
        after = before._replace(
            version=before.version + 1,
            next_seq=before.next_seq + len(texts),
            item_count=before.item_count + len(texts),
            byte_count=before.byte_count + size(texts),
        )
        return self._land(state, after, self._rows(before.next_seq, before.epoch, texts))

    def pop(self, state: State) -> State:
        visible = self.visible(state)
        if not visible:
            return state
        last, before = visible[-1], state.manifest
        after = before._replace(
            version=before.version + 1,
            epoch=before.epoch + 1,
            item_count=before.item_count - 1,
            byte_count=before.byte_count - size([last.text]),
        )
        rows = tuple(row._replace(popped=after.version) if row == last else row for row in state.rows)
        return self._land(state._replace(rows=rows), self.popped(after, last))

    def popped(self, manifest: Manifest, last: Row) -> Manifest:
        """next_seq stays where it is."""
        return manifest

    def clear(self, state: State) -> State:
        return self._land(state, self.cleared(state.manifest))

    def delete(self, state: State) -> State:
        return self._land(state, self.cleared(state.manifest))

    def cleared(self, before: Manifest) -> Manifest:
        epoch = before.epoch + 1
        return Manifest(
            version=before.version + 1,
            epoch=epoch,
            next_seq=before.next_seq,
            base_seq=before.next_seq - 1,
            base_gen=epoch,
            low_seq=before.next_seq,
            erased_epoch=epoch,
        )

    def replace(self, state: State, texts: tuple[str, ...]) -> State:
        before, epoch = state.manifest, state.manifest.epoch + 1
        after = Manifest(
            version=before.version + 1,
            epoch=epoch,
            next_seq=before.next_seq + len(texts),
            base_seq=before.next_seq - 1,
            base_gen=epoch,
            low_seq=before.next_seq,
            erased_epoch=before.erased_epoch,
            item_count=len(texts),
            byte_count=size(texts),
        )
        return self._land(state, after, self._rows(before.next_seq, epoch, texts))

    def restore(self, state: State, version: int) -> State:
        return self.replace(state, self.as_of(state, version))

    def compact(self, state: State, plan: Plan) -> State:
        before, epoch = state.manifest, state.manifest.epoch + 1
        if plan.source.epoch != before.epoch:
            raise MovedError
        low_seq = plan.through - len(plan.texts) + 1
        after = before._replace(
            version=before.version + 1,
            epoch=epoch,
            base_seq=plan.through,
            base_gen=epoch,
            low_seq=low_seq,
            item_count=before.item_count - plan.item_count + len(plan.texts),
            byte_count=before.byte_count - plan.byte_count + size(plan.texts),
        )
        return self._land(state, after, self._rows(low_seq, epoch, plan.texts))

    def remove_erased(self, state: State) -> State:
        return self._remove(state, lambda row: self.is_erased(state.manifest, row))

    def prune(self, state: State, cutoff: int, op_cutoff: int = 0) -> State:
        """Remove the erased, what ``cutoff`` or a version before it hid, and op rows below ``op_cutoff``."""
        state = self.remove_erased(state)
        hiding = state.ops[cutoff]
        if hiding is not None:
            state = self._remove(state, lambda row: self.is_hidden_by(hiding, row))
        newest = len(state.ops) - 1
        ops = tuple(op if v >= op_cutoff or v == newest else None for v, op in enumerate(state.ops))
        return state._replace(ops=ops)

    def _rows(self, start: int, gen: int, texts: tuple[str, ...]) -> tuple[Row, ...]:
        return tuple(Row(start + at, gen, text) for at, text in enumerate(texts))

    def _land(self, state: State, manifest: Manifest, rows: tuple[Row, ...] = ()) -> State:
        return State(manifest, state.rows + rows, (*state.ops, manifest))

    def _remove(self, state: State, condition: Callable[[Row], bool]) -> State:
        return state._replace(rows=tuple(row for row in state.rows if not condition(row)))
