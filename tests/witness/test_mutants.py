"""Each known wrong store fails the test that is there for it, and the real one passes it.

The tests are those of the other folders, called as functions: the smallest one for each mutant.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from cas_session import SessionStore, Version
from cas_session.driver import Driver
from tests.conformance import (
    test_conflicts,
    test_erasure,
    test_groups,
    test_prefix,
    test_prune,
    test_races,
    test_write_table,
)
from tests.conformance.database import Database
from tests.conformance.writes import clear, operations, texts
from tests.drivers import test_sqlite_group
from tests.drivers.postgres_proxy import Proxy
from tests.session import test_unknown_outcomes
from tests.session.items import said
from tests.session.stores import lose_answer, patched_store
from tests.witness import mutants
from tests.witness.checker import Violation, check
from tests.witness.cuts import CuttingProxy
from tests.witness.history import History
from tests.witness.mutants import Mutant
from tests.witness.stress import SESSIONS, Figures, Workers, finals, quiet, running

FAILURES = (AssertionError, pytest.fail.Exception)


@dataclass(frozen=True)
class Scene:
    """What the tests of the other folders get from their fixtures."""

    driver: Driver
    other: Driver
    database: Database
    s: str


Test = Callable[[Scene], Awaitable[Any]]


async def _lost_answer(scene: Scene) -> None:
    """An append whose answer is lost lands once."""
    async with patched_store(scene.database.url) as patched:
        await test_unknown_outcomes.test_a_write_whose_answer_or_request_is_lost_lands_once(
            patched, test_unknown_outcomes.WRITES["append"], (lose_answer,)
        )


async def _delayed_request(scene: Scene) -> None:
    """A write whose connection is cut while it waits for the row lock is known when it is answered.

    It is not there when one looks, and lands later.
    """
    async with Proxy(scene.database.url) as proxy, SessionStore(proxy.url) as store:
        session = store.session(scene.s)
        await session.append(said("a"))
        async with scene.database.held(scene.s) as waiting:
            call = asyncio.create_task(session.append(said("b")))
            await waiting(1)
            proxy.cut()
            again = asyncio.ensure_future(waiting(2))
            await asyncio.wait({call, again}, return_when=asyncio.FIRST_COMPLETED)
            again.cancel()
        (told,) = await asyncio.gather(call, return_exceptions=True)
        await session.append(said("behind"))  # waits for whoever holds the row

    assert isinstance(told, Version)
    assert len(await texts(scene.driver, scene.s)) == 3
    assert len(await operations(scene.driver, scene.s)) == told + 1


TESTS: dict[str, Test] = {
    "blind clear by DELETE": lambda scene: (
        test_races.test_an_append_that_landed_while_a_clear_waited_is_cleared(
            scene.driver, scene.other, scene.database, scene.s, cast(type, clear)
        )
    ),
    "look-up instead of re-send": _delayed_request,
    "new op_id on retry": _lost_answer,
    "clear without epoch": lambda scene: (
        test_prefix.test_a_prefix_planned_before_a_rewrite_conflicts_and_changes_nothing(
            scene.driver, scene.s, "clear"
        )
    ),
    "version reuse after delete": lambda scene: (
        test_conflicts.test_a_version_from_before_a_delete_never_matches_again(
            scene.driver, scene.s, "append"
        )
    ),
    "version read after items": lambda scene: (
        test_races.test_a_reader_beside_writers_sees_whole_versions_only(scene.driver, scene.other, scene.s)
    ),
    "answers before COMMIT": lambda scene: test_sqlite_group.test_nobody_is_answered_before_commit_returned(
        scene.driver  # type: ignore[arg-type]
    ),
    "23505 of a group read as landed": lambda scene: (
        test_groups.test_a_group_with_a_member_that_had_landed_is_refused_whole(scene.driver, scene.s, 0)
    ),
    "removal by gen <> base_gen": lambda scene: test_erasure.test_remove_erased_leaves_what_was_written_since(
        scene.driver, scene.database, scene.s, clear
    ),
    "prune by gen <> base_gen": lambda scene: (
        test_prune.test_the_output_of_a_later_compaction_below_an_old_base_seq_stays(
            scene.driver, scene.database, scene.s
        )
    ),
    "base_seq that goes back": lambda scene: (
        test_prefix.test_a_prefix_that_ends_below_base_seq_or_behind_the_history_is_refused(
            scene.driver, scene.s, 1
        )
    ),
    "next_seq lowered by pop": lambda scene: test_write_table.test_a_pop_never_gives_its_seq_to_another_item(
        scene.driver, scene.s
    ),
}

MUTANTS = [
    *(("postgres", mutant) for mutant in (*mutants.POSTGRES, mutants.NEW_OP_ID, mutants.LOOK_UP)),
    *(("sqlite", mutant) for mutant in (*mutants.SQLITE, mutants.NEW_OP_ID)),
]
EACH = pytest.mark.parametrize(
    ("database", "mutant"),
    MUTANTS,
    indirect=["database"],
    ids=[f"{kind}: {mutant.name}" for kind, mutant in MUTANTS],
)


@pytest.fixture
def scene(driver: Driver, other: Driver, database: Database, s: str) -> Scene:
    return Scene(driver, other, database, s)


@EACH
async def test_the_real_store_passes(scene: Scene, mutant: Mutant) -> None:
    await TESTS[mutant.name](scene)


@EACH
async def test_the_wrong_store_fails(scene: Scene, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)

    with pytest.raises(FAILURES):
        await TESTS[mutant.name](scene)


WITNESSED = [
    ("postgres", "blind clear by DELETE"),
    ("postgres", "clear without epoch"),
    ("postgres", "version reuse after delete"),
    ("postgres", "version read after items"),
    ("postgres", "new op_id on retry"),
    ("sqlite", "clear without epoch"),
    ("sqlite", "version reuse after delete"),
    ("sqlite", "version read after items"),
    ("sqlite", "removal by gen <> base_gen"),
]
"""Those that writers at random soon run into. For the others they would need luck, or a caller that sends
what the store never does."""
ROUNDS, CALLS = 10, 600


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), WITNESSED)
async def test_the_version_witness_finds(
    request: pytest.FixtureRequest, tmp_path: Path, figures: Figures, kind: str, name: str
) -> None:
    """Four processes with the wrong store on one database, for some rounds at most."""
    broken: list[Violation] = []
    for at in range(ROUNDS):
        url, folder = request.getfixturevalue(f"fresh_{kind}"), tmp_path / str(at)
        folder.mkdir()
        broken = await _witnessed(url, folder, figures.seed + at, name)
        if broken:
            break

    assert broken


async def _witnessed(url: str, folder: Path, seed: int, mutant: str) -> list[Violation]:
    """What the checker says of processes that use a wrong store."""
    async with contextlib.AsyncExitStack() as stack:
        ours = url
        if not url.startswith("sqlite"):
            proxy = await stack.enter_async_context(CuttingProxy(url, seed))
            proxy.rate, ours = 0.02, proxy.url
        names = tuple(f"{session}-{seed}" for session in SESSIONS)
        workers = await stack.enter_async_context(
            running(Workers(ours, folder, seed, sessions=names, mutant=mutant))
        )
        await workers.until(CALLS)
        await workers.stop()
    if not url.startswith("sqlite"):
        await quiet(url)
    return check(History(tuple(workers.recorded()), tuple(await finals(url, names))))


def test_every_mutant_of_the_design_is_there() -> None:
    assert {mutant.name for _, mutant in MUTANTS} == set(TESTS)
