"""The audit finds what it is there to find: faults are put in on purpose, into real databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cas_session.cli.demo.audit import Acknowledged, audit
from cas_session.cli.demo.turns import turn
from tests.demo.scene import Scene

Tamper = Callable[..., None]
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


async def _some_turns(scene: Scene) -> None:
    """Two turns folded, one appended meanwhile, one behind them: versions 1, 2, 3 (meanwhile), 4, 5."""
    await scene.append(1)
    await scene.append(2)
    scene.meanwhile = lambda: scene.append(3)
    await scene.fold()
    await scene.append(4)


async def test_all_turns_of_a_good_run_are_accounted_for(scene: Scene) -> None:
    """Folded or verbatim, with a compaction between them."""
    await _some_turns(scene)

    account = audit(await scene.evidence())

    assert account.folded == {"w1-1", "w1-2"}
    assert account.verbatim == {"w1-3", "w1-4"}
    assert not account.lost | account.duplicated | account.erased
    assert (account.altered, account.gaps, account.undone) == ((), (), frozenset())


async def test_folded_turns_are_found_through_a_second_compaction(scene: Scene) -> None:
    """A compaction item covers what earlier ones covered."""
    await _some_turns(scene)
    scene.meanwhile = None
    await scene.fold()

    account = audit(await scene.evidence())

    assert account.folded == {"w1-1", "w1-2", "w1-3", "w1-4"}
    assert not account.lost
    assert account.altered == ()


async def test_without_the_key_the_operations_alone_account_for_the_turns(scene: Scene) -> None:
    """As with the real provider, whose items only it can open."""
    await _some_turns(scene)

    account = audit(await scene.evidence(opened=False))

    assert account.folded == {"w1-1", "w1-2"}
    assert account.verbatim == {"w1-3", "w1-4"}
    assert not account.lost


@pytest.mark.parametrize("opened", [True, False])
async def test_a_turn_that_a_rewrite_by_hand_overwrote_is_lost(scene: Scene, opened: bool) -> None:
    """The fault that the whole project is about, found by content and by the operations alone."""
    await scene.append(1)
    scene.meanwhile = lambda: scene.append(2)
    await scene.fold_by_hand()

    account = audit(await scene.evidence(opened=opened))

    assert account.folded == {"w1-1"}
    assert account.lost == {"w1-2"}
    assert account.gaps == ()


async def test_an_acknowledged_turn_that_was_never_stored_is_lost(scene: Scene) -> None:
    await _some_turns(scene)
    evidence = await scene.evidence()
    phantom = Acknowledged("w1-9", evidence.version + 1, tuple(turn(7, "w1", 9)))

    account = audit(replace(evidence, acknowledged=[*evidence.acknowledged, phantom]))

    assert account.lost == {"w1-9"}
    assert account.gaps == (f"version {phantom.version}: acknowledged, not recorded",)


@on_sqlite
async def test_a_turn_of_which_an_item_is_missing_is_lost(scene: Scene, tamper: Tamper) -> None:
    await _some_turns(scene)
    tamper("DELETE FROM cas_session_item WHERE seq = (SELECT max(seq) FROM cas_session_item)")

    assert audit(await scene.evidence()).lost == {"w1-4"}


@on_sqlite
async def test_a_turn_that_differs_by_one_character_is_lost(scene: Scene, tamper: Tamper) -> None:
    """What is there is not what was acknowledged."""
    await _some_turns(scene)
    tamper("UPDATE cas_session_item SET data = replace(data, 'reaches', 'reached') WHERE seq > 20")

    assert audit(await scene.evidence()).lost


@on_sqlite
async def test_items_that_changed_places_are_altered(scene: Scene, tamper: Tamper) -> None:
    await _some_turns(scene)
    tamper(
        "UPDATE cas_session_item SET seq = seq + 1000 WHERE seq = (SELECT max(seq) - 1 FROM cas_session_item)"
    )

    account = audit(await scene.evidence())

    assert not account.lost
    assert len(account.altered) == 1


async def test_a_turn_that_is_there_twice_is_duplicated(scene: Scene) -> None:
    """It landed twice and was acknowledged once, as by a retry with a new op_id."""
    await _some_turns(scene)
    second = await scene.session.append(turn(7, "w1", 4))

    account = audit(await scene.evidence())

    assert account.duplicated == {"w1-4"}
    assert account.gaps == (f"version {int(second)}: the append was acknowledged to nobody",)


async def test_a_folded_turn_that_is_there_again_is_duplicated(scene: Scene) -> None:
    await _some_turns(scene)
    await scene.session.append(turn(7, "w1", 1))

    assert audit(await scene.evidence()).duplicated == {"w1-1"}


@on_sqlite
async def test_a_missing_operation_is_a_gap(scene: Scene, tamper: Tamper) -> None:
    await _some_turns(scene)
    tamper("DELETE FROM cas_session_op WHERE version = 2")

    gaps = audit(await scene.evidence()).gaps

    assert "no operation has version 2" in gaps
    assert "version 2: acknowledged, not recorded" in gaps


async def test_a_version_that_two_operations_have_is_a_gap(scene: Scene) -> None:
    await _some_turns(scene)
    evidence = await scene.evidence()

    gaps = audit(replace(evidence, operations=[*evidence.operations, evidence.operations[-1]])).gaps

    assert "2 operations have version 5" in gaps


@on_sqlite
async def test_an_append_under_another_kind_is_a_gap(scene: Scene, tamper: Tamper) -> None:
    await _some_turns(scene)
    tamper("UPDATE cas_session_op SET kind = 'replace' WHERE version = 5")

    assert "version 5: acknowledged as append, recorded as replace" in audit(await scene.evidence()).gaps


async def test_a_block_of_another_size_is_a_gap(scene: Scene) -> None:
    await _some_turns(scene)
    evidence = await scene.evidence()
    *others, last = evidence.acknowledged
    shorter = replace(last, items=last.items[:-1])

    gaps = audit(replace(evidence, acknowledged=[*others, shorter])).gaps

    assert gaps == (f"version 5: {len(last.items) - 1} items acknowledged, {len(last.items)} recorded",)


async def test_a_clear_in_the_middle_of_a_compaction_stays(scene: Scene) -> None:
    """The erased turns are neither lost nor there; the one behind the clear is."""

    async def clear_and_go_on() -> None:
        await scene.clear()
        await scene.append(2)

    await scene.append(1)
    scene.meanwhile = clear_and_go_on
    await scene.fold()

    account = audit(await scene.evidence())

    assert account.erased == {"w1-1"}
    assert account.verbatim == {"w1-2"}
    assert not account.undone | account.lost
    assert account.gaps == ()


@pytest.mark.parametrize("opened", [True, False])
async def test_a_clear_that_a_rewrite_by_hand_undid_is_found(scene: Scene, opened: bool) -> None:
    await scene.append(1)
    scene.meanwhile = scene.clear
    await scene.fold_by_hand()

    account = audit(await scene.evidence(opened=opened))

    assert account.undone == {2}
    assert account.erased == {"w1-1"}
