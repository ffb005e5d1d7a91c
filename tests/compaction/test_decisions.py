"""The decision table: what happened since the snapshot, what the policy says, what is done; calls counted."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from cas_session import CompactionPolicy, CompactionReport, Item
from cas_session.compactors import Compacted, CompactionRequest, ResponsesCompactor
from cas_session.testing.endpoint import BYTES_PER_TOKEN
from tests.compaction.scene import Scene
from tests.session.items import said, turns
from tests.session.stores import Around, Patched

Happens = Callable[[Scene, Patched], Awaitable[object]]

HISTORY = turns(12)
LATE = turns(1, start=50)
NEW = turns(12, start=100)
FEW = turns(2, start=100)


async def version(scene: Scene) -> int:
    return await scene.foreign.version()


async def replace(scene: Scene, items: list[Item]) -> None:
    await scene.foreign.replace(items, expected_version=await version(scene))


async def restore(scene: Scene, _: Patched) -> None:
    """What the setup appended first, and popped again."""
    await scene.foreign.restore(1, expected_version=await version(scene))


async def compact(scene: Scene, patched: Patched) -> None:
    """Another worker whose lease this one took over, and which comes late."""

    async def lost_lease(verb: Around, *args: object) -> str:
        return "started"

    async def fold(request: CompactionRequest) -> list[Item]:
        return said("folded by another worker")

    patched.driver.around("begin_compaction", lost_lease)
    report = await patched.store.session("s", compactor=fold).compact(force=True)
    assert report.landed


async def append_and_pop(scene: Scene, _: Patched) -> None:
    """The items are the same again, and still somebody rewrote."""
    await scene.foreign.append(said("x"))
    await scene.foreign.pop()


# What is done, and what is there afterwards; None if the trigger would not ask for another call.
REWRITES: dict[str, tuple[Happens, list[Item], bool]] = {
    "pop": (lambda scene, _: scene.foreign.pop(), HISTORY[:-1], True),
    "append and pop": (append_and_pop, HISTORY, True),
    "clear": (lambda scene, _: scene.foreign.clear(), [], False),
    "delete": (lambda scene, _: scene.foreign.delete(), [], False),
    "replace by many": (lambda scene, _: replace(scene, NEW), NEW, True),
    "replace by few": (lambda scene, _: replace(scene, FEW), FEW, False),
    "restore": (restore, [*HISTORY, *said("popped")], True),
    "compact": (compact, said("folded by another worker"), False),
}


@pytest.fixture
async def begun(scene: Scene) -> Scene:
    """Long enough for the trigger; version 1 had one item more."""
    await scene.store.session("s").append([*HISTORY, *said("popped")])
    await scene.store.session("s").pop()
    return scene


async def outcome(
    scene: Scene, patched: Patched, happens: Happens, policy: CompactionPolicy | None, **how: bool
) -> tuple[CompactionReport, list[Item]]:
    """Compact while that happens; give the report and all that the history stands for."""
    session = scene.session(policy)
    report = await scene.compact_while(session, lambda: happens(scene, patched), **how)
    assert report.model_calls == len(scene.requests)
    (row, *_) = await session.compactions()
    assert row.decision == report.status
    return report, scene.stands_for((await session.snapshot()).items)


async def appended(scene: Scene, _: Patched) -> None:
    await scene.foreign.append(LATE)


async def nothing(scene: Scene, _: Patched) -> None:
    pass


@pytest.mark.parametrize("on_append", ["rebase", "retry", "skip"])
@pytest.mark.parametrize("on_rewrite", ["retry", "skip"])
async def test_nothing_happened(begun: Scene, patched: Patched, on_append: str, on_rewrite: str) -> None:
    policy = CompactionPolicy(on_append=on_append, on_rewrite=on_rewrite)  # type: ignore[arg-type]

    report, items = await outcome(begun, patched, nothing, policy)

    assert (report.status, report.model_calls) == ("applied", 1)
    assert items == HISTORY


async def test_only_appends_rebase(begun: Scene, patched: Patched) -> None:
    report, items = await outcome(begun, patched, appended, CompactionPolicy(on_append="rebase"))

    assert (report.status, report.model_calls, report.appended_during) == ("rebased", 1, 2)
    assert items == [*HISTORY, *LATE]
    assert (await begun.foreign.snapshot()).items[-2:] == LATE


async def test_only_appends_retry(begun: Scene, patched: Patched) -> None:
    """The second call sees what was appended, so nothing stays behind it."""
    report, items = await outcome(begun, patched, appended, CompactionPolicy(on_append="retry"))

    assert (report.status, report.model_calls, report.appended_during) == ("applied", 2, 0)
    assert items == [*HISTORY, *LATE]
    assert (await begun.foreign.snapshot()).items[-1]["type"] == "compaction"
    assert begun.modes == ["input", "input"]


async def test_only_appends_retry_without_budget(begun: Scene, patched: Patched) -> None:
    policy = CompactionPolicy(on_append="retry", max_model_calls=1)

    report, items = await outcome(begun, patched, appended, policy)

    assert (report.status, report.model_calls) == ("conflict", 1)
    assert (await begun.foreign.snapshot()).items == items == [*HISTORY, *LATE]


async def test_only_appends_skip(begun: Scene, patched: Patched) -> None:
    report, items = await outcome(begun, patched, appended, CompactionPolicy(on_append="skip"))

    assert (report.status, report.model_calls, report.landed) == ("conflict", 1, False)
    assert (await begun.foreign.snapshot()).items == items == [*HISTORY, *LATE]


@pytest.mark.parametrize(("happens", "left", "is_due"), REWRITES.values(), ids=REWRITES.keys())
async def test_a_rewrite_retry(
    begun: Scene, patched: Patched, happens: Happens, left: list[Item], is_due: bool
) -> None:
    """Load again, ask the trigger again, and only if it still says yes pay again, in input mode."""
    report, items = await outcome(begun, patched, happens, None)

    if is_due:
        assert (report.status, report.model_calls) == ("applied", 2)
        assert begun.modes == ["input", "input"]
    else:
        assert (report.status, report.model_calls, report.landed) == ("no_longer_needed", 1, False)
    assert items == left


@pytest.mark.parametrize(("happens", "left", "is_due"), REWRITES.values(), ids=REWRITES.keys())
async def test_a_rewrite_skip(
    begun: Scene, patched: Patched, happens: Happens, left: list[Item], is_due: bool
) -> None:
    report, items = await outcome(begun, patched, happens, CompactionPolicy(on_rewrite="skip"))

    assert (report.status, report.model_calls, report.landed) == ("conflict", 1, False)
    assert (await begun.foreign.snapshot()).items == items == left


@pytest.mark.parametrize(("happens", "left", "is_due"), REWRITES.values(), ids=REWRITES.keys())
async def test_a_rewrite_of_a_forced_compaction_must_earn_its_second_call(
    begun: Scene, patched: Patched, happens: Happens, left: list[Item], is_due: bool
) -> None:
    """force is for the first plan only."""
    policy = CompactionPolicy(trigger=lambda context: False)

    report, items = await outcome(begun, patched, happens, policy, force=True)

    assert (report.status, report.model_calls) == ("no_longer_needed", 1)
    assert items == left


@pytest.mark.parametrize(("happens", "left", "is_due"), REWRITES.values(), ids=REWRITES.keys())
async def test_strict_takes_any_change_for_a_mismatch(
    begun: Scene, patched: Patched, happens: Happens, left: list[Item], is_due: bool
) -> None:
    report, items = await outcome(begun, patched, happens, CompactionPolicy.strict())

    assert (report.status, report.model_calls) == (("applied", 2) if is_due else ("no_longer_needed", 1))
    assert items == left


async def test_strict_takes_an_append_for_a_mismatch(begun: Scene, patched: Patched) -> None:
    report, items = await outcome(begun, patched, appended, CompactionPolicy.strict())

    assert (report.status, report.model_calls) == ("applied", 2)
    assert items == [*HISTORY, *LATE]


def test_strict_keeps_what_is_said_beside_it() -> None:
    policy = CompactionPolicy.strict(max_model_calls=5, on_rewrite="skip")

    assert (policy.on_append, policy.on_rewrite, policy.max_model_calls) == ("retry", "skip", 5)


@pytest.mark.parametrize("budget", [1, 2, 4])
async def test_the_model_budget_is_the_end_of_it(scene: Scene, budget: int) -> None:
    """Somebody appends during every call, and the policy does not rebase."""
    everything = turns(12)
    model = ResponsesCompactor(model="gpt-5.1", client=scene.client)

    async def interrupted(request: CompactionRequest) -> Compacted:
        compacted = await model.compact(request)
        late = turns(1, start=len(everything))
        await scene.foreign.append(late)
        everything.extend(late)
        return compacted

    policy = CompactionPolicy.strict(max_model_calls=budget)
    session = scene.store.session("s", compactor=interrupted, policy=policy)
    await session.append(everything)
    report = await session.compact()

    assert (report.status, report.model_calls, len(scene.requests)) == ("conflict", budget, budget)
    assert (await session.snapshot()).items == everything


async def test_tokens_are_a_budget_too(begun: Scene, patched: Patched) -> None:
    """Another call would be allowed, but the first one has used them."""
    policy = CompactionPolicy.strict(max_model_calls=9, max_model_tokens=1)

    report, items = await outcome(begun, patched, appended, policy)

    assert (report.status, report.model_calls) == ("conflict", 1)
    assert items == [*HISTORY, *LATE]


async def test_usage_counts_every_call(begun: Scene, patched: Patched) -> None:
    """Also of the answer that was thrown away."""
    report, _ = await outcome(begun, patched, appended, CompactionPolicy.strict())

    tokens = report.usage
    assert tokens["total_tokens"] == tokens["input_tokens"] + tokens["output_tokens"]
    assert tokens["input_tokens"] > 2 * len(json.dumps(HISTORY)) / BYTES_PER_TOKEN


async def test_a_rewrite_behind_an_append_is_a_rewrite(begun: Scene, patched: Patched) -> None:
    async def append_then_clear(scene: Scene, _: Patched) -> None:
        await scene.foreign.append(LATE)
        await scene.foreign.clear()

    report, items = await outcome(begun, patched, append_then_clear, CompactionPolicy(on_rewrite="skip"))

    assert (report.status, items) == ("conflict", [])
