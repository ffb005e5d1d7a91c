"""Four processes write and read at random on one database that is disturbed: no promise is broken.

The few calls of the fast variants find coarse mistakes; the slow ones have the odds for rare ones. A failure
says its seed and keeps the history: ``check(History.load(path))`` judges it again.
"""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from tests.witness.cuts import CuttingProxy
from tests.witness.history import History
from tests.witness.stress import (
    TERMINATE_ONE,
    Clock,
    Figures,
    Workers,
    again_and_again,
    finals,
    judge,
    meanwhile,
    quiet,
    running,
)

CUT_RATE = 0.015  # of the messages; a call has two and more
BACKENDS_S = 0.1  # between two backends that are terminated

# As many processes are killed on a slow machine as on a fast one.
SIZES = pytest.mark.parametrize(
    ("calls", "calls_a_kill"), [(1_000, 200), pytest.param(20_000, 600, marks=pytest.mark.slow)]
)


@SIZES
async def test_on_postgres_with_cut_connections_terminated_backends_and_killed_processes(
    fresh_postgres: str, tmp_path: Path, figures: Figures, calls: int, calls_a_kill: int
) -> None:
    clock, seed = Clock(), figures.seed
    admin = await asyncpg.connect(fresh_postgres)

    async def terminate() -> None:
        figures.disturbances["backends terminated"] += bool(await admin.fetchval(TERMINATE_ONE))

    async with (
        CuttingProxy(fresh_postgres, seed) as proxy,
        running(Workers(proxy.url, tmp_path, seed)) as workers,
    ):
        proxy.rate = CUT_RATE
        async with meanwhile(again_and_again(BACKENDS_S, seed, terminate), workers.are_killed(calls_a_kill)):
            await workers.until(calls)
        proxy.rate = 0
        codes = await workers.stop()
    await admin.close()
    await quiet(fresh_postgres)
    figures.seconds = clock.seconds
    figures.disturbances["processes killed"] = workers.kills
    figures.disturbances.update({f"cuts {moment}": number for moment, number in proxy.cuts.items()})
    judge(History(tuple(workers.recorded()), tuple(await finals(fresh_postgres))), figures, tmp_path)
    print(figures)

    assert codes == [0] * 4
    assert figures.calls >= calls
    assert figures.outcomes["landed"] > figures.calls / 4


@SIZES
async def test_on_sqlite_with_killed_processes(
    fresh_sqlite: str, tmp_path: Path, figures: Figures, calls: int, calls_a_kill: int
) -> None:
    clock, seed = Clock(), figures.seed
    await finals(fresh_sqlite)  # makes the tables
    async with running(Workers(fresh_sqlite, tmp_path, seed)) as workers:
        async with meanwhile(workers.are_killed(calls_a_kill)):
            await workers.until(calls)
        codes = await workers.stop()
    figures.seconds = clock.seconds
    figures.disturbances["processes killed"] = workers.kills
    judge(History(tuple(workers.recorded()), tuple(await finals(fresh_sqlite))), figures, tmp_path)
    print(figures)

    assert codes == [0] * 4
    assert figures.calls >= calls
    assert figures.outcomes["landed"] > figures.calls / 4
