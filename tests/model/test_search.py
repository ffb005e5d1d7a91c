"""The manifest rules keep every short history, and the search finds each rule that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.model.manifest import Manifest, Plan, Row, Rules, State
from tests.model.search import CounterexampleError, search

DEPTH = 5  # steps; some 600,000 histories in 20 s


class BaseSeqGoesBack(Rules):
    plans_through_base = False


class NextSeqLoweredByPop(Rules):
    def popped(self, manifest: Manifest, last: Row) -> Manifest:
        return manifest._replace(next_seq=last.seq)


class PopWithoutEpoch(Rules):
    def popped(self, manifest: Manifest, last: Row) -> Manifest:
        return manifest._replace(epoch=manifest.epoch - 1)


class ClearWithoutEpoch(Rules):
    def cleared(self, before: Manifest) -> Manifest:
        return (
            super()
            .cleared(before)
            ._replace(epoch=before.epoch, base_gen=before.epoch, erased_epoch=before.epoch)
        )


class ClearWithoutErasing(Rules):
    def cleared(self, before: Manifest) -> Manifest:
        return super().cleared(before)._replace(erased_epoch=before.erased_epoch)


class ClearOfEmptyIsNothing(Rules):
    def clear(self, state: State) -> State:
        return super().clear(state) if state.manifest.item_count else state


class ClearByDeletingWhatIsVisible(Rules):
    """The usual clear; what an earlier compaction hid stays behind."""

    def is_erased(self, manifest: Manifest, row: Row) -> bool:
        return row.gen < manifest.erased_epoch and row.seq > manifest.base_seq


class ErasedByBaseGen(Rules):
    def is_erased(self, manifest: Manifest, row: Row) -> bool:
        return row.gen < manifest.base_gen


class DeleteForgetsTheVersion(Rules):
    def delete(self, state: State) -> State:
        return State(ops=(*state.ops, Manifest()))


class RemovalByAnotherGen(Rules):
    """``gen <> base_gen`` also names what later compactions wrote below an old base_seq."""

    def is_hidden_by(self, manifest: Manifest, row: Row) -> bool:
        return 0 < row.popped <= manifest.version or (
            row.seq <= manifest.base_seq and row.gen != manifest.base_gen
        )


class RemovalOfAllPopped(Rules):
    def is_hidden_by(self, manifest: Manifest, row: Row) -> bool:
        return bool(row.popped) or super().is_hidden_by(manifest, row)


class RemovalForgetsPopped(Rules):
    def is_hidden_by(self, manifest: Manifest, row: Row) -> bool:
        return super().is_hidden_by(manifest, row._replace(popped=0))


class AsOfWithoutGen(Rules):
    def is_visible_as_of(self, manifest: Manifest, row: Row) -> bool:
        return super().is_visible_as_of(manifest, row._replace(gen=min(row.gen, manifest.epoch)))


class AsOfWithoutNextSeq(Rules):
    def is_visible_as_of(self, manifest: Manifest, row: Row) -> bool:
        return super().is_visible_as_of(manifest._replace(next_seq=row.seq + 1), row)


class AsOfWithoutPopped(Rules):
    def is_visible_as_of(self, manifest: Manifest, row: Row) -> bool:
        return super().is_visible_as_of(manifest, row._replace(popped=0))


class AsOfForgetsWhatWasPoppedLater(Rules):
    def is_visible_as_of(self, manifest: Manifest, row: Row) -> bool:
        return not row.popped and super().is_visible_as_of(manifest, row)


class AsOfWithoutCount(Rules):
    def is_whole(self, manifest: Manifest, rows: Sequence[Row]) -> bool:
        return True


class ReadOfWhatIsErased(Rules):
    def as_of(self, state: State, version: int) -> tuple[str, ...]:
        return super().as_of(_unerased(state), version)


class RestoreOfWhatIsErased(Rules):
    def restore(self, state: State, version: int) -> State:
        return self.replace(state, self.as_of(_unerased(state), version))


class ReplaceKeepsBaseSeq(Rules):
    def replace(self, state: State, texts: tuple[str, ...]) -> State:
        after = super().replace(state, texts)
        kept = after.manifest._replace(base_seq=state.manifest.base_seq)
        return after._replace(manifest=kept, ops=(*state.ops, kept))


class CompactOnTheVersion(Rules):
    """Strict on the version: right, but never rebased on appends."""

    def compact(self, state: State, plan: Plan) -> State:
        same = plan.source.version == state.manifest.version
        return super().compact(state, plan if same else plan._replace(source=Manifest(epoch=-1)))


class CompactWithoutEpochCheck(Rules):
    def compact(self, state: State, plan: Plan) -> State:
        return super().compact(state, plan._replace(source=state.manifest))


class CompactWithoutEpoch(Rules):
    def compact(self, state: State, plan: Plan) -> State:
        after = super().compact(state, plan)
        kept = after.manifest._replace(epoch=state.manifest.epoch)
        return after._replace(manifest=kept, ops=(*state.ops, kept))


class CompactThroughTheEnd(Rules):
    """The tail goes with the prefix: today's lost appends."""

    def compact(self, state: State, plan: Plan) -> State:
        return super().compact(state, plan._replace(through=state.manifest.next_seq - 1))


def _unerased(state: State) -> State:
    return state._replace(manifest=state.manifest._replace(erased_epoch=0))


MUTANTS = list(Rules.__subclasses__())


def test_every_short_history_is_kept() -> None:
    assert search(Rules(), DEPTH) > 100_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_search_finds_by_what_a_user_sees(mutant: type[Rules]) -> None:
    with pytest.raises(CounterexampleError):
        search(mutant(), DEPTH, inside=False)


def test_low_seq_only_tightens_the_range() -> None:
    """The design says so, and an index scan may rely on it: no history needs it to be right."""

    class WithoutLowSeq(Rules):
        def is_visible(self, manifest: Manifest, row: Row) -> bool:
            return super().is_visible(manifest._replace(low_seq=row.seq), row)

        def is_visible_as_of(self, manifest: Manifest, row: Row) -> bool:
            return super().is_visible_as_of(manifest._replace(low_seq=row.seq), row)

    search(WithoutLowSeq(), DEPTH - 1)
