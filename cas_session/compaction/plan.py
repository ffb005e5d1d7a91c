"""What one attempt would send and replace, decided from one snapshot. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cas_session import codec
from cas_session.compaction.cuts import Cut, NoCut, allowed_cuts, find_cut, item_type
from cas_session.compaction.policy import CompactionPolicy
from cas_session.compaction.sendable import as_input
from cas_session.compactors.base import Mode
from cas_session.driver import Chain, Loaded, Manifest, Prefix
from cas_session.snapshot import Item


@dataclass(frozen=True, slots=True)
class Plan:
    """A prefix that may be compacted.

    Attributes:
        manifest: Of the snapshot that it was made from.
        mode: How the model gets the history.
        send: The items that go to the model, in input mode, as it takes them.
        response_id: The response that stands for them, in the other mode.
        prefix: What the replace names.
        replaced: The stored texts of the prefix.
        kept: Those of them that stay verbatim behind the output.
        cut: Where, and what becomes of each item.
        unknown: Types in the prefix that this release does not know.
    """

    manifest: Manifest
    mode: Mode
    send: list[Item]
    response_id: str | None
    prefix: Prefix
    replaced: tuple[str, ...]
    kept: tuple[str, ...]
    cut: Cut
    unknown: tuple[str, ...] = ()


def plan_input(
    loaded: Loaded, items: Sequence[Item], policy: CompactionPolicy, now: datetime
) -> Plan | NoCut:
    """Send the items of the largest safe prefix."""
    cut = find_cut(
        items,
        keep_last_turns=policy.keep_last_turns,
        compacted=_written_by_compaction(loaded),
        pinned=policy.pinned,
        created_at=loaded.created_at or None,
        now=now,
        open_call_age_s=policy.open_call_age_s,
    )
    if isinstance(cut, NoCut):
        return cut
    return _plan(loaded, items, cut, None)


def plan_chain(loaded: Loaded, items: Sequence[Item], chain: Chain) -> Plan | NoCut:
    """Let a stored response stand for everything up to the chain's seq.

    A prefix without items is allowed: the provider may hold what was never stored here.
    """
    position = sum(seq <= (chain.seq or 0) for seq, _ in loaded.rows)
    before_all = position == 0 and all(item_type(item) != "compaction" for item in items)
    if not before_all and position not in allowed_cuts(items):
        return NoCut("no_safe_cut", tuple(range(position, len(items))))
    return _plan(loaded, items, Cut(position, send=tuple(range(position))), chain.response_id)


def _plan(loaded: Loaded, items: Sequence[Item], cut: Cut, response_id: str | None) -> Plan:
    manifest, rows = loaded.manifest, loaded.rows
    through = rows[cut.position - 1][0] if cut.position else manifest.base_seq
    if cut.position == len(rows):
        through = manifest.next_seq - 1
    # A place inside what an earlier compaction wrote cannot be named by a seq: the items from there to
    # base_seq are written again behind the output.
    through = max(through, manifest.base_seq)
    replaced = tuple(text for seq, text in rows if seq <= through)
    kept = (*cut.keep, *range(cut.position, len(replaced)))
    return Plan(
        manifest=manifest,
        mode="input" if response_id is None else "previous_response_id",
        send=as_input(items[index] for index in cut.send) if response_id is None else [],
        response_id=response_id,
        prefix=Prefix(
            through=through,
            planned=manifest.version,
            epoch=manifest.epoch,
            item_count=len(replaced),
            byte_count=sum(codec.sizes_of(replaced)),
        ),
        replaced=replaced,
        kept=tuple(replaced[index] for index in kept),
        cut=cut,
        unknown=tuple(sorted({item_type(items[index]) for index in cut.unknown})),
    )


def _written_by_compaction(loaded: Loaded) -> int:
    """How many leading items an earlier compaction wrote: those that its base covers."""
    return sum(seq <= loaded.manifest.base_seq for seq, _ in loaded.rows)
