"""Twelve workers that start together on a database without tables, and a worker that forgot to close."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from cas_session import SessionStore
from tests.session.opener import OPENERS

ROOT = Path(__file__).parents[2]
FORGETFUL = """
import asyncio, sys
from cas_session import SessionStore

async def main():
    store = await SessionStore(sys.argv[1], migrate=True).open()
    await store.session("s").append([{"n": 1}])

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables; for SQLite not even a file."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new.db'}"
    url: str = request.getfixturevalue("empty_postgres")
    return url


async def test_twelve_openers_in_three_processes_make_the_tables_once(empty_url: str) -> None:
    """One of them is cancelled on its way; the others do not notice."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.session.opener", empty_url, name, "yes" if name == "b" else "no"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for name in "abc"
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    told = await asyncio.gather(*(process.communicate(b"\n") for process in processes))

    assert [process.returncode for process in processes] == [0, 0, 0], [errors for _, errors in told]
    async with SessionStore(empty_url) as store:
        written = {info.session_id for info in await store.list_sessions()}
    everybody = {f"{name}-{n}" for name in "abc" for n in range(OPENERS)}
    assert written | {"b-0"} == everybody


async def test_a_process_that_forgot_to_close_still_ends(empty_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", FORGETFUL, empty_url, cwd=ROOT
    )
    async with asyncio.timeout(60):
        assert await process.wait() == 0

    async with SessionStore(empty_url) as store:
        assert (await store.session("s").snapshot()).items == [{"n": 1}]
