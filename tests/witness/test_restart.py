"""Postgres crashes and comes back under load: nothing acknowledged is lost, and every writer goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cas_session import migrate
from tests import postgres
from tests.witness.history import Call, History
from tests.witness.stress import Clock, Figures, Workers, finals, judge, quiet, running

PATIENCE_S = 120.0  # of the writers: longer than any restart, so that each of their calls has an outcome


@pytest.fixture
def server() -> Iterator[postgres.EmbeddedServer]:
    """A server that keeps what it acknowledged as one in production does."""
    try:
        with postgres.EmbeddedServer(fsync="on", full_page_writes="on") as server:
            yield server
    except postgres.PostgresMissingError as error:
        missing = f"no Postgres for the tests: {error}"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)


def restart(server: postgres.EmbeddedServer) -> None:
    """As ``pg_ctl -m immediate restart``: every backend ends at once, and recovery reads the log."""
    os.kill(server.pid, signal.SIGQUIT)
    server.stop()
    server.start()


@pytest.mark.parametrize(("restarts", "calls"), [(1, 600), pytest.param(5, 5_000, marks=pytest.mark.slow)])
async def test_writers_outlive_a_server_that_crashes_and_comes_back(
    server: postgres.EmbeddedServer, tmp_path: Path, figures: Figures, restarts: int, calls: int
) -> None:
    clock = Clock()
    with postgres.new_database(server.url) as url:
        await migrate.run(url, migrate.upgrade)
        async with running(Workers(url, tmp_path, figures.seed, patience_s=PATIENCE_S)) as workers:
            for at in range(1, restarts + 1):
                await workers.until(at * calls // (restarts + 1))
                await asyncio.to_thread(restart, server)
                figures.disturbances["crashes of the server"] += 1
            await workers.until(calls)
            await workers.until_each(10)
            codes = await workers.stop()
        await quiet(url)
        figures.seconds = clock.seconds
        history = History(tuple(workers.recorded()), tuple(await finals(url)))
    judge(history, figures, tmp_path)
    print(figures)

    assert codes == [0] * 4
    assert [call for call in history.calls if _is_open(call)] == []


def _is_open(call: Call) -> bool:
    """Whether the caller was left without an answer. A compaction that did not land has its report."""
    if call.error == "cancelled":
        return False
    return call.outcome == "unknown" or (call.outcome == "did not land" and call.verb != "compact")
